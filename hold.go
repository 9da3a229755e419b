package quorumlock

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// A Hold is a lock that is held, or was: there is none that is still to be had. It
// is safe for concurrent use.
//
// A hold by itself does not protect a store: a process can be stopped between its
// last look at Err and its write, for longer than its lease. Hand Token to the
// store with each write, and let the store refuse an older one; see package fencing.
type Hold struct {
	part *part
	name string // of several, the first
	seq  uint64 // which acquisition of its process
	over atomic.Bool

	// Guarded by n.mu, until the call that acquires has had its answer.
	wait      bool
	abandoned bool // its caller has gone
	queued    bool // it stands in line
	answered  bool
	forgotten bool   // nothing of it is left in the cluster
	rule      uint16 // by which its quotas are found; 0 for none
	limit     uint32
	batch     uint64        // the batch that carries it; 0 until it is sent
	told      chan struct{} // gets a token for the call that waits: of its answer, then of the release
	token     fencing.Token // if granted; of several names, the largest
	at        time.Duration // when it was asked for, and then when it was granted, as stats count it

	err    error                    // why it was refused, or is held no more; guarded by n.mu
	asides *asides                  // nil while nobody asked for any; guarded by n.mu
	more   atomic.Pointer[holdMore] // nil for a plain lock, about which nothing was asked
}

// asides are what few look at of a hold: each is made when it is first asked for.
type asides struct {
	done     chan struct{} // closed when it is held no more
	freed    chan struct{} // closed when the cluster has freed it, for all but the first who waits
	contexts map[*holdContext]struct{}
}

func (h *Hold) aside() *asides {
	if h.asides == nil {
		h.asides = new(asides)
	}
	return h.asides
}

// granted reports whether the lock was granted and handed to its caller.
func (h *Hold) granted() bool { return h.answered && !h.token.IsZero() }

// Name returns the name of the lock.
func (h *Hold) Name() string { return h.name }

// Token returns the fencing token: larger than that of every earlier hold of this
// name, for ever. Readers that overlap have the same one. Of a hold on several
// names it is the largest, which is right for each of them too; see TokenFor. If those
// names are of different groups (Options.Groups) no number is right for all, and it is
// zero, which every guard of package fencing refuses.
func (h *Hold) Token() fencing.Token { return h.token }

// Session returns the session that the hold belongs to.
func (h *Hold) Session() *Session { return h.part.Session }

// Done returns a channel that is closed when the hold is lost or released. In a
// process that was stopped it is closed only when the process runs again; Err knows
// at once.
func (h *Hold) Done() <-chan struct{} {
	n := h.part.n
	n.mu.Lock()
	defer n.mu.Unlock()
	a := h.aside()
	if a.done == nil {
		a.done = make(chan struct{})
		if h.err != nil {
			close(a.done)
		}
	}
	return a.done
}

// Err returns nil while the lock is held. After a loss it returns a *LostError,
// which matches ErrLost and its cause; after Release it returns ErrNotHeld. It
// looks at the clock itself: it is right in a process that has just woken from a
// long stop, before any timer has run. It needs no network.
func (h *Hold) Err() error {
	if !h.over.Load() && h.part.alive() && !h.overdue() {
		return nil
	}
	n := h.part.n
	n.mu.Lock()
	defer n.mu.Unlock()
	n.distrust(h.part.Session)
	if h.overdue() {
		h.lose(ErrMaxHold)
	}
	return h.err
}

// Remaining returns for how long the lock is certainly held even if nothing more
// is heard from the cluster: 0 once it is not held. While renewals succeed it never
// gets near 0.
func (h *Hold) Remaining() time.Duration {
	if h.Err() != nil {
		return 0
	}
	left := h.part.remaining()
	if m := h.more.Load(); m != nil && m.until != 0 {
		left = min(left, m.until-h.part.n.trust())
	}
	return max(left, 0)
}

// Context returns a copy of parent that ends when the hold does, with context.Cause
// telling why: a *LostError, or ErrNotHeld after Release. Its Err looks at the
// clock as Hold.Err does. Call cancel when it is no longer needed.
func (h *Hold) Context(parent context.Context) (ctx context.Context, cancel context.CancelFunc) {
	inner, end := context.WithCancelCause(parent)
	hc := &holdContext{Context: inner, h: h, end: end}
	n := h.part.n
	n.mu.Lock()
	defer n.mu.Unlock()
	if h.err != nil {
		end(h.err)
		return hc, func() {}
	}
	a := h.aside()
	if a.contexts == nil {
		a.contexts = make(map[*holdContext]struct{})
	}
	a.contexts[hc] = struct{}{}
	return hc, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(a.contexts, hc)
		end(context.Canceled)
	}
}

// A holdContext is a context whose Err does not wait for a timer.
type holdContext struct {
	context.Context
	h   *Hold
	end context.CancelCauseFunc
}

func (c *holdContext) Err() error {
	if c.Context.Err() == nil {
		if err := c.h.Err(); err != nil {
			c.end(err)
		}
	}
	return c.Context.Err()
}

// Validate asks the cluster whether the lock is held by this hold, and returns nil
// if it was at some moment during the call. Otherwise it returns what Err returns,
// or an error matching ErrNoQuorum and ctx's error when ctx ended first.
func (h *Hold) Validate(ctx context.Context) error {
	if err := checkCtx(ctx); err != nil {
		return err
	}
	if err := h.Err(); err != nil {
		return err
	}
	if h.parts() != nil {
		return h.validateParts(ctx)
	}
	g := h.part.g
	if err := g.barrier(ctx); err != nil {
		return err
	}
	held := false
	g.machine.read(func(f *lockFSM) {
		c := f.table.claim(h.part.id, h.name, h.seq)
		held = c != nil && c.Holds() // there is never another claim of this number
	})
	if err := h.Err(); err != nil || held {
		return err
	}
	return ErrNotHeld
}

// Release gives the lock back: for this process at once, and Release returns when
// the cluster has given it to the next in line. It ends only this acquisition,
// never a newer one of the same name, and calling it again does no harm: every
// call returns nil once the lock is free.
//
// When ctx ends first, the release goes on in the background and the error matches
// ErrNoQuorum and ctx's error. On a ctx that had ended before, Release still waits
// for up to an election timeout, so that a deferred Release of a cancelled call
// does what it says. If the hold was lost before, Release returns the *LostError.
func (h *Hold) Release(ctx context.Context) error {
	if ctx == nil {
		return ErrNilContext
	}
	n := h.part.n
	n.mu.Lock()
	if lost := h.release(); lost != nil {
		n.mu.Unlock()
		return lost
	}
	freed := h.released()
	n.mu.Unlock()
	if ctx.Err() == nil {
		return n.awaitFreed(ctx, h, freed)
	}
	bounded, cancel := n.clk.WithTimeout(context.WithoutCancel(ctx), n.opts.ElectionTimeout)
	defer cancel()
	err := n.awaitFreed(bounded, h, freed)
	if errors.Is(err, ErrNoQuorum) {
		return &ctxError{ErrNoQuorum, ctx.Err()}
	}
	return err
}

// awaitFreed waits until a hold is free. It does not wait for the node's end beside
// it: all callers would queue for that one channel. wake is called then.
func (n *Node) awaitFreed(ctx context.Context, h *Hold, freed chan struct{}) error {
	var alone bool
	if ctxDone := ctx.Done(); ctxDone == nil {
		_, alone = <-freed
	} else {
		select {
		case _, alone = <-freed:
		case <-ctxDone:
			return &ctxError{ErrNoQuorum, ctx.Err()}
		}
	}
	if alone {
		n.answers.Put(freed)
	}
	if n.ctx.Err() == nil {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if h.forgotten {
		return nil
	}
	return n.failed
}

// wake ends the waits of Release. n.mu is held.
func (h *Hold) wake() {
	if h.answered && h.told != nil {
		h.told <- struct{}{} // as in tell
		h.told = nil
	}
	if a := h.asides; a != nil && a.freed != nil && !isClosed(a.freed) {
		close(a.freed)
	}
	if w := h.whole(); w != nil {
		w.partFreed()
	}
}

// release gives a lock back, if it was not before, or returns how it was lost. n.mu is
// held.
func (h *Hold) release() (lost error) {
	h.part.n.distrust(h.part.Session)
	if h.overdue() {
		h.lose(ErrMaxHold)
	}
	m := h.more.Load()
	switch {
	case h.err == nil:
		h.finish(ErrNotHeld)
		h.giveBack()
	case m != nil && m.until != 0 && !m.givenBack && errors.Is(h.err, ErrMaxHold):
		h.giveBack() // the cluster keeps it for a little longer, for nobody
	}
	if h.err != ErrNotHeld {
		return h.err
	}
	return nil
}

// released returns what has a token, or is closed, when the cluster has freed the lock
// or never will. n.mu is held.
func (h *Hold) released() chan struct{} {
	n := h.part.n
	switch {
	case h.forgotten || n.failed != nil:
		return alreadyClosed
	case h.told == nil:
		h.told = n.newAnswer() // nearly always there is just one who waits
		return h.told
	}
	a := h.aside()
	if a.freed == nil {
		a.freed = make(chan struct{})
	}
	return a.freed
}

// giveBack tells the cluster that the hold is over. n.mu is held.
func (h *Hold) giveBack() {
	if m := h.more.Load(); m != nil {
		m.givenBack = true
		if m.parts != nil {
			h.finishParts()
			return
		}
	}
	h.part.g.stream.say(wire.Command{Op: wire.Release, Session: h.part.id.Seq, Hold: h.seq, Lock: hashOf(h.name)})
}

// lose ends the hold without its holder's doing. n.mu is held.
func (h *Hold) lose(cause error) {
	if h.err == nil {
		n := h.part.n
		n.stats.lost(cause)
		h.finish(&LostError{Name: h.name, Token: h.token, Cause: cause, At: n.clk.Now()})
		if w := h.whole(); w != nil {
			w.partLost(h.err)
		}
	}
}

func (h *Hold) finish(err error) {
	h.err = err
	h.over.Store(true)
	if m := h.more.Load(); m != nil && m.timer != nil {
		m.timer.Stop()
	}
	a := h.asides
	if a == nil {
		return
	}
	if a.done != nil {
		close(a.done)
	}
	for hc := range a.contexts {
		hc.end(err)
	}
	a.contexts = nil
}
