package quorumlock

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Who is forced out learns by whom and why, wherever he looks, and his token is
// smaller than that of whoever comes next.
func TestForcedOutHolderLearnsWhy(t *testing.T) {
	for watched, prefix := range map[string]string{"watched": "", "not watched": "nothing of it"} {
		t.Run(watched, func(t *testing.T) {
			inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
				if watched == "watched" {
					watching(t, nodes[1], prefix)
				}
				h, err := nodes[1].Acquire(soon(t), "job")
				require.NoError(t, err)
				over := whenOver(t, h)
				waiting := inBackground(func() (*Hold, error) { return nodes[3].Acquire(soon(t), "job") })
				require.NoError(t, nodes[2].ForceRelease(soon(t), "job", h.Token(), "ops", "stuck"))
				got := <-waiting
				require.NoError(t, got.err)
				require.Greater(t, got.hold.Token(), h.Token())
				synctest.Wait()
				cause := (<-over).cause
				for _, err := range []error{cause, h.Err(), h.Release(soon(t)), h.Validate(soon(t)), h.Downgrade(soon(t)), h.Upgrade(soon(t))} {
					var revoked *RevokedError
					require.ErrorAs(t, err, &revoked)
					require.Equal(t, RevokedError{"ops", "stuck"}, *revoked)
					require.ErrorIs(t, err, ErrRevoked)
					require.ErrorIs(t, err, ErrLost)
					require.EqualError(t, err, `quorumlock: lost "job" (token 1): revoked by ops: stuck`)
				}
				<-h.Done()
				require.Zero(t, h.Remaining())
				require.NoError(t, h.Session().Err(), "the session goes on")
				again := nodes[2].ForceRelease(soon(t), "job", h.Token(), "ops", "again")
				require.ErrorIs(t, again, ErrNotHeld)
				require.ErrorContains(t, again, `"job", token `+h.Token().String())
				require.NoError(t, got.hold.Err())
			})
		})
	}
}

// A hold on several names ends as a whole, whichever of them is named, and so do
// readers that share a token.
func TestForcedEndsAreWhole(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		all, err := nodes[1].AcquireAll(soon(t), "c", "a", "b")
		require.NoError(t, err)
		require.ErrorIs(t, nodes[2].ForceRelease(soon(t), "b", all.TokenFor("a"), "ops", "x"), ErrNotHeld)
		require.NoError(t, nodes[2].ForceRelease(soon(t), "b", all.TokenFor("b"), "ops", "x"))
		synctest.Wait()
		require.ErrorIs(t, all.Err(), ErrRevoked)
		next, err := nodes[3].TryAcquireAll(soon(t), "a", "b", "c")
		require.NoError(t, err)
		for _, name := range all.Names() {
			require.Greater(t, next.TokenFor(name), all.TokenFor(name))
		}
		var readers []*Hold
		for id := range nodes {
			r, err := nodes[id].Acquire(soon(t), "doc", Share())
			require.NoError(t, err)
			readers = append(readers, r)
		}
		pool := make([]*Hold, 2)
		for i := range pool {
			pool[i], err = nodes[1].Acquire(soon(t), "pool", Permits(1, 2))
			require.NoError(t, err)
		}
		require.NoError(t, nodes[2].ForceRelease(soon(t), "doc", readers[0].Token(), "ops", "x"))
		require.NoError(t, nodes[2].ForceRelease(soon(t), "pool", pool[0].Token(), "ops", "x"))
		synctest.Wait()
		for _, r := range readers {
			require.ErrorIs(t, r.Err(), ErrRevoked)
		}
		require.ErrorIs(t, pool[0].Err(), ErrRevoked)
		require.NoError(t, pool[1].Err(), "a slot has a token of its own")
		again, err := nodes[4].Acquire(soon(t), "pool", Permits(1, 2))
		require.NoError(t, err)
		require.Equal(t, pool[0].Slots(), again.Slots())
		require.Greater(t, again.Token(), pool[0].Token())
	})
}

// A session that is forced to end takes its holds and waits along, each told why;
// if it was the node's own, the next call opens another.
func TestForcedOutSession(t *testing.T) {
	for _, watched := range []bool{false, true} {
		t.Run(fmt.Sprint("watched ", watched), func(t *testing.T) {
			inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
				if watched {
					watching(t, nodes[1], "")
				}
				other, err := nodes[2].Acquire(soon(t), "theirs")
				require.NoError(t, err)
				h, err := nodes[1].Acquire(soon(t), "mine")
				require.NoError(t, err)
				shared, err := nodes[1].Acquire(soon(t), "doc", Share(), MinHold(time.Hour))
				require.NoError(t, err)
				waiting := inBackground(func() (*Hold, error) { return nodes[1].Acquire(t.Context(), "theirs") })
				several := inBackground(func() (*Hold, error) { return nodes[1].AcquireAll(t.Context(), "x", "theirs") })
				require.NoError(t, nodes[3].ForceClose(soon(t), h.Session().ID(), "ops", "gone mad"))
				synctest.Wait()
				require.Len(t, waiting, 1, "the waiters are told")
				require.Len(t, several, 1)
				for _, err := range []error{(<-waiting).err, (<-several).err, h.Err(), shared.Err(), h.Session().Err()} {
					var revoked *RevokedError
					require.ErrorAs(t, err, &revoked)
					require.Equal(t, RevokedError{"ops", "gone mad"}, *revoked)
				}
				<-h.Session().Done()
				require.NoError(t, h.Session().Close(soon(t)))
				again, err := nodes[1].Acquire(soon(t), "mine")
				require.NoError(t, err)
				require.NotEqual(t, h.Session().ID(), again.Session().ID())
				require.NoError(t, again.Err())
				require.NoError(t, other.Err())
				require.ErrorIs(t, nodes[3].ForceClose(soon(t), h.Session().ID(), "ops", "again"), ErrNotHeld)
				_, err = h.Session().Acquire(soon(t), "mine")
				require.ErrorIs(t, err, ErrRevoked)
			})
		})
	}
}

// A waiter is told that its session is over, whatever ends it, also while this node
// watches.
func TestWaitersOfALostSessionAreToldWhileItIsWatched(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		watching(t, nodes[2], "")
		_, err := nodes[1].Acquire(soon(t), "job")
		require.NoError(t, err)
		own, err := nodes[2].OpenSession(soon(t))
		require.NoError(t, err)
		waiting := inBackground(func() (*Hold, error) { return own.Acquire(t.Context(), "job") })
		// The cluster ends the session before its own process has doubts of it.
		s.mute(2, true)
		elapse(DefaultSessionTTL)
		synctest.Wait()
		require.Len(t, waiting, 1)
		require.ErrorIs(t, (<-waiting).err, ErrSessionExpired)
		s.heal()
		waiting = inBackground(func() (*Hold, error) { return nodes[2].Acquire(t.Context(), "job") })
		require.NoError(t, nodes[2].Shutdown(soon(t)))
		require.ErrorIs(t, (<-waiting).err, ErrClosed)
	})
}

// A holder sees the latest request to yield, on a channel that it may ask for before
// or after; others of the lock see theirs.
func TestYieldRequests(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		a, err := nodes[1].Acquire(soon(t), "doc", Share())
		require.NoError(t, err)
		b, err := nodes[2].Acquire(soon(t), "doc", Share())
		require.NoError(t, err)
		early := a.YieldRequests()
		for i := range 3 {
			require.NoError(t, nodes[3].RequestYield(soon(t), "doc", "deploy", fmt.Sprint("try ", i)))
		}
		synctest.Wait()
		for _, c := range []<-chan YieldRequest{early, b.YieldRequests()} {
			require.Len(t, c, 1)
			require.Equal(t, YieldRequest{"deploy", "try 2"}, <-c)
			require.Empty(t, c)
		}
		require.NoError(t, nodes[3].RequestYield(soon(t), "doc", "deploy", "once more"))
		require.Equal(t, YieldRequest{"deploy", "once more"}, <-early)
		all, err := nodes[4].AcquireAll(soon(t), "x", "y")
		require.NoError(t, err)
		require.NoError(t, nodes[3].RequestYield(soon(t), "y", "deploy", "one of several"))
		require.Equal(t, YieldRequest{"deploy", "one of several"}, <-all.YieldRequests())
		require.Equal(t, Exclusive, all.Mode())
		require.NoError(t, a.Release(soon(t)))
		require.NoError(t, b.Release(soon(t)))
		require.ErrorIs(t, nodes[3].RequestYield(soon(t), "doc", "deploy", "to nobody"), ErrNotHeld)
	})
}

// More permits are granted at once to those who wait; of fewer, none is taken away,
// none is granted before enough came back, and who waits for more than there are is
// refused.
func TestResize(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		a, err := nodes[1].Acquire(soon(t), "pool", Permits(2, 2))
		require.NoError(t, err)
		b := inBackground(func() (*Hold, error) { return nodes[2].Acquire(soon(t), "pool", Permits(2, 2)) })
		c := inBackground(func() (*Hold, error) { return nodes[3].Acquire(soon(t), "pool", Permits(1, 2)) })
		require.NoError(t, nodes[4].Resize(soon(t), "pool", 5))
		got := <-b
		require.NoError(t, got.err)
		require.Equal(t, []int{2, 3}, got.hold.Slots())
		one := <-c
		require.NoError(t, one.err)
		require.Equal(t, []int{4}, one.hold.Slots())
		_, err = nodes[3].TryAcquire(soon(t), "pool", Permits(1, 2))
		require.ErrorIs(t, err, ErrMode)

		tooMany := inBackground(func() (*Hold, error) { return nodes[3].Acquire(soon(t), "pool", Permits(4, 5)) })
		few := inBackground(func() (*Hold, error) { return nodes[4].Acquire(soon(t), "pool", Permits(1, 5)) })
		require.NoError(t, nodes[5].Resize(soon(t), "pool", 3))
		require.ErrorIs(t, (<-tooMany).err, ErrPermits)
		info, err := nodes[1].Describe(soon(t), "pool")
		require.NoError(t, err)
		require.Equal(t, []int{3, 5, 3, 1}, []int{info.Limit, info.Taken, len(info.Holders), len(info.Waiters)})
		require.Equal(t, 1, info.Waiters[0].Permits)
		require.NoError(t, got.hold.Release(soon(t)))
		synctest.Wait()
		require.Empty(t, few, "3 of 3 are taken still")
		require.NoError(t, one.hold.Release(soon(t)))
		last := <-few
		require.NoError(t, last.err)
		require.Equal(t, []int{2}, last.hold.Slots())
		require.NoError(t, a.Err())
		require.NoError(t, a.Release(soon(t)))
		require.NoError(t, last.hold.Release(soon(t)))
		other, err := nodes[1].Acquire(soon(t), "pool", Permits(1, 9))
		require.NoError(t, err, "a free lock has no limit")
		require.NoError(t, other.Release(soon(t)))
	})
}

// A downgrade keeps the token and lets in those who wait to share, and no others; it
// is refused where there is none.
func TestDowngrade(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		w, err := nodes[1].Acquire(soon(t), "doc", MaxHold(time.Hour))
		require.NoError(t, err)
		r := inBackground(func() (*Hold, error) { return nodes[2].Acquire(soon(t), "doc", Share()) })
		x := inBackground(func() (*Hold, error) { return nodes[3].Acquire(soon(t), "doc") })
		late := inBackground(func() (*Hold, error) { return nodes[4].Acquire(soon(t), "doc", Share()) })
		token := w.Token()
		require.NoError(t, w.Downgrade(soon(t)))
		require.NoError(t, w.Downgrade(soon(t)), "again")
		got := <-r
		require.NoError(t, got.err)
		require.Equal(t, token, got.hold.Token())
		require.Equal(t, token, w.Token())
		require.Equal(t, Shared, w.Mode())
		require.NoError(t, w.Validate(soon(t)))
		require.Empty(t, x)
		require.Empty(t, late)
		info, err := nodes[5].Describe(soon(t), "doc")
		require.NoError(t, err)
		require.Equal(t, []Mode{Shared, Shared, Shared}, []Mode{info.Mode, info.Holders[0].Mode, info.Holders[1].Mode})
		require.NoError(t, w.Release(soon(t)))
		require.ErrorIs(t, w.Downgrade(soon(t)), ErrNotHeld)
		require.NoError(t, got.hold.Release(soon(t)))
		writer := <-x
		require.NoError(t, writer.err)
		require.Greater(t, writer.hold.Token(), token)
		require.NoError(t, writer.hold.Release(soon(t)))
		require.NoError(t, (<-late).err)

		plain, err := nodes[1].Acquire(soon(t), "plain")
		require.NoError(t, err)
		require.NoError(t, plain.Downgrade(soon(t)))
		require.Equal(t, Shared, plain.Mode())
		pool, err := nodes[1].Acquire(soon(t), "pool", Permits(1, 2))
		require.NoError(t, err)
		require.ErrorIs(t, pool.Downgrade(soon(t)), ErrMode)
		require.Equal(t, Counted, pool.Mode())
		all, err := nodes[1].AcquireAll(soon(t), "x", "y")
		require.NoError(t, err)
		require.ErrorIs(t, all.Downgrade(soon(t)), ErrMode)
		require.ErrorIs(t, all.Upgrade(soon(t)), ErrUpgrade)
	})
}

// forced are the calls that put something right, each on a lock of its own that it
// finds as it wants it.
func forced(t *testing.T, n *Node, holder *Node) map[string]func(ctx context.Context) error {
	take := func(on locker, name string, opts ...AcquireOption) *Hold {
		h, err := on.Acquire(soon(t), name, opts...)
		require.NoError(t, err)
		return h
	}
	s, err := holder.OpenSession(soon(t))
	require.NoError(t, err)
	held, own := take(holder, "forced"), take(n, "mine")
	take(holder, "asked")
	take(holder, "pool", Permits(1, 2))
	return map[string]func(ctx context.Context) error{
		"release":   func(ctx context.Context) error { return n.ForceRelease(ctx, "forced", held.Token(), "ops", "test") },
		"close":     func(ctx context.Context) error { return n.ForceClose(ctx, s.ID(), "ops", "test") },
		"yield":     func(ctx context.Context) error { return n.RequestYield(ctx, "asked", "ops", "test") },
		"resize":    func(ctx context.Context) error { return n.Resize(ctx, "pool", 3) },
		"downgrade": func(ctx context.Context) error { return own.Downgrade(ctx) },
	}
}

// In a minority these calls end with their ctx, and say both; nothing of them is
// left on the node, and what was asked may be done later.
func TestForcedCallsEndWithTheirContext(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		calls := forced(t, nodes[1], nodes[2])
		s.cut(1)
		for name, call := range calls {
			started := time.Now()
			err := call(canceled(t, 300*time.Millisecond))
			require.ErrorIs(t, err, ErrNoQuorum, name)
			require.ErrorIs(t, err, context.DeadlineExceeded, name)
			require.Equal(t, 300*time.Millisecond, time.Since(started), name)
		}
		nodes[1].mu.Lock()
		under := len(nodes[1].groups[0].calls.under)
		nodes[1].mu.Unlock()
		require.Zero(t, under)
		for _, call := range []func(ctx context.Context) error{
			func(ctx context.Context) error { _, err := nodes[1].Sessions(ctx); return err },
			func(ctx context.Context) error { _, err := nodes[1].AcquireAll(ctx, "p", "q"); return err },
			func(ctx context.Context) error { _, err := nodes[1].TryAcquireAll(ctx, "p", "q"); return err },
			func(ctx context.Context) error { _, err := nodes[1].Acquire(ctx, "p", Share()); return err },
			func(ctx context.Context) error {
				for _, err := range nodes[1].Watch(ctx, "") {
					return err
				}
				return nil
			},
		} {
			err := call(canceled(t, 300*time.Millisecond))
			require.ErrorIs(t, err, ErrNoQuorum)
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
		s.heal()
		elapse(time.Second)
		info, err := nodes[3].Describe(soon(t), "pool")
		require.NoError(t, err)
		require.Equal(t, 3, info.Limit, "it went on in the background")
		for _, name := range []string{"p", "q"} {
			info, err = nodes[3].Describe(soon(t), name)
			require.NoError(t, err)
			require.Equal(t, LockInfo{Name: name}, info)
		}
	})
}

// A node that closes ends the calls that are under way.
func TestForcedCallsEndWithTheNode(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		calls := forced(t, nodes[1], nodes[2])
		s.cut(1)
		results := make(chan error, len(calls))
		for _, call := range calls {
			go func() { results <- call(t.Context()) }()
		}
		synctest.Wait()
		require.NoError(t, nodes[1].Close())
		for range calls {
			require.ErrorIs(t, <-results, ErrClosed)
		}
	})
}

// The answer to such a call comes through leader changes, drops, repeats and
// proposals that are committed late, and it is done once.
func TestForcedCallsOutliveTrouble(t *testing.T) {
	for round := range 20 {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(uint64(round), 5)
			nodes := s.openAll(t)
			defer func() {
				for _, n := range nodes {
					require.NoError(t, n.Close())
				}
			}()
			calls := forced(t, nodes[4], nodes[2])
			s.alter(func() {
				s.faults = simFaults{drop: 0.2, duplicate: 0.5, late: 0.3, delay: 50 * time.Millisecond}
			})
			results := make(map[string]chan error)
			for name, call := range calls {
				c := make(chan error, 1)
				results[name] = c
				go func() { c <- call(soon(t)) }()
			}
			for range 20 {
				elapse(200 * time.Millisecond)
				s.moveLeader()
			}
			for name, c := range results {
				require.NoError(t, <-c, "%s, round %d", name, round)
			}
			s.alter(func() { s.faults = simFaults{} })
			free, err := nodes[1].TryAcquire(soon(t), "forced")
			require.NoError(t, err)
			s.alter(func() { s.log = append(s.log, s.log...) })
			require.NoError(t, free.Validate(soon(t)), "what is repeated ends no later hold")
			info, err := nodes[1].Describe(soon(t), "pool")
			require.NoError(t, err)
			require.Equal(t, 3, info.Limit)
		})
	}
}

// A call whose entry was applied by a snapshot has had its answer in an effect that
// nobody saw: it is settled from the state.
func TestForcedCallsOutliveASnapshot(t *testing.T) {
	for _, name := range []string{"release", "close", "yield", "resize", "downgrade"} {
		t.Run(name, func(t *testing.T) {
			inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
				call := forced(t, nodes[4], nodes[2])[name]
				s.pause(4, true)
				result := make(chan error, 1)
				go func() { result <- call(soon(t)) }()
				elapse(time.Second)
				require.Empty(t, result)
				s.catchUp(4)
				require.NoError(t, <-result)
				if name == "downgrade" {
					info, err := nodes[4].Describe(soon(t), "mine")
					require.NoError(t, err)
					require.Equal(t, Shared, info.Mode)
				}
				free, err := nodes[1].TryAcquire(soon(t), "forced")
				require.Equal(t, name == "release", err == nil)
				if err == nil {
					require.NoError(t, free.Validate(soon(t)))
				}
			})
		})
	}
}

// catchUp brings a replica that was paused up by a snapshot.
func (s *sim) catchUp(id uint64) {
	s.mu.Lock()
	log := s.log
	s.mu.Unlock()
	s.replicas[id].install(log)
	s.pause(id, false)
}

// What a snapshot brought about a hold is seen by its holder: that it is shared now,
// that it has ended, that it was granted with all its names and slots.
func TestSnapshotTellsOfHolds(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		take := func(on locker, name string, opts ...AcquireOption) *Hold {
			t.Helper()
			h, err := on.Acquire(soon(t), name, opts...)
			require.NoError(t, err)
			return h
		}
		n := nodes[4]
		plain, forcedOut, short := take(n, "plain"), take(n, "forced"), take(n, "short", MaxHold(8*time.Second))
		theirs, pool := take(nodes[1], "b"), take(nodes[1], "pool", Permits(2, 2))
		names := inBackground(func() (*Hold, error) { return n.AcquireAll(soon(t), "a", "b") })
		slot := inBackground(func() (*Hold, error) { return n.Acquire(soon(t), "pool", Permits(1, 2), MaxHold(time.Hour)) })
		s.pause(4, true)
		down := make(chan error, 1)
		go func() { down <- plain.Downgrade(soon(t)) }()
		refused := inBackground(func() (*Hold, error) { return n.Acquire(soon(t), "pool", Permits(1, 5)) })
		limited := inBackground(func() (*Hold, error) { return n.Acquire(soon(t), "b", MaxWaiters(0)) })
		require.NoError(t, nodes[1].ForceRelease(soon(t), "forced", forcedOut.Token(), "ops", "unseen"))
		require.NoError(t, theirs.Release(soon(t)))
		require.NoError(t, pool.Release(soon(t)))
		elapse(time.Second)
		s.catchUp(4)
		require.NoError(t, <-down)
		require.Equal(t, Shared, plain.Mode())
		require.NoError(t, plain.Err())
		require.ErrorIs(t, forcedOut.Err(), ErrRevoked)
		require.ErrorIs(t, forcedOut.Err(), ErrLost)
		require.NoError(t, short.Err())
		all := <-names
		require.NoError(t, all.err)
		require.NotZero(t, all.hold.TokenFor("a"))
		require.NotZero(t, all.hold.TokenFor("b"))
		worker := <-slot
		require.NoError(t, worker.err)
		require.Equal(t, []int{0}, worker.hold.Slots())
		require.ErrorIs(t, (<-refused).err, ErrMode, "the cluster's answer, and no guess")
		require.ErrorIs(t, (<-limited).err, ErrQueueFull)
		elapse(10 * time.Second)
		require.ErrorIs(t, short.Err(), ErrMaxHold)
		info, err := n.Describe(soon(t), "pool")
		require.NoError(t, err)
		require.False(t, info.Holders[0].HeldUntil.IsZero(), "its time runs")
	})
}

// A hold whose MaxHold ended while its replica had fallen behind says that.
func TestSnapshotAfterMaxHold(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		own, err := nodes[4].OpenSession(soon(t), WithTTL(time.Hour))
		require.NoError(t, err)
		h, err := own.Acquire(soon(t), "job", MaxHold(8*time.Second))
		require.NoError(t, err)
		s.pause(4, true)
		next, err := nodes[1].Acquire(soon(t), "job")
		require.NoError(t, err)
		require.ErrorIs(t, h.Err(), ErrMaxHold)
		s.catchUp(4)
		require.ErrorIs(t, h.Err(), ErrMaxHold)
		require.ErrorIs(t, h.Release(soon(t)), ErrMaxHold)
		require.NoError(t, next.Validate(soon(t)))
	})
}

// A call whose batch was applied without its answer being seen is settled, once, and
// none that was not applied.
func TestCalls(t *testing.T) {
	var c calls
	command := func() (x *call) { return c.begin(wire.Command{Op: wire.Ask, More: &wire.More{}}) }
	a, b, unsent := command(), command(), command()
	require.Equal(t, []uint64{1, 2, 3}, []uint64{a.command.More.Call, b.command.More.Call, unsent.command.More.Call})
	c.sent(1, 7)
	c.sent(2, 8)
	c.sent(99, 8) // of another life, or a start
	var asked []uint64
	outcome := func(x wire.Command) cause { asked = append(asked, x.More.Call); return causeGone }
	c.settle(6, outcome)
	require.Empty(t, asked)
	c.settle(7, outcome)
	c.settle(7, outcome)
	require.Equal(t, []uint64{1}, asked)
	require.Equal(t, causeGone, <-a.answer)
	c.answer(2, 0)
	c.answer(2, causeGone)
	c.answer(42, 0)
	require.Equal(t, cause(0), <-b.answer)
	c.settle(100, outcome)
	require.Equal(t, []uint64{1}, asked, "what has its answer is not settled, nor what was never sent")
	require.Len(t, c.under, 1)
}

// Calls whose entries a snapshot took the place of are not asked again: what others
// did since stays.
func TestSnapshotSettlesCalls(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		tick := func(n *Node, job string, tick int64) bool {
			t.Helper()
			ok, err := n.ClaimTick(soon(t), job, tick)
			require.NoError(t, err)
			return ok
		}
		n := nodes[4]
		h, err := n.Acquire(soon(t), "lead")
		require.NoError(t, err)
		require.True(t, tick(nodes[1], "forgotten", 5))
		s.pause(4, true)
		claims, calls := make(chan bool, 2), make(chan error, 2)
		for _, job := range []string{"ours", "theirs"} {
			go func() {
				ok, err := n.ClaimTick(soon(t), job, 7)
				claims <- ok && err == nil && job == "ours"
			}()
			elapse(time.Second)
			if job == "ours" {
				require.True(t, tick(nodes[1], "theirs", 7))
			}
		}
		s.catchUp(4) // no more than two batches are under way at once
		require.ElementsMatch(t, []bool{true, false}, []bool{<-claims, <-claims})
		s.pause(4, true)
		go func() { calls <- n.ForgetJob(soon(t), "forgotten") }()
		elapse(time.Second)
		require.True(t, tick(nodes[1], "forgotten", 6))
		go func() { calls <- h.SetValue(soon(t), "mine") }()
		elapse(time.Second)
		s.catchUp(4)
		require.NoError(t, <-calls)
		require.NoError(t, <-calls)
		require.False(t, tick(nodes[1], "forgotten", 6), "it was forgotten once")
		info, err := nodes[1].Describe(soon(t), "lead")
		require.NoError(t, err)
		require.Equal(t, "mine", info.Holders[0].Value)
	})
}

// Tokens jump when somebody is forced out, so a store refuses what he still writes.
func TestForcedOutHoldersWritesAreRefused(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		var store fencing.Token
		write := func(token fencing.Token) error {
			if token < store {
				return fencing.ErrStale
			}
			store = token
			return nil
		}
		err := nodes[1].Do(soon(t), "job", func(ctx context.Context, token fencing.Token) error {
			require.NoError(t, write(token))
			require.NoError(t, nodes[2].ForceRelease(soon(t), "job", token, "ops", "stuck"))
			require.NoError(t, nodes[2].Do(soon(t), "job", func(_ context.Context, token fencing.Token) error { return write(token) }))
			<-ctx.Done()
			return write(token)
		})
		require.ErrorIs(t, err, fencing.ErrStale)
		require.ErrorIs(t, err, ErrRevoked)
		var lost *LostError
		require.True(t, errors.As(err, &lost))

	})
}
