package quorumlock

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/quorumlock/quorumlock/internal/wire"
)

func checkCall(ctx context.Context, name string) error {
	return errors.Join(checkCtx(ctx), checkName(name))
}

// AcquireAll takes the locks of several names at once, at most MaxNames, all of them
// exclusively. It takes its place in every line in one step, so two callers that
// want overlapping sets, in whatever order, cannot deadlock; it is granted all of
// them together, when it is first in every line. The one hold has a token for each
// name, and releases them together. Errors are those of Acquire, ErrNameTwice and
// ErrTooManyNames.
//
// Names of several groups (Options.Groups) are taken group by group, always in the
// same order: that cannot deadlock either, but what was had first is held while it
// waits for the rest. Once all are had it is one hold, lost as a whole. If something
// of it is lost before, all is given back and the error matches ErrLost.
func (n *Node) AcquireAll(ctx context.Context, names ...string) (*Hold, error) {
	return n.onOwnSession(ctx, names, true, nil)
}

// TryAcquireAll takes the locks of several names if all of them can be had at once,
// and otherwise none. Names of several groups are taken one group after the other, and
// given back if the rest cannot be had. See AcquireAll and TryAcquire.
func (n *Node) TryAcquireAll(ctx context.Context, names ...string) (*Hold, error) {
	return n.onOwnSession(ctx, names, false, nil)
}

// AcquireAll is Node.AcquireAll on this session.
func (s *Session) AcquireAll(ctx context.Context, names ...string) (*Hold, error) {
	return s.ask(ctx, names, true, nil)
}

// TryAcquireAll is Node.TryAcquireAll on this session.
func (s *Session) TryAcquireAll(ctx context.Context, names ...string) (*Hold, error) {
	return s.ask(ctx, names, false, nil)
}

func (n *Node) onOwnSession(ctx context.Context, names []string, wait bool, opts []AcquireOption) (*Hold, error) {
	r, err := n.checkRequest(ctx, names, opts)
	if err != nil {
		return nil, err
	}
	return n.traced(ctx, nil, r, wait)
}

func (s *Session) ask(ctx context.Context, names []string, wait bool, opts []AcquireOption) (*Hold, error) {
	r, err := s.n.checkRequest(ctx, names, opts)
	if err != nil {
		return nil, err
	}
	return s.n.traced(ctx, s, r, wait)
}

// A request is what an acquire asks for, once it was checked.
type request struct {
	name  string   // the only name, or the first
	names []string // all, if there are several
	terms terms
}

func (r *request) what() string {
	if len(r.names) == 0 {
		return strconv.Quote(r.name)
	}
	return fmt.Sprintf("%q", r.names)
}

func (n *Node) checkRequest(ctx context.Context, names []string, opts []AcquireOption) (request, error) {
	if len(names) == 1 {
		r := request{name: names[0], terms: termsOf(opts)}
		return r, errors.Join(checkCtx(ctx), checkName(r.name), r.terms.check(n.opts.ElectionTimeout))
	}
	sorted, err := checkNames(names)
	if err := errors.Join(checkCtx(ctx), err); err != nil {
		return request{}, err
	}
	return request{name: sorted[0], names: sorted, terms: termsOf(opts)}, nil
}

// acquire takes what is asked for, for a session or, if that is nil, the node's own. It
// also tells whether a claim stood in line.
func (n *Node) acquire(ctx context.Context, s *Session, r request, wait bool) (h *Hold, queued bool, err error) {
	if s == nil {
		if s, err = n.ownSession(ctx); err != nil {
			return nil, false, fmt.Errorf("acquire %s: %w", r.what(), err)
		}
	}
	if len(r.names) > 0 && len(n.groups) > 1 {
		if byGroup := n.split(r); len(byGroup) > 1 {
			return s.acquireSet(ctx, r, byGroup, wait)
		}
	}
	return s.acquireIn(ctx, r, wait)
}

// acquireIn claims what is asked for of one group and waits for the answer.
func (s *Session) acquireIn(ctx context.Context, r request, wait bool) (h *Hold, queued bool, err error) {
	n := s.n
	h, answer, err := n.beginClaim(s, r, wait)
	if err != nil {
		n.answers.Put(answer) // nobody knows of it
		return nil, false, fmt.Errorf("acquire %s: %w", r.what(), err)
	}
	if ctxDone := ctx.Done(); ctxDone == nil {
		<-answer
	} else {
		select {
		case <-answer:
		case <-ctxDone:
			if !n.abandon(h) {
				queued, err = n.gaveUp(h, ctx.Err())
				return nil, queued, err
			}
			<-answer
		}
	}
	n.answers.Put(answer)
	queued, refusal := h.answer()
	// A session may have run out at the very moment of the grant: it is not handed
	// out then, and the session's end gives it back.
	if err := s.Err(); err != nil {
		return nil, queued, fmt.Errorf("acquire %s: %w", r.what(), err)
	}
	if refusal != nil {
		return nil, queued, fmt.Errorf("acquire %s: %w", r.what(), refusal)
	}
	return h, queued, nil
}

// beginClaim queues a claim to be sent, and returns what will have a token when it was
// answered.
func (n *Node) beginClaim(s *Session, r request, wait bool) (*Hold, chan struct{}, error) {
	g := n.groupOf(r.name)
	// All that takes memory is made before the lock is taken: the garbage collector may
	// have who takes some do part of its work first.
	told := n.newAnswer()
	h := &Hold{name: r.name, wait: wait, limit: r.terms.maxWaiters, at: n.asked(), told: told,
		rule: n.quotas.ruleOf(&r)}
	if !r.terms.plain() || len(r.names) > 0 || s.maxWaits != anyNumber {
		h.more.Store(newHoldMore(r))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.failed != nil:
		return nil, told, n.failed
	case s.state == sessionOver:
		return nil, told, s.cause
	case len(g.stream.acquires) >= maxPending:
		n.stats.refused(RefusalBusy)
		return nil, told, ErrBusy
	}
	if err := n.quotas.admit(s, &r, h.rule, wait); err != nil {
		n.stats.refused(RefusalQuota)
		return nil, told, err
	}
	h.part = s.in(g)
	n.stats.asked(&r)
	g.claimNow(h)
	return h, told, nil
}

// claimNow gives a claim its number and queues it to be sent. n.mu is held.
func (g *group) claimNow(h *Hold) {
	g.n.lastHold++
	h.seq, h.batch, h.queued = g.n.lastHold, 0, false
	h.part.claims[h.seq] = h
	g.stream.acquires = append(g.stream.acquires, h)
	g.stream.nudge()
}

// claimAgain is claimNow for a claim of which nothing is left although nobody has
// answered it. g.n.mu and the state machine's lock are held.
func (g *group) claimAgain(h *Hold) {
	delete(h.part.claims, h.seq)
	g.n.stats.leavesLine(h)
	g.claimNow(h)
}

// newAnswer returns a channel on which one token is sent to one call, which then puts
// it back: by then nobody else may send or receive on it.
func (n *Node) newAnswer() chan struct{} {
	if c := n.answers.Get(); c != nil {
		return c.(chan struct{})
	}
	return make(chan struct{}, 1)
}

// answer returns whether a call that was told its answer stood in line, and what it was
// refused with, if it was. None of it changes any more before the call returns.
func (h *Hold) answer() (queued bool, refusal error) {
	if h.token.IsZero() {
		refusal = h.err
	}
	return h.queued, refusal
}

// tell gives a call its answer. n.mu is held.
func (h *Hold) tell() {
	h.answered = true
	h.told <- struct{}{} // there is room for one, and this is the only one
	h.told = nil
}

// abandon gives a claim up because its caller's ctx ended, unless it was answered
// at the very moment: then it reports true.
func (n *Node) abandon(h *Hold) (answered bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if h.answered {
		return true
	}
	h.abandoned = true
	n.stats.refused(RefusalGaveUp)
	if h.batch == 0 {
		n.forgetClaim(h) // it was never sent: there is nothing to take back
		return false
	}
	h.part.g.stream.say(wire.Command{Op: wire.Cancel, Session: h.part.id.Seq, Hold: h.seq, Lock: hashOf(h.name)})
	return false
}

// gaveUp tells a caller whose ctx ended what it had waited for, and whether in line.
func (n *Node) gaveUp(h *Hold, ctxErr error) (queued bool, err error) {
	n.mu.Lock()
	queued = h.queued
	n.mu.Unlock()
	if !queued {
		return false, fmt.Errorf("acquire %q: %w", h.name, &ctxError{ErrNoQuorum, ctxErr})
	}
	var held *HeldError
	h.part.g.machine.read(func(f *lockFSM) { held = f.heldError(h, f.firstBusy(h)) })
	held.ctxErr = ctxErr
	return true, held
}

// endClaim ends a claim for this process because its session is over. n.mu is held.
func (n *Node) endClaim(h *Hold, cause error) {
	switch {
	case h.granted():
		h.lose(cause)
	case !h.answered && !h.abandoned:
		n.stats.refused(RefusalSession)
		h.err = cause
		h.abandoned = true
		h.tell()
	}
}

// forgetClaim forgets a claim of which nothing is left in the cluster. n.mu is held.
func (n *Node) forgetClaim(h *Hold) {
	n.stats.forgotten(h)
	n.quotas.forgotten(h)
	delete(h.part.claims, h.seq)
	h.forgotten = true
	h.wake()
}
