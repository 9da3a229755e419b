package five

import (
	"context"
	"slices"
	"sync"
	"time"
)

// A Killer passes claims on, and closes two nodes in the middle of it: first that of
// the log's leader, while the claims of a tick are under way, and later that of the
// one who claims.
type Killer struct {
	nodes *Nodes
	every int           // so many ticks pass before each
	step  time.Duration // how long it really takes from one tick to the next

	mu     sync.Mutex
	ticks  map[int64]bool // that somebody asked for
	killed []int
	lost   []int64 // ticks whose claims went down with a node
	slow   []int64 // ticks that came while a claim waited for longer than a step
	wg     sync.WaitGroup
}

// NewKiller makes a kill after every ticks, twice. Ticks are a second apart by the
// clocks of the test, which really takes step.
func NewKiller(n *Nodes, every int, step time.Duration) *Killer {
	return &Killer{nodes: n, every: every, step: step, ticks: make(map[int64]bool)}
}

// Register is what replica i claims from.
func (k *Killer) Register(i int) Register { return Register{k, i} }

// Killed returns whose nodes were closed and the ticks that were claimed by them
// without an answer. It waits until they are closed.
func (k *Killer) Killed() (killed []int, lost []int64) {
	k.wg.Wait()
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.killed, k.lost
}

// Slow returns the ticks that came while some claim waited for so long that its
// scheduler had to leave them out: as it does on a machine that has too much to do.
func (k *Killer) Slow() []int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.slow
}

// A Register is a node as an adapter's claims see it.
type Register struct {
	k *Killer
	i int
}

// ClaimTick is the node's.
func (r Register) ClaimTick(ctx context.Context, job string, tick int64) (bool, error) {
	alive := r.k.strike(r.i, tick)
	began := time.Now()
	won, err := r.k.nodes.Node(r.i).ClaimTick(ctx, job, tick)
	took := time.Since(began)
	r.k.mu.Lock()
	defer r.k.mu.Unlock()
	if err != nil && alive {
		r.k.lost = append(r.k.lost, tick)
	}
	for i := range took / r.k.step {
		r.k.slow = append(r.k.slow, tick+1000*int64(i+1))
	}
	return won, err
}

// strike closes a node if it is time to. It reports whether that of the one who
// claims was open before.
func (k *Killer) strike(claimer int, tick int64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if slices.Contains(k.killed, claimer) {
		return false
	}
	k.ticks[tick] = true
	if len(k.killed) == 2 || len(k.ticks) < k.every*(len(k.killed)+1) {
		return true
	}
	victim := claimer
	if len(k.killed) == 0 {
		victim = k.nodes.Leader()
	}
	if victim >= 0 {
		k.killed = append(k.killed, victim)
		k.wg.Go(func() { _ = k.nodes.Node(victim).Close() })
	}
	return true
}
