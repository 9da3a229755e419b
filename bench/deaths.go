package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

const (
	leaderDeathJob = "leader-death"
	holderDeathJob = "holder-death"

	// deathTTL is the TTL of the sessions whose processes are killed: the shortest
	// that goes with the default election timeout. With the default TTL of 10 s the
	// next grant comes twice as late.
	deathTTL = 5 * time.Second
)

// leaderDeaths kills the leader's process again and again, and measures the time
// until another replica is granted a lock.
func (b *bench) leaderDeaths(ctx context.Context, c *cluster) error {
	var times []time.Duration
	for i := range b.plan.deaths {
		leader, others, err := c.roles(ctx)
		if err != nil {
			return err
		}
		asker := c.child[others[rand.IntN(len(others))]]
		began, reap := c.kill(leader)
		_, err = asker.ask(ctx, order{Do: "acquire", Name: lockName(leaderDeathJob, i)})
		took := time.Since(began)
		reap()
		if err != nil {
			return err
		}
		times = append(times, took)
		if err := c.restart(ctx, leader); err != nil {
			return err
		}
	}
	b.noteDeaths(leaderDeathJob, "default options", times)
	return nil
}

// holderDeaths kills processes that hold a lock and do not lead, two at a time,
// and measures the time until the next in line is granted it.
func (b *bench) holderDeaths(ctx context.Context, c *cluster) error {
	var times []time.Duration
	for i := 0; i < b.plan.deaths; i += 2 {
		leader, others, err := c.roles(ctx)
		if err != nil {
			return err
		}
		took, err := c.killHolders(ctx, leader, others, i)
		if err != nil {
			return err
		}
		times = append(times, took...)
		if len(times) >= b.plan.deaths {
			break // nobody needs those two any more
		}
		for _, id := range others[:2] {
			if err := c.restart(ctx, id); err != nil {
				return err
			}
		}
	}
	b.noteDeaths(holderDeathJob, fmt.Sprintf("session TTL %s", deathTTL), times)
	return nil
}

// killHolders has the first two of the others hold a lock each, and the next two
// wait for it.
func (c *cluster) killHolders(ctx context.Context, leader uint64, others []uint64, i int) ([]time.Duration, error) {
	type grant struct {
		at  time.Time
		err error
	}
	var granted [2]chan grant
	for k := range 2 {
		name := lockName(holderDeathJob, i+k)
		if _, err := c.child[others[k]].ask(ctx, order{Do: "acquire", Name: name, TTL: deathTTL}); err != nil {
			return nil, err
		}
		granted[k] = make(chan grant, 1)
		waiter := c.child[others[2+k]]
		go func() {
			_, err := waiter.ask(ctx, order{Do: "acquire", Name: name})
			granted[k] <- grant{time.Now(), err}
		}()
		if err := c.awaitLine(ctx, leader, name); err != nil {
			return nil, err
		}
	}
	// Renewals come each third of the TTL: each dies at any moment between two.
	first, second := rand.N(deathTTL/3), rand.N(deathTTL/3)
	first, second = min(first, second), max(first, second)
	var began [2]time.Time
	for k, pause := range []time.Duration{first, second - first} {
		wait(ctx, pause)
		at, reap := c.kill(others[k])
		began[k] = at
		defer reap()
	}
	var times []time.Duration
	for k := range 2 {
		g := <-granted[k]
		if g.err != nil {
			return nil, g.err
		}
		times = append(times, g.at.Sub(began[k]))
	}
	return times, nil
}

// awaitLine waits until somebody stands in line.
func (c *cluster) awaitLine(ctx context.Context, asked uint64, name string) error {
	for ctx.Err() == nil {
		r, err := c.child[asked].ask(ctx, order{Do: "line", Name: name})
		if err != nil {
			return err
		}
		if r.Values["waiters"] > 0 {
			return nil
		}
		wait(ctx, poll)
	}
	return context.Cause(ctx)
}

func (b *bench) noteDeaths(job, where string, times []time.Duration) {
	r := row{Job: job, System: quorumlockName, Where: where, Note: b.plan.counts(len(times)),
		Values: map[string]float64{"deaths": float64(len(times))}}
	extremes(r.Values, times)
	b.note(r, nil)
}
