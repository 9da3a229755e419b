package main

import (
	"context"
	"time"
)

const (
	idleJob  = "idle"
	atHolder = "at the replica that holds all"
	atOthers = "at a replica that holds none"
)

// idleNode measures what a replica with one open session costs when nothing is
// asked of it.
func (b *bench) idleNode(ctx context.Context, c *cluster) error {
	leader, _, err := c.roles(ctx)
	if err != nil {
		return err
	}
	const settle = 300 * time.Millisecond // elections and first renewals are over
	got, err := c.askAll(ctx, func(uint64) order {
		return order{Do: "idle", Warm: settle, For: b.plan.idle}
	})
	if err != nil {
		return err
	}
	for id, values := range got {
		if id == leader {
			b.note(row{Job: idleJob, System: quorumlockName, Where: atLeader, Values: values}, nil)
		}
	}
	for id, values := range got {
		if id != leader {
			b.note(row{Job: idleJob, System: quorumlockName, Where: atFollower, Note: "median of four", Values: values}, nil)
		}
	}
	return nil
}

// stateShare measures what a held lock costs at a replica that does not hold it,
// which is the replicated state, and at one that holds all.
func (b *bench) stateShare(ctx context.Context, c *cluster) error {
	weigh := func(uint64) order { return order{Do: "weigh"} }
	_, others, err := c.roles(ctx)
	if err != nil {
		return err
	}
	empty, err := c.askAll(ctx, weigh)
	if err != nil {
		return err
	}
	holder := others[0]
	if _, err := c.child[holder].ask(ctx, order{Do: "hold", Locks: b.plan.share}); err != nil {
		return err
	}
	if _, err := c.await(ctx, "locks", func(v float64) bool { return v == float64(b.plan.share) }); err != nil {
		return err
	}
	full, err := c.askAll(ctx, weigh)
	if err != nil {
		return err
	}
	for id := range full {
		r := row{Job: memoryJob, System: quorumlockName, Locks: b.plan.share, Where: atOthers}
		if id == holder {
			r.Where = atHolder
		}
		r.Values = map[string]float64{
			"bytes_per_lock": (full[id]["heap_bytes"] - empty[id]["heap_bytes"]) / float64(b.plan.share),
		}
		b.note(r, nil)
	}
	if _, err := c.child[holder].ask(ctx, order{Do: "free"}); err != nil {
		return err
	}
	_, err = c.await(ctx, "locks", func(v float64) bool { return v == 0 })
	return err
}
