package quorumlock

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/sessions"
)

func TestSessionEndFreesAllItsLocks(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		ctx := soon(t)
		s, err := nodes[1].OpenSession(ctx, WithOwner("worker"), WithTTL(6*time.Second))
		require.NoError(t, err)
		require.Equal(t, "worker", s.Owner())
		var holds []*Hold
		var wg sync.WaitGroup
		for _, name := range []string{"a", "b", "c"} {
			h, err := s.Acquire(ctx, name)
			require.NoError(t, err)
			holds = append(holds, h)
			wg.Go(func() {
				h, err := nodes[2].Acquire(ctx, name)
				require.NoError(t, err)
				require.NoError(t, h.Release(ctx))
			})
		}
		synctest.Wait()
		require.NoError(t, s.Close(ctx))
		require.NoError(t, s.Close(ctx), "closing again does no harm")
		wg.Wait()
		for _, h := range holds {
			require.ErrorIs(t, h.Err(), ErrLost)
			require.ErrorIs(t, h.Err(), ErrSessionClosed)
			require.Zero(t, h.Remaining())
		}
		_, err = s.Acquire(ctx, "a")
		require.ErrorIs(t, err, ErrSessionClosed)
	})
}

func TestTwoGoroutinesOfOneSessionExcludeEachOther(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		ctx := soon(t)
		inside := 0
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				h, err := nodes[1].Acquire(ctx, "job")
				require.NoError(t, err)
				inside++
				require.Equal(t, 1, inside)
				_, err = h.Session().TryAcquire(ctx, "job")
				var held *HeldError
				require.ErrorAs(t, err, &held, "not blocked, and not granted twice")
				require.Equal(t, h.Session().ID(), held.Holders[0].Session)
				elapse(time.Millisecond)
				inside--
				require.NoError(t, h.Release(ctx))
			})
		}
		wg.Wait()
	})
}

func TestOwnSessionIsOpenedAgainAfterItWasLost(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		ctx := soon(t)
		for range 100 {
			h, err := nodes[1].Acquire(ctx, "job")
			require.NoError(t, err)
			s.cut(1)
			<-h.Done()
			require.ErrorIs(t, h.Err(), ErrNoQuorum, "it was not heard that the cluster ended it")
			require.ErrorIs(t, h.Err(), ErrSessionExpired)
			s.heal()
			ctx = soon(t)
		}
	})
}

func TestSessionIsRenewedForAsLongAsItTakes(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		h, err := nodes[1].Acquire(soon(t), "job")
		require.NoError(t, err)
		before := s.length()
		elapse(time.Hour)
		require.NoError(t, h.Err())
		require.NoError(t, h.Validate(soon(t)))
		require.Greater(t, h.Remaining(), DefaultSessionTTL/3)
		renewals := s.length() - before
		require.Less(t, renewals, 3600/2, "one renewal in a quarter of the TTL")
		require.NoError(t, h.Release(soon(t)))
	})
}

func TestShortestTTLSetsThePace(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		long, err := nodes[1].OpenSession(soon(t), WithTTL(time.Hour))
		require.NoError(t, err)
		elapse(time.Minute)
		short, err := nodes[1].OpenSession(soon(t), WithTTL(5*time.Second))
		require.NoError(t, err)
		elapse(10 * time.Minute)
		require.NoError(t, short.Err())
		require.NoError(t, long.Err())
	})
}

func TestNothingIsRenewedWithoutSessions(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, _ map[uint64]*Node) {
		elapse(2 * DefaultElectionTimeout) // the feature level is raised
		before := s.length()
		elapse(time.Hour)
		require.Equal(t, before, s.length(), "an idle cluster writes nothing")
	})
}

func TestLeaderChangeLosesNoSession(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		h, err := nodes[1].Acquire(soon(t), "job")
		require.NoError(t, err)
		for range 50 {
			s.moveLeader()
			elapse(700 * time.Millisecond)
		}
		require.NoError(t, h.Err())
		// Elections that last for longer than a renewal's period: while nobody leads each
		// try fails at once, and the next is made all the same.
		for range 10 {
			s.cut(3, 4, 5)
			elapse(sessions.RenewEvery(DefaultSessionTTL) + time.Second)
			s.heal()
			elapse(DefaultElectionTimeout)
			require.Greater(t, h.Remaining(), DefaultSessionTTL/2)
		}
		require.NoError(t, h.Validate(soon(t)))
	})
}

func TestStalledLeaderExpiresNobody(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		leader, _ := nodes[1].groups[0].engine.leader()
		other := leader%5 + 1
		h, err := nodes[other].Acquire(soon(t), "job")
		require.NoError(t, err)
		// The leader applies nothing for five TTLs, so it sees no renewal.
		s.pause(leader, true)
		elapse(5 * DefaultSessionTTL)
		s.pause(leader, false)
		elapse(time.Second)
		require.NoError(t, h.Err(), "expiry is conditional on the renewal it was judged by")
	})
}

func TestRestartFreesTheFormerLifeAtOnce(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		ctx := soon(t)
		h, err := nodes[1].Acquire(ctx, "job")
		require.NoError(t, err)
		require.NoError(t, nodes[1].Close())
		require.ErrorIs(t, h.Err(), ErrClosed)
		_, err = nodes[2].TryAcquire(ctx, "job")
		require.ErrorIs(t, err, ErrHeld, "Close tells nobody")

		start := time.Now()
		nodes[1] = s.open(t, s.options(1))
		next, err := nodes[2].Acquire(ctx, "job")
		require.NoError(t, err)
		require.Less(t, time.Since(start), time.Second)
		require.Greater(t, next.Token(), h.Token())

		// And the process itself gets what its former life held.
		_, err = nodes[1].Acquire(ctx, "own")
		require.NoError(t, err)
		require.NoError(t, nodes[1].Close())
		nodes[1] = s.open(t, s.options(1))
		_, err = nodes[1].TryAcquire(ctx, "own")
		require.NoError(t, err)
	})
}

// An epoch that is past is that of a directory that was set back, or copied: the
// node says so and does not wait for ever.
func TestPastLifeIsToldSo(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		s.alter(func() {
			s.log = append(s.log, wire.AppendEntry(nil, &wire.Entry{Replica: 1, Epoch: 9, Commands: []wire.Command{{Op: wire.Boot}}}))
		})
		_, err := nodes[1].Acquire(soon(t), "job")
		require.ErrorIs(t, err, ErrDirectory)
		require.NoError(t, nodes[1].Close())
		nodes[1] = s.open(t, s.options(1)) // epoch 2
		require.ErrorIs(t, nodes[1].Ready(soon(t)), ErrDirectory)
	})
}

func TestShutdownFreesAtOnceAndHandsOver(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		ctx := soon(t)
		leader, _ := nodes[1].groups[0].engine.leader()
		_, err := nodes[leader].Acquire(ctx, "job")
		require.NoError(t, err)
		var wg sync.WaitGroup
		start := time.Now()
		wg.Go(func() {
			_, err := nodes[leader%5+1].Acquire(ctx, "job")
			require.NoError(t, err)
			require.Less(t, time.Since(start), 100*time.Millisecond)
		})
		synctest.Wait()
		require.NoError(t, nodes[leader].Shutdown(ctx))
		wg.Wait()
		now, _ := nodes[leader%5+1].groups[0].engine.leader()
		require.NotEqual(t, leader, now)
		_, err = nodes[leader].Acquire(ctx, "job")
		require.ErrorIs(t, err, ErrClosed)
	})
}

func TestShutdownWithoutQuorumClosesAllTheSame(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		_, err := nodes[1].Acquire(soon(t), "job")
		require.NoError(t, err)
		s.cut(1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err = nodes[1].Shutdown(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, ErrNoQuorum)
		require.ErrorIs(t, nodes[1].Status().Err, ErrClosed)
	})
}

func TestJeopardyIsToldBeforeTheLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(1, 5)
		type event struct{ at, until time.Time }
		jeopardy := make(chan event, 10)
		nodes := make(map[uint64]*Node)
		for id := range s.replicas {
			o := s.options(id)
			o.OnJeopardy = func(_ *Session, until time.Time) { jeopardy <- event{time.Now(), until} }
			nodes[id] = s.open(t, o)
			defer nodes[id].Close()
		}
		h, err := nodes[1].Acquire(soon(t), "job")
		require.NoError(t, err)
		s.cut(1)
		<-h.Done()
		told := <-jeopardy
		require.True(t, told.at.Before(time.Now()))
		require.WithinDuration(t, time.Now(), told.until, 10*time.Millisecond)
		require.Empty(t, jeopardy)

		s.heal()
		h, err = nodes[1].Acquire(soon(t), "job")
		require.NoError(t, err)
		s.cut(1)
		elapse(DefaultSessionTTL / 2)
		s.heal()
		elapse(time.Minute)
		require.NoError(t, h.Err(), "a trouble that passes costs nothing")
		require.Len(t, jeopardy, 1)
	})
}

// TestAWokenHolderKnowsBeforeItsTimers moves the clock by which a holder judges
// its lease, and no other: as in a process that was stopped, no timer has run.
func TestAWokenHolderKnowsBeforeItsTimers(t *testing.T) {
	inSimWith(t, func(o *Options, asleep func() time.Duration) {
		awake := o.trust
		o.trust = func() time.Duration { return awake() + asleep() }
	}, func(t *testing.T, _ *sim, nodes map[uint64]*Node, sleep func(time.Duration)) {
		h, err := nodes[1].Acquire(soon(t), "job")
		require.NoError(t, err)
		ctx, cancel := h.Context(t.Context())
		defer cancel()
		require.NoError(t, ctx.Err())
		sleep(2 * DefaultSessionTTL)
		require.ErrorIs(t, ctx.Err(), context.Canceled)
		require.ErrorIs(t, context.Cause(ctx), ErrLost)
		require.ErrorIs(t, h.Err(), ErrLost)
		require.Zero(t, h.Remaining())
		select {
		case <-h.Done():
		default:
			t.Fatal("Done is open after Err was not nil")
		}
		_, err = nodes[1].Acquire(soon(t), "other")
		require.NoError(t, err, "a new session takes the place of the lost one")
	})
}

// TestClockIsMovedByTheTest runs one node by a clock that stands still until the
// test moves it: nothing in the node's loops reads another.
func TestClockIsMovedByTheTest(t *testing.T) {
	s := newSim(1, 1)
	mock := clock.NewMock()
	o := s.options(1)
	o.clock, o.trust = mock, nil
	n := s.open(t, o)
	defer n.Close()
	h, err := n.Acquire(soon(t), "job")
	require.NoError(t, err)
	require.Equal(t, DefaultSessionTTL*7/10, h.Remaining())

	s.cut(1)
	mock.Add(DefaultSessionTTL * 6 / 10)
	require.NoError(t, h.Err())
	require.Equal(t, DefaultSessionTTL/10, h.Remaining())
	mock.Add(DefaultSessionTTL / 10)
	<-h.Done()
	require.ErrorIs(t, h.Err(), ErrLost)
}

func TestTooShortTTL(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		_, err := nodes[1].OpenSession(soon(t), WithTTL(time.Second))
		require.ErrorIs(t, err, ErrOptions)
		require.ErrorContains(t, err, "1s: must be at least 5 times the election timeout of 1s")
		_, err = nodes[1].OpenSession(soon(t), WithOwner("\xff"))
		require.ErrorIs(t, err, ErrOptions)
	})
}

// A call that found no session of the node's own, and comes to open one only after another
// call has, opens no second one.
func TestOwnSessionIsOpenedOnce(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		first, err := nodes[1].openOwn()
		require.NoError(t, err)
		second, err := nodes[1].openOwn()
		require.NoError(t, err)
		require.Same(t, first, second)
		require.Equal(t, 1, nodes[1].Status().Sessions)
		require.NoError(t, first.Close(soon(t)))
		third, err := nodes[1].openOwn()
		require.NoError(t, err)
		require.NotSame(t, first, third)
	})
}
