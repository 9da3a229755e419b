package quorumlock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// An outcome is how an acquire ended.
type outcome struct {
	hold *Hold
	err  error
	at   time.Time
}

// inBackground makes a call in the background, and returns once it waits.
func inBackground(call func() (*Hold, error)) <-chan outcome {
	c := make(chan outcome, 1)
	go func() {
		h, err := call()
		c <- outcome{h, err, time.Now()}
	}()
	synctest.Wait()
	return c
}

// An ending tells when a hold ended for its holder, and what its context said.
type ending struct {
	at    time.Time
	cause error
}

func whenOver(t *testing.T, h *Hold) <-chan ending {
	ctx, cancel := h.Context(t.Context())
	c := make(chan ending, 1)
	go func() {
		defer cancel()
		<-ctx.Done()
		c <- ending{time.Now(), context.Cause(ctx)}
	}()
	return c
}

// A ratedClock runs faster or slower than the bubble's.
type ratedClock struct {
	clock.Clock
	start time.Time
	rate  float64
}

func (c ratedClock) Now() time.Time {
	return c.start.Add(time.Duration(c.rate * float64(time.Since(c.start))))
}

// real is how long a span of this clock takes.
func (c ratedClock) real(d time.Duration) time.Duration {
	return time.Duration(math.Ceil(float64(d) / c.rate))
}

func (c ratedClock) Timer(d time.Duration) *clock.Timer { return c.Clock.Timer(c.real(d)) }

func (c ratedClock) AfterFunc(d time.Duration, f func()) *clock.Timer {
	return c.Clock.AfterFunc(c.real(d), f)
}

func (c ratedClock) trust() time.Duration { return c.Now().Sub(c.start) + time.Hour }

// rated gives a node clocks of one rate.
func (o *Options) rated(rate float64) {
	c := ratedClock{clock.New(), time.Now(), rate}
	o.clock, o.trust = c, c.trust
}

// A holder counts its MaxHold so that it stops before the leader has counted it,
// for all clocks whose rates differ by no more than an eighth, whether it was
// granted at once or had waited, and it has the whole of its time in both cases.
//
// MaxHold ends by two clocks: the holder's, from the grant on, and the leader's, from
// the entry on that says that the holder knows.
func TestMaxHoldEndsForTheHolderFirstForAllClocks(t *testing.T) {
	const d = 16 * time.Second
	for _, r := range []struct{ holder, leader float64 }{
		{1, 1}, {1, 1.14}, {0.88, 1}, {0.94, 1.07}, {1.14, 1}, {1, 0.88}, {1.06, 0.94}, {2, 2.2},
	} {
		for _, wait := range []time.Duration{0, time.Minute} {
			t.Run(fmt.Sprintf("%v after %v", r, wait), func(t *testing.T) {
				inSimWith(t, func(o *Options, _ func() time.Duration) {
					o.rated(r.leader)
					if o.ReplicaID == 5 {
						o.rated(r.holder)
					}
				}, func(t *testing.T, _ *sim, nodes map[uint64]*Node, _ func(time.Duration)) {
					before, err := nodes[2].Acquire(soon(t), "job")
					require.NoError(t, err)
					long, cancel := context.WithTimeout(t.Context(), time.Hour)
					defer cancel()
					waiting := inBackground(func() (*Hold, error) { return nodes[5].Acquire(long, "job", MaxHold(d)) })
					elapse(wait)
					require.NoError(t, before.Release(soon(t)))
					got := <-waiting
					require.NoError(t, got.err)
					over := whenOver(t, got.hold)
					require.Greater(t, got.hold.Remaining(), time.Duration(0))
					next, err := nodes[3].Acquire(long, "job")
					granted := time.Now()
					require.NoError(t, err)
					require.ErrorIs(t, got.hold.Err(), ErrMaxHold)
					lost := <-over
					require.ErrorIs(t, lost.cause, ErrMaxHold)
					require.ErrorIs(t, lost.cause, ErrLost)
					require.Less(t, lost.at, granted, "the holder stops first")
					held := lost.at.Sub(got.at)
					require.InDelta(t, float64(d)*7/8/r.holder, float64(held), float64(50*time.Millisecond), "%v", held)
					require.InDelta(t, float64(d)/r.leader, float64(granted.Sub(got.at)), float64(150*time.Millisecond))
					require.NoError(t, next.Err())
				})
			})
		}
	}
}

// MaxHold begins for both when the holder knows of its hold, and not before: here its
// replica is long in seeing it, and the grant is no shorter for that.
func TestMaxHoldBeginsWhenTheHolderKnows(t *testing.T) {
	const d = 16 * time.Second
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		own, err := nodes[5].OpenSession(soon(t), WithTTL(time.Hour))
		require.NoError(t, err)
		before, err := nodes[2].Acquire(soon(t), "job")
		require.NoError(t, err)
		waiting := inBackground(func() (*Hold, error) { return own.Acquire(t.Context(), "job", MaxHold(d)) })
		elapse(30 * time.Second)
		s.pause(5, true)
		require.NoError(t, before.Release(soon(t)))
		next := inBackground(func() (*Hold, error) { return nodes[3].Acquire(canceled(t, time.Hour), "job") })
		elapse(d)
		require.Empty(t, next, "the holder does not know yet")
		info, err := nodes[3].Describe(soon(t), "job")
		require.NoError(t, err)
		require.Zero(t, info.Holders[0].HeldUntil)
		require.Equal(t, d, info.Holders[0].MaxHold)
		s.pause(5, false)
		got := <-waiting
		require.NoError(t, got.err)
		require.Equal(t, d*7/8, got.hold.Remaining())
		elapse(d*7/8 - time.Millisecond)
		require.NoError(t, got.hold.Err())
		require.Empty(t, next)
		n := <-next
		require.NoError(t, n.err)
		require.GreaterOrEqual(t, n.at.Sub(got.at), d)
		require.ErrorIs(t, got.hold.Err(), ErrMaxHold)
	})
}

// However often the leader changes, and whatever becomes of the other replicas, no
// time is cut short by it; nor is it lengthened by a leader that had followed.
func TestLeaderChangeShortensNoTime(t *testing.T) {
	const d = 30 * time.Second
	for what, begin := range map[string]func(t *testing.T, nodes map[uint64]*Node) *Hold{
		"MaxHold": func(t *testing.T, nodes map[uint64]*Node) *Hold {
			h, err := nodes[5].Acquire(soon(t), "job", MaxHold(d))
			require.NoError(t, err)
			return h
		},
		"MinHold": func(t *testing.T, nodes map[uint64]*Node) *Hold {
			h, err := nodes[5].Acquire(soon(t), "job", MinHold(d))
			require.NoError(t, err)
			require.NoError(t, h.Release(soon(t)))
			return h
		},
		"LockDelay": func(t *testing.T, nodes map[uint64]*Node) *Hold {
			h, err := nodes[5].Acquire(soon(t), "job", LockDelay(d))
			require.NoError(t, err)
			require.NoError(t, nodes[4].ForceRelease(soon(t), "job", h.Token(), "ops", "test"))
			return h
		},
	} {
		t.Run(what, func(t *testing.T) {
			inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
				h := begin(t, nodes)
				began := time.Now()
				next := inBackground(func() (*Hold, error) { return nodes[4].Acquire(canceled(t, time.Hour), "job") })
				for time.Since(began) < d-time.Second {
					s.moveLeader()
					elapse(700 * time.Millisecond)
				}
				got := <-next
				require.NoError(t, got.err)
				require.Error(t, h.Err())
				took := got.at.Sub(began)
				require.GreaterOrEqual(t, took, d)
				require.Less(t, took, d+time.Second)
				require.Greater(t, got.hold.Token(), h.Token())
			})
		})
	}
}

// Replicas that are opened again, or brought up by a snapshot, count the times that
// run from then on: they are late and never early.
func TestRestartsAndSnapshotsShortenNoTime(t *testing.T) {
	const d = 30 * time.Second
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		max, err := nodes[5].Acquire(soon(t), "max", MaxHold(d))
		require.NoError(t, err)
		min, err := nodes[5].Acquire(soon(t), "min", MinHold(d))
		require.NoError(t, err)
		require.NoError(t, min.Release(soon(t)))
		forced, err := nodes[5].Acquire(soon(t), "delay", LockDelay(d))
		require.NoError(t, err)
		require.NoError(t, nodes[4].ForceRelease(soon(t), "delay", forced.Token(), "ops", "test"))
		over := whenOver(t, max)
		began := time.Now()
		var next []<-chan outcome
		for _, name := range []string{"max", "min", "delay"} {
			next = append(next, inBackground(func() (*Hold, error) { return nodes[5].Acquire(canceled(t, time.Hour), name) }))
		}
		elapse(d / 3)
		for id := uint64(1); id <= 3; id++ {
			require.NoError(t, nodes[id].Close())
			nodes[id] = s.open(t, s.options(id))
			require.NoError(t, nodes[id].Ready(soon(t)))
		}
		s.pause(4, true)
		elapse(d / 3)
		s.catchUp(4)
		s.cut(1, 2)
		synctest.Wait()
		s.heal()
		for i := range next {
			got := <-next[i]
			require.NoError(t, got.err)
			require.GreaterOrEqual(t, got.at.Sub(began), d)
			require.Less(t, got.at.Sub(began), 2*d)
		}
		lost := <-over
		require.ErrorIs(t, lost.cause, ErrMaxHold)
		require.Equal(t, d*7/8, lost.at.Sub(began), "the holder's time is its own")
	})
}

// After the loss by MaxHold a Release still gives the lock away, before the leader
// has counted all of it.
func TestReleaseAfterMaxHoldFreesAtOnce(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		began := time.Now()
		h, err := nodes[5].Acquire(soon(t), "job", MaxHold(16*time.Second), LockDelay(time.Hour))
		require.NoError(t, err)
		next := inBackground(func() (*Hold, error) { return nodes[3].Acquire(canceled(t, time.Hour), "job") })
		<-h.Done()
		require.Equal(t, 14*time.Second, time.Since(began))
		require.Zero(t, h.Remaining())
		for range 2 {
			err := h.Release(soon(t))
			require.ErrorIs(t, err, ErrLost)
			require.ErrorIs(t, err, ErrMaxHold)
		}
		got := <-next
		require.NoError(t, got.err)
		require.Equal(t, 14*time.Second, got.at.Sub(began), "and a clean release has no delay")
		require.ErrorIs(t, h.Validate(soon(t)), ErrMaxHold)
	})
}

// Do gives a lock back that it lost by MaxHold while fn ran.
func TestDoUnderMaxHold(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		began := time.Now()
		err := nodes[1].Do(soon(t), "job", func(ctx context.Context, _ fencing.Token) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}, MaxHold(8*time.Second))
		require.ErrorIs(t, err, ErrMaxHold)
		require.ErrorIs(t, err, ErrLost)
		_, err = nodes[2].Acquire(soon(t), "job")
		require.NoError(t, err)
		require.Equal(t, 7*time.Second, time.Since(began))
	})
}

// A process that slept over the end of its MaxHold sees it before any timer has
// run, and one whose session was lost before says that.
func TestMaxHoldIsSleptOver(t *testing.T) {
	inSimWith(t, func(o *Options, asleep func() time.Duration) {
		if awake := o.trust; o.ReplicaID == 5 {
			o.trust = func() time.Duration { return awake() + asleep() }
		}
	}, func(t *testing.T, _ *sim, nodes map[uint64]*Node, sleep func(time.Duration)) {
		s, err := nodes[5].OpenSession(soon(t), WithTTL(time.Hour))
		require.NoError(t, err)
		h, err := s.Acquire(soon(t), "job", MaxHold(8*time.Second))
		require.NoError(t, err)
		require.Equal(t, 7*time.Second, h.Remaining())
		ctx, cancel := h.Context(t.Context())
		defer cancel()
		sleep(7*time.Second - 1)
		require.NoError(t, ctx.Err())
		require.Equal(t, time.Duration(1), h.Remaining())
		sleep(1)
		require.Zero(t, h.Remaining())
		require.ErrorIs(t, ctx.Err(), context.Canceled)
		require.ErrorIs(t, context.Cause(ctx), ErrMaxHold)
		select {
		case <-h.Done():
		default:
			t.Fatal("Done is open after Err was not nil")
		}
		require.NoError(t, s.Err(), "the session lives")
		h, err = s.Acquire(soon(t), "later", MaxHold(8*time.Second))
		require.NoError(t, err)
		sleep(7 * time.Second)
		require.ErrorIs(t, h.Release(soon(t)), ErrMaxHold, "it may have been another's before Release was called")

		h, err = nodes[5].Acquire(soon(t), "other", MaxHold(time.Hour))
		require.NoError(t, err)
		require.LessOrEqual(t, h.Remaining(), DefaultSessionTTL, "no longer than the session")
		sleep(DefaultSessionTTL)
		require.ErrorIs(t, h.Err(), ErrSessionExpired)
		require.NotErrorIs(t, h.Err(), ErrMaxHold)
	})
}

// A hold that ended before its MaxHold leaves no timer and no time behind.
func TestNothingRunsForWhatIsOver(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		own, err := nodes[1].OpenSession(soon(t))
		require.NoError(t, err)
		h, err := nodes[1].Acquire(soon(t), "a", MaxHold(time.Hour))
		require.NoError(t, err)
		require.NoError(t, h.Release(soon(t)))
		h, err = own.Acquire(soon(t), "b", MaxHold(time.Hour), MinHold(time.Minute), LockDelay(time.Minute))
		require.NoError(t, err)
		require.NoError(t, nodes[2].ForceClose(soon(t), own.ID(), "ops", "test"))
		synctest.Wait()
		require.ErrorIs(t, h.Err(), ErrRevoked)
		waiting, cancel := context.WithCancel(t.Context())
		w := inBackground(func() (*Hold, error) { return nodes[1].Acquire(waiting, "b", MaxHold(time.Hour), MinHold(time.Minute)) })
		cancel()
		require.ErrorIs(t, (<-w).err, context.Canceled)
		elapse(2 * time.Minute)
		for id, n := range nodes {
			var times, noted, next int
			n.groups[0].machine.read(func(f *lockFSM) { times = len(f.times) })
			n.mu.Lock()
			noted, next = len(n.groups[0].agenda.at), len(n.groups[0].agenda.next)
			n.mu.Unlock()
			require.Equal(t, []int{0, 0, 0}, []int{times, noted, next}, id)
		}
		settled(t, nodes)
		before := s.length()
		elapse(2 * time.Hour)
		var e wire.Entry
		for _, b := range s.entries()[before:] {
			require.NoError(t, wire.DecodeEntry(b, &e))
			require.Empty(t, e.Commands, "renewals and nothing else")
		}
	})
}

// A release, a close of the session and a shutdown take effect no sooner than
// MinHold after the grant, whoever leads; the holder need not wait for it.
func TestMinHoldOutlivesEveryCleanEnd(t *testing.T) {
	const d = 30 * time.Second
	for end, f := range map[string]func(*Node, *Hold, context.Context) error{
		"release":  func(_ *Node, h *Hold, ctx context.Context) error { return h.Release(ctx) },
		"close":    func(_ *Node, h *Hold, ctx context.Context) error { return h.Session().Close(ctx) },
		"shutdown": func(n *Node, _ *Hold, ctx context.Context) error { return n.Shutdown(ctx) },
	} {
		for _, opts := range [][]AcquireOption{
			{MinHold(d)}, {MinHold(d), Share()}, {MinHold(d), Permits(3, 3)}, {MinHold(d), MaxHold(time.Hour), LockDelay(time.Hour)},
		} {
			t.Run(fmt.Sprint(end, len(opts)), func(t *testing.T) {
				inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
					s, err := nodes[5].OpenSession(soon(t))
					require.NoError(t, err)
					h, err := s.Acquire(soon(t), "tick", opts...)
					require.NoError(t, err)
					began := time.Now()
					elapse(d / 2)
					started := time.Now()
					require.NoError(t, f(nodes[5], h, soon(t)))
					require.Zero(t, time.Since(started), "the holder does not wait")
					require.Error(t, h.Err())
					kept(t, nodes[3], h, began.Add(d))
					next := opts[1:]
					if len(next) != 1 {
						next = nil
					}
					if len(next) == 1 && h.Mode() == Shared {
						next = nil // a reader would be let in beside it
					}
					got, err := nodes[3].Acquire(soon(t), "tick", next...)
					require.NoError(t, err)
					require.GreaterOrEqual(t, time.Since(began), d)
					require.Less(t, time.Since(began), d+time.Second)
					require.Greater(t, got.Token(), h.Token())
				})
			})
		}
	}
}

// kept checks that a hold is described as released and kept.
func kept(t *testing.T, n *Node, h *Hold, until time.Time) {
	t.Helper()
	info, err := n.Describe(soon(t), h.Name())
	require.NoError(t, err)
	require.Len(t, info.Holders, 1)
	x := info.Holders[0]
	require.True(t, x.Released)
	require.Equal(t, h.Token(), x.Token)
	require.WithinDuration(t, until, x.KeptUntil, time.Second)
	_, err = n.TryAcquire(soon(t), h.Name(), Permits(3, 3))
	require.True(t, errors.Is(err, ErrHeld) || errors.Is(err, ErrMode))
}

// After MinHold a release takes effect at once, and a session that is lost frees
// the lock at once even before.
func TestMinHoldEnds(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		h, err := nodes[5].Acquire(soon(t), "tick", MinHold(20*time.Second))
		require.NoError(t, err)
		elapse(21 * time.Second)
		require.NoError(t, h.Release(soon(t)))
		h, err = nodes[5].TryAcquire(soon(t), "tick", MinHold(time.Hour))
		require.NoError(t, err)
		s.cut(5)
		began := time.Now()
		_, err = nodes[3].Acquire(soon(t), "tick")
		require.NoError(t, err)
		require.Less(t, time.Since(began), DefaultSessionTTL)
		require.ErrorIs(t, h.Err(), ErrSessionExpired)

		h, err = nodes[4].Acquire(soon(t), "restart", MinHold(time.Hour))
		require.NoError(t, err)
		require.NoError(t, nodes[4].Close())
		nodes[4] = s.open(t, s.options(4))
		began = time.Now()
		next, err := nodes[3].Acquire(soon(t), "restart", MinHold(time.Hour))
		require.NoError(t, err)
		require.Less(t, time.Since(began), time.Second)
		require.Greater(t, next.Token(), h.Token())
		require.NoError(t, nodes[1].ForceRelease(soon(t), "restart", next.Token(), "ops", "it need not be waited for"))
		_, err = nodes[1].TryAcquire(soon(t), "restart")
		require.NoError(t, err)
	})
}

// A lock whose hold was lost is granted to nobody before its LockDelay is over, and
// at once when the end was clean.
func TestLockDelayFollowsUncleanEnds(t *testing.T) {
	const d = 40 * time.Second
	type world struct {
		s     *sim
		nodes map[uint64]*Node
		h     *Hold
		sleep func(time.Duration)
	}
	for end, c := range map[string]struct {
		delayed bool
		do      func(t *testing.T, w world)
	}{
		"expired": {true, func(t *testing.T, w world) {
			w.s.cut(5)
			elapse(8100 * time.Millisecond) // the lease, and a look
		}},
		"given up by its own process": {true, func(t *testing.T, w world) {
			w.sleep(DefaultSessionTTL)
			require.ErrorIs(t, w.h.Err(), ErrSessionExpired)
		}},
		"restarted": {true, func(t *testing.T, w world) {
			require.NoError(t, w.nodes[5].Close())
			w.nodes[5] = w.s.open(t, w.s.options(5))
		}},
		"hold forced": {true, func(t *testing.T, w world) {
			require.NoError(t, w.nodes[2].ForceRelease(soon(t), "job", w.h.Token(), "ops", "test"))
		}},
		"session forced": {true, func(t *testing.T, w world) {
			require.NoError(t, w.nodes[2].ForceClose(soon(t), w.h.Session().ID(), "ops", "test"))
		}},
		"MaxHold":  {true, func(*testing.T, world) { elapse(16*time.Second + 100*time.Millisecond) }},
		"released": {false, func(t *testing.T, w world) { require.NoError(t, w.h.Release(soon(t))) }},
		"closed":   {false, func(t *testing.T, w world) { require.NoError(t, w.h.Session().Close(soon(t))) }},
		"shut down": {false, func(t *testing.T, w world) {
			require.NoError(t, w.nodes[5].Shutdown(soon(t)))
		}},
	} {
		t.Run(end, func(t *testing.T) {
			inSimWith(t, func(o *Options, asleep func() time.Duration) {
				if awake := o.trust; o.ReplicaID == 5 {
					o.trust = func() time.Duration { return awake() + asleep() }
				}
			}, func(t *testing.T, s *sim, nodes map[uint64]*Node, sleep func(time.Duration)) {
				h, err := nodes[5].Acquire(soon(t), "job", LockDelay(d), MaxHold(16*time.Second))
				require.NoError(t, err)
				c.do(t, world{s, nodes, h, sleep})
				synctest.Wait()
				over := time.Now()
				require.Error(t, h.Err())
				if !c.delayed {
					_, err := nodes[3].TryAcquire(soon(t), "job")
					require.NoError(t, err)
					return
				}
				delayed(t, nodes[3], over.Add(d))
				for range 20 {
					s.moveLeader()
					elapse(time.Second)
				}
				delayed(t, nodes[4], over.Add(d))
				next, err := nodes[3].Acquire(soon(t), "job")
				require.NoError(t, err)
				require.GreaterOrEqual(t, time.Since(over), d-200*time.Millisecond)
				require.Less(t, time.Since(over), d+time.Second)
				require.Greater(t, next.Token(), h.Token())
			})
		})
	}
}

// While a lock is delayed, nothing that happens in its line makes it free: not those
// who leave, not a release of what was beside it, not a try in another mode.
func TestNothingEndsALockDelayEarly(t *testing.T) {
	const d = 20 * time.Second
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		a, err := nodes[1].Acquire(soon(t), "doc", Share(), LockDelay(d))
		require.NoError(t, err)
		own, err := nodes[2].OpenSession(soon(t))
		require.NoError(t, err)
		b, err := own.Acquire(soon(t), "doc", Share())
		require.NoError(t, err)
		began := time.Now()
		require.NoError(t, nodes[3].ForceClose(soon(t), a.Session().ID(), "ops", "test"))
		require.NoError(t, b.Err(), "a reader of another session goes on")
		_, err = nodes[4].TryAcquire(soon(t), "doc", Share())
		require.ErrorIs(t, err, ErrHeld, "but nobody joins it")
		var waits []<-chan outcome
		for _, opts := range [][]AcquireOption{nil, {Share()}, nil, {Share()}} {
			waits = append(waits, inBackground(func() (*Hold, error) {
				ctx := canceled(t, time.Hour)
				if len(waits) == 0 {
					ctx = canceled(t, time.Second)
				}
				return nodes[4].Acquire(ctx, "doc", opts...)
			}))
		}
		require.ErrorIs(t, (<-waits[0]).err, context.DeadlineExceeded)
		require.NoError(t, b.Release(soon(t)))
		require.NoError(t, own.Close(soon(t)))
		for _, opts := range [][]AcquireOption{nil, {Share()}, {Permits(1, 2)}} {
			_, err = nodes[5].TryAcquire(soon(t), "doc", opts...)
			require.Error(t, err)
		}
		_, err = nodes[5].TryAcquireAll(soon(t), "doc", "other")
		require.ErrorIs(t, err, ErrHeld)
		for _, w := range waits[1:] {
			got := <-w
			require.NoError(t, got.err)
			require.GreaterOrEqual(t, got.at.Sub(began), d)
			require.NoError(t, got.hold.Release(soon(t)))
		}
		settled(t, nodes)
	})
}

// entries are those of the log.
func (s *sim) entries() [][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log
}

// delayed checks that a lock is described as kept from being granted.
func delayed(t *testing.T, n *Node, until time.Time) {
	t.Helper()
	info, err := n.Describe(soon(t), "job")
	require.NoError(t, err)
	require.Empty(t, info.Holders)
	require.WithinDuration(t, until, info.DelayedUntil, time.Second)
	_, err = n.TryAcquire(soon(t), "job")
	var held *HeldError
	require.ErrorAs(t, err, &held)
	require.True(t, held.Delayed)
	require.Empty(t, held.Holders)
	require.Zero(t, held.Mode)
	require.ErrorContains(t, err, "kept free by a lock delay")
	list, err := n.List(soon(t), "")
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, info.DelayedUntil, list[0].DelayedUntil)
}

// What a deposed leader says late ends no time of a later hold. Here everything
// that was ever said is said again while times run.
func TestLateWordsEndNoTime(t *testing.T) {
	const d = 20 * time.Second
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		round := func() (holds []*Hold) {
			for _, o := range []struct {
				name string
				opt  AcquireOption
			}{{"max", MaxHold(d)}, {"min", MinHold(d)}, {"delay", LockDelay(d)}} {
				h, err := nodes[5].Acquire(soon(t), o.name, o.opt)
				require.NoError(t, err)
				holds = append(holds, h)
			}
			require.NoError(t, holds[1].Release(soon(t)))
			require.NoError(t, nodes[4].ForceRelease(soon(t), "delay", holds[2].Token(), "ops", "test"))
			return holds
		}
		round()
		elapse(d + time.Second)
		dues := 0
		leader, _ := nodes[1].groups[0].engine.leader()
		for _, b := range s.entries() {
			var e wire.Entry
			require.NoError(t, wire.DecodeEntry(b, &e))
			for i := range e.Commands {
				if e.Commands[i].Op == wire.Due {
					dues++
					require.Equal(t, leader, e.Replica, "the leader says it, and nobody else")
				}
			}
		}
		require.GreaterOrEqual(t, dues, 3)
		began := time.Now()
		holds := round()
		s.alter(func() { s.log = append(s.log, s.log...) })
		synctest.Wait()
		require.NoError(t, holds[0].Validate(soon(t)))
		for _, name := range []string{"max", "min", "delay"} {
			_, err := nodes[3].TryAcquire(soon(t), name)
			require.ErrorIs(t, err, ErrHeld, name)
		}
		for _, name := range []string{"max", "min", "delay"} {
			h, err := nodes[3].Acquire(soon(t), name)
			require.NoError(t, err)
			require.GreaterOrEqual(t, time.Since(began), d, name)
			require.NoError(t, h.Release(soon(t)))
		}
	})
}

// A replica that restarts from a snapshot has not begun its new life when it reads
// that. Should it lead then, it must end the times that run in it all the same.
func TestTimesOfASnapshotReadBeforeTheBoot(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		victim, err := nodes[1].OpenSession(soon(t))
		require.NoError(t, err)
		_, err = victim.Acquire(soon(t), "job", LockDelay(5*time.Second))
		require.NoError(t, err)
		require.NoError(t, nodes[3].ForceClose(soon(t), victim.ID(), "ops", "test"))
		require.NoError(t, nodes[2].Close())
		s.alter(func() { s.faults.snapshot = 1 })
		s.pause(2, true)
		nodes[2] = s.open(t, s.options(2))
		// The snapshot is the first thing that it applies: its boot comes after.
		s.pause(2, false)
		require.NoError(t, nodes[2].Ready(soon(t)))
		s.alter(func() { s.faults = simFaults{}; s.lead(2) })
		began := time.Now()
		h, err := nodes[4].Acquire(soon(t), "job")
		require.NoError(t, err)
		require.Less(t, time.Since(began), 6*time.Second)
		require.NoError(t, h.Release(soon(t)))
	})
}
