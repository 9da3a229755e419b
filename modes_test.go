package quorumlock

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestReadersShareAndWritersDoNot(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		a, err := nodes[1].Acquire(soon(t), "doc", Share())
		require.NoError(t, err)
		b, err := nodes[2].TryAcquire(soon(t), "doc", Share())
		require.NoError(t, err)
		require.Equal(t, a.Token(), b.Token(), "readers that overlap are one generation")
		require.Equal(t, Shared, b.Mode())

		writer := make(chan *Hold, 1)
		go func() {
			h, err := nodes[3].Acquire(t.Context(), "doc")
			if err == nil {
				writer <- h
			}
		}()
		synctest.Wait()
		_, err = nodes[1].TryAcquire(soon(t), "doc", Share())
		var held *HeldError
		require.ErrorAs(t, err, &held, "a reader does not overtake a writer")
		require.Equal(t, Shared, held.Mode)
		require.Len(t, held.Holders, 2)
		require.Equal(t, 1, held.Ahead)

		require.NoError(t, a.Release(soon(t)))
		require.NoError(t, b.Release(soon(t)))
		w := <-writer
		require.Greater(t, w.Token(), a.Token())

		reader := make(chan *Hold, 1)
		go func() {
			h, err := nodes[2].Acquire(t.Context(), "doc", Share())
			if err == nil {
				reader <- h
			}
		}()
		synctest.Wait()
		require.NoError(t, w.Downgrade(soon(t)))
		r := <-reader
		require.Equal(t, w.Token(), r.Token())
		require.Equal(t, Shared, w.Mode())
		require.ErrorIs(t, w.Upgrade(soon(t)), ErrUpgrade)
		require.ErrorIs(t, w.Upgrade(soon(t)), ErrMode)
	})
}

func TestPermitsHaveSlots(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		a, err := nodes[1].Acquire(soon(t), "pool", Permits(2, 3))
		require.NoError(t, err)
		require.Equal(t, []int{0, 1}, a.Slots())
		b, err := nodes[2].Acquire(soon(t), "pool", Permits(1, 3))
		require.NoError(t, err)
		require.Equal(t, []int{2}, b.Slots())
		_, err = nodes[3].TryAcquire(soon(t), "pool", Permits(1, 3))
		require.ErrorIs(t, err, ErrHeld)
		_, err = nodes[3].TryAcquire(soon(t), "pool", Permits(1, 4))
		var mode *ModeError
		require.ErrorAs(t, err, &mode)
		require.Equal(t, ModeError{"pool", Counted, 3, Counted, 4}, *mode)
		_, err = nodes[3].TryAcquire(soon(t), "pool")
		require.ErrorIs(t, err, ErrMode)

		require.NoError(t, nodes[4].Resize(soon(t), "pool", 4))
		c, err := nodes[3].TryAcquire(soon(t), "pool", Permits(1, 4))
		require.NoError(t, err)
		require.Equal(t, []int{3}, c.Slots())
		require.NoError(t, a.Release(soon(t)))
		d, err := nodes[3].TryAcquire(soon(t), "pool", Permits(1, 4))
		require.NoError(t, err)
		require.Equal(t, []int{0}, d.Slots())
		require.Greater(t, d.Token(), a.Token())
	})
}

func TestSeveralNamesAtOnce(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		h, err := nodes[1].AcquireAll(soon(t), "b", "a")
		require.NoError(t, err)
		require.Equal(t, []string{"a", "b"}, h.Names())
		require.NotZero(t, h.TokenFor("a"))
		require.NotEqual(t, h.TokenFor("a"), h.TokenFor("b"))
		require.Equal(t, h.Token(), h.TokenFor("b"))
		_, err = nodes[2].TryAcquireAll(soon(t), "c", "b")
		var held *HeldError
		require.ErrorAs(t, err, &held)
		require.Equal(t, "b", held.Name)
		c, err := nodes[2].TryAcquire(soon(t), "c")
		require.NoError(t, err, "nothing is left of a try")
		require.NoError(t, c.Release(soon(t)))
		require.NoError(t, h.Release(soon(t)))
		h, err = nodes[2].TryAcquireAll(soon(t), "c", "b")
		require.NoError(t, err)
		require.NoError(t, h.Validate(soon(t)))
	})
}

func TestMaxHoldEndsForTheHolderFirst(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		h, err := nodes[1].Acquire(soon(t), "job", MaxHold(8*time.Second))
		require.NoError(t, err)
		ctx, cancel := h.Context(t.Context())
		defer cancel()
		started := time.Now()
		next, err := nodes[2].Acquire(soon(t), "job")
		require.NoError(t, err)
		took := time.Since(started)
		require.GreaterOrEqual(t, took, 8*time.Second)
		require.Less(t, took, 10*time.Second)
		require.ErrorIs(t, context.Cause(ctx), ErrMaxHold)
		require.ErrorIs(t, h.Err(), ErrMaxHold)
		require.ErrorIs(t, h.Release(soon(t)), ErrLost)
		require.NoError(t, next.Err())
	})
}

func TestLockDelayAfterALoss(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		h, err := nodes[1].Acquire(soon(t), "job", LockDelay(30*time.Second))
		require.NoError(t, err)
		require.NoError(t, nodes[3].ForceRelease(soon(t), "job", h.Token(), "ops", "stuck"))
		synctest.Wait()
		var revoked *RevokedError
		require.ErrorAs(t, h.Err(), &revoked)
		require.Equal(t, RevokedError{"ops", "stuck"}, *revoked)
		_, err = nodes[2].TryAcquire(soon(t), "job")
		var held *HeldError
		require.ErrorAs(t, err, &held)
		require.True(t, held.Delayed)
		started := time.Now()
		_, err = nodes[2].Acquire(soon(t), "job")
		require.NoError(t, err)
		require.GreaterOrEqual(t, time.Since(started), 29*time.Second)
		require.ErrorIs(t, nodes[3].ForceRelease(soon(t), "job", h.Token(), "ops", "stuck"), ErrNotHeld)
	})
}

// Whoever holds through a remote session may believe in it for a while after its end, so
// only a release frees the lock without delay: neither Close nor Shutdown does.
func TestRemoteSessionEndsWithDelay(t *testing.T) {
	for what, end := range map[string]func(*testing.T, *Node, *Session) error{
		"close":    func(t *testing.T, _ *Node, s *Session) error { return s.Close(soon(t)) },
		"shutdown": func(t *testing.T, n *Node, _ *Session) error { return n.Shutdown(soon(t)) },
	} {
		t.Run(what, func(t *testing.T) {
			inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
				s, err := nodes[1].OpenSession(soon(t), Remote())
				require.NoError(t, err)
				h, err := s.Acquire(soon(t), "released", LockDelay(30*time.Second))
				require.NoError(t, err)
				require.NoError(t, h.Release(soon(t)))
				_, err = nodes[2].TryAcquire(soon(t), "released")
				require.NoError(t, err)
				_, err = s.Acquire(soon(t), "job", LockDelay(30*time.Second))
				require.NoError(t, err)
				started := time.Now()
				require.NoError(t, end(t, nodes[1], s))
				require.Less(t, time.Since(started), 5*time.Second, "it does not wait for the delay")
				_, err = nodes[2].Acquire(soon(t), "job")
				require.NoError(t, err)
				require.GreaterOrEqual(t, time.Since(started), 29*time.Second)
			})
		})
	}
}

func TestMinHoldKeepsTheLock(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		h, err := nodes[1].Acquire(soon(t), "tick", MinHold(20*time.Second))
		require.NoError(t, err)
		require.NoError(t, h.Release(soon(t)))
		info, err := nodes[2].Describe(soon(t), "tick")
		require.NoError(t, err)
		require.True(t, info.Holders[0].Released)
		require.False(t, info.Holders[0].KeptUntil.IsZero())
		started := time.Now()
		_, err = nodes[2].Acquire(soon(t), "tick")
		require.NoError(t, err)
		require.GreaterOrEqual(t, time.Since(started), 19*time.Second)
	})
}

func TestYieldRequestReachesTheHolder(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		h, err := nodes[1].Acquire(soon(t), "job")
		require.NoError(t, err)
		require.NoError(t, nodes[2].RequestYield(soon(t), "job", "deploy", "maintenance"))
		require.Equal(t, YieldRequest{"deploy", "maintenance"}, <-h.YieldRequests())
		require.NoError(t, h.Err())
		require.ErrorIs(t, nodes[2].RequestYield(soon(t), "nothing", "deploy", "maintenance"), ErrNotHeld)
	})
}
