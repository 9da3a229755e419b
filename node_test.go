package quorumlock

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/sessions"
)

// inSim runs a test with five nodes over a simulated log, in a bubble whose time
// passes only when everybody waits.
func inSim(t *testing.T, test func(t *testing.T, s *sim, nodes map[uint64]*Node)) {
	inSimWith(t, func(*Options, func() time.Duration) {},
		func(t *testing.T, s *sim, nodes map[uint64]*Node, _ func(time.Duration)) { test(t, s, nodes) })
}

// inSimWith is inSim with options of its own, and a count of time slept away that
// the options may use and the test moves on.
func inSimWith(t *testing.T, change func(o *Options, asleep func() time.Duration),
	test func(t *testing.T, s *sim, nodes map[uint64]*Node, sleep func(time.Duration))) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(1, 5)
		var slept atomic.Int64
		nodes := make(map[uint64]*Node)
		for id := range s.replicas {
			o := s.options(id)
			change(&o, func() time.Duration { return time.Duration(slept.Load()) })
			nodes[id] = s.open(t, o)
		}
		defer func() {
			for _, n := range nodes {
				require.NoError(t, n.Close())
			}
		}()
		for _, n := range nodes {
			require.NoError(t, n.Ready(t.Context()))
		}
		test(t, s, nodes, func(d time.Duration) { slept.Add(int64(d)) })
	})
}

// elapse lets d pass in the bubble: no real time is slept away.
func elapse(d time.Duration) { time.Sleep(d) }

// soon is a ctx for what must not take long.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestDo(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		ctx := soon(t)
		var tokens []fencing.Token
		for id := range nodes {
			err := nodes[id].Do(ctx, "job", func(ctx context.Context, token fencing.Token) error {
				require.NoError(t, ctx.Err())
				tokens = append(tokens, token)
				_, err := nodes[1].TryAcquire(ctx, "job")
				require.ErrorIs(t, err, ErrHeld)
				return nil
			})
			require.NoError(t, err)
		}
		require.IsIncreasing(t, tokens)
	})
}

func TestDoReleasesOnPanic(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		ctx := soon(t)
		require.Panics(t, func() {
			_ = nodes[1].Do(ctx, "job", func(context.Context, fencing.Token) error { panic("fn") })
		})
		h, err := nodes[2].TryAcquire(ctx, "job")
		require.NoError(t, err)
		require.NoError(t, h.Release(ctx))
	})
}

func TestDoReturnsErrors(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		ctx := soon(t)
		boom := errors.New("boom")
		err := nodes[1].Do(ctx, "job", func(context.Context, fencing.Token) error { return boom })
		require.ErrorIs(t, err, boom)
		require.NotErrorIs(t, err, ErrLost)

		err = nodes[1].Do(ctx, "job", func(ctx context.Context, _ fencing.Token) error {
			s.cut(1)
			<-ctx.Done()
			var lost *LostError
			require.ErrorAs(t, context.Cause(ctx), &lost)
			return nil
		})
		require.ErrorIs(t, err, ErrLost)
		require.ErrorIs(t, err, ErrNoQuorum)
	})
}

func TestWaitersAreGrantedInOrder(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		ctx := soon(t)
		h, err := nodes[1].Acquire(ctx, "job")
		require.NoError(t, err)
		var mu sync.Mutex
		var order []uint64
		var wg sync.WaitGroup
		for _, id := range []uint64{4, 2, 5, 3, 1} {
			wg.Go(func() {
				h, err := nodes[id].Acquire(ctx, "job")
				require.NoError(t, err)
				mu.Lock()
				order = append(order, id)
				mu.Unlock()
				require.NoError(t, h.Release(ctx))
			})
			synctest.Wait()
		}
		info, err := nodes[3].Describe(ctx, "job")
		require.NoError(t, err)
		require.Len(t, info.Waiters, 5)
		require.Equal(t, uint64(4), info.Waiters[0].Replica)
		require.Equal(t, "owner-1", info.Holders[0].Owner)
		require.NoError(t, h.Release(ctx))
		wg.Wait()
		require.Equal(t, []uint64{4, 2, 5, 3, 1}, order)
	})
}

func TestHolderStopsBeforeTheNextIsGranted(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		ctx := soon(t)
		h, err := nodes[1].Acquire(ctx, "job")
		require.NoError(t, err)
		held, cancel := h.Context(ctx)
		defer cancel()
		start := time.Now()
		s.cut(1)
		var lostAt time.Time
		var wg sync.WaitGroup
		wg.Go(func() {
			<-held.Done()
			lostAt = time.Now()
		})
		next, err := nodes[2].Acquire(ctx, "job")
		require.NoError(t, err)
		require.Error(t, h.Err())
		wg.Wait()
		require.Less(t, lostAt.Sub(start), time.Since(start))
		require.LessOrEqual(t, lostAt.Sub(start), sessions.Trust(DefaultSessionTTL), "its last renewal was before the cut")
		var store fencing.MemGuard
		require.NoError(t, store.Admit(ctx, "job", next.Token()))
		require.ErrorIs(t, store.Admit(ctx, "job", h.Token()), fencing.ErrStale)
		require.Less(t, time.Since(start), DefaultSessionTTL+500*time.Millisecond)
		require.Greater(t, next.Token(), h.Token())
		require.ErrorIs(t, h.Release(ctx), ErrLost)
	})
}

func TestMinorityRefuses(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		s.cut(3, 4, 5)
		for _, call := range []func(ctx context.Context) error{
			func(ctx context.Context) error { _, err := nodes[1].Acquire(ctx, "job"); return err },
			func(ctx context.Context) error { _, err := nodes[1].TryAcquire(ctx, "job"); return err },
			func(ctx context.Context) error { _, err := nodes[3].TryAcquire(ctx, "job"); return err },
			func(ctx context.Context) error { _, err := nodes[1].OpenSession(ctx); return err },
			func(ctx context.Context) error { _, err := nodes[1].Describe(ctx, "job"); return err },
			func(ctx context.Context) error { _, err := nodes[1].List(ctx, ""); return err },
		} {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			start := time.Now()
			err := call(ctx)
			require.ErrorIs(t, err, ErrNoQuorum)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Equal(t, 3*time.Second, time.Since(start))
			cancel()
		}
		s.heal()
		ctx := soon(t)
		require.Zero(t, nodes[1].Status().Token, "nothing was granted")
		for _, n := range nodes {
			require.NoError(t, n.Do(ctx, "job", func(context.Context, fencing.Token) error { return nil }))
		}
	})
}

func TestNewerEntryStopsTheReplica(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		h, err := nodes[1].Acquire(soon(t), "job")
		require.NoError(t, err)
		s.alter(func() { s.log = append(s.log, []byte{wire.Version + 1, 0xc0}) })
		<-h.Done()
		for _, n := range nodes {
			_, err := n.Acquire(soon(t), "other")
			require.ErrorIs(t, err, ErrFormat)
			require.ErrorIs(t, n.Ready(soon(t)), ErrFormat)
			require.ErrorIs(t, n.Status().Err, ErrFormat)
			require.ErrorIs(t, n.groups[0].machine.snapshot()(nil, nil), errStopped, "what it has is not kept")
		}
	})
}

func snapshotOf(t *testing.T, n *Node) []byte {
	var b bytes.Buffer
	require.NoError(t, n.groups[0].machine.snapshot()(&b, nil))
	return b.Bytes()
}

func TestMalformedEntryHasNoEffect(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		h, err := nodes[1].Acquire(soon(t), "job")
		require.NoError(t, err)
		synctest.Wait()
		before := snapshotOf(t, nodes[2])
		s.alter(func() {
			s.log = append(s.log, []byte{}, []byte{0}, []byte{wire.Version}, []byte{wire.Version, 0xff, 0xff})
		})
		synctest.Wait()
		require.Equal(t, before, snapshotOf(t, nodes[2]))
		require.NoError(t, h.Validate(soon(t)))
	})
}

func TestStatus(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		h, err := nodes[2].Acquire(soon(t), "job")
		require.NoError(t, err)
		st := nodes[2].Status()
		require.Equal(t, uint64(2), st.ReplicaID)
		require.Equal(t, uint64(1), st.Epoch)
		require.True(t, st.Ready)
		leader, term := nodes[2].groups[0].engine.leader()
		require.Equal(t, []uint64{leader, term}, []uint64{st.Leader, st.Term})
		require.NotZero(t, st.Applied)
		require.Len(t, st.Members, 5)
		require.Equal(t, []int{1, 1, 1}, []int{st.Locks, st.Sessions, st.Holds})
		require.Equal(t, h.Token(), st.Token)
		require.NoError(t, st.Err)
	})
}
