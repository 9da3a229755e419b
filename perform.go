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
func (n *Node) perform(effects []effect) {
	if n.machine.fsm.watched {
		n.notice(effects)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stats.entered()
	for i := range effects {
		e := &effects[i]
		switch e.kind {
		case renewed:
			n.judge.Renewed(e.session.Replica, e.session.Epoch, e.n, n.clk.Now())
		case timed:
			n.agenda.begin(timeID{e.session, e.hold, e.what}, n.clk.Now().Add(time.Duration(e.n)*time.Millisecond))
		case untimed:
			n.agenda.end(timeID{e.session, e.hold, e.what})
		case halted:
			n.failLocked(n.machine.fsm.halted)
		case restored:
			n.restoredPart(e)
		case raised:
			n.log.Info("feature level raised", "level", e.n)
		case ended:
			n.stats.ended(e.cause)
		}
		if e.session.Replica == n.self.Replica && e.session.Epoch == n.self.Epoch {
			n.concerns(e)
		}
	}
}

// concerns acts on an effect of this process's own.
func (n *Node) concerns(e *effect) {
	switch e.kind {
	case booted:
		if e.cause != 0 {
			n.failLocked(errReplaced(n.self))
			return
		}
		n.begun()
	case renewed:
		n.acknowledged(e.n)
	case batch:
		n.judged(e)
	case opened:
		n.confirm(n.sessions[e.session.Seq])
	case ended:
		if s := n.sessions[e.session.Seq]; s != nil {
			n.forgetSession(s, e.err())
		}
	case granted:
		n.grant(n.claim(e), e.name, e.token)
	case queued:
		n.stands(n.claim(e))
	case refused:
		n.refuse(n.claim(e), e.name, e.cause)
	case lost, left:
		if h := n.claim(e); h != nil {
			if e.cause != 0 { // 0 for a wait that its caller gave up
				n.endClaim(h, e.err())
			}
			n.forgetClaim(h)
		}
	case released, gone, lingers:
		if h := n.claim(e); h != nil {
			n.forgetClaim(h)
		}
	case downgraded:
		if h := n.claim(e); h != nil {
			h.moreOf().mode = Shared
		}
	case asked:
		if h := n.claim(e); h != nil && h.granted() {
			by, reason, _ := strings.Cut(e.note, "\x00")
			h.ask(YieldRequest{By: by, Reason: reason})
		}
	case answered:
		n.calls.answer(e.hold, e.cause)
	}
}

func (n *Node) begun() {
	if !isClosed(n.booted) {
		close(n.booted)
	}
	n.settleReady()
}

func (n *Node) settleReady() {
	if isClosed(n.booted) && !isClosed(n.ready) && !n.awaits() {
		close(n.ready)
		n.log.Info("ready", "replica", n.self.Replica, "epoch", n.self.Epoch)
	}
}

func (n *Node) acknowledged(renewal uint64) {
	if n.pulse.ack(renewal) {
		for _, s := range n.sessions {
			n.extend(s)
		}
	}
}

// judged ends the sending of a batch that was applied, now or before. One that came
// too early is sent again by its loop. One of a life that is over means that the
// directory is open elsewhere too.
func (n *Node) judged(e *effect) {
	switch e.cause {
	case causeStranger:
		n.failLocked(errReplaced(n.self))
	case causeGap:
	default:
		n.stats.settled(n.stream.sent[e.n])
		n.stream.settle(e.n)
	}
}

func errReplaced(self sessions.ID) error {
	return fmt.Errorf("%w: another process has opened replica %d after this one (epoch %d): was the directory copied?",
		ErrDirectory, self.Replica, self.Epoch)
}

// confirm notes that the cluster has opened a session.
func (n *Node) confirm(s *Session) {
	if s == nil || s.state != sessionOpening {
		return
	}
	s.state = sessionOpen
	n.extend(s)
	close(s.settled)
	select {
	case n.pulse.wanted <- struct{}{}:
	default:
	}
}

// claim returns the claim that an effect is about, or nil.
func (n *Node) claim(e *effect) *Hold {
	if s := n.sessions[e.session.Seq]; s != nil {
		return s.claims[e.hold]
	}
	return nil
}

// grant hands a lock to the call that waits for it. If the call has gone, or its
// session was given up, then the cancel or the close that was sent takes the lock
// back, and it is not handed out.
func (n *Node) grant(h *Hold, name string, token fencing.Token) {
	if h == nil || h.abandoned || h.answered {
		return
	}
	if m := h.more.Load(); m != nil {
		if h.obtain(m, name, token) {
			n.hand(h, h.token)
		}
		return
	}
	n.hand(h, token)
}

// hand tells a call that it holds the lock.
func (n *Node) hand(h *Hold, token fencing.Token) {
	n.stats.leavesLine(h)
	n.stats.granted(h)
	h.token = token
	h.tell()
}

// stands notes that a claim stands in line.
func (n *Node) stands(h *Hold) {
	if h != nil {
		n.stats.queued(h)
		h.queued = true
	}
}

// refuse tells a call why it cannot have the lock: of several, the one named.
func (n *Node) refuse(h *Hold, name string, why cause) {
	if h == nil {
		return
	}
	n.forgetClaim(h)
	if h.abandoned || h.answered {
		return
	}
	n.stats.refused(why.label())
	switch f := n.machine.fsm; why {
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
func (n *Node) reconcile() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stats.entered()
	f := n.machine.fsm
	f.watched = n.changes.watchers.Load() > 0
	if f.watched {
		n.changes.skip()
	}
	for p := range f.roll.Processes() {
		n.judge.Renewed(p.Replica, p.Epoch, p.Renewal, n.clk.Now())
	}
	n.agenda.keep(f.times, n.clk.Now())
	p := f.roll.Process(n.self.Replica, n.self.Epoch)
	if p == nil { // this life has not begun yet
		if isClosed(n.booted) {
			n.failLocked(errReplaced(n.self))
		}
		return
	}
	n.begun()
	n.reconcileSessions(f, p)
	n.acknowledged(p.Renewal)
	for _, s := range n.sessions {
		for _, h := range slices.SortedFunc(maps.Values(s.claims), byNumber) {
			if h.batch != 0 && h.batch <= p.Batch {
				n.reconcileClaim(f, h)
			}
		}
	}
	n.calls.settle(p.Batch, func(c wire.Command) cause { return f.outcome(n.self, c) })
	for number := range n.stream.sent {
		if number <= p.Batch {
			n.stream.settle(number)
		}
	}
}

// reconcileSessions confirms the sessions that are on the roll. One that is not,
// although its opening was applied, is over.
func (n *Node) reconcileSessions(f *lockFSM, p *sessions.Process) {
	for _, s := range n.sessions {
		switch applied := s.batch != 0 && s.batch <= p.Batch; {
		case f.roll.Session(s.id) != nil:
			n.confirm(s)
		case applied:
			n.forgetSession(s, causeExpired.err())
		}
	}
}

func byNumber(a, b *Hold) int { return cmp.Compare(a.seq, b.seq) }

// reconcileClaim settles a claim whose batch was applied. What stands in no line is
// over. A hold was revoked, and who did that is lost, or held for too long. Of
// anything else nothing is left, and why is lost: it is asked for once more.
func (n *Node) reconcileClaim(f *lockFSM, h *Hold) {
	switch own := f.table.claim(h.session.id, h.name, h.seq); {
	case own == nil && h.granted():
		if h.overdue() {
			h.lose(ErrMaxHold)
		}
		n.endClaim(h, &RevokedError{By: "unknown", Reason: "this replica fell behind and did not see it"})
		n.forgetClaim(h)
	case own == nil && (h.abandoned || h.answered):
		n.forgetClaim(h)
	case own == nil:
		n.claimAgain(h)
	case own.Holds():
		for _, p := range own.Parts() {
			name := h.name // a record's claim is in no line
			if p.Line() != nil {
				name = p.Line().Name
			}
			n.grant(h, name, p.Token)
		}
		if own.Mode != Exclusive {
			h.moreOf().mode = own.Mode // it may have been downgraded
		}
	default:
		n.stands(h)
	}
}
