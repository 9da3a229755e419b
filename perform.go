package quorumlock

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/sessions"
)

// perform acts on the effects of one entry. It runs in the engine's goroutine with
// the state machine's lock held, in log order, for every entry on every replica:
// this is how a call learns its outcome. It must not block.
func (g *group) perform(effects []effect) {
	if g.machine.fsm.watched {
		g.notice(effects)
	}
	g.n.mu.Lock()
	defer g.n.mu.Unlock()
	g.n.stats.entered()
	for i := range effects {
		e := &effects[i]
		switch e.kind {
		case renewed:
			g.judge.Renewed(e.session.Replica, e.session.Epoch, e.n, g.n.clk.Now())
		case timed:
			g.agenda.begin(timeID{e.session, e.hold, e.what}, g.n.clk.Now().Add(time.Duration(e.n)*time.Millisecond))
		case untimed:
			g.agenda.end(timeID{e.session, e.hold, e.what})
		case halted:
			g.n.failLocked(g.machine.fsm.halted)
		case restored:
			g.restoredPart(e)
		case raised:
			g.n.log.Info("feature level raised", "level", e.n)
		case ended:
			g.n.stats.ended(e.cause)
		}
		if e.session.Replica == g.n.self.Replica && e.session.Epoch == g.n.self.Epoch {
			g.concerns(e)
		}
	}
}

// concerns acts on an effect of this process's own.
func (g *group) concerns(e *effect) {
	switch e.kind {
	case booted:
		if e.cause != 0 {
			g.n.failLocked(errReplaced(g.n.self))
			return
		}
		g.begun()
	case renewed:
		g.acknowledged(e.n)
	case batch:
		g.judged(e)
	case opened:
		g.confirm(g.parts[e.session.Seq])
	case ended:
		if p := g.parts[e.session.Seq]; p != nil {
			g.n.forgetPart(p, e.err())
		}
	case granted:
		g.grant(g.claim(e), e.name, e.token)
	case queued:
		g.stands(g.claim(e))
	case refused:
		g.refuse(g.claim(e), e.name, e.cause)
	case lost, left:
		if h := g.claim(e); h != nil {
			if e.cause != 0 { // 0 for a wait that its caller gave up
				g.n.endClaim(h, e.err())
			}
			g.n.forgetClaim(h)
		}
	case released, gone, lingers:
		if h := g.claim(e); h != nil {
			g.n.forgetClaim(h)
		}
	case downgraded:
		if h := g.claim(e); h != nil {
			h.moreOf().mode = Shared
		}
	case asked:
		if h := g.claim(e); h != nil && h.granted() {
			by, reason, _ := strings.Cut(e.note, "\x00")
			h.ask(YieldRequest{By: by, Reason: reason})
		}
	case answered:
		g.calls.answer(e.hold, e.cause)
	}
}

func (g *group) begun() {
	if !isClosed(g.booted) {
		close(g.booted)
	}
	g.settleReady()
}

// settleReady lets this process ask for something, once its life has begun and what was
// to be restored is there.
func (g *group) settleReady() {
	if isClosed(g.booted) && !isClosed(g.ready) && !g.awaits() {
		close(g.ready)
		if !g.stream.empty() {
			g.dispatch()
		}
		g.n.log.Info("ready", "replica", g.n.self.Replica, "epoch", g.n.self.Epoch)
	}
}

func (g *group) acknowledged(renewal uint64) {
	if g.pulse.ack(renewal) {
		for _, p := range g.parts {
			g.n.extend(p)
		}
	}
}

// judged ends the sending of a batch that was applied, now or before. One that came
// too early is sent again by its loop. One of a life that is over means that the
// directory is open elsewhere too.
func (g *group) judged(e *effect) {
	switch e.cause {
	case causeStranger:
		g.n.failLocked(errReplaced(g.n.self))
	case causeGap:
	default:
		g.n.stats.settled(g.stream.sent[e.n])
		g.stream.settle(e.n)
	}
}

func errReplaced(self sessions.ID) error {
	return fmt.Errorf("%w: another process has opened replica %d after this one (epoch %d): was the directory copied?",
		ErrDirectory, self.Replica, self.Epoch)
}

// confirm notes that the group has opened a session.
func (g *group) confirm(p *part) {
	if p == nil || p.opened || p.state == sessionOver {
		return
	}
	first := p.state == sessionOpening
	p.opened, p.state = true, sessionOpen
	g.n.extend(p)
	if first {
		close(p.settled)
	}
	nudge(g.n.wanted)
}

// claim returns the claim that an effect is about, or nil.
func (g *group) claim(e *effect) *Hold {
	if p := g.parts[e.session.Seq]; p != nil {
		return p.claims[e.hold]
	}
	return nil
}

// grant hands a lock to the call that waits for it. If the call has gone, or its
// session was given up, then the cancel or the close that was sent takes the lock
// back, and it is not handed out.
func (g *group) grant(h *Hold, name string, token fencing.Token) {
	if h == nil || h.abandoned || h.answered {
		return
	}
	if m := h.more.Load(); m != nil {
		if h.obtain(m, name, token) {
			g.hand(h, h.token)
		}
		return
	}
	g.hand(h, token)
}

// hand tells a call that it holds the lock.
func (g *group) hand(h *Hold, token fencing.Token) {
	g.n.stats.leavesLine(h)
	g.n.stats.granted(h)
	g.n.quotas.granted(h)
	h.token = token
	h.tell()
}

// stands notes that a claim stands in line. Of one whose call was told, since its session
// is over, nothing changes any more: see Hold.answer.
func (g *group) stands(h *Hold) {
	if h != nil && !h.answered {
		g.n.stats.queued(h)
		h.queued = true
	}
}

// refuse tells a call why it cannot have the lock: of several, the one named.
func (g *group) refuse(h *Hold, name string, why cause) {
	if h == nil {
		return
	}
	g.n.forgetClaim(h)
	if h.abandoned || h.answered {
		return
	}
	g.n.stats.refused(why.label())
	switch f := g.machine.fsm; why {
	case causeHeld:
		h.err = f.heldError(h, name)
	case causeMode, causeLimit:
		h.err = f.modeError(h, name)
	default:
		h.err = why.err()
	}
	h.tell()
}

// reconcile settles what is under way from the state itself, after a snapshot took
// the place of entries whose effects were not seen here. It runs with the state
// machine's lock held.
func (g *group) reconcile() {
	g.n.mu.Lock()
	defer g.n.mu.Unlock()
	g.n.stats.entered()
	f := g.machine.fsm
	f.watched = g.changes.watchers.Load() > 0
	if f.watched {
		g.changes.skip()
	}
	for p := range f.roll.Processes() {
		g.judge.Renewed(p.Replica, p.Epoch, p.Renewal, g.n.clk.Now())
	}
	g.agenda.keep(f.times, g.n.clk.Now())
	p := f.roll.Process(g.n.self.Replica, g.n.self.Epoch)
	if p == nil { // this life has not begun yet
		if isClosed(g.booted) {
			g.n.failLocked(errReplaced(g.n.self))
		}
		return
	}
	g.begun()
	g.pulse.ack(p.Renewal) // first, since the trust in a session that is confirmed counts from it
	g.reconcileSessions(f, p)
	for _, own := range g.parts {
		g.n.extend(own)
		for _, h := range slices.SortedFunc(maps.Values(own.claims), byNumber) {
			if h.batch != 0 && h.batch <= p.Batch {
				g.reconcileClaim(f, h)
			}
		}
	}
	g.calls.settle(p.Batch, func(c wire.Command) cause { return f.outcome(g.n.self, c) })
	for number := range g.stream.sent {
		if number <= p.Batch {
			g.stream.settle(number)
		}
	}
}

// reconcileSessions confirms the sessions that are on the roll. One that is not,
// although its opening was applied, is over.
func (g *group) reconcileSessions(f *lockFSM, p *sessions.Process) {
	for _, own := range g.parts {
		switch applied := own.batch != 0 && own.batch <= p.Batch; {
		case f.roll.Session(own.id) != nil:
			g.confirm(own)
		case applied:
			g.n.forgetPart(own, causeExpired.err())
		}
	}
}

func byNumber(a, b *Hold) int { return cmp.Compare(a.seq, b.seq) }

// reconcileClaim settles a claim whose batch was applied. What stands in no line is
// over. A hold was revoked, and who did that is lost, or held for too long. Of
// anything else nothing is left, and why is lost: it is asked for once more.
func (g *group) reconcileClaim(f *lockFSM, h *Hold) {
	switch own := f.table.claim(h.part.id, h.name, h.seq); {
	case own == nil && h.granted():
		if h.overdue() {
			h.lose(ErrMaxHold)
		}
		g.n.endClaim(h, &RevokedError{By: "unknown", Reason: "this replica fell behind and did not see it"})
		g.n.forgetClaim(h)
	case own == nil && (h.abandoned || h.answered):
		g.n.forgetClaim(h)
	case own == nil:
		g.claimAgain(h)
	case own.Holds():
		for _, p := range own.Parts() {
			name := h.name // a record's claim is in no line
			if p.Line() != nil {
				name = p.Line().Name
			}
			g.grant(h, name, p.Token)
		}
		if own.Mode != Exclusive {
			h.moreOf().mode = own.Mode // it may have been downgraded
		}
	default:
		g.stands(h)
	}
}
