package quorumlock

import (
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/sessions"
)

func TestATickIsClaimedOnce(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		s.alter(func() {
			s.faults = simFaults{drop: 0.2, duplicate: 0.3, late: 0.2, snapshot: 0.05, delay: 100 * time.Millisecond}
		})
		var mu sync.Mutex
		won := map[int64]int{}
		var wg sync.WaitGroup
		for _, n := range nodes {
			for k := range int64(20) {
				wg.Go(func() {
					for _, tick := range []int64{k, k - 3} {
						ok, err := n.ClaimTick(soon(t), "nightly", tick)
						mu.Lock()
						if err == nil && ok {
							won[tick]++
						}
						mu.Unlock()
					}
				})
			}
		}
		wg.Wait()
		for tick, n := range won {
			require.Equal(t, 1, n, "tick %d", tick)
		}
		require.Equal(t, 1, won[19], "somebody has the last one")
		jobs, err := nodes[1].Jobs(soon(t), "nigh")
		require.NoError(t, err)
		require.Len(t, jobs, 1)
		require.Equal(t, int64(19), jobs[0].Tick)
	})
}

func TestTicksOnlyGrow(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		claim := func(id uint64, tick int64) bool {
			ok, err := nodes[id].ClaimTick(soon(t), "job", tick)
			require.NoError(t, err)
			return ok
		}
		require.True(t, claim(1, math.MinInt64))
		require.False(t, claim(2, math.MinInt64))
		require.True(t, claim(2, 10))
		require.False(t, claim(1, 9), "what is past stays past")
		require.NoError(t, nodes[2].Close())
		require.False(t, claim(1, 10), "also when who claimed it is gone")
		require.NoError(t, nodes[3].ForgetJob(soon(t), "job"))
		require.ErrorIs(t, nodes[3].ForgetJob(soon(t), "job"), ErrNotHeld)
		require.True(t, claim(1, 10))
		_, err := nodes[1].ClaimTick(soon(t), "", 1)
		require.ErrorIs(t, err, ErrName)
	})
}

// A claim that is sent once more because nobody saw its answer gets that answer, and
// not a no. After a later tick was claimed it is a no: it errs on the side of not
// running.
func TestARepeatedClaimGetsTheSameAnswer(t *testing.T) {
	f := newLockFSM()
	claim := func(replica, epoch, call uint64, tick int64) cause {
		c := &wire.Command{Op: wire.Claim, Name: "job", More: &wire.More{Tick: tick, Call: call}}
		return f.claimTick(sessions.ID{Replica: replica, Epoch: epoch}, 0, c)
	}
	require.Zero(t, claim(1, 1, 7, 10))
	require.Zero(t, claim(1, 1, 7, 10), "the same call")
	require.Equal(t, causeClaimed, claim(1, 1, 8, 10), "another call of the same process")
	require.Equal(t, causeClaimed, claim(1, 2, 7, 10), "of its next life")
	require.Equal(t, causeClaimed, claim(2, 1, 7, 10), "of another replica")
	require.Zero(t, claim(1, 1, 7, 10))
	require.Zero(t, claim(2, 1, 7, 11))
	require.Equal(t, causeClaimed, claim(1, 1, 7, 10))
	require.Equal(t, int64(11), f.jobs["job"].Tick)
}

func TestHandOverGoesToTheChosenOne(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		h, err := nodes[1].Acquire(soon(t), "lead")
		require.NoError(t, err)
		got := make(map[uint64]chan *Hold)
		for _, id := range []uint64{2, 3, 4} {
			got[id] = make(chan *Hold, 1)
			go func() {
				if h, err := nodes[id].Acquire(t.Context(), "lead"); err == nil {
					got[id] <- h
				}
			}()
			synctest.Wait()
		}
		info, err := nodes[5].Describe(soon(t), "lead")
		require.NoError(t, err)
		require.ErrorIs(t, h.HandOver(soon(t), h.Session().ID()), ErrNoWaiter)
		require.NoError(t, h.Err())
		require.NoError(t, h.HandOver(soon(t), info.Waiters[2].Session))
		require.ErrorIs(t, h.Err(), ErrNotHeld)
		four := <-got[4]
		require.Greater(t, four.Token(), h.Token())
		require.NoError(t, four.Release(soon(t)))
		require.NoError(t, (<-got[2]).Release(soon(t)), "the others have kept their places")
		require.NoError(t, (<-got[3]).Release(soon(t)))
	})
}

func TestValues(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		h, err := nodes[1].Acquire(soon(t), "lead", Value("10.0.0.1:80"))
		require.NoError(t, err)
		value := func() string {
			info, err := nodes[2].Describe(soon(t), "lead")
			require.NoError(t, err)
			return info.Holders[0].Value
		}
		require.Equal(t, "10.0.0.1:80", value())
		require.NoError(t, h.SetValue(soon(t), "10.0.0.1:81"))
		require.Equal(t, "10.0.0.1:81", value())
		require.NoError(t, h.SetValue(soon(t), ""))
		require.Equal(t, "", value())
		require.ErrorIs(t, h.SetValue(soon(t), strings.Repeat("v", MaxValueLen+1)), ErrValue)
		_, err = nodes[1].TryAcquire(soon(t), "x", Value("\xff"))
		require.ErrorIs(t, err, ErrValue)
		require.NoError(t, h.Release(soon(t)))
		require.ErrorIs(t, h.SetValue(soon(t), "late"), ErrNotHeld)

		plain, err := nodes[1].Acquire(soon(t), "plain")
		require.NoError(t, err)
		require.NoError(t, plain.SetValue(soon(t), "now it has one"))
		require.NoError(t, plain.Validate(soon(t)))
		require.NoError(t, plain.Release(soon(t)))
	})
}
