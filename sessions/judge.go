package sessions

import "time"

// A Judge tells the leader's process which sessions have gone a whole lease
// without a renewal. It is local: it counts from when this process applied the
// renewals, by this process's clock, which every replica does so that each is
// ready to lead.
//
// Its word is not final. A judgement is proposed as a log entry that names the
// renewal it was judged by, and Roll.Expire refuses it if another has come since.
type Judge struct {
	// Stall is how late a look may be before the Judge takes it that its own
	// process was stalled: renewals may then be waiting to be applied, so every
	// session gets a full lease from that look.
	Stall time.Duration

	notes   map[uint64]note
	leading bool
	since   time.Time // no lease is counted from before
	looked  time.Time
}

type note struct {
	epoch, renewal uint64
	at             time.Time
}

// A Judgement is a finding to be proposed: the sessions of this process with a TTL
// of at most TTL have gone their lease without a renewal, if Renewal still is the
// last one.
type Judgement struct {
	Replica, Epoch, Renewal uint64
	TTL                     time.Duration
}

// Renewed notes that this process applied a renewal at now.
func (j *Judge) Renewed(replica, epoch, renewal uint64, now time.Time) {
	if j.notes == nil {
		j.notes = make(map[uint64]note)
	}
	j.notes[replica] = note{epoch, renewal, now}
}

// RenewedAt returns when this process applied the last renewal of a process.
func (j *Judge) RenewedAt(replica, epoch uint64) (at time.Time, ok bool) {
	n, ok := j.notes[replica]
	return n.at, ok && n.epoch == epoch
}

// Lead begins a term of leadership: every session gets a full lease from now.
func (j *Judge) Lead(now time.Time) {
	j.leading, j.since, j.looked = true, now, now
}

// Follow ends it: Look finds nothing until Lead is called again.
func (j *Judge) Follow() { j.leading = false }

// Look returns what is due at now, in the order of replica ids. It must be called
// more often than every Stall.
func (j *Judge) Look(now time.Time, roll *Roll) []Judgement {
	if !j.leading {
		return nil
	}
	if now.Sub(j.looked) > j.Stall {
		j.since = now
	}
	j.looked = now

	var due []Judgement
	for p := range roll.Processes() {
		from := j.since
		n, known := j.notes[p.Replica]
		if known && n.epoch == p.Epoch && n.renewal == p.Renewal && n.at.After(from) {
			from = n.at
		}
		if ttl, some := longestDue(p, now.Sub(from)); some {
			due = append(due, Judgement{p.Replica, p.Epoch, p.Renewal, ttl})
		}
	}
	return due
}

// longestDue returns the longest TTL among the sessions of p whose lease is over
// after idle, and whether there are any.
func longestDue(p *Process, idle time.Duration) (longest time.Duration, some bool) {
	for _, s := range p.sessions {
		if idle >= Lease(s.TTL) {
			longest, some = max(longest, s.TTL), true
		}
	}
	return longest, some
}
