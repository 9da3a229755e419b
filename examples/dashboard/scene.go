package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/fencing"
)

const (
	invoices = 240 // locks that are held for long
	workers  = 6   // sessions that come and go
)

// fill takes the locks that stay: invoices, leaders with their addresses, a lock with
// readers, a counted one, and lines of those who wait.
func fill(ctx context.Context, nodes []*quorumlock.Node) error {
	for i := range invoices {
		name := fmt.Sprintf("invoice/%04d", 4700+i)
		if _, err := nodes[i%len(nodes)].Acquire(ctx, name); err != nil {
			return err
		}
	}
	for i, job := range []string{"exporter", "ledger-close", "mailer", "reconciler"} {
		leader := nodes[i%len(nodes)]
		if _, err := leader.Acquire(ctx, "leader/"+job, quorumlock.Value(fmt.Sprintf("10.0.4.%d:8080", 11+i))); err != nil {
			return err
		}
		wait(ctx, leader, nodes, "leader/"+job)
	}
	for i, n := range nodes {
		if _, err := n.Acquire(ctx, "tariffs", quorumlock.Share()); err != nil {
			return err
		}
		if _, err := n.Acquire(ctx, "gateway/acme", quorumlock.Permits(i+1, 8)); err != nil {
			return err
		}
	}
	wait(ctx, nil, nodes[:2], "tariffs")
	for i, lines := range map[int]int{1: 1, 12: 4, 33: 1} {
		for range lines {
			wait(ctx, nodes[i%len(nodes)], nodes, fmt.Sprintf("invoice/%04d", 4700+i))
		}
	}
	return waiting(ctx, nodes[0], "invoice/4712", 8)
}

// wait lets all nodes but one stand in line, until ctx ends.
func wait(ctx context.Context, not *quorumlock.Node, nodes []*quorumlock.Node, name string) {
	for _, n := range nodes {
		if n != not {
			go func() {
				// It ends with ctx: what it returns then is no news.
				_ = n.Do(ctx, name, func(ctx context.Context, _ fencing.Token) error {
					<-ctx.Done()
					return nil
				})
			}()
		}
	}
}

// waiting waits until so many stand in line for a name.
func waiting(ctx context.Context, n *quorumlock.Node, name string, count int) error {
	for e, err := range n.Watch(ctx, name) {
		if err != nil {
			return err
		}
		if e.Kind == quorumlock.EventSynced || e.Kind == quorumlock.EventQueued {
			info, err := n.Describe(ctx, name)
			if err != nil || len(info.Waiters) >= count {
				return err
			}
		}
	}
	return ctx.Err()
}

// work lets sessions come, take locks and lose one now and then, until ctx ends.
func work(ctx context.Context, nodes []*quorumlock.Node) {
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := shift(ctx, nodes[i%len(nodes)], i+1); err != nil && ctx.Err() == nil {
					return
				}
			}
		})
	}
	wg.Wait()
}

// shift is the life of one worker's session: some tasks, in competition with others.
func shift(ctx context.Context, n *quorumlock.Node, worker int) error {
	s, err := n.OpenSession(ctx, quorumlock.WithOwner(fmt.Sprintf("worker-%d", worker)))
	if err != nil {
		return err
	}
	defer s.Close(context.WithoutCancel(ctx))
	for range 20 {
		h, err := s.Acquire(ctx, fmt.Sprintf("task/%02d", rand.IntN(8)), quorumlock.MaxHold(10*time.Second))
		if err != nil {
			return err
		}
		pause(ctx, time.Duration(300+rand.IntN(900))*time.Millisecond)
		if rand.IntN(8) == 0 {
			err = n.ForceRelease(ctx, h.Name(), h.Token(), "watchdog", "no progress for a minute")
		} else {
			err = h.Release(ctx)
		}
		if err != nil && !errors.Is(err, quorumlock.ErrLost) && !errors.Is(err, quorumlock.ErrNotHeld) {
			return err
		}
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
