package main

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// memoryJob measures what a held lock costs in memory, on each of five replicas
// that hold an equal share, with all that a holder has of it in its own process.
const memoryJob = "memory"

func (b *bench) memory(ctx context.Context) {
	if !b.has(quorumlockName) {
		return
	}
	c, err := b.launch(ctx, quorumlockName, "memory", order{})
	if err != nil {
		b.miss(memoryJob, quorumlockName, err)
		return
	}
	defer c.end()
	empty, err := c.ask(ctx, order{Do: "heap"})
	if err != nil {
		b.miss(memoryJob, quorumlockName, err)
		return
	}
	held := 0
	for _, locks := range b.plan.locks {
		full, err := c.ask(ctx, order{Do: "fill", ID: uint64(held), Locks: locks})
		if err != nil {
			b.miss(memoryJob, quorumlockName, err)
			return
		}
		held = locks
		heap := full.Values["heap_bytes"]
		r := row{Job: memoryJob, System: quorumlockName, Locks: locks, Where: "held on all five", Note: b.plan.scaled(locks)}
		r.Values = map[string]float64{
			"bytes_per_lock": (heap - empty.Values["heap_bytes"]) / float64(replicas*locks),
			"heap_mb":        heap / 1e6,
			"acquires_per_s": full.Values["acquires_per_s"],
		}
		b.note(r, nil)
	}
}

// fillers is how many callers take the locks, each the next one that is free.
const fillers = 4000

// fillTurn takes the locks from number o.ID up to o.Locks and keeps them, and
// returns when every replica knows of all.
func fillTurn(ctx context.Context, s system, o order, values map[string]float64) error {
	q, ok := s.(*quorumlockSystem)
	if !ok {
		return errors.New("only for quorumlock")
	}
	began := time.Now()
	if err := fill(ctx, func(i int) acquirer { return q.nodes[i%len(q.nodes)] }, int(o.ID), o.Locks); err != nil {
		return err
	}
	values["acquires_per_s"] = float64(o.Locks-int(o.ID)) / time.Since(began).Seconds()
	for _, n := range q.nodes {
		for n.Status().Locks < o.Locks && ctx.Err() == nil {
			wait(ctx, time.Millisecond)
		}
	}
	return heapTurn(ctx, s, o, values)
}

// fill takes the locks from number first up to end.
func fill(ctx context.Context, at func(i int) acquirer, first, end int) error {
	var next atomic.Int64
	next.Store(int64(first))
	var failed atomic.Pointer[error]
	var callers sync.WaitGroup
	for range min(fillers, end-first) {
		callers.Go(func() {
			for failed.Load() == nil {
				i := int(next.Add(1)) - 1
				if i >= end {
					return
				}
				if _, err := at(i).Acquire(ctx, lockName(memoryJob, i)); err != nil {
					failed.Store(&err)
				}
			}
		})
	}
	callers.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return ctx.Err()
}

func heapTurn(_ context.Context, _ system, _ order, values map[string]float64) error {
	values["heap_bytes"] = heapInUse()
	return nil
}

// heapInUse returns how many bytes of the heap are reachable.
func heapInUse() float64 {
	runtime.GC()
	runtime.GC() // the second one empties what pools still kept
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}
