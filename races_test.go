package quorumlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Races of acquire, cancel and release over the simulated log leave nothing: no
// holder, no waiter, no claim, no goroutine, no memory.
func TestRacesSim(t *testing.T) {
	races := 100_000
	if raceEnabled {
		races = 10_000
	}
	before := runtime.NumGoroutine()
	s := newSim(1, 5)
	nodes := s.openAll(t)
	for _, n := range nodes {
		require.NoError(t, n.Ready(soon(t)))
	}
	race(t, nodes, races/10, 4*time.Millisecond)
	settled(t, nodes)
	s.forget()
	heap := heapNow() - s.logSize()
	race(t, nodes, races-races/10, 4*time.Millisecond)
	settled(t, nodes)
	s.forget()
	grown := int64(heapNow()-s.logSize()) - int64(heap)
	t.Logf("heap grew by %d KiB", grown>>10)
	require.Less(t, grown, int64(1<<20))
	for _, n := range nodes {
		require.NoError(t, n.Close())
	}
	eventually(t, "no goroutine left", func() bool { return runtime.NumGoroutine() <= before })
}

// The same, fewer, on the real engine.
func TestRacesReal(t *testing.T) {
	c := newCluster(t, brisk)
	race(t, c.nodes, 4_000, 30*time.Millisecond)
	settled(t, c.nodes)
}

func heapNow() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// race makes calls on all nodes at once, on few names, each call cancelled at some
// moment within a span: before it, during it, or after its grant.
func race(t *testing.T, nodes map[uint64]*Node, calls int, within time.Duration) {
	const racers = 12
	var o outcomes
	var wg sync.WaitGroup
	for id, n := range nodes {
		for k := range uint64(racers) {
			rng := rand.New(rand.NewPCG(id, k))
			wg.Go(func() {
				for range calls / racers / len(nodes) {
					raceOnce(t, n, rng, within, &o)
				}
			})
		}
	}
	wg.Wait()
	t.Logf("%d granted, %d cancelled, %d refused", o.granted.Load(), o.cancelled.Load(), o.refused.Load())
}

// outcomes are how many calls ended how.
type outcomes struct{ granted, cancelled, refused atomic.Int64 }

func raceOnce(t *testing.T, n *Node, rng *rand.Rand, within time.Duration, o *outcomes) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var racing sync.WaitGroup
	defer racing.Wait()
	if spin := rng.IntN(60); rng.IntN(4) == 0 {
		racing.Go(func() {
			for range spin {
				runtime.Gosched()
			}
			cancel()
		})
	} else {
		timer := time.AfterFunc(time.Duration(rng.Int64N(int64(within))), cancel)
		defer timer.Stop()
	}
	acquire := n.Acquire
	if rng.IntN(4) == 0 {
		acquire = n.TryAcquire
	}
	h, err := acquire(ctx, fmt.Sprint("name ", rng.IntN(8)))
	switch {
	case err == nil:
		o.granted.Add(1)
		releases := 1 + rng.IntN(2)
		for range releases {
			racing.Go(func() {
				if err := h.Release(ctx); err != nil && !errors.Is(err, ErrNoQuorum) {
					t.Errorf("release: %v", err)
				}
			})
		}
	case errors.Is(err, context.Canceled):
		o.cancelled.Add(1)
	case errors.Is(err, ErrHeld):
		o.refused.Add(1)
	default:
		t.Errorf("acquire: %v", err)
	}
}
