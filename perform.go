package quorumlock

import (
	"fmt"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/sessions"
)

// perform acts on the effects of one entry. It runs in the engine's goroutine with
// the state machine's lock held, in log order, for every entry on every replica:
// this is how a call learns its outcome. It must not block.
func (n *Node) perform(effects []effect) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range effects {
		e := &effects[i]
		if e.kind == renewed {
			n.judge.Renewed(e.session.Replica, e.session.Epoch, e.n, n.clk.Now())
		}
		if e.kind == halted {
			n.halt()
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
			n.forgetSession(s, e.cause.err())
		}
	case granted:
		n.grant(n.claim(e), e.token)
	case queued:
		if h := n.claim(e); h != nil {
			h.queued = true
		}
	case refused:
		n.refuse(n.claim(e), e.cause)
	case released, gone, left:
		if h := n.claim(e); h != nil {
			n.forgetClaim(h)
		}
	}
}

func (n *Node) begun() {
	if !isClosed(n.booted) {
		close(n.booted)
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
		n.stream.settle(e.n)
	}
}

func errReplaced(self sessions.ID) error {
	return fmt.Errorf("%w: another process has opened replica %d after this one (epoch %d): was the directory copied?",
		ErrDirectory, self.Replica, self.Epoch)
}

func (n *Node) halt() {
	n.failLocked(fmt.Errorf("%w: the log holds an entry of a newer version: upgrade this replica", ErrFormat))
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
func (n *Node) grant(h *Hold, token fencing.Token) {
	if h == nil || h.abandoned || h.answered {
		return
	}
	h.token = token
	h.tell()
}

func (n *Node) refuse(h *Hold, why cause) {
	if h == nil {
		return
	}
	n.forgetClaim(h)
	if h.abandoned || h.answered {
		return
	}
	h.refusal = why.err()
	if why == causeHeld {
		h.refusal = n.machine.fsm.heldError(h)
	}
	h.tell()
}

// reconcile settles what is under way from the state itself, after a snapshot took
// the place of entries whose effects were not seen here. It runs with the state
// machine's lock held.
func (n *Node) reconcile() {
	n.mu.Lock()
	defer n.mu.Unlock()
	f := n.machine.fsm
	for p := range f.roll.Processes() {
		n.judge.Renewed(p.Replica, p.Epoch, p.Renewal, n.clk.Now())
	}
	p := f.roll.Process(n.self.Replica, n.self.Epoch)
	if p == nil {
		if isClosed(n.booted) {
			n.failLocked(errReplaced(n.self))
		}
		return
	}
	n.begun()
	n.reconcileSessions(f, p)
	n.acknowledged(p.Renewal)
	for _, s := range n.sessions {
		for _, h := range s.claims {
			if h.batch != 0 && h.batch <= p.Batch {
				n.reconcileClaim(f, h)
			}
		}
	}
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

// reconcileClaim settles a claim whose batch was applied. What stands in no line is
// over: as its session lives and it was not cancelled, it was refused.
func (n *Node) reconcileClaim(f *lockFSM, h *Hold) {
	switch own := f.table.claim(h.session.id, h.name, h.seq); {
	case own == nil && h.granted():
		n.forgetClaim(h)
	case own == nil && h.wait:
		n.refuse(h, causeQueueFull)
	case own == nil:
		n.refuse(h, causeHeld)
	case own.Holds():
		n.grant(h, own.Token)
	default:
		h.queued = true
	}
}
