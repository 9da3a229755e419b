package sessions

import (
	"iter"
	"maps"
	"slices"
	"time"
)

// A Session is one entry of the roll.
type Session struct {
	ID       ID
	TTL      time.Duration
	Owner    string // for display; decides nothing
	OpenedAt int64  // Unix milliseconds by its process's wall clock; for display
}

// A Process is one life of a replica's process, and what the cluster remembers of
// it. It stays on the roll after its sessions have ended, until the replica's next
// life takes its place: there are never more of them than replicas.
type Process struct {
	Replica uint64
	Epoch   uint64
	// Renewal is the number of the last renewal applied. Renewals are numbered
	// by their process and may arrive late or twice; only a higher one counts.
	Renewal uint64
	// Batch is the number of the last batch applied. Batches are numbered from 1
	// without a gap and applied in that order, so this one number is all the
	// memory it takes to apply each of them once.
	Batch uint64
	// Claimed is the number of the last acquisition of the process. They are
	// numbered in the order in which they are asked for.
	Claimed uint64

	sessions map[uint64]*Session
}

// Sessions yields the process's sessions in the order in which they were opened.
func (p *Process) Sessions() iter.Seq[*Session] {
	return func(yield func(*Session) bool) {
		for _, seq := range slices.Sorted(maps.Keys(p.sessions)) {
			if !yield(p.sessions[seq]) {
				return
			}
		}
	}
}

// Len returns how many sessions the process has.
func (p *Process) Len() int { return len(p.sessions) }

// A Roll tells who is alive. It is a pure value of the log: equal logs give equal
// rolls. The zero Roll is empty and ready to use.
type Roll struct {
	processes map[uint64]*Process
}

// Processes yields every process in the order of replica ids.
func (r *Roll) Processes() iter.Seq[*Process] {
	return func(yield func(*Process) bool) {
		for _, id := range slices.Sorted(maps.Keys(r.processes)) {
			if !yield(r.processes[id]) {
				return
			}
		}
	}
}

// Process returns the life of the replica that has this epoch, or nil if that is
// not its present one.
func (r *Roll) Process(replica, epoch uint64) *Process {
	p := r.processes[replica]
	if p == nil || p.Epoch != epoch {
		return nil
	}
	return p
}

// Boot begins a new life of the replica's process and returns the sessions of its
// former life, which are thereby ended: only one process at a time can have the
// replica's directory open, so the former life is over. It reports false, and does
// nothing, for an epoch that is past; the present epoch is accepted again.
func (r *Roll) Boot(replica, epoch uint64) (ended []*Session, ok bool) {
	old := r.processes[replica]
	switch {
	case old != nil && epoch < old.Epoch:
		return nil, false
	case old != nil && epoch == old.Epoch:
		return nil, true
	case old != nil:
		ended = slices.Collect(old.Sessions())
	}
	r.put(&Process{Replica: replica, Epoch: epoch})
	return ended, true
}

func (r *Roll) put(p *Process) {
	if r.processes == nil {
		r.processes = make(map[uint64]*Process)
	}
	r.processes[p.Replica] = p
}

// Renew notes renewal n of a process and reports whether it is news: false for a
// life that is over and for a renewal no later than the last one.
func (r *Roll) Renew(replica, epoch, n uint64) bool {
	p := r.Process(replica, epoch)
	if p == nil || n <= p.Renewal {
		return false
	}
	p.Renewal = n
	return true
}

// A Verdict says what to do with a batch.
type Verdict uint8

const (
	Fresh     Verdict = iota + 1 // it is the next one: apply it
	Duplicate                    // it was applied before: do nothing
	Gap                          // an earlier one is missing: do nothing, its process sends it again
	Stranger                     // its process's life is over or has not begun: do nothing
)

func (v Verdict) String() string {
	switch v {
	case Fresh:
		return "fresh"
	case Duplicate:
		return "duplicate"
	case Gap:
		return "gap"
	case Stranger:
		return "stranger"
	}
	return "verdict?"
}

// Admit judges the batch with number n of a process and, if it is Fresh, notes
// that it was applied. This is the server's half of an exactly-once session as in
// section 6.3 of Ongaro's thesis on Raft, with numbers so strictly in order that
// no answer has to be kept.
func (r *Roll) Admit(replica, epoch, n uint64) Verdict {
	p := r.Process(replica, epoch)
	switch {
	case p == nil:
		return Stranger
	case n <= p.Batch:
		return Duplicate
	case n > p.Batch+1:
		return Gap
	}
	p.Batch = n
	return Fresh
}

// Number notes acquisition n of a live session's process and reports whether it is
// a new one: numbers only grow.
func (r *Roll) Number(id ID, n uint64) bool {
	p := r.Process(id.Replica, id.Epoch)
	if p == nil || n <= p.Claimed {
		return false
	}
	p.Claimed = n
	return true
}

// Open puts a session on the roll and reports whether it is on it: false when its
// process's life is over.
func (r *Roll) Open(s Session) bool {
	p := r.Process(s.ID.Replica, s.ID.Epoch)
	if p == nil {
		return false
	}
	if p.sessions == nil {
		p.sessions = make(map[uint64]*Session)
	}
	p.sessions[s.ID.Seq] = &s
	return true
}

// Session returns a live session, or nil.
func (r *Roll) Session(id ID) *Session {
	p := r.Process(id.Replica, id.Epoch)
	if p == nil {
		return nil
	}
	return p.sessions[id.Seq]
}

// ShortestTTL returns the shortest TTL of all sessions, or 0 if there is none.
func (r *Roll) ShortestTTL() (shortest time.Duration) {
	for _, p := range r.processes {
		for _, s := range p.sessions {
			if shortest == 0 || s.TTL < shortest {
				shortest = s.TTL
			}
		}
	}
	return shortest
}

// LongestTTL returns the longest TTL of all sessions, or 0 if there is none.
func (r *Roll) LongestTTL() (longest time.Duration) {
	for _, p := range r.processes {
		for _, s := range p.sessions {
			longest = max(longest, s.TTL)
		}
	}
	return longest
}

// Close takes a session off the roll. It returns nil if it is not on it.
func (r *Roll) Close(id ID) *Session {
	s := r.Session(id)
	if s != nil {
		delete(r.processes[id.Replica].sessions, id.Seq)
	}
	return s
}

// Expire takes every session of a process whose TTL is at most ttl off the roll,
// on the condition that renewal is still the process's last: whoever judged it by
// an older one judged wrongly, and nothing happens. It returns what it took.
func (r *Roll) Expire(replica, epoch, renewal uint64, ttl time.Duration) []*Session {
	p := r.Process(replica, epoch)
	if p == nil || p.Renewal != renewal {
		return nil
	}
	var ended []*Session
	for s := range p.Sessions() {
		if s.TTL <= ttl {
			ended = append(ended, s)
			delete(p.sessions, s.ID.Seq)
		}
	}
	return ended
}

// Restore puts a process on the roll as a snapshot has it, with no sessions yet.
// It reports false if the replica is on the roll already.
func (r *Roll) Restore(p Process) bool {
	if r.processes[p.Replica] != nil {
		return false
	}
	p.sessions = nil
	r.put(&p)
	return true
}
