package quorumlock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/queue"
)

// An AcquireOption changes one thing about an acquire.
type AcquireOption func(*acquireOptions)

type acquireOptions struct {
	maxWaiters uint32
}

// MaxWaiters makes Acquire return ErrQueueFull at once when that many stand in line
// already. 0 means not to wait behind anybody who waits. Negative counts as 0.
// Default: about a million.
func MaxWaiters(waiters int) AcquireOption {
	return func(o *acquireOptions) { o.maxWaiters = uint32(min(max(waiters, 0), math.MaxUint32)) }
}

func (h *Hold) command() wire.Command {
	return wire.Command{Op: wire.Acquire, Session: h.session.id.Seq, Hold: h.seq,
		Name: h.name, Mode: uint8(queue.Exclusive), Wait: h.wait, Limit: uint64(h.limit)}
}

func checkCall(ctx context.Context, name string) error {
	return errors.Join(checkCtx(ctx), checkName(name))
}

// acquire claims a lock and waits for the answer. Its arguments have been checked.
func (s *Session) acquire(ctx context.Context, name string, wait bool, opts []AcquireOption) (*Hold, error) {
	o := acquireOptions{maxWaiters: math.MaxUint32}
	for _, opt := range opts {
		opt(&o)
	}
	n := s.n
	h, err := n.beginClaim(s, name, wait, o)
	if err != nil {
		return nil, fmt.Errorf("acquire %q: %w", name, err)
	}
	if ctxDone := ctx.Done(); ctxDone == nil {
		<-h.answer
	} else {
		select {
		case <-h.answer:
		case <-ctxDone:
			if !n.abandon(h) {
				return nil, n.gaveUp(h, ctx.Err())
			}
			<-h.answer
		}
	}
	n.recycle(h)
	// A session may have run out at the very moment of the grant: it is not handed
	// out then, and the session's end gives it back.
	if err := s.Err(); err != nil {
		return nil, fmt.Errorf("acquire %q: %w", name, err)
	}
	if h.refusal != nil {
		return nil, fmt.Errorf("acquire %q: %w", name, h.refusal)
	}
	return h, nil
}

func (n *Node) beginClaim(s *Session, name string, wait bool, o acquireOptions) (*Hold, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.failed != nil:
		return nil, n.failed
	case s.state == sessionOver:
		return nil, s.cause
	case len(n.stream.acquires) >= maxPending:
		return nil, ErrBusy
	}
	n.lastHold++
	h := &Hold{session: s, seq: n.lastHold, name: name, wait: wait, limit: o.maxWaiters}
	if k := len(n.answers); k > 0 {
		h.answer, n.answers = n.answers[k-1], n.answers[:k-1]
	} else {
		h.answer = make(chan struct{}, 1)
	}
	s.claims[h.seq] = h
	n.stream.acquires = append(n.stream.acquires, h)
	n.stream.nudge()
	return h, nil
}

// maxAnswers is how many channels are kept for later calls.
const maxAnswers = 1 << 14

// recycle keeps the channel of a call that has had its answer for another one.
func (n *Node) recycle(h *Hold) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.answers) < maxAnswers {
		n.answers = append(n.answers, h.answer)
	}
	h.answer = nil
}

// tell gives a call its answer. n.mu is held.
func (h *Hold) tell() {
	h.answered = true
	h.answer <- struct{}{} // there is room for one, and this is the only one
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
	if h.batch == 0 {
		n.forgetClaim(h) // it was never sent: there is nothing to take back
		return false
	}
	n.stream.say(wire.Command{Op: wire.Cancel, Session: h.session.id.Seq, Hold: h.seq, Lock: hashOf(h.name)})
	return false
}

// gaveUp tells a caller whose ctx ended what it had waited for.
func (n *Node) gaveUp(h *Hold, ctxErr error) error {
	n.mu.Lock()
	queued := h.queued
	n.mu.Unlock()
	if !queued {
		return fmt.Errorf("acquire %q: %w", h.name, &ctxError{ErrNoQuorum, ctxErr})
	}
	var held *HeldError
	n.machine.read(func(f *lockFSM) { held = f.heldError(h) })
	held.ctxErr = ctxErr
	return held
}

// heldError tells who holds what is asked for.
func (f *lockFSM) heldError(h *Hold) *HeldError {
	e := &HeldError{Name: h.name}
	if l := f.table.line(h.name); l != nil {
		e.Holders = f.holders(l)
	}
	if own := f.table.claim(h.session.id, h.name, h.seq); own != nil {
		e.Ahead = own.Ahead()
		// It may have been granted since its caller gave up: that is no other's hold.
		e.Holders = slices.DeleteFunc(e.Holders, func(x Holder) bool { return x.Token == own.Token })
	}
	return e
}

// endClaim ends a claim for this process because its session is over. n.mu is held.
func (n *Node) endClaim(h *Hold, cause error) {
	switch {
	case h.granted():
		h.lose(cause)
	case !h.answered && !h.abandoned:
		h.refusal = cause
		h.abandoned = true
		h.tell()
	}
}

// forgetClaim forgets a claim of which nothing is left in the cluster. n.mu is held.
func (n *Node) forgetClaim(h *Hold) {
	delete(h.session.claims, h.seq)
	h.forgotten = true
	h.wake()
}
