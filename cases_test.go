package quorumlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/sessions"
)

// The tests of this file are kinds of failures that users of other lock systems
// reported; the reports that stand for a kind are named at each.

// inLine waits until so many stand in line for a name.
func inLine(t *testing.T, n *Node, name string, waiters int) {
	t.Helper()
	synctest.Wait()
	info, err := n.Describe(soon(t), name)
	require.NoError(t, err)
	require.Len(t, info.Waiters, waiters)
}

// A waiter whose session can no longer be trusted at the moment of its grant is not
// granted, although the cluster has not ended the session and no timer has run.
//
// etcd-io/etcd#11456, #11457, #16221
func TestExpiredWaiterIsNotGranted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(1, 5)
		var slept atomic.Int64 // for how long the waiter's machine was suspended
		nodes := make(map[uint64]*Node)
		for id := range s.replicas {
			o := s.options(id)
			if awake := o.trust; id == 2 {
				o.trust = func() time.Duration { return awake() + time.Duration(slept.Load()) }
			}
			nodes[id] = s.open(t, o)
			defer nodes[id].Close()
		}
		ctx := soon(t)
		held, err := nodes[1].Acquire(ctx, "job")
		require.NoError(t, err)
		result := make(chan error, 1)
		go func() {
			_, err := nodes[2].Acquire(ctx, "job")
			result <- err
		}()
		inLine(t, nodes[3], "job", 1)

		slept.Store(int64(DefaultSessionTTL))
		start := time.Now()
		require.NoError(t, held.Release(ctx))
		require.ErrorIs(t, <-result, ErrSessionExpired)
		next, err := nodes[3].Acquire(ctx, "job")
		require.NoError(t, err)
		require.Less(t, time.Since(start), time.Second, "its session is closed, so nobody waits for it")
		require.NoError(t, next.Release(ctx))
		settled(t, nodes)
	})
}

// A waiter whose session is dead learns it by its own clock, while the holder goes
// on holding.
//
// etcd-io/etcd#19597, #22387
func TestDeadSessionsWaiterIsTold(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		ctx := soon(t)
		held, err := nodes[1].Acquire(ctx, "job")
		require.NoError(t, err)
		result := make(chan error, 1)
		go func() {
			_, err := nodes[2].Acquire(ctx, "job")
			result <- err
		}()
		inLine(t, nodes[3], "job", 1)
		start := time.Now()
		s.cut(2)
		err = <-result
		require.ErrorIs(t, err, ErrSessionExpired)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		require.LessOrEqual(t, time.Since(start), sessions.Trust(DefaultSessionTTL), "as soon as its session is not to be trusted")
		require.NoError(t, held.Err())
		_, err = nodes[3].TryAcquire(ctx, "job")
		require.ErrorIs(t, err, ErrHeld)
		elapse(DefaultSessionTTL)
		inLine(t, nodes[3], "job", 0)
		require.NoError(t, held.Err())
		s.heal()
		require.NoError(t, held.Release(ctx))
		settled(t, nodes)
	})
}

// A holder counts its trust from before it sent a renewal. Here a renewal is
// applied everywhere at once, but its own replica is slow to see it: if it counted
// from then, it would still trust its hold when the next is granted.
//
// delta-io/delta-rs#153; occurrent#659
func TestTrustCountsFromTheSending(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		ctx := soon(t)
		held, err := nodes[5].Acquire(ctx, "job")
		require.NoError(t, err)
		granted := make(chan error, 1)
		go func() {
			_, err := nodes[2].Acquire(ctx, "job")
			granted <- errors.Join(err, held.Err())
		}()
		inLine(t, nodes[3], "job", 1)
		renewals := func() (n int) {
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, b := range s.log {
				var e wire.Entry
				if wire.DecodeEntry(b, &e) == nil && e.Replica == 5 && e.Renewal > 0 {
					n++
				}
			}
			return n
		}
		s.pause(5, true)
		for before := renewals(); renewals() == before; {
			elapse(10 * time.Millisecond)
		}
		s.mute(5, true) // its renewal is in the log, and nothing that comes after it
		elapse(DefaultSessionTTL * 4 / 10)
		s.pause(5, false)
		synctest.Wait()
		require.NoError(t, held.Err(), "seen just in time")
		s.cut(5) // nor does it see that its session ends
		require.ErrorIs(t, <-granted, ErrLost, "granted to two at once")
		s.heal()
	})
}

// A holder whose link is cut and healed again and again keeps its lock, as long as
// each cut is shorter than its trust.
//
// cirello-io/dynamolock#14; redisson/redisson#3194, #5698
func TestRenewalsResumeAfterEachCut(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		held, err := nodes[3].Acquire(soon(t), "job")
		require.NoError(t, err)
		rng := rand.New(rand.NewPCG(1, 1))
		for range 100 {
			s.cut(3)
			elapse(time.Duration(rng.Int64N(int64(DefaultSessionTTL / 3))))
			s.heal()
			require.NoError(t, held.Err())
			elapse(DefaultSessionTTL / 3)
			require.Greater(t, held.Remaining(), DefaultSessionTTL/3)
		}
		require.NoError(t, held.Validate(soon(t)))
	})
}

// Every entry that was ever applied is applied again after the lock was taken anew:
// a release of an earlier hold ends nothing, an acquire takes nothing.
//
// etcd-io/etcd#22082, #22115; zk-ruby/zk#34
func TestStaleEntriesChangeNothing(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		ctx := soon(t)
		for range 3 {
			for id := range nodes {
				h, err := nodes[id].Acquire(ctx, "job")
				require.NoError(t, err)
				require.NoError(t, h.Release(ctx))
			}
		}
		held, err := nodes[2].Acquire(ctx, "job")
		require.NoError(t, err)
		s.alter(func() { s.log = append(s.log, s.log...) })
		require.NoError(t, held.Validate(ctx))
		info, err := nodes[1].Describe(ctx, "job")
		require.NoError(t, err)
		require.Len(t, info.Holders, 1)
		require.Equal(t, held.Token(), info.Holders[0].Token)
		require.Equal(t, held.Token(), nodes[1].Status().Token)
		require.NoError(t, held.Release(ctx))
		settled(t, nodes)
		// What is free is not taken by them either, not even by the first few alone.
		s.alter(func() { s.log = append(s.log, s.log...) })
		s.alter(func() { s.log = append(s.log, s.log[:12]...) })
		synctest.Wait()
		settled(t, nodes)
		require.Equal(t, held.Token(), nodes[1].Status().Token)
	})
}

// However an acquire ends without a hold, it leaves no waiter and takes nothing.
//
// etcd-io/etcd#9715, #21128; redisson/redisson#5019; vitessio/vitess#8309; and its error
// is of the caller's ctx only if that ended: go-redsync/redsync#83, #84, #164
func TestEveryErrorExitLeavesNothing(t *testing.T) {
	type world struct {
		s      *sim
		nodes  map[uint64]*Node
		cancel context.CancelFunc // of the acquire's ctx
		own    *Session           // that waits
	}
	for _, exit := range []struct {
		name string
		opts []AcquireOption
		over time.Duration // of the acquire's ctx, if it ends by itself
		end  func(t *testing.T, w world)
		want []error
	}{
		{name: "ctx cancelled", end: func(_ *testing.T, w world) { w.cancel() },
			want: []error{ErrHeld, context.Canceled}},
		{name: "ctx over", over: time.Second, end: func(*testing.T, world) {},
			want: []error{ErrHeld, context.DeadlineExceeded}},
		{name: "ctx over while cut off", over: time.Second, end: func(_ *testing.T, w world) {
			w.s.cut(2)
			elapse(2 * time.Second)
			w.s.heal()
		}, want: []error{ErrHeld, context.DeadlineExceeded}},
		{name: "line full", opts: []AcquireOption{MaxWaiters(0)}, end: func(*testing.T, world) {},
			want: []error{ErrQueueFull}},
		{name: "session closed", end: func(t *testing.T, w world) { require.NoError(t, w.own.Close(soon(t))) },
			want: []error{ErrSessionClosed}},
		{name: "session lost", end: func(_ *testing.T, w world) {
			w.s.cut(2)
			elapse(DefaultSessionTTL)
			w.s.heal()
		}, want: []error{ErrSessionExpired}},
		{name: "node shut down", end: func(t *testing.T, w world) { require.NoError(t, w.nodes[2].Shutdown(soon(t))) },
			want: []error{ErrClosed}},
		{name: "node closed and opened again", end: func(t *testing.T, w world) {
			require.NoError(t, w.nodes[2].Close())
			w.nodes[2] = w.s.open(t, w.s.options(2))
		}, want: []error{ErrClosed}},
	} {
		t.Run(exit.name, func(t *testing.T) {
			inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
				held, err := nodes[1].Acquire(soon(t), "job")
				require.NoError(t, err)
				own, err := nodes[2].OpenSession(soon(t))
				require.NoError(t, err)
				ctx, cancel := context.WithTimeout(t.Context(), cmp.Or(exit.over, time.Minute))
				defer cancel()
				result := make(chan error, 1)
				go func() {
					_, err := own.Acquire(ctx, "job", exit.opts...)
					result <- err
				}()
				synctest.Wait()
				exit.end(t, world{s, nodes, cancel, own})
				err = <-result
				for _, want := range exit.want {
					require.ErrorIs(t, err, want)
				}
				if ctx.Err() == nil {
					require.NotErrorIs(t, err, context.Canceled, "whatever contexts ended inside")
					require.NotErrorIs(t, err, context.DeadlineExceeded)
				}
				elapse(time.Second)
				inLine(t, nodes[3], "job", 0)
				require.NoError(t, held.Release(soon(t)))
				token := nodes[1].Status().Token
				elapse(DefaultSessionTTL)
				require.Equal(t, token, nodes[1].Status().Token, "granted to nobody")
				others := maps.Clone(nodes)
				delete(others, 2) // it may be closed
				settled(t, others)
			})
		})
	}
}

// After each change of leader every replica can take the lock.
//
// redisson/redisson#3712, #4706, #4822
func TestEveryReplicaAcquiresAfterALeaderChange(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		for range 10 {
			s.moveLeader()
			goesOn(t, nodes)
		}
	})
}

// Waiters that go or whose sessions are killed, at random and while the lock goes from
// hand to hand, neither stop the line nor change the order of those who stay.
//
// redisson/redisson#1104, #2099, #2278, #2883, #3730
func TestSurvivorsAreGrantedInOrder(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		const waiters = 200
		held, err := nodes[1].Acquire(soon(t), "job")
		require.NoError(t, err)
		rng := rand.New(rand.NewPCG(1, 1))
		var order []int // guarded by the lock itself
		var wg sync.WaitGroup
		gone := 0
		for i := range waiters {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			own, err := nodes[uint64(i%5+1)].OpenSession(soon(t))
			require.NoError(t, err)
			// Some before the first release, some while it goes on.
			switch after := time.Duration(rng.IntN(1000)) * time.Millisecond; rng.IntN(4) {
			case 0:
				gone++
				time.AfterFunc(after, cancel)
			case 1:
				gone++
				time.AfterFunc(after, func() { _ = nodes[1].ForceClose(t.Context(), own.ID(), "ops", "killed") })
			}
			wg.Go(func() {
				h, err := own.Acquire(ctx, "job")
				if err != nil {
					return
				}
				order = append(order, i)
				time.Sleep(10 * time.Millisecond)
				if err := h.Release(t.Context()); err != nil && !errors.Is(err, ErrRevoked) {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		elapse(200 * time.Millisecond)
		start := time.Now()
		require.NoError(t, held.Release(soon(t)))
		wg.Wait()
		require.LessOrEqual(t, time.Since(start), time.Duration(len(order)+1)*10*time.Millisecond, "those who are gone take no time")
		require.IsIncreasing(t, order)
		require.GreaterOrEqual(t, len(order), waiters-gone)
		require.Less(t, len(order), waiters)
		settled(t, nodes)
	})
}

// With a thousand waiters a release grants to one of them, in one log entry.
//
// hashicorp/consul#7523; Seagate/cortx-hare#10
func TestOneReleaseIsOneGrant(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		held, err := nodes[1].Acquire(soon(t), "job")
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		granted := make(chan *Hold, 1000)
		var wg sync.WaitGroup
		for i := range 1000 {
			wg.Go(func() {
				if h, err := nodes[uint64(i%5+1)].Acquire(ctx, "job"); err == nil {
					granted <- h
				}
			})
		}
		elapse(time.Second) // a batch that overtook another is sent again
		inLine(t, nodes[1], "job", 1000)
		s.mu.Lock()
		before := len(s.log)
		s.mu.Unlock()
		require.NoError(t, held.Release(ctx))
		synctest.Wait()
		s.mu.Lock()
		require.Equal(t, before+1, len(s.log))
		s.mu.Unlock()
		require.Len(t, granted, 1)
		cancel()
		wg.Wait()
		require.NoError(t, (<-granted).Release(soon(t)))
		settled(t, nodes)
	})
}

// A node that was closed sends nothing any more, whatever it held.
//
// etcd-io/etcd#17470
func TestClosedNodeIsSilent(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		_, err := nodes[1].Acquire(soon(t), "job")
		require.NoError(t, err)
		elapse(DefaultSessionTTL)
		require.NoError(t, nodes[1].Close())
		s.mu.Lock()
		before := len(s.log)
		s.mu.Unlock()
		next, err := nodes[2].Acquire(soon(t), "job")
		require.NoError(t, err)
		elapse(DefaultSessionTTL)
		require.NoError(t, next.Err())
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, b := range s.log[before:] {
			var e wire.Entry
			require.NoError(t, wire.DecodeEntry(b, &e))
			require.NotEqual(t, uint64(1), e.Replica, fmt.Sprintf("%+v", e))
		}
	})
}

// A call that was made without a majority and whose caller has gone takes nothing
// when the majority is back, not even for a moment.
//
// etcd-io/etcd#18082
func TestThoseWhoHaveGoneAreGrantedNothing(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		for _, n := range nodes {
			h, err := n.Acquire(soon(t), "warm")
			require.NoError(t, err)
			require.NoError(t, h.Release(soon(t)))
		}
		settled(t, nodes)
		token := nodes[1].Status().Token
		s.cut(3, 4, 5)
		var wg sync.WaitGroup
		for _, n := range nodes {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, err := n.Acquire(ctx, "job")
				if !errors.Is(err, ErrNoQuorum) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		s.heal()
		settled(t, nodes)
		require.Equal(t, token, nodes[1].Status().Token)
	})
}
