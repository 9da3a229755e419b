package election

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/sessions"
)

// A Term is the time for which a replica leads. It is safe for concurrent use.
type Term struct {
	node *quorumlock.Node
	hold *quorumlock.Hold
	ctx  context.Context         // ends with the term
	end  context.CancelCauseFunc // ends it for this process; the lock is still held
	run  bool                    // Run gives the lock up, when the function has returned

	mu     sync.Mutex
	heir   *sessions.ID                          // to whom Run is to hand over
	others map[*context.CancelCauseFunc]struct{} // of the contexts that Context has made
}

// newTerm makes a term of a hold, that ends with life too.
func newTerm(node *quorumlock.Node, hold *quorumlock.Hold, life context.Context, end context.CancelCauseFunc) *Term {
	// The hold is released in the end whatever happens, which lets go of the context.
	ctx, _ := hold.Context(life)
	return &Term{node: node, hold: hold, ctx: ctx, end: end}
}

// Campaign stands in line for the leadership and returns when this replica leads.
// Whoever campaigns resigns in the end.
//
// When ctx ends first, nothing is left behind; errors are those of
// quorumlock.Node.Acquire. ctx is for the campaign only: the term goes on after it.
func Campaign(ctx context.Context, node *quorumlock.Node, name string, opts ...Option) (*Term, error) {
	c := configOf(opts)
	hold, err := node.Acquire(ctx, name, quorumlock.Value(c.value))
	if err != nil {
		return nil, err
	}
	life, end := context.WithCancelCause(context.WithoutCancel(ctx))
	return newTerm(node, hold, life, end), nil
}

// Name returns what the election is about: the name of the lock.
func (t *Term) Name() string { return t.hold.Name() }

// Token returns the term's fencing token: larger than that of every earlier term. It
// is what protects a store from a leader that does not know yet that it leads no more.
func (t *Term) Token() fencing.Token { return t.hold.Token() }

// Session returns the session by which Leader and Candidate name this replica.
func (t *Term) Session() sessions.ID { return t.hold.Session().ID() }

// Done returns a channel that is closed when the term ends. In a process that was
// stopped it is closed only when the process runs again; Err knows at once.
func (t *Term) Done() <-chan struct{} { return t.ctx.Done() }

// Err returns nil while this replica leads, and then why the term ended: a
// *quorumlock.LostError, ErrResigned, ErrUnhealthy, or the cause of the end of Run's
// ctx. It looks at the clock itself, so it is right in a process that has just woken.
func (t *Term) Err() error {
	if t.ctx.Err() == nil {
		return nil
	}
	return context.Cause(t.ctx)
}

// Context returns a copy of parent that ends when the term does, with context.Cause
// telling why. Call cancel when it is no longer needed. The function of Run has been
// given such a context already.
func (t *Term) Context(parent context.Context) (ctx context.Context, cancel context.CancelFunc) {
	inner, end := context.WithCancelCause(parent)
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.Err(); err != nil {
		end(err)
		return inner, func() {}
	}
	stop := context.AfterFunc(t.ctx, func() { end(context.Cause(t.ctx)) })
	ctx, release := t.hold.Context(inner)
	if t.others == nil {
		t.others = make(map[*context.CancelCauseFunc]struct{})
	}
	t.others[&end] = struct{}{}
	return ctx, func() {
		t.mu.Lock()
		delete(t.others, &end)
		t.mu.Unlock()
		release()
		stop()
		end(context.Canceled)
	}
}

// over ends the term for this process, and its contexts before the hold ends them with
// a cause that says less.
func (t *Term) over(cause error) {
	t.end(cause)
	t.mu.Lock()
	defer t.mu.Unlock()
	for end := range t.others {
		(*end)(context.Cause(t.ctx))
	}
}

// YieldRequests returns a channel on which the leader learns that somebody asks it to
// resign, by Node.RequestYield. With WithYield, Run receives from it.
func (t *Term) YieldRequests() <-chan quorumlock.YieldRequest { return t.hold.YieldRequests() }

// SetValue changes what the leader publishes. It returns what Err returns if the term
// has ended; other errors are those of quorumlock.Hold.SetValue.
func (t *Term) SetValue(ctx context.Context, value string) error {
	if err := t.Err(); err != nil {
		return err
	}
	return t.hold.SetValue(ctx, value)
}

// Resign ends the term, at once for this process: its contexts end.
//
// After Campaign, it then gives the lock to the next in line, and returns when the
// cluster has done so. It works on an ended ctx, as Hold.Release does. When it fails,
// with an error matching ErrNoQuorum and ctx's error, it goes on in the background,
// and may be called again to wait for it. It returns the *quorumlock.LostError if the
// term had been lost before.
//
// In the function of Run, and for others who have its term, it returns at once, and
// Run gives the lock up when the function has returned.
func (t *Term) Resign(ctx context.Context) error {
	if ctx == nil {
		return quorumlock.ErrNilContext
	}
	if t.run {
		if err := t.hold.Err(); errors.Is(err, quorumlock.ErrLost) {
			return err
		}
		t.over(ErrResigned)
		return nil
	}
	t.over(ErrResigned)
	return t.hold.Release(ctx)
}

// HandOver ends the term in favour of a candidate, past those who have waited longer:
// see Candidates. It returns an error matching quorumlock.ErrNoWaiter, and the term
// goes on, if that session does not campaign. For the rest it is as Resign: in the
// function of Run it returns at once, and Run hands over when the function has
// returned.
//
// Should the candidate give up meanwhile, or the cluster not be reached, the lock goes
// to the next in line: after Campaign an error tells so, with the term over.
func (t *Term) HandOver(ctx context.Context, to sessions.ID) error {
	if ctx == nil {
		return quorumlock.ErrNilContext
	}
	if err := t.Err(); err != nil {
		return err
	}
	candidates, err := Candidates(ctx, t.node, t.Name())
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(candidates, func(c Candidate) bool { return c.Session == to }) {
		return fmt.Errorf("election: hand over %q to %s: %w", t.Name(), to, quorumlock.ErrNoWaiter)
	}
	t.mu.Lock()
	t.heir = &to
	t.mu.Unlock()
	t.over(ErrResigned)
	if t.run {
		return nil
	}
	return t.giveUp(ctx)
}

// giveUp gives the lock of an ended term to the heir or to the next in line.
func (t *Term) giveUp(ctx context.Context) error {
	t.mu.Lock()
	heir := t.heir
	t.mu.Unlock()
	if heir == nil {
		return t.hold.Release(ctx)
	}
	err := t.hold.HandOver(ctx, *heir)
	if err == nil {
		return nil
	}
	// The hold may be over for this process or not. If it is, this only waits until it
	// is for the cluster too.
	return cmp.Or(t.hold.Release(ctx), err)
}
