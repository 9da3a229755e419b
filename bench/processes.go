package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"sync"
	"time"
)

// processesJob measures five replicas in a process each, with default options:
// what one costs when idle, and how soon the others go on when one dies.
const processesJob = "processes"

func (b *bench) processes(ctx context.Context) {
	if !b.has(quorumlockName) {
		return
	}
	c, err := b.startCluster(ctx)
	if err != nil {
		b.miss(processesJob, quorumlockName, err)
		return
	}
	defer c.end()
	for _, step := range []func(*bench, context.Context, *cluster) error{
		(*bench).idleNode, (*bench).stateShare, (*bench).leaderDeaths, (*bench).holderDeaths,
	} {
		if err := step(b, ctx, c); err != nil {
			b.miss(processesJob, quorumlockName, err)
			return
		}
	}
}

// A cluster is five replicas in a process each.
type cluster struct {
	program string
	dir     string
	members map[uint64]string
	child   map[uint64]*child // those that live
}

func (b *bench) startCluster(ctx context.Context) (*cluster, error) {
	members, err := founders(replicas)
	if err != nil {
		return nil, err
	}
	if b.built.lean.err != nil {
		return nil, b.built.lean.err
	}
	c := &cluster{program: b.built.lean.path, dir: filepath.Join(b.dir, "processes"), members: members, child: make(map[uint64]*child)}
	for id := range members {
		if err := c.begin(id, b.dir); err != nil {
			c.end()
			return nil, err
		}
	}
	if _, err := c.askAll(ctx, func(id uint64) order { return c.opening(id) }); err != nil {
		c.end()
		return nil, err
	}
	return c, nil
}

// begin starts the process of a replica, which is to be told to open it.
func (c *cluster) begin(id uint64, logs string) (err error) {
	c.child[id], err = startChild(c.program, filepath.Join(logs, fmt.Sprintf("process-%d.log", id)))
	if err != nil {
		delete(c.child, id)
	}
	return err
}

func (c *cluster) opening(id uint64) order {
	return order{Do: "open", ID: id, Members: c.members, Dir: c.dir}
}

// restart starts a replica that died again, and waits until it is ready.
func (c *cluster) restart(ctx context.Context, id uint64) error {
	if err := c.begin(id, filepath.Dir(c.dir)); err != nil {
		return err
	}
	_, err := c.child[id].ask(ctx, c.opening(id))
	return err
}

func (c *cluster) end() {
	var ends sync.WaitGroup
	for _, child := range c.child {
		ends.Go(child.end)
	}
	ends.Wait()
}

// kill ends a replica's process as a crash does, and returns when it was told to
// end.
func (c *cluster) kill(id uint64) (at time.Time, reap func()) {
	victim := c.child[id]
	delete(c.child, id)
	at = time.Now()
	_ = victim.cmd.Process.Kill()
	return at, func() {
		victim.kill()
		victim.end()
	}
}

// askAll asks every replica that lives, at once.
func (c *cluster) askAll(ctx context.Context, what func(id uint64) order) (map[uint64]map[string]float64, error) {
	var mu sync.Mutex
	var errs []error
	got := make(map[uint64]map[string]float64)
	var asks sync.WaitGroup
	for id, child := range c.child {
		asks.Go(func() {
			r, err := child.ask(ctx, what(id))
			mu.Lock()
			defer mu.Unlock()
			got[id] = r.Values
			if err != nil {
				errs = append(errs, fmt.Errorf("replica %d: %w", id, err))
			}
		})
	}
	asks.Wait()
	return got, errors.Join(errs...)
}

// poll is how often a replica is asked for what it will know soon.
const poll = 2 * time.Millisecond

// await asks every replica for one value again and again, until all agree on one
// that will do, and returns it.
func (c *cluster) await(ctx context.Context, value string, willDo func(v float64) bool) (float64, error) {
	const patience = 20 * time.Second
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("the replicas did not agree on %s in %s", value, patience))
	defer cancel()
	for {
		got, err := c.askAll(ctx, func(uint64) order { return order{Do: "status"} })
		if err != nil {
			return 0, err
		}
		agreed, all := math.NaN(), true
		for _, values := range got {
			if v := values[value]; math.IsNaN(agreed) || v == agreed {
				agreed = v
			} else {
				all = false
			}
		}
		if all && willDo(agreed) {
			return agreed, nil
		}
		wait(ctx, poll)
	}
}

// roles returns who leads, and the others.
func (c *cluster) roles(ctx context.Context) (leader uint64, others []uint64, err error) {
	v, err := c.await(ctx, "leader", func(v float64) bool { return c.child[uint64(v)] != nil })
	for id := range c.child {
		if id != uint64(v) {
			others = append(others, id)
		}
	}
	return uint64(v), others, err
}
