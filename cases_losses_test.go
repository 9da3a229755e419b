package quorumlock

import (
	"context"
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
// reported of losses, of renewals, and of what is not a loss; see cases_test.go.

// A loss says of which hold, why and when, and so does every later call: none fails
// by what lies beneath.
//
// vitessio/vitess#20340
func TestLossSaysWhichWhyAndWhen(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		h, err := nodes[1].Acquire(soon(t), "job")
		require.NoError(t, err)
		over := whenOver(t, h)
		s.cut(1)
		end := <-over
		for _, when := range []string{"cut off", "healed"} {
			for what, err := range map[string]error{
				"cause": end.cause, "Err": h.Err(), "Release": h.Release(soon(t)), "Validate": h.Validate(soon(t)),
				"Downgrade": h.Downgrade(soon(t)), "Upgrade": h.Upgrade(soon(t)), "SetValue": h.SetValue(soon(t), "x"),
				"HandOver": h.HandOver(soon(t), h.Session().ID()),
			} {
				var lost *LostError
				require.ErrorAs(t, err, &lost, "%s, %s", what, when)
				require.ErrorIs(t, err, ErrLost)
				require.ErrorIs(t, err, ErrSessionExpired)
				require.Equal(t, []any{"job", h.Token()}, []any{lost.Name, lost.Token})
				require.True(t, lost.At.Equal(end.at), "%s, %s: lost at %v, told at %v", what, when, lost.At, end.at)
			}
			if when == "cut off" {
				require.True(t, time.Now().Equal(end.at), "at once: nobody is asked who cannot be reached")
			}
			s.heal()
			elapse(time.Second)
		}
	})
}

// That the cluster cannot be reached is one thing, and that a hold is lost another:
// the first is no loss while the lease lasts, and a loss tells which of the two it was.
//
// awslabs/amazon-dynamodb-lock-client#6
func TestOutageIsNotALoss(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		h, err := nodes[1].Acquire(soon(t), "job")
		require.NoError(t, err)
		s.cut(1)
		err = h.Validate(canceled(t, time.Second))
		require.ErrorIs(t, err, ErrNoQuorum)
		require.NotErrorIs(t, err, ErrLost)
		require.NoError(t, h.Err())
		s.heal()
		require.NoError(t, h.Validate(soon(t)))

		s.cut(1)
		<-h.Done()
		require.ErrorIs(t, h.Err(), ErrLost)
		require.ErrorIs(t, h.Err(), ErrNoQuorum)
		s.heal()
		h, err = nodes[1].Acquire(soon(t), "job")
		require.NoError(t, err)
		require.NoError(t, nodes[2].ForceClose(soon(t), h.Session().ID(), "ops", "test"))
		<-h.Done()
		require.ErrorIs(t, h.Err(), ErrLost)
		require.NotErrorIs(t, h.Err(), ErrNoQuorum)
	})
}

// A release that is lost on its way is sent until it arrives, although its caller has
// gone and asks no more; until then its holder has nothing, and others have to wait.
//
// apache/curator#1193
func TestReleaseIsSentUntilItArrives(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		h, err := nodes[1].Acquire(soon(t), "job")
		require.NoError(t, err)
		s.mute(1, true)
		err = h.Release(canceled(t, time.Second))
		require.ErrorIs(t, err, ErrNoQuorum)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, h.Err(), ErrNotHeld, "it does not hold what it gives back")
		_, err = nodes[2].TryAcquire(soon(t), "job")
		require.ErrorIs(t, err, ErrHeld)
		elapse(DefaultSessionTTL / 5)
		s.mute(1, false)
		elapse(time.Second)
		next, err := nodes[2].TryAcquire(soon(t), "job")
		require.NoError(t, err, "nobody waits for the end of the lease")
		require.NoError(t, h.Session().Err())
		require.NoError(t, next.Release(soon(t)))
	})
}

// jammed is an engine that takes no calls while it is jammed, and renewals always: so
// it is seen which of the two waits for the other.
type jammed struct {
	engine
	on *atomic.Bool
}

type jammedHost struct {
	engineHost
	on *atomic.Bool
}

func (h jammedHost) group(i int) engine { return jammed{h.engineHost.group(i), h.on} }

func (j jammed) propose(ctx context.Context, entry []byte) error {
	var e wire.Entry
	if err := wire.DecodeEntry(entry, &e); err != nil {
		return err
	}
	if j.on.Load() && e.Batch > 0 {
		<-ctx.Done()
		return errUnknown
	}
	return j.engine.propose(ctx, entry)
}

// However many calls of a process wait to be taken, and for however long, its
// renewals do not stand behind them.
//
// aws/karpenter#2100; kubernetes-sigs/kueue#15538
func TestRenewalsDoNotWaitBehindCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(1, 5)
		var jam atomic.Bool
		nodes := make(map[uint64]*Node)
		for id := range s.replicas {
			o, err := s.options(id).complete()
			require.NoError(t, err)
			n, err := open(o, func(o Options, m []stateMachine, ev engineEvents) (engineHost, identity, error) {
				e, who, err := s.opener(o, m, ev)
				return jammedHost{e, &jam}, who, err
			})
			require.NoError(t, err)
			nodes[id] = n
			defer n.Close()
		}
		h, err := nodes[2].Acquire(soon(t), "job")
		require.NoError(t, err)
		jam.Store(true)
		ctx, cancel := context.WithCancel(t.Context())
		var calls sync.WaitGroup
		for range 10_000 {
			calls.Go(func() { _, _ = nodes[2].Acquire(ctx, "other") })
		}
		elapse(5 * DefaultSessionTTL)
		require.NoError(t, h.Err())
		cancel()
		calls.Wait()
		jam.Store(false)
		require.NoError(t, h.Validate(soon(t)))
		require.NoError(t, h.Release(soon(t)))
		settled(t, nodes)
	})
}

// What the wall clocks show, and that they are set while all runs, is nothing to
// anybody: holders keep what they renew, and who is cut off is followed when it was said.
//
// lukas-krecan/ShedLock#132, #1502; occurrent#659
func TestWallClocksDoNotMatter(t *testing.T) {
	rng := dice(t)
	clocks := make(map[uint64]*simClock)
	inSimWith(t, func(o *Options, _ func() time.Duration) {
		c := newSimClock(1000)
		c.wall = time.Duration(o.ReplicaID) * 5 * time.Hour
		clocks[o.ReplicaID], o.clock, o.trust = c, c, c.trust
	}, func(t *testing.T, s *sim, nodes map[uint64]*Node, _ func(time.Duration)) {
		h, err := nodes[1].Acquire(soon(t), "job")
		require.NoError(t, err)
		waiting := inBackground(func() (*Hold, error) { return nodes[2].Acquire(t.Context(), "job") })
		set := func() {
			for id := range uint64(5) {
				c, to := clocks[id+1], time.Duration(rng.IntN(20)-10)*time.Hour
				c.set(func() { c.wall = to })
			}
		}
		for range 50 {
			set()
			elapse(DefaultSessionTTL / 5)
			require.NoError(t, h.Err())
			require.Empty(t, waiting)
		}
		s.cut(1)
		cut := time.Now()
		for len(waiting) == 0 {
			set()
			elapse(DefaultElectionTimeout / 5)
			require.Less(t, time.Since(cut), sessions.Lease(DefaultSessionTTL)+DefaultElectionTimeout)
		}
		require.NoError(t, (<-waiting).err)
		require.Error(t, h.Err())
		require.GreaterOrEqual(t, time.Since(cut), DefaultSessionTTL/2)
	})
}
