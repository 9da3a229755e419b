package quorumlock

import (
	"slices"
	"strings"

	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/queue"
	"github.com/quorumlock/quorumlock/sessions"
)

// take is acquire in any mode, on any number of names, with any terms.
func (f *lockFSM) take(id sessions.ID, at int64, c *wire.Command) {
	e := effect{kind: refused, session: id, hold: c.Hold, name: c.More.Names[0]}
	switch {
	case f.table.member(id) == 0:
		e.cause = causeSession
	case !f.roll.Number(id, c.Hold):
		e.cause = causeRepeated
	default:
		if e.cause = unfit(c); e.cause == 0 {
			f.enterAll(&e, at, c)
		}
	}
	if e.kind != 0 {
		f.emit(e)
	}
}

// unfit tells what is wrong with what is asked for, whoever holds what.
func unfit(c *wire.Command) cause {
	m, mode := c.More, queue.Mode(c.Mode)
	switch {
	case !mode.Valid(), len(m.Names) > 1 && mode != queue.Exclusive:
		return causeMode
	case mode != queue.Counted && (m.Permits > 0 || m.Of > 0):
		return causePermits
	case mode == queue.Counted && (m.Permits == 0 || m.Permits > m.Of || m.Of > wire.MaxPermits):
		return causePermits
	}
	return 0
}

// enterAll takes a place in the line of every name, and with it the locks if they
// can be had, or does nothing of it and says why in e.
func (f *lockFSM) enterAll(e *effect, at int64, c *wire.Command) {
	parts := make([]*queue.Claim, len(c.More.Names))
	spots := make([]spot, len(parts))
	for i, name := range c.More.Names {
		parts[i] = f.newClaim(e.session, at, c)
		spots[i] = f.table.seek(hashOf(name), name)
	}
	if plain := parts[0]; len(parts) == 1 && plain.Plain() && spots[0].line == nil {
		f.enterPlain(e, at, c)
		return
	}
	if i, why := f.obstacle(spots, parts[0], c); why != 0 {
		e.name, e.cause = c.More.Names[i], why
		return
	}
	for i, p := range parts {
		// One after the other: what makes a line of one name may move another.
		l := f.table.open(f.table.seek(spots[i].hash, c.More.Names[i]))
		if !l.InUse() {
			l.SetLimit(uint32(c.More.Of))
		}
		f.table.place(l, p)
	}
	if len(parts) > 1 {
		queue.Join(parts)
	}
	f.table.index(parts[0])
	e.kind = 0
	for _, p := range parts {
		if !p.Holds() {
			f.promote(p.Line(), at)
		}
	}
	for _, p := range parts {
		if !p.Holds() {
			f.emit(effect{kind: queued, session: p.Session, hold: p.Seq, name: p.Line().Name})
		}
	}
}

// enterPlain is enter for a take that asks for no more than an acquire.
func (f *lockFSM) enterPlain(e *effect, at int64, c *wire.Command) {
	plain := *c
	plain.Name = c.More.Names[0]
	plain.Lock = hashOf(plain.Name)
	if f.table.waits(e.session) >= c.More.MaxWaits {
		plain.Limit = 0
	}
	f.enter(e, at, &plain)
}

func (f *lockFSM) newClaim(id sessions.ID, at int64, c *wire.Command) *queue.Claim {
	m := c.More
	claim := &queue.Claim{Session: id, Seq: c.Hold, Mode: queue.Mode(c.Mode), At: at, Permits: uint32(m.Permits), Value: strings.Clone(m.Value)}
	terms := queue.Terms{MaxHold: termOf(m.MaxHold), MinHold: termOf(m.MinHold), Delay: termOf(m.Delay)}
	if terms != (queue.Terms{}) {
		claim.Terms = &terms
	}
	return claim
}

// obstacle tells which name cannot be had, and why, or 0 if all can, now or later.
func (f *lockFSM) obstacle(spots []spot, asked *queue.Claim, c *wire.Command) (which int, why cause) {
	wait := -1 // the first name that is not free
	for i := range spots {
		s := &spots[i]
		switch {
		case s.free():
			if f.table.full(s.page, len(spots)) {
				return i, causeQueueFull
			}
			continue
		case s.inUse() && s.counted() != (asked.Mode == queue.Counted):
			return i, causeMode
		case s.inUse() && s.counted() && uint64(s.line.Limit()) != c.More.Of:
			return i, causeLimit
		case s.grantable(asked):
			continue
		case c.Wait && s.waiting() >= min(c.Limit, wire.MaxWaiters):
			return i, causeQueueFull
		}
		if wait < 0 {
			wait = i
		}
	}
	switch {
	case wait < 0:
		return 0, 0
	case !c.Wait:
		return wait, causeHeld
	case uint64(len(spots)) > c.More.MaxWaits-min(c.More.MaxWaits, f.table.waits(asked.Session)):
		return wait, causeQueueFull
	}
	return 0, 0
}

// downgrade makes an exclusive hold a shared one. Nobody comes between.
func (f *lockFSM) downgrade(id sessions.ID, at int64, c *wire.Command) cause {
	own := f.ownLine(id, c)
	switch {
	case own == nil || !own.Holds():
		return causeGone
	case own.Mode == queue.Shared:
		return 0 // the same command came before
	case own.Mode != queue.Exclusive || len(own.Parts()) > 1:
		return causeMode
	}
	l := own.Line()
	f.table.touchLine(l)
	own.Downgrade()
	f.emit(effect{kind: downgraded, session: id, hold: own.Seq, name: l.Name, token: own.Token})
	f.promote(l, at)
	return 0
}

// resize changes how many permits a counted lock has. Who waits for more than that
// is refused.
func (f *lockFSM) resize(at int64, c *wire.Command) cause {
	s := f.table.seek(hashOf(c.Name), c.Name)
	switch {
	case c.More.Of == 0 || c.More.Of > wire.MaxPermits:
		return causePermits
	case !s.inUse():
		return causeGone
	case !s.counted():
		return causeMode
	}
	l := f.table.edit(s)
	l.SetLimit(uint32(c.More.Of))
	f.emit(effect{kind: resized, name: l.Name, n: c.More.Of})
	for w := range l.Waiters() {
		if w.Permits > l.Limit() {
			f.table.leave(w)
			f.table.unindex(w)
			f.emit(effect{kind: refused, session: w.Session, hold: w.Seq, name: l.Name, cause: causePermits, n: 1})
		}
	}
	f.promote(l, at)
	return 0
}

// publish changes the value of a hold.
func (f *lockFSM) publish(id sessions.ID, c *wire.Command) cause {
	own := f.ownLine(id, c)
	if own == nil || !own.Holds() {
		return causeGone
	}
	f.table.touchLine(own.Line())
	for _, p := range own.Parts() {
		f.table.touchLine(p.Line())
		p.Value = strings.Clone(c.More.Value)
		f.emit(effect{kind: published, session: id, hold: own.Seq, name: p.Line().Name, token: p.Token, mode: p.Mode})
	}
	f.table.settle(own.Line()) // without a value it may be a plain one
	return 0
}

// handOver ends a hold in favour of a session that waits for it, past those who
// have waited longer. If it waits no more, or the hold is not an exclusive one on one
// name, the hold ends all the same: its holder has given it up already.
func (f *lockFSM) handOver(id sessions.ID, at int64, c *wire.Command) cause {
	own := f.ownLine(id, c)
	if own == nil || !own.Holds() {
		return causeGone
	}
	why := causeMode
	if own.Mode == queue.Exclusive && !own.Joint() {
		why = f.prefer(own.Line(), c.More.Who)
	}
	f.release(own, at)
	return why
}

// prefer puts a session's first wait for nothing but this lock before all others.
func (f *lockFSM) prefer(l *queue.Line, who sessions.ID) cause {
	for w := range l.Waiters() {
		if w.Session == who && !w.Joint() {
			f.table.touchLine(l)
			l.Prefer(w)
			return 0
		}
	}
	return causeNoWaiter
}

// ownLine is own with a claim that is held alone put into a line.
func (f *lockFSM) ownLine(id sessions.ID, c *wire.Command) *queue.Claim {
	own, r := f.own(id, c)
	if r != 0 {
		name := f.table.nameAt(r)
		own = f.table.edit(f.table.seek(hashOf(name), name)).Alone()
	}
	return own
}

// answer tells the process that spoke what came of its call.
func (f *lockFSM) answer(id sessions.ID, c *wire.Command, why cause) {
	f.emit(effect{kind: answered, session: id, hold: c.More.Call, cause: why})
}

// revoke ends the hold of a name that has this token. Readers that share it are one
// generation: if one of them is to be refused by the stores, all are.
func (f *lockFSM) revoke(at int64, c *wire.Command) cause {
	s := f.table.seek(hashOf(c.Name), c.Name)
	if s.free() || s.slot >= 0 && f.table.page[s.page].records[s.slot].token != c.More.Token {
		return causeGone
	}
	l := f.table.edit(s)
	holders := slices.DeleteFunc(slices.Collect(l.Holders()), func(h *queue.Claim) bool { return h.Token != c.More.Token })
	if len(holders) == 0 {
		return causeGone
	}
	for _, h := range holders {
		f.lose(h, causeRevoked, because(c.More), at)
	}
	return 0
}

// evict ends a session over its owner's head. If nobody says so, it is its own
// process that could not renew it in time.
func (f *lockFSM) evict(at int64, c *wire.Command) cause {
	s := f.roll.Close(c.More.Who)
	if s == nil {
		return causeGone
	}
	why, note := causeRevoked, because(c.More)
	if c.More.By == "" {
		why, note = causeExpired, ""
	}
	f.end([]*sessions.Session{s}, why, note, at)
	return 0
}

// ask tells those who hold a lock that somebody would like it.
func (f *lockFSM) ask(c *wire.Command) cause {
	l := f.table.line(c.Name)
	if l == nil || l.Holding() == 0 {
		return causeGone
	}
	for h := range l.Holders() {
		if !h.Is(queue.Leaving) {
			f.emit(effect{kind: asked, session: h.Session, hold: h.Seq, name: c.Name, note: because(c.More)})
		}
	}
	return 0
}

// because packs who wants something and why into a note.
func because(m *wire.More) string { return m.By + "\x00" + m.Reason }
