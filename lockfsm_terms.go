package quorumlock

import (
	"time"

	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/queue"
	"github.com/quorumlock/quorumlock/sessions"
)

// Some rules speak of time, and the state machine has no clock. It keeps which
// times run, and tells when one begins and ends to run; each replica notes on its
// own monotonic clock when it applied that; and once a time is over for the leader,
// the leader says so in an entry. That entry counts only if the time still runs. So
// no time is ever cut short, whoever says it and however late: whoever counted
// began to count after the moment from which the time is promised.

// A timeID says which time. That of a lock delay has no session, and the bar's
// number for a hold.
type timeID struct {
	who  sessions.ID
	hold uint64
	what timeKind
}

// A timeKind is what a time is for. The numbers are part of the durable format.
type timeKind uint8

const (
	maxHold   timeKind = 1
	minHold   timeKind = 2
	lockDelay timeKind = 3
)

func (k timeKind) String() string {
	names := [...]string{maxHold: "max hold", minHold: "min hold", lockDelay: "lock delay"}
	if int(k) < len(names) {
		return names[k]
	}
	return "time?"
}

// A runningTime is a time that runs for a claim, or a line.
type runningTime struct {
	d     time.Duration
	claim *queue.Claim
	line  *queue.Line
}

// run lets a time run.
func (f *lockFSM) run(id timeID, t runningTime) {
	f.times[id] = t
	f.emit(effect{kind: timed, session: id.who, hold: id.hold, what: id.what, n: uint64(t.d / time.Millisecond)})
}

func (f *lockFSM) halt(id timeID) {
	if _, ok := f.times[id]; ok {
		delete(f.times, id)
		f.emit(effect{kind: untimed, session: id.who, hold: id.hold, what: id.what})
	}
}

// stop ends the times that run for a claim.
func (f *lockFSM) stop(c *queue.Claim) {
	if c.Terms != nil {
		f.halt(timeID{c.Session, c.Seq, maxHold})
		f.halt(timeID{c.Session, c.Seq, minHold})
	}
}

// tooSoon reports whether a hold may not be over yet although its holder is done.
func (f *lockFSM) tooSoon(c *queue.Claim) bool {
	return c.Holds() && c.Terms != nil && c.Terms.MinHold > 0 && !c.Is(queue.Matured)
}

// linger keeps a hold that was released too soon. Nothing ties it to its session
// any more.
func (f *lockFSM) linger(c *queue.Claim) {
	f.halt(timeID{c.Session, c.Seq, maxHold})
	for _, p := range c.Parts() {
		f.table.touchLine(p.Line())
		p.State |= queue.Leaving
		f.emit(effect{kind: lingers, session: p.Session, hold: p.Seq, name: p.Line().Name, token: p.Token})
	}
}

// bar keeps the lock of a hold that was lost from being granted for as long as the
// hold asked for: its holder may not know yet.
func (f *lockFSM) bar(c *queue.Claim) {
	if !c.Holds() || c.Terms == nil || c.Terms.Delay == 0 {
		return
	}
	for _, p := range c.Parts() {
		f.token++ // a number that no other bar has
		b := queue.Bar{ID: uint64(f.token), For: c.Terms.Delay}
		f.table.touchLine(p.Line())
		p.Line().Bar(b)
		f.run(timeID{hold: b.ID, what: lockDelay}, runningTime{line: p.Line(), d: b.For})
	}
}

// due acts on the end of a time, if it still runs.
func (f *lockFSM) due(id timeID, at int64) {
	t, ok := f.times[id]
	if !ok {
		return
	}
	switch c := t.claim; id.what {
	case maxHold:
		f.lose(c, causeMaxHold, "", at)
	case minHold:
		if c.Is(queue.Leaving) {
			f.part(c, released, left, 0, "", at)
			return
		}
		f.halt(id)
		for _, p := range c.Parts() {
			f.table.touchLine(p.Line())
			p.State |= queue.Matured
		}
	case lockDelay:
		f.halt(id)
		f.table.touchLine(t.line)
		t.line.Lift(id.hold)
		f.promote(t.line, at)
	}
}

// lose ends a hold without its holder's doing.
func (f *lockFSM) lose(c *queue.Claim, why cause, note string, at int64) {
	f.bar(c)
	f.part(c, lost, left, why, note, at)
}

// start notes that a holder knows of its hold: the longest time that it asked for
// runs from here.
func (f *lockFSM) start(id sessions.ID, c *wire.Command) {
	own, _ := f.own(id, c)
	if own == nil || !own.Holds() || own.Terms == nil || own.Terms.MaxHold == 0 || own.Is(queue.Started) {
		return
	}
	for _, p := range own.Parts() {
		f.table.touchLine(p.Line())
		p.State |= queue.Started
	}
	f.run(timeID{own.Session, own.Seq, maxHold}, runningTime{claim: own, d: own.Terms.MaxHold})
}

// own returns the claim in a line that a command of its session names. If it is in
// no line but held alone, it returns where.
func (f *lockFSM) own(id sessions.ID, c *wire.Command) (*queue.Claim, ref) {
	m := f.table.member(id)
	if m == 0 {
		return nil, 0
	}
	if r := f.table.held(m, c.Lock, c.Hold); r != 0 {
		return nil, r
	}
	if own := f.table.members[m].claims[c.Hold]; own != nil && hashOf(own.Line().Name) == c.Lock {
		return own, 0
	}
	return nil, 0
}

func termOf(ms uint64) time.Duration {
	return time.Duration(min(ms, uint64(wire.MaxTerm/time.Millisecond))) * time.Millisecond
}
