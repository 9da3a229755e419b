package main

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// The phases of a turn.
const (
	warming int32 = iota
	measuring
	stopped
)

// A load is some callers that each take and give back a lock again and again.
type load struct {
	phase atomic.Int32
	tally []tally // one a caller, so that they do not share a counter
	busy  func(error) bool
}

// A tally is what one caller saw while it was measured.
type tally struct {
	calls           int // acquires and releases that were done
	acquires, pairs []time.Duration
	errors, busy    int
	lastErr         error
	_               [64]byte // its own cache line
}

// A result is what all callers of a turn saw.
type result struct {
	perSecond       float64 // pairs: half of the calls that were done in the time
	pairsDone       float64
	spent           time.Duration // user time of this process while it was measured; 0 if unknown
	acquires, pairs []time.Duration
	errors, busy    int
	lastErr         error
}

// run lets every locker work on its name, measures for d after the time warm, and
// returns when all callers have finished what they had begun.
func (l *load) run(ctx context.Context, lockers []locker, names func(i int) string, warm, d time.Duration) result {
	l.tally = make([]tally, len(lockers))
	var callers sync.WaitGroup
	for i, lk := range lockers {
		callers.Go(func() { l.call(ctx, lk, names(i), &l.tally[i]) })
	}
	wait(ctx, warm)
	began, before := time.Now(), userTimeSoFar()
	l.phase.Store(measuring)
	wait(ctx, d)
	l.phase.Store(stopped)
	took, spent := time.Since(began), userTimeSoFar()-before
	callers.Wait()
	r := l.sum(took)
	r.spent = spent
	return r
}

func (l *load) call(ctx context.Context, lk locker, name string, t *tally) {
	for l.phase.Load() != stopped && ctx.Err() == nil {
		began := time.Now()
		unlock, err := lk.lock(ctx, name)
		if err == nil {
			if l.phase.Load() == measuring {
				t.calls++
				t.acquires = append(t.acquires, time.Since(began))
			}
			err = unlock(ctx)
		}
		measured := l.phase.Load() == measuring
		switch {
		case err != nil:
			if measured {
				l.count(t, err)
			}
			wait(ctx, retryPause)
		case measured:
			t.calls++
			t.pairs = append(t.pairs, time.Since(began))
		}
	}
}

// retryPause is what a caller that was refused waits before it tries again.
const retryPause = 5 * time.Millisecond

func (l *load) count(t *tally, err error) {
	if l.busy != nil && l.busy(err) {
		t.busy++
		return
	}
	t.errors++
	t.lastErr = err
}

func (l *load) sum(took time.Duration) (r result) {
	calls := 0
	for i := range l.tally {
		t := &l.tally[i]
		r.acquires = append(r.acquires, t.acquires...)
		r.pairs = append(r.pairs, t.pairs...)
		calls += t.calls
		r.errors += t.errors
		r.busy += t.busy
		if t.lastErr != nil {
			r.lastErr = t.lastErr
		}
	}
	// Many callers move in waves of acquires and of releases: halves even that out.
	r.pairsDone = float64(calls) / 2
	r.perSecond = r.pairsDone / took.Seconds()
	return r
}

func userTimeSoFar() time.Duration {
	spent, _ := userTime()
	return spent
}

// wait lets a time pass, or ctx end.
func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
