package main

import (
	"context"
	"fmt"
)

// pairsJob measures lock+unlock pairs a second, with callers on all replicas that
// each have a name of their own.
const pairsJob = "pairs"

func (b *bench) pairs(ctx context.Context) {
	for range b.plan.rounds {
		for _, callers := range b.plan.callers {
			for _, name := range b.systems {
				if !b.plan.asks(name, callers) {
					continue
				}
				b.turn(ctx, row{Job: pairsJob, System: name, Callers: callers, Where: place(name, everywhere)},
					order{Do: "pairs", Where: everywhere, Callers: callers, Warm: b.plan.warm(callers), For: b.plan.turn})
			}
		}
	}
}

// place corrects where callers are, for systems that have one place.
func place(system, where string) string {
	if system == rueidisName || system == goredisName {
		return oneServer
	}
	return where
}

func pairsTurn(ctx context.Context, s system, o order, values map[string]float64) error {
	lockers, err := s.lockers(ctx, o.Callers, o.Where, false)
	if err != nil {
		return err
	}
	l := &load{}
	r := l.run(ctx, lockers, func(i int) string { return lockName(o.Do, i) }, o.Warm, o.For)
	return r.into(values)
}

// into puts a result among the values.
func (r *result) into(values map[string]float64) error {
	if len(r.pairs) == 0 {
		return fmt.Errorf("no lock was taken and given back in time; the last error was: %v", r.lastErr)
	}
	values["pairs_per_s"] = r.perSecond
	spread(values, "", r.acquires)
	spread(values, "pair_", r.pairs)
	values["errors"] = float64(r.errors)
	return nil
}
