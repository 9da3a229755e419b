package quorumlock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/queue"
)

// An AcquireOption changes one thing about an acquire.
type AcquireOption func(*acquireOptions)

type acquireOptions struct {
	maxWaiters uint64
}

// MaxWaiters makes Acquire return ErrQueueFull at once when that many stand in line
// already. 0 means not to wait behind anybody who waits. Negative counts as 0.
// Default: about a million.
func MaxWaiters(waiters int) AcquireOption {
	return func(o *acquireOptions) { o.maxWaiters = uint64(max(waiters, 0)) }
}

// A claim is one acquisition of this process, from the call to the end of its hold.
// Its fields are guarded by n.mu, but for those that never change.
type claim struct {
	session *Session
	seq     uint64
	name    string
	wait    bool
	limit   uint64

	batch     uint64 // the batch that carries it; 0 until it is sent
	abandoned bool   // its caller has gone
	queued    bool   // it stands in line
	answered  chan struct{}
	token     fencing.Token // if granted
	err       error         // if not
	hold      *Hold         // if granted
}

func (c *claim) command() wire.Command {
	return wire.Command{Op: wire.Acquire, Session: c.session.id.Seq, Hold: c.seq,
		Name: c.name, Mode: uint8(queue.Exclusive), Wait: c.wait, Limit: c.limit}
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
	c, err := s.n.beginClaim(s, name, wait, o)
	if err != nil {
		return nil, fmt.Errorf("acquire %q: %w", name, err)
	}
	select {
	case <-c.answered:
	case <-ctx.Done():
		if !s.n.abandon(c) {
			return nil, s.n.gaveUp(c, ctx.Err())
		}
	}
	// A session may have run out at the very moment of the grant: it is not handed
	// out then, and the session's end gives it back.
	if err := s.Err(); err != nil {
		return nil, fmt.Errorf("acquire %q: %w", name, err)
	}
	if c.err != nil {
		return nil, fmt.Errorf("acquire %q: %w", name, c.err)
	}
	return c.hold, nil
}

func (n *Node) beginClaim(s *Session, name string, wait bool, o acquireOptions) (*claim, error) {
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
	c := &claim{session: s, seq: n.lastHold, name: name, wait: wait, limit: o.maxWaiters, answered: make(chan struct{})}
	s.claims[c.seq] = c
	n.claims[c.seq] = c
	n.stream.acquires = append(n.stream.acquires, c)
	n.stream.nudge()
	return c, nil
}

// abandon gives a claim up because its caller's ctx ended, unless it was answered
// at the very moment: then it reports true.
func (n *Node) abandon(c *claim) (answered bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if isClosed(c.answered) {
		return true
	}
	c.abandoned = true
	if c.batch == 0 {
		n.forgetClaim(c) // it was never sent: there is nothing to take back
		return false
	}
	n.stream.say(wire.Command{Op: wire.Cancel, Session: c.session.id.Seq, Hold: c.seq, Lock: hashOf(c.name)})
	return false
}

// gaveUp tells a caller whose ctx ended what it had waited for.
func (n *Node) gaveUp(c *claim, ctxErr error) error {
	n.mu.Lock()
	queued := c.queued
	n.mu.Unlock()
	if !queued {
		return fmt.Errorf("acquire %q: %w", c.name, &ctxError{ErrNoQuorum, ctxErr})
	}
	var held *HeldError
	n.machine.read(func(f *lockFSM) { held = f.heldError(c) })
	held.ctxErr = ctxErr
	return held
}

// heldError tells who holds what c asks for.
func (f *lockFSM) heldError(c *claim) *HeldError {
	e := &HeldError{Name: c.name}
	if l := f.table.line(c.name); l != nil {
		e.Holders = f.holders(l)
	}
	if own := f.table.claim(c.session.id, c.name, c.seq); own != nil {
		e.Ahead = own.Ahead()
		// It may have been granted since its caller gave up: that is no other's hold.
		e.Holders = slices.DeleteFunc(e.Holders, func(h Holder) bool { return h.Token == own.Token })
	}
	return e
}

// endClaim ends a claim for this process because its session is over. n.mu is held.
func (n *Node) endClaim(c *claim, cause error) {
	switch {
	case c.hold != nil:
		c.hold.lose(cause)
	case !isClosed(c.answered):
		c.err = cause
		c.abandoned = true
		close(c.answered)
	}
}

// forgetClaim forgets a claim of which nothing is left in the cluster. n.mu is held.
func (n *Node) forgetClaim(c *claim) {
	delete(n.claims, c.seq)
	delete(c.session.claims, c.seq)
	if c.hold != nil {
		close(c.hold.freed)
	}
}
