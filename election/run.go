package election

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/fencing"
)

// releaseLimit is how long Run waits for the cluster to confirm that it has given up
// the lead, whatever has become of its ctx. It goes on in the background after that.
const releaseLimit = 5 * time.Second

// Run campaigns, and calls lead while this replica leads; and so again, until ctx ends
// or lead says stop.
//
// The context given to lead ends when the term does: when it is lost, when ctx ends,
// when the term is resigned or handed over, or the replica is unhealthy. Only after
// lead has returned is the lock given up, for which Run waits up to 5 s, whatever has
// become of ctx; so a clean stop hands over as fast as lead returns. A lead that
// ignores its context is reported: see OnIgnored. If lead panics, the lock is given up
// and the panic goes on.
//
// What lead returns decides:
//
//   - ErrStop: Run returns nil.
//   - nil: this replica goes to the end of the line and campaigns again.
//   - any error after the term had ended, and one that matches quorumlock.ErrLost or
//     fencing.ErrStale: the leadership was lost, which is no error of Run. It is
//     logged, and Run campaigns again.
//   - another error: Run returns it, unless there is WithRetry.
//
// Before it campaigns again, Run pauses for some 50 ms; longer, up to 2 s, when terms
// are lost one soon after another. When ctx ends, Run returns an error that matches
// ctx's error, and lead's own, if it returned one that does not match it. Other errors
// are those with which Acquire tells that it will never do: ErrName, ErrValue,
// ErrMode, ErrClosed and what else ends a node.
func Run(ctx context.Context, node *quorumlock.Node, name string, lead func(ctx context.Context, term *Term) error, opts ...Option) error {
	if ctx == nil {
		return quorumlock.ErrNilContext
	}
	r := &runner{node: node, name: name, lead: lead, config: configOf(opts)}
	r.log = r.log.With("election", name)
	for {
		begun := time.Now()
		next, err := r.campaign(ctx)
		if next == stop {
			return err
		}
		if err := r.pause(ctx, next == after, time.Since(begun)); err != nil {
			return err
		}
	}
}

type runner struct {
	node *quorumlock.Node
	name string
	lead func(context.Context, *Term) error
	config
	failures int // in a row
}

// A verdict is what comes after a campaign.
type verdict uint8

const (
	stop  verdict = iota // Run returns
	again                // another campaign
	after                // another campaign, later: this one failed
)

// campaign is one campaign, and one term if it is won.
func (r *runner) campaign(ctx context.Context) (verdict, error) {
	if err := r.awaitHealth(ctx); err != nil {
		return stop, err
	}
	life, end := context.WithCancelCause(ctx)
	defer r.watchHealth(life, end)()
	hold, err := r.node.Acquire(life, r.name, quorumlock.Value(r.value))
	switch {
	case err == nil:
		return r.serve(ctx, newTerm(r.node, hold, life, end))
	case ctx.Err() != nil:
		return stop, withCtxError(ctx, err)
	case life.Err() != nil:
		r.log.Warn("left the line", "err", context.Cause(life))
		return again, nil
	case passing(err):
		r.log.Warn("campaign failed", "err", err)
		return after, nil
	}
	return stop, err
}

// passing reports whether an error of Acquire passes by itself.
func passing(err error) bool {
	for _, target := range []error{
		quorumlock.ErrSessionExpired, quorumlock.ErrSessionClosed, quorumlock.ErrRevoked,
		quorumlock.ErrNoQuorum, quorumlock.ErrBusy, quorumlock.ErrQuota, quorumlock.ErrQueueFull,
	} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

// withCtxError returns err with ctx's error, which it may match already.
func withCtxError(ctx context.Context, err error) error {
	if err == nil {
		return fmt.Errorf("election: ctx ended while leading: %w", ctx.Err())
	}
	if errors.Is(err, ctx.Err()) {
		return err
	}
	return errors.Join(err, ctx.Err())
}

// serve is one term. Whatever becomes of the function, a panic included, the lock is
// given up after it and not before.
func (r *runner) serve(ctx context.Context, t *Term) (verdict, error) {
	t.run = true
	returned, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		r.watch(t, returned)
	}()
	defer func() {
		close(returned)
		t.over(ErrResigned)
		detached, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseLimit)
		defer cancel()
		err := t.giveUp(detached)
		r.log.Info("term ended", "token", t.Token(), "cause", context.Cause(t.ctx), "release", err)
		<-watched
	}()
	if t.Err() != nil {
		return r.judge(ctx, t, nil) // it was granted at the very moment at which it had to end
	}
	r.log.Info("term begins", "token", t.Token())
	return r.judge(ctx, t, r.lead(t.ctx, t))
}

// judge decides what comes after the function has returned.
func (r *runner) judge(ctx context.Context, t *Term, err error) (verdict, error) {
	ended := t.Err()
	switch {
	case errors.Is(err, ErrStop):
		return stop, nil
	case ctx.Err() != nil:
		return stop, withCtxError(ctx, err)
	case errors.Is(ended, ErrResigned), errors.Is(ended, ErrUnhealthy), ended == nil && err == nil:
		if err != nil {
			r.log.Info("function returned after its term", "err", err)
		}
		return again, nil
	case ended != nil, errors.Is(err, quorumlock.ErrLost), errors.Is(err, fencing.ErrStale):
		r.log.Warn("leadership lost", "cause", ended, "err", err)
		return after, nil
	case r.retry:
		r.log.Error("function failed", "err", err)
		return after, nil
	}
	return stop, err
}

// watch ends the term when somebody asks for it, and reports a function that ignores
// that it has ended.
func (r *runner) watch(t *Term, returned <-chan struct{}) {
	var requests <-chan quorumlock.YieldRequest
	if r.yield != nil {
		requests = t.YieldRequests()
	}
	for t.Err() == nil {
		select {
		case <-t.Done():
		case <-returned:
			return
		case req := <-requests:
			if r.yield(req) {
				t.over(fmt.Errorf("%w: asked by %s: %s", ErrResigned, req.By, req.Reason))
			}
		}
	}
	grace := time.NewTimer(r.grace)
	defer grace.Stop()
	select {
	case <-returned:
	case <-grace.C:
		r.log.LogAttrs(context.Background(), slog.LevelError, "function ignores that its term has ended",
			slog.Any("token", t.Token()), slog.Any("cause", t.Err()), slog.Duration("for", r.grace))
		if r.ignored != nil {
			r.ignored(t)
		}
	}
}

// pause waits before the next campaign: the longer, the more of them failed in a row.
// It returns an error when ctx ends.
func (r *runner) pause(ctx context.Context, failed bool, lasted time.Duration) error {
	if !failed || lasted > r.most {
		r.failures = 0
	}
	d := min(leastPause<<min(r.failures, 20), r.most)
	if failed {
		r.failures++
	}
	timer := time.NewTimer(d/2 + rand.N(d))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return withCtxError(ctx, ctx.Err())
	}
}

// awaitHealth waits until the check succeeds. It returns an error when ctx ends.
func (r *runner) awaitHealth(ctx context.Context) error {
	if r.health == nil {
		return nil
	}
	for told := false; ; told = true {
		bounded, cancel := context.WithTimeout(ctx, r.every)
		err := r.health(bounded)
		cancel()
		if ctx.Err() != nil {
			return withCtxError(ctx, ctx.Err())
		}
		if err == nil {
			return nil
		}
		if !told {
			r.log.Warn("unhealthy: no campaign", "err", err)
		}
		if sleep(ctx, r.every) != nil {
			return withCtxError(ctx, ctx.Err())
		}
	}
}

// watchHealth ends a life when the check fails, or takes too long, until the function
// that it returns is called.
func (r *runner) watchHealth(life context.Context, end context.CancelCauseFunc) (done func()) {
	if r.health == nil {
		return func() { end(nil) }
	}
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for sleep(life, r.every) == nil {
			bounded, cancel := context.WithTimeout(life, r.every)
			late := time.AfterFunc(r.every, func() { end(fmt.Errorf("%w: no answer within %v", ErrUnhealthy, r.every)) })
			err := r.health(bounded)
			late.Stop()
			cancel()
			if err != nil {
				end(fmt.Errorf("%w: %w", ErrUnhealthy, err)) // unless it has ended already
			}
		}
	}()
	return func() {
		end(nil)
		<-watched
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
