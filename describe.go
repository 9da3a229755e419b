package quorumlock

import (
	"slices"
	"strings"
	"time"

	"github.com/quorumlock/quorumlock/queue"
	"github.com/quorumlock/quorumlock/sessions"
)

// describe shows a lock as the state has it, with the times as this replica counts
// them. The state machine's lock is held.
func (g *group) describe(f *lockFSM, l *queue.Line) LockInfo {
	info := f.describe(l)
	g.n.mu.Lock()
	defer g.n.mu.Unlock()
	at := func(id timeID) (until time.Time) {
		if until, ok := g.agenda.when(id); ok {
			return until.Round(0)
		}
		return time.Time{}
	}
	for _, b := range l.Bars() {
		if until := at(timeID{hold: b.ID, what: lockDelay}); until.After(info.DelayedUntil) {
			info.DelayedUntil = until
		}
	}
	i := 0
	for c := range l.Holders() {
		h := &info.Holders[i]
		i++
		h.HeldUntil = at(timeID{c.Session, c.Seq, maxHold})
		h.KeptUntil = at(timeID{c.Session, c.Seq, minHold})
		if s := f.roll.Session(c.Session); s != nil {
			if renewed, ok := g.judge.RenewedAt(c.Session.Replica, c.Session.Epoch); ok {
				h.LeaseUntil = renewed.Add(sessions.Lease(s.TTL)).Round(0)
			}
		}
	}
	return info
}

func (f *lockFSM) describe(l *queue.Line) LockInfo {
	info := LockInfo{Name: strings.Clone(l.Name), Mode: modeOf(l), Limit: int(l.Limit()), Taken: int(l.Taken()), Holders: f.holders(l)}
	for c := range l.Waiters() {
		info.Waiters = append(info.Waiters, Waiter{
			Session: c.Session, Hold: c.Seq, Owner: f.owner(c.Session), Replica: c.Session.Replica, Mode: c.Mode,
			Permits: int(c.Permits), Value: strings.Clone(c.Value), Names: namesOf(c), Since: time.UnixMilli(c.At),
		})
	}
	return info
}

func (f *lockFSM) holders(l *queue.Line) (all []Holder) {
	for c := range l.Holders() {
		h := Holder{
			Session: c.Session, Hold: c.Seq, Owner: f.owner(c.Session), Replica: c.Session.Replica, Mode: c.Mode,
			Token: c.Token, Value: strings.Clone(c.Value), Names: namesOf(c), AcquiredAt: time.UnixMilli(c.At), Released: c.Is(queue.Leaving),
		}
		h.Slots = intsOf(c.Slots)
		if t := c.Terms; t != nil {
			h.MaxHold, h.MinHold, h.LockDelay = t.MaxHold, t.MinHold, t.Delay
		}
		all = append(all, h)
	}
	return all
}

// modeOf returns the mode of a line's holders, or of who waits first.
func modeOf(l *queue.Line) (m Mode) {
	for c := range l.Holders() {
		return c.Mode
	}
	for c := range l.Waiters() {
		return c.Mode
	}
	return 0
}

// namesOf returns the names of an acquisition that has several.
func namesOf(c *queue.Claim) (names []string) {
	if !c.Joint() {
		return nil
	}
	for _, p := range c.Parts() {
		names = append(names, strings.Clone(p.Line().Name))
	}
	return names
}

// heldError tells why a name that is asked for cannot be had now. It does not look at
// those who wait: whoever is refused a long line would cost as much as the line is long.
func (f *lockFSM) heldError(h *Hold, name string) *HeldError {
	e := &HeldError{Name: strings.Clone(name)}
	own := f.table.claim(h.part.id, h.name, h.seq)
	if l := f.table.line(name); l != nil {
		e.Holders, e.Limit, e.Taken, e.Delayed = f.holders(l), int(l.Limit()), int(l.Taken()), len(l.Bars()) > 0
		e.Ahead = l.Waiting()
		if len(e.Holders) > 0 {
			e.Mode = e.Holders[0].Mode
		}
	}
	if own != nil {
		e.Ahead = 0
		for _, p := range own.Parts() {
			if l := p.Line(); l != nil && l.Name == name {
				e.Ahead = p.Ahead()
			}
		}
		// It may have been granted since its caller gave up: that is no other's hold.
		e.Holders = slices.DeleteFunc(e.Holders, func(x Holder) bool { return x.Session == own.Session && x.Hold == own.Seq })
	}
	return e
}

// modeError tells in which mode a name is in use.
func (f *lockFSM) modeError(h *Hold, name string) error {
	m, l := h.more.Load(), f.table.line(name)
	e := &ModeError{Name: strings.Clone(name), AskedMode: Exclusive}
	if m != nil {
		e.AskedMode, e.AskedLimit = m.mode, m.limit
	}
	if l == nil {
		return ErrMode
	}
	e.Mode, e.Limit = modeOf(l), int(l.Limit())
	return e
}

// firstBusy returns which of a wait's names is in its way: the first one that
// somebody else holds, or that others wait for before it.
func (f *lockFSM) firstBusy(h *Hold) string {
	own := f.table.claim(h.part.id, h.name, h.seq)
	if own == nil || !own.Joint() || own.Holds() {
		return h.name
	}
	for _, p := range own.Parts() {
		if l := p.Line(); l.Holding() > 0 || len(l.Bars()) > 0 || p.Ahead() > 0 {
			return l.Name
		}
	}
	return h.name
}

// publicOf returns the permits that a claim has, and its value.
func (f *lockFSM) publicOf(id sessions.ID, name string, hold uint64) ([]int, string) {
	if c := f.table.claim(id, name, hold); c != nil {
		return intsOf(c.Slots), strings.Clone(c.Value)
	}
	return nil, ""
}

func intsOf(slots []uint32) (ints []int) {
	for _, slot := range slots {
		ints = append(ints, int(slot))
	}
	return ints
}
