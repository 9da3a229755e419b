package quorumlock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/sessions"
)

// A line of readers, writers, and those who want several names at once is served in
// the order of arrival, and readers that stand together are granted together.
func TestMixedLineIsServedInOrder(t *testing.T) {
	rng := dice(t)
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		const waiters = 80
		held, err := nodes[1].Acquire(soon(t), "doc")
		require.NoError(t, err)
		events := watching(t, nodes[2], "doc")
		synctest.Wait()
		var arrived []sessions.ID
		modes := make(map[sessions.ID]Mode)
		done := make(chan error, waiters)
		for i := range waiters {
			s, err := nodes[uint64(1+rng.IntN(5))].OpenSession(soon(t))
			require.NoError(t, err)
			arrived = append(arrived, s.ID())
			acquire := func() (*Hold, error) { return s.Acquire(t.Context(), "doc") }
			modes[s.ID()] = Exclusive
			switch rng.IntN(5) {
			case 0:
				acquire = func() (*Hold, error) { return s.AcquireAll(t.Context(), "doc", fmt.Sprint("other", i%3)) }
			case 1, 2, 3:
				modes[s.ID()] = Shared
				acquire = func() (*Hold, error) { return s.Acquire(t.Context(), "doc", Share()) }
			}
			go func() {
				h, err := acquire()
				if err == nil {
					time.Sleep(10 * time.Millisecond)
					err = h.Release(t.Context())
				}
				done <- err
			}()
			synctest.Wait()
		}
		inLine(t, nodes[3], "doc", waiters)
		require.NoError(t, held.Release(soon(t)))
		for range waiters {
			require.NoError(t, <-done)
		}
		synctest.Wait()
		var granted []sessions.ID
		beside := 0 // how many hold
		for len(events) > 0 {
			switch e := <-events; e.Kind {
			case EventGranted:
				require.Equal(t, modes[e.Session], e.Mode)
				if beside > 0 {
					require.Equal(t, Shared, e.Mode)
				}
				granted = append(granted, e.Session)
				beside++
			case EventReleased:
				beside = max(beside-1, 0)
				if next := len(granted); beside == 0 && next < waiters {
					continue
				} else if next < waiters {
					require.Equal(t, Exclusive, modes[arrived[next]], "a reader that stands next to readers waits for nothing")
				}
			}
		}
		require.Equal(t, arrived, granted)
		settled(t, nodes)
	})
}

// A wait that its caller gives up leaves nothing, in whatever mode, and those behind
// it are granted what it stood in the way of.
func TestCancelledWaitsLeaveNothingInAnyMode(t *testing.T) {
	for what, c := range map[string]struct {
		held   []AcquireOption
		wait   func(n *Node, ctx context.Context) (*Hold, error)
		behind []AcquireOption // can be had beside the holder
	}{
		"writer": {[]AcquireOption{Share()}, func(n *Node, ctx context.Context) (*Hold, error) {
			return n.Acquire(ctx, "job", MinHold(time.Hour))
		}, []AcquireOption{Share()}},
		"reader": {nil, func(n *Node, ctx context.Context) (*Hold, error) { return n.Acquire(ctx, "job", Share()) }, nil},
		"worker": {[]AcquireOption{Permits(2, 3)}, func(n *Node, ctx context.Context) (*Hold, error) {
			return n.Acquire(ctx, "job", Permits(2, 3), MaxHold(time.Hour))
		}, []AcquireOption{Permits(1, 3)}},
		"several": {[]AcquireOption{Share()}, func(n *Node, ctx context.Context) (*Hold, error) {
			return n.AcquireAll(ctx, "job", "free", "also free")
		}, []AcquireOption{Share()}},
	} {
		t.Run(what, func(t *testing.T) {
			inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
				held, err := nodes[1].Acquire(soon(t), "job", c.held...)
				require.NoError(t, err)
				ctx, cancel := context.WithCancel(t.Context())
				waiting := inBackground(func() (*Hold, error) { return c.wait(nodes[2], ctx) })
				list, err := nodes[3].List(soon(t), "")
				require.NoError(t, err)
				for _, l := range list {
					require.Len(t, l.Waiters, 1, l.Name)
				}
				var behind <-chan outcome
				if c.behind != nil {
					behind = inBackground(func() (*Hold, error) { return nodes[4].Acquire(soon(t), "job", c.behind...) })
					require.Empty(t, behind)
				}
				cancel()
				got := <-waiting
				require.ErrorIs(t, got.err, ErrHeld)
				require.ErrorIs(t, got.err, context.Canceled)
				if behind != nil {
					b := <-behind
					require.NoError(t, b.err)
					require.NoError(t, b.hold.Release(soon(t)))
				}
				require.NoError(t, held.Release(soon(t)))
				synctest.Wait()
				for _, name := range []string{"job", "free", "also free"} {
					info, err := nodes[3].Describe(soon(t), name)
					require.NoError(t, err)
					require.Equal(t, LockInfo{Name: name}, info)
				}
				list, err = nodes[3].List(soon(t), "")
				require.NoError(t, err)
				require.Empty(t, list)
				require.Zero(t, nodes[2].Status().Holds)
				infos, err := nodes[4].Sessions(soon(t))
				require.NoError(t, err)
				for _, i := range infos {
					require.Zero(t, i.Holds+i.Waits)
				}
				settled(t, nodes)
			})
		})
	}
}

// A line is as long as its callers let it be, and a session has no more places than
// it may have; more are refused at once.
func TestLinesAreBounded(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		holder, err := nodes[1].Acquire(soon(t), "a", Share())
		require.NoError(t, err)
		pool, err := nodes[1].Acquire(soon(t), "pool", Permits(3, 3))
		require.NoError(t, err)
		full := func(on locker, name string, opts ...AcquireOption) {
			t.Helper()
			started := time.Now()
			_, err := on.Acquire(soon(t), name, opts...)
			require.ErrorIs(t, err, ErrQueueFull)
			require.Zero(t, time.Since(started), "at once")
		}
		full(nodes[2], "a", MaxWaiters(0))
		full(nodes[2], "pool", MaxWaiters(0), Permits(1, 3))
		_, err = nodes[2].Acquire(soon(t), "a", MaxWaiters(0), Share())
		require.NoError(t, err, "nobody need wait")
		first, cancel := context.WithCancel(t.Context())
		waiting := inBackground(func() (*Hold, error) { return nodes[2].Acquire(first, "a", MaxWaiters(1)) })
		full(nodes[3], "a", MaxWaiters(1), Share())

		s, err := nodes[4].OpenSession(soon(t), MaxWaits(2))
		require.NoError(t, err)
		_, err = s.AcquireAll(soon(t), "x", "y", "z")
		require.NoError(t, err, "what need not wait is not counted")
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		one := inBackground(func() (*Hold, error) { return s.Acquire(ctx, "pool", Permits(1, 3)) })
		_, err = s.AcquireAll(soon(t), "a", "b")
		require.ErrorIs(t, err, ErrQueueFull, "it would have three places")
		two := inBackground(func() (*Hold, error) { return s.Acquire(ctx, "a") })
		full(s, "a")
		full(s, "pool", Permits(1, 3))
		info, err := nodes[5].Sessions(soon(t))
		require.NoError(t, err)
		require.Equal(t, []int{3, 2}, []int{info[len(info)-1].Holds, info[len(info)-1].Waits})
		_, err = s.TryAcquire(soon(t), "a")
		require.ErrorIs(t, err, ErrHeld, "a try does not wait")
		_, err = nodes[4].AcquireAll(canceled(t, time.Second), "a", "b", "c")
		require.ErrorIs(t, err, ErrHeld, "the node's own session has no limit")
		require.NoError(t, pool.Release(soon(t)))
		require.NoError(t, (<-one).err)
		three := inBackground(func() (*Hold, error) { return s.AcquireAll(ctx, "a") })
		stop()
		require.ErrorIs(t, (<-two).err, context.Canceled)
		require.ErrorIs(t, (<-three).err, context.Canceled)
		cancel()
		require.ErrorIs(t, (<-waiting).err, context.Canceled)
		none, err := nodes[4].OpenSession(soon(t), MaxWaits(0))
		require.NoError(t, err)
		full(none, "a")
		_, err = none.Acquire(soon(t), "free")
		require.NoError(t, err)
		require.NoError(t, holder.Release(soon(t)))
	})
}

// canceled is a ctx that ends after d.
func canceled(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// A refusal says who has the lock, since when, in which mode, and how many stand
// before us, whether it was a try or a wait that ran out.
func TestHeldErrorSaysAll(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		s, err := nodes[1].OpenSession(soon(t), WithOwner("worker"))
		require.NoError(t, err)
		elapse(time.Minute)
		since := time.Now()
		h, err := s.Acquire(soon(t), "pool", Permits(2, 4))
		require.NoError(t, err)
		other, err := nodes[2].Acquire(soon(t), "pool", Permits(1, 4))
		require.NoError(t, err)
		elapse(time.Second)
		want := HeldError{Name: "pool", Mode: Counted, Limit: 4, Taken: 3}
		check := func(err error, ahead int) {
			t.Helper()
			var held *HeldError
			require.ErrorAs(t, err, &held)
			require.Len(t, held.Holders, 2)
			x := held.Holders[0]
			require.Equal(t, []any{s.ID(), "worker", uint64(1), Counted, h.Token(), []int{0, 1}},
				[]any{x.Session, x.Owner, x.Replica, x.Mode, x.Token, x.Slots})
			require.True(t, x.AcquiredAt.Equal(since))
			require.Equal(t, other.Token(), held.Holders[1].Token)
			require.Equal(t, "owner-2", held.Holders[1].Owner)
			w := want
			w.Holders, w.Ahead, w.ctxErr = held.Holders, ahead, held.ctxErr
			require.Equal(t, w, *held)
			require.ErrorContains(t, err, fmt.Sprintf(
				`"pool" is held, 3 of 4 permits, by worker (session %s, token %s, since 2000-01-01T00:01:00Z) and by owner-2`, s.ID(), h.Token()))
		}
		_, err = nodes[3].TryAcquire(soon(t), "pool", Permits(2, 4))
		check(err, 0)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		var waits []<-chan outcome
		for i := range 3 {
			waits = append(waits, inBackground(func() (*Hold, error) {
				return nodes[3].Acquire(canceled(t, time.Duration(20-i)*time.Second), "pool", Permits(2, 4))
			}))
		}
		_, err = nodes[3].TryAcquire(soon(t), "pool", Permits(1, 4))
		check(err, 3)
		for i := 2; i >= 0; i-- {
			got := <-waits[i]
			check(got.err, i)
			require.ErrorIs(t, got.err, context.DeadlineExceeded)
			require.ErrorContains(t, got.err, context.DeadlineExceeded.Error())
			if i > 0 {
				require.ErrorContains(t, got.err, fmt.Sprintf("%d ahead in line", i))
			}
		}
	})
}

// Of several names, a refusal tells of the one that is in the way, and of the line
// of that one.
func TestHeldErrorOfSeveralNames(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		h, err := nodes[1].Acquire(soon(t), "b")
		require.NoError(t, err)
		before := inBackground(func() (*Hold, error) { return nodes[2].Acquire(canceled(t, time.Minute), "b") })
		third := inBackground(func() (*Hold, error) { return nodes[2].Acquire(canceled(t, time.Minute), "b", Share()) })
		_, err = nodes[3].TryAcquireAll(soon(t), "c", "b", "a")
		var held *HeldError
		require.ErrorAs(t, err, &held)
		require.Equal(t, "b", held.Name)
		require.Equal(t, 2, held.Ahead)
		require.Equal(t, h.Token(), held.Holders[0].Token)
		require.ErrorContains(t, err, `acquire ["a" "b" "c"]`)
		require.NotErrorIs(t, err, context.DeadlineExceeded, "a try does not wait")

		_, err = nodes[3].AcquireAll(canceled(t, 10*time.Second), "c", "b", "a")
		require.ErrorAs(t, err, &held)
		require.Equal(t, "b", held.Name)
		require.Equal(t, 2, held.Ahead, "in the line of b")
		require.ErrorIs(t, err, context.DeadlineExceeded)

		all := inBackground(func() (*Hold, error) { return nodes[3].AcquireAll(canceled(t, 10*time.Second), "c", "a", "b") })
		_, err = nodes[4].TryAcquire(soon(t), "a")
		require.ErrorAs(t, err, &held, "nobody overtakes who waits for several")
		require.Empty(t, held.Holders)
		require.Equal(t, 1, held.Ahead)
		require.ErrorContains(t, err, `"a" is waited for`)
		info, err := nodes[4].Describe(soon(t), "c")
		require.NoError(t, err)
		require.Equal(t, []string{"a", "b", "c"}, info.Waiters[0].Names)
		require.Equal(t, Exclusive, info.Mode)
		require.ErrorIs(t, (<-all).err, context.DeadlineExceeded)
		require.NoError(t, h.Release(soon(t)))
		got := <-before
		require.NoError(t, got.err)
		require.NoError(t, got.hold.Release(soon(t)))
		require.NoError(t, (<-third).err)
	})
}

// A thousand waiters that are dead, or have gone, cost the next live one nothing:
// it is granted in the very entry that ends the hold, or them.
func TestAThousandDeadWaitersCostNothing(t *testing.T) {
	for mode, opts := range map[string][]AcquireOption{
		"exclusive": nil, "shared": {Share()}, "counted": {Permits(3, 3)}, "several": {},
	} {
		t.Run(mode, func(t *testing.T) {
			inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
				holding := opts
				if mode == "shared" {
					holding = nil
				}
				held, err := nodes[1].Acquire(soon(t), "job", holding...)
				require.NoError(t, err)
				dead, err := nodes[2].OpenSession(soon(t))
				require.NoError(t, err)
				failed := make(chan error, 1000)
				for i := range 1000 {
					go func() {
						ctx := t.Context()
						var err error
						switch {
						case mode == "several":
							_, err = dead.AcquireAll(ctx, "job", fmt.Sprint("other ", i%7))
						case i%2 == 0 && mode != "counted":
							_, err = dead.Acquire(ctx, "job") // among the readers, so that none is next to the holder
						default:
							_, err = dead.Acquire(ctx, "job", opts...)
						}
						failed <- err
					}()
				}
				elapse(time.Second)
				inLine(t, nodes[1], "job", 1000)
				live := inBackground(func() (*Hold, error) { return nodes[3].Acquire(t.Context(), "job", opts...) })
				require.NoError(t, nodes[4].ForceClose(soon(t), dead.ID(), "ops", "test"))
				for range 1000 {
					require.ErrorIs(t, <-failed, ErrRevoked)
				}
				inLine(t, nodes[1], "job", 1)
				before := s.length()
				require.NoError(t, held.Release(soon(t)))
				got := <-live
				require.NoError(t, got.err)
				require.Equal(t, before+1, s.length())
				require.NoError(t, got.hold.Release(soon(t)))
				synctest.Wait()
				list, err := nodes[1].List(soon(t), "")
				require.NoError(t, err)
				require.Empty(t, list)
				settled(t, nodes)
			})
		})
	}
}

// A refusal costs the same however many stand in line: a crowd that gives up at once,
// or tries again and again, does not hold up its replica.
func TestRefusalCostsNoMoreInALongLine(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		held, err := nodes[1].Acquire(soon(t), "job")
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var calls sync.WaitGroup
		allocs := func(waiters int) (n float64) {
			for range waiters {
				calls.Go(func() { _, _ = nodes[2].Acquire(ctx, "job") })
			}
			elapse(time.Second)
			nodes[2].groups[0].machine.read(func(f *lockFSM) {
				n = testing.AllocsPerRun(10, func() { f.heldError(held, "job") })
			})
			return n
		}
		few := allocs(1)
		many := allocs(999)
		inLine(t, nodes[2], "job", 1000)
		require.Equal(t, few, many)
		cancel()
		calls.Wait()
		require.NoError(t, held.Release(soon(t)))
	})
}

// A writer is granted although readers keep coming, each before the last has gone.
func TestNoWriterStarves(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan struct{})
		readers := 0
		for id := range nodes {
			for k := range time.Duration(4) {
				readers++
				go func() {
					defer func() { done <- struct{}{} }()
					time.Sleep(k * 7 * time.Millisecond)
					for ctx.Err() == nil {
						if h, err := nodes[id].Acquire(ctx, "doc", Share()); err == nil {
							time.Sleep(30 * time.Millisecond)
							if err := h.Release(context.WithoutCancel(ctx)); err != nil {
								t.Error(err)
							}
						}
					}
				}()
			}
		}
		elapse(100 * time.Millisecond)
		for range 50 {
			started := time.Now()
			h, err := nodes[3].Acquire(soon(t), "doc")
			require.NoError(t, err)
			require.LessOrEqual(t, time.Since(started), 60*time.Millisecond, "the readers that were there, and no others")
			require.NoError(t, h.Release(soon(t)))
			elapse(5 * time.Millisecond)
		}
		cancel()
		for range readers {
			<-done
		}
		settled(t, nodes)
	})
}

// dice returns a source that a failed test can be repeated with.
func dice(t *testing.T) *rand.Rand {
	seed := seeds(t, 1)[0]
	t.Logf("%s=%d", seedVar, seed)
	return rand.New(rand.NewPCG(seed, 7))
}
