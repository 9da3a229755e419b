package quorumlock

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// levels are what must not rise.
type levels struct{ heap, goroutines, snapshot int }

func levelsOf(s *sim, nodes map[uint64]*Node) levels {
	synctest.Wait()
	s.forget()
	return levels{
		heap:       heapInUse() - int(s.logSize()),
		goroutines: runtime.NumGoroutine(),
		snapshot:   len(nodes[1].groups[0].remains().bytes),
	}
}

func requireFlat(t *testing.T, before, after levels) {
	t.Helper()
	t.Logf("before: %+v; after: %+v", before, after)
	require.Less(t, after.heap-before.heap, 1<<20)
	require.LessOrEqual(t, after.goroutines, before.goroutines)
	require.LessOrEqual(t, after.snapshot, before.snapshot+64, "the numbers in it grow, and no more")
}

// Sessions that were opened, held a lock and were closed leave nothing, once the
// timers of their leases have run out.
func TestClosedSessionsCostNothing(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		sessions := func(n int) {
			for i := range n {
				ctx := t.Context() // soon would keep a context until the end of the test
				own, err := nodes[uint64(i%5)+1].OpenSession(ctx)
				require.NoError(t, err)
				_, err = own.Acquire(ctx, fmt.Sprint("job ", i%100)) // names keep the room of their pages
				require.NoError(t, err)
				require.NoError(t, own.Close(ctx))
			}
			elapse(5 * time.Minute)
		}
		sessions(sized(500, 100))
		before := levelsOf(s, nodes)
		sessions(sized(10_000, 500))
		requireFlat(t, before, levelsOf(s, nodes))
	})
}

// Waiters that give up, a thousand at once, leave nothing in a line whose holder stays.
func TestCancelledWaitersCostNothing(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		held, err := nodes[1].Acquire(soon(t), "job")
		require.NoError(t, err)
		var cancelled atomic.Int64
		waiters := func(n int) {
			for range n / 1000 {
				ctx, cancel := context.WithCancel(t.Context())
				var calls sync.WaitGroup
				for i := range 1000 {
					calls.Go(func() {
						if _, err := nodes[uint64(i%5)+1].Acquire(ctx, "job"); errors.Is(err, context.Canceled) && errors.Is(err, ErrHeld) {
							cancelled.Add(1)
						}
					})
				}
				elapse(time.Second) // a batch that overtook another is sent again
				inLine(t, nodes[2], "job", 1000)
				cancel()
				calls.Wait()
				elapse(time.Second)
				inLine(t, nodes[2], "job", 0)
			}
		}
		waiters(2000)
		before := levelsOf(s, nodes)
		n := sized(100_000, 5000)
		waiters(n)
		require.EqualValues(t, 2000+n, cancelled.Load())
		requireFlat(t, before, levelsOf(s, nodes))
		require.NoError(t, held.Release(soon(t)))
		settled(t, nodes)
	})
}

// Losses of the leader, of a link for longer than the session lasts, and of the
// majority leave nothing once they are over.
func TestLossesCostNothing(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		losses := func(n int) {
			for i := range n {
				id := uint64(i%5) + 1
				held, err := nodes[id].Acquire(soon(t), "job")
				require.NoError(t, err)
				switch i % 3 {
				case 0:
					s.moveLeader()
				case 1:
					s.cut(id)
				case 2:
					s.cut(1, 2, 3)
				}
				if i%3 == 0 {
					require.NoError(t, held.Release(soon(t)))
				} else {
					elapse(2 * DefaultSessionTTL)
					require.ErrorIs(t, held.Err(), ErrLost)
				}
				s.heal()
				elapse(2 * DefaultSessionTTL)
				goesOn(t, nodes)
			}
			settled(t, nodes)
		}
		losses(15)
		before := levelsOf(s, nodes)
		losses(sized(100, 30))
		requireFlat(t, before, levelsOf(s, nodes))
	})
}
