package main

import (
	"fmt"
	"slices"
	"time"
)

// A plan says how much is measured. Every loop of the program is bounded by it.
type plan struct {
	short       bool
	limit       time.Duration // for the whole run, compilation apart
	rounds      int           // in each, every system has its turn
	kindRounds  int           // the same, for locks that are not just exclusive
	kindCallers int
	callers     []int
	turn        time.Duration // one system's turn with many callers
	lone        time.Duration // with one caller, or one name
	floor       time.Duration
	overload    time.Duration
	costLives   int // in each, the clusters are started anew
	costRounds  int // in each of a life, every cluster has its turn
	costCallers int
	costTurn    time.Duration
	locks       []int // held, in growing order
	share       int   // locks that one replica of five processes holds
	idle        time.Duration
	groups      []int // Raft groups
	idleGroups  []int // more of them, whose cost is the point
	deaths      int   // of leaders, and as many of holders
	applies     string
	watched     string // how many pairs are applied while some watch
	once        string // how often the benchmarks of snapshots are run
}

// wantLocks is the number of locks that the goals speak of.
const wantLocks = 2_000_000

func fullPlan() plan {
	return plan{
		limit: 30 * time.Minute, rounds: 3, kindRounds: 3, kindCallers: 512, callers: []int{1, 64, 512, 2000, 8000},
		turn: 3 * time.Second, lone: 3 * time.Second, floor: time.Second, overload: 5 * time.Second,
		costLives: 16, costRounds: 3, costCallers: goalCallers, costTurn: 400 * time.Millisecond,
		locks: []int{100_000, wantLocks}, share: 100_000, idle: 10 * time.Second, groups: []int{1, 2, 4}, idleGroups: []int{16, 64}, deaths: 20,
		applies: "2s", watched: "1000000x", once: "3x",
	}
}

// shortPlan fits into a minute: it has only the sizes that the goals need, and of
// those that take too long, smaller ones.
func shortPlan() plan {
	return plan{
		short: true, limit: 58 * time.Second, rounds: 2, kindRounds: 1, kindCallers: 512, callers: []int{512, 2000},
		turn: 400 * time.Millisecond, lone: 250 * time.Millisecond, floor: 150 * time.Millisecond, overload: 900 * time.Millisecond,
		costLives: 1, costRounds: 3, costCallers: goalCallers, costTurn: 300 * time.Millisecond,
		locks: []int{100_000}, share: 50_000, idle: 1200 * time.Millisecond, groups: []int{1, 4}, deaths: 1,
		applies: "200000x", watched: "100000x", once: "1x",
	}
}

// warm is how long a turn runs before it is measured: until each caller has had
// some turns, however many they are.
func (p *plan) warm(callers int) time.Duration {
	base := 100 * time.Millisecond
	if !p.short {
		base = 500 * time.Millisecond
	}
	return base + time.Duration(callers)*15*time.Microsecond
}

// asks tells whether a system has a turn with so many callers. The short plan asks
// for what the goals compare: everyone at 2,000, and etcd where it is at its best.
func (p *plan) asks(system string, callers int) bool {
	return !p.short || system == etcdName || callers == slices.Max(p.callers)
}

// scaled says that a number of locks is not the one that the goal speaks of.
func (p *plan) scaled(locks int) string {
	if !p.short || locks != slices.Max(p.locks) || locks >= wantLocks {
		return ""
	}
	return fmt.Sprintf("the largest size of -short; without it %d", wantLocks)
}

// counts says that deaths are fewer than the goal speaks of.
func (p *plan) counts(deaths int) string {
	if deaths >= 20 {
		return ""
	}
	return fmt.Sprintf("%d deaths; without -short 20", deaths)
}
