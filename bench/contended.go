package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// contendedJob measures how fast one lock goes from hand to hand. Redis takes no
// part: its lock has no line in which to wait.
const contendedJob = "contended"

const waiters = 64

func (b *bench) contended(ctx context.Context) {
	for range b.plan.rounds {
		for _, name := range b.systems {
			if place(name, everywhere) == oneServer {
				continue
			}
			b.turn(ctx, row{Job: contendedJob, System: name, Callers: waiters, Where: everywhere},
				order{Do: "contended", Warm: b.plan.warm(waiters), For: b.plan.lone})
		}
	}
}

// A baton is what goes from hand to hand with the lock.
type baton struct {
	phase  atomic.Int32
	given  time.Time // when its last holder began to give it back; guarded by the lock itself
	passes []time.Duration
	failed atomic.Pointer[error]
}

func contendedTurn(ctx context.Context, s system, o order, values map[string]float64) error {
	lockers, err := s.lockers(ctx, waiters, everywhere, true)
	if err != nil {
		return err
	}
	entries := func() uint64 { return 0 }
	if q, ok := s.(*quorumlockSystem); ok {
		entries = func() uint64 { return q.nodes[0].Status().Applied }
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	b := &baton{}
	var hands sync.WaitGroup
	for _, lk := range lockers {
		hands.Go(func() { b.run(ctx, lk, lockName(o.Do, 0)) })
	}
	wait(ctx, o.Warm)
	began, first := time.Now(), entries()
	b.phase.Store(measuring)
	wait(ctx, o.For)
	b.phase.Store(stopped)
	took, last := time.Since(began), entries()
	hands.Wait()
	if err := b.failed.Load(); err != nil {
		return *err
	}
	if len(b.passes) == 0 {
		return errors.New("the lock was not handed over once")
	}
	values["handoffs_per_s"] = float64(len(b.passes)) / took.Seconds()
	if last > first {
		values["entries_per_handoff"] = float64(last-first) / float64(len(b.passes))
	}
	spread(values, "", b.passes)
	return nil
}

// run takes and gives back the lock until the turn is over. What it writes is
// written under the lock that is measured: if that did not exclude, the result
// would be wrong, and the race detector would say so.
func (b *baton) run(ctx context.Context, lk locker, name string) {
	for b.phase.Load() != stopped {
		unlock, err := lk.lock(ctx, name)
		if err == nil {
			now := time.Now()
			if b.phase.Load() == measuring && !b.given.IsZero() {
				b.passes = append(b.passes, now.Sub(b.given))
			}
			b.given = time.Now()
			err = unlock(ctx)
		}
		if err != nil {
			b.failed.Store(&err)
			b.phase.Store(stopped)
		}
	}
}
