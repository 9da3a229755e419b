package quorumlock

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What follows is for tests of packages that stand above this one: they drive the
// simulated log with the public API only, from package quorumlock_test.

// A Sim is a simulated cluster of five nodes.
type Sim struct {
	T       *testing.T
	s       *sim
	options map[uint64]Options

	mu    sync.Mutex
	nodes map[uint64]*Node
	skew  map[uint64]time.Duration // by which a node's trust clock is ahead: it slept
}

// SimSeeds are the seeds to run: n new ones, or the one to be replayed.
func SimSeeds(t *testing.T, n int) []uint64 { return seeds(t, n) }

// SimSeedVar is the variable that replays one.
const SimSeedVar = seedVar

// NewSim opens five nodes over a simulated log. It is to be called in a bubble, and
// closed in it.
func NewSim(t *testing.T, seed uint64, isBrisk bool) *Sim {
	x := &Sim{T: t, s: newSim(seed, 5), options: make(map[uint64]Options), nodes: make(map[uint64]*Node), skew: make(map[uint64]time.Duration)}
	for id := range x.s.replicas {
		o := x.s.options(id)
		if isBrisk {
			brisk(&o)
		}
		awake := o.trust
		o.trust = func() time.Duration {
			x.mu.Lock()
			defer x.mu.Unlock()
			return awake() + x.skew[id]
		}
		x.options[id] = o
		x.nodes[id] = x.s.open(t, o)
	}
	for _, n := range x.nodes {
		require.NoError(t, n.Ready(t.Context()))
	}
	return x
}

// Node is the present life of a replica.
func (x *Sim) Node(id uint64) *Node {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.nodes[id]
}

func (x *Sim) Cut(ids ...uint64)         { x.s.cut(ids...) }
func (x *Sim) Heal()                     { x.s.heal() }
func (x *Sim) MoveLeader()               { x.s.moveLeader() }
func (x *Sim) Pause(id uint64, yes bool) { x.s.pause(id, yes) }
func (x *Sim) Mute(id uint64, yes bool)  { x.s.mute(id, yes) }
func (x *Sim) CalmDown()                 { x.s.alter(func() { x.s.faults = simFaults{} }); x.s.heal() }
func (x *Sim) RaftLeader() (leader uint64) {
	leader, _ = x.Node(1).groups[0].engine.leader()
	return leader
}

// Sleep moves a node's trust clock on, as if its machine had been suspended.
func (x *Sim) Sleep(id uint64, d time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.skew[id] += d
}

// Restart crashes a replica and opens it again.
func (x *Sim) Restart(id uint64) {
	if err := x.Node(id).Close(); err != nil {
		x.T.Errorf("close %d: %v", id, err)
	}
	x.Open(id)
}

func (x *Sim) Open(id uint64) {
	n := x.s.open(x.T, x.options[id])
	x.mu.Lock()
	x.nodes[id] = n
	x.mu.Unlock()
}

// Trouble does one thing to the cluster.
func (x *Sim) Trouble(rng *rand.Rand) { x.s.trouble(rng, x.Restart) }

// Settled waits until nothing is left of any call and all replicas agree.
func (x *Sim) Settled() { settled(x.T, x.nodes) }

func (x *Sim) Close() {
	for id, n := range x.nodes {
		if err := n.Close(); err != nil {
			x.T.Errorf("close %d: %v", id, err)
		}
	}
}

// Elapse lets d pass in the bubble.
func Elapse(d time.Duration) { elapse(d) }

// Soon is a ctx for what must not take long.
func Soon(t *testing.T) context.Context { return soon(t) }
