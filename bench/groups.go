package main

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"runtime"
)

// groupsJob measures what several Raft groups bring, as pairs measures one, and what
// they cost while nothing is asked of them.
const groupsJob = "groups"

func (b *bench) groups(ctx context.Context) {
	for round := range b.plan.kindRounds {
		for _, n := range b.plan.groups {
			b.groupsTurn(ctx, n, round)
		}
		for _, n := range b.plan.idleGroups {
			b.groupsTurn(ctx, n, round)
		}
	}
}

// groupsTurn starts a cluster of so many groups, lets it idle, and has callers call.
func (b *bench) groupsTurn(ctx context.Context, groups, round int) {
	r := row{Job: groupsJob, System: quorumlockName, Callers: goalCallers, Where: groupsOf(groups)}
	c, err := b.launch(ctx, quorumlockName, filepath.Join(groupsJob, fmt.Sprintf("%d-%d", groups, round)), order{Groups: groups})
	if err != nil {
		b.note(r, err)
		return
	}
	defer c.end()
	resting, err := c.ask(ctx, order{Do: "rest", Warm: b.plan.turn / 2, For: b.plan.turn})
	if err != nil {
		b.note(r, err)
		return
	}
	busy, err := c.ask(ctx, order{Do: "pairs", Where: everywhere, Callers: goalCallers, Warm: b.plan.warm(goalCallers), For: b.plan.turn})
	if r.Values = busy.Values; err == nil {
		maps.Copy(r.Values, resting.Values)
	}
	b.note(r, err)
}

func groupsOf(n int) string {
	if n == 1 {
		return "1 group"
	}
	return fmt.Sprintf("%d groups", n)
}

// restTurn measures a cluster of which nothing is asked, for each of its replicas.
func restTurn(ctx context.Context, _ system, o order, values map[string]float64) error {
	if percent, ok := restingPercent(ctx, o); ok {
		values["idle_cpu_percent"] = percent / replicas
	}
	values["idle_goroutines"] = float64(runtime.NumGoroutine()) / replicas
	if rss, ok := residentBytes(); ok {
		values["idle_rss_mb"] = rss / 1e6 / replicas
	}
	values["idle_heap_mb"] = heapInUse() / 1e6 / replicas
	return ctx.Err()
}

func (rs *rows) groupFigures() (fs []figure) {
	one := key{groupsJob, quorumlockName, goalCallers, 0, groupsOf(1)}
	for _, own := range rs.of(groupsJob) {
		if own.key() != one {
			rs.over(&fs, "", fmt.Sprintf("pairs/s, %d callers, %s to 1", goalCallers, own.Where), own.key(), "pairs_per_s", one, "pairs_per_s", nil)
		}
	}
	return fs
}
