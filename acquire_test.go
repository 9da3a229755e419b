package quorumlock

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestBadCallsProposeNothing(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		before := s.length()
		over, cancel := context.WithCancel(t.Context())
		cancel()
		n := nodes[1]
		var none context.Context // nil on purpose
		for _, name := range []string{"", strings.Repeat("x", 513), "\xff\xfe"} {
			_, err := n.Acquire(t.Context(), name)
			require.ErrorIs(t, err, ErrName)
			_, err = n.TryAcquire(t.Context(), name)
			require.ErrorIs(t, err, ErrName)
			_, err = n.Describe(t.Context(), name)
			require.ErrorIs(t, err, ErrName)
		}
		for ctx, want := range map[context.Context]error{none: ErrNilContext, over: context.Canceled} {
			_, err := n.Acquire(ctx, "job")
			require.ErrorIs(t, err, want)
			_, err = n.TryAcquire(ctx, "job")
			require.ErrorIs(t, err, want)
			_, err = n.OpenSession(ctx)
			require.ErrorIs(t, err, want)
			_, err = n.Describe(ctx, "job")
			require.ErrorIs(t, err, want)
			_, err = n.List(ctx, "")
			require.ErrorIs(t, err, want)
			require.ErrorIs(t, n.Ready(ctx), want)
		}
		synctest.Wait()
		require.Equal(t, before, s.length())

		h, err := n.Acquire(soon(t), strings.Repeat("x", 512))
		require.NoError(t, err)
		require.NoError(t, h.Release(soon(t)))
	})
}

func TestHeldErrorTellsWhoHasIt(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		h, err := nodes[1].Acquire(soon(t), "job")
		require.NoError(t, err)

		_, err = nodes[2].TryAcquire(soon(t), "job")
		var held *HeldError
		require.ErrorAs(t, err, &held)
		require.Equal(t, h.Session().ID(), held.Holders[0].Session)
		require.Equal(t, "owner-1", held.Holders[0].Owner)
		require.Equal(t, h.Token(), held.Holders[0].Token)
		require.NotErrorIs(t, err, context.DeadlineExceeded)

		var wg sync.WaitGroup
		for ahead := range 3 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				_, err := nodes[3].Acquire(ctx, "job")
				var held *HeldError
				require.ErrorAs(t, err, &held)
				require.ErrorIs(t, err, ErrHeld)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.Equal(t, "job", held.Name)
				require.Contains(t, err.Error(), "owner-1")
				if ahead > 0 {
					require.LessOrEqual(t, held.Ahead, ahead)
				}
			})
			synctest.Wait()
		}
		wg.Wait()
		elapse(time.Second) // the cancels go out in the background
		info, err := nodes[4].Describe(soon(t), "job")
		require.NoError(t, err)
		require.Empty(t, info.Waiters, "a wait that ran out leaves no waiter")
	})
}

func TestQueueFull(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		_, err := nodes[1].Acquire(soon(t), "job")
		require.NoError(t, err)
		_, err = nodes[2].Acquire(soon(t), "job", MaxWaiters(0))
		require.ErrorIs(t, err, ErrQueueFull)
		_, err = nodes[2].Acquire(soon(t), "free", MaxWaiters(0))
		require.NoError(t, err)
	})
}

func TestReleaseIsIdempotentAndEndsOnlyItsOwn(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		first, err := nodes[1].Acquire(soon(t), "job")
		require.NoError(t, err)
		require.NoError(t, first.Release(soon(t)))
		require.ErrorIs(t, first.Err(), ErrNotHeld)
		require.NotErrorIs(t, first.Err(), ErrLost)
		second, err := nodes[1].Acquire(soon(t), "job")
		require.NoError(t, err)

		require.NoError(t, first.Release(soon(t)), "again")
		s.alter(func() { s.log = append(s.log, s.log...) }) // every entry there ever was arrives once more
		require.NoError(t, second.Validate(soon(t)))
		require.ErrorIs(t, first.Validate(soon(t)), ErrNotHeld)
		require.NoError(t, second.Release(soon(t)))
	})
}

func TestReleaseWorksOnADeadContext(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		dead, cancel := context.WithCancel(t.Context())
		cancel()
		h, err := nodes[1].Acquire(soon(t), "job")
		require.NoError(t, err)
		require.NoError(t, h.Release(dead))
		other, err := nodes[2].TryAcquire(soon(t), "job")
		require.NoError(t, err)
		require.NoError(t, other.Release(soon(t)))

		h, err = nodes[1].Acquire(soon(t), "job")
		require.NoError(t, err)
		s.cut(1)
		start := time.Now()
		err = h.Release(dead)
		require.ErrorIs(t, err, ErrNoQuorum)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, DefaultElectionTimeout, time.Since(start), "bounded")
		s.heal()
		require.NoError(t, h.Release(soon(t)), "it went on in the background")
	})
}

// Those who wait for one release are each told of it once, he whose ctx ended first is
// told of nothing, and no token of theirs is taken for the answer to a later call.
func TestManyWaitForOneRelease(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		for range 20 {
			h, err := nodes[1].Acquire(soon(t), "job")
			require.NoError(t, err)
			s.cut(1)
			short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			require.ErrorIs(t, h.Release(short), ErrNoQuorum, "the first")
			cancel()
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() { require.NoError(t, h.Release(soon(t))) })
			}
			synctest.Wait()
			s.heal()
			wg.Wait()
			require.Empty(t, nodes[1].Status().Holds)

			wg.Go(func() { require.NoError(t, h.Release(soon(t)), "it is free already") })
			held, err := nodes[2].Acquire(soon(t), "job")
			require.NoError(t, err)
			wg.Wait()
			for range 5 { // whose channels are those of the calls before
				_, err = nodes[1].TryAcquire(soon(t), "job")
				require.ErrorIs(t, err, ErrHeld)
			}
			require.NoError(t, held.Release(soon(t)))
		}
	})
}

// What a call reads of its claim without the lock, once it was told, changes no more: not
// even when the claim comes to stand in line although its session is over.
func TestAnsweredClaimDoesNotChange(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		_, err := nodes[2].Acquire(soon(t), "job")
		require.NoError(t, err)
		n := nodes[1]
		session, err := n.OpenSession(soon(t))
		require.NoError(t, err)
		s.pause(1, true) // commits, but sees nothing of it
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := session.Acquire(soon(t), "job")
			require.ErrorIs(t, err, ErrSessionClosed)
		})
		synctest.Wait()
		n.mu.Lock()
		require.Len(t, session.parts[0].claims, 1)
		var h *Hold
		for _, h = range session.parts[0].claims {
			require.NotZero(t, h.batch, "it is under way")
		}
		n.mu.Unlock()
		wg.Go(func() { require.NoError(t, session.Close(soon(t))) })
		synctest.Wait()
		s.pause(1, false)
		wg.Wait()
		n.mu.Lock()
		defer n.mu.Unlock()
		require.True(t, h.forgotten)
		require.False(t, h.queued, "it did after the call was told")
	})
}

// Of a queue that was long, no more room is kept than a batch needs, also when the last of
// it lie at the end of that room.
func TestQueueKeepsLittleRoom(t *testing.T) {
	for _, long := range []int{1, maxBatchCommands, maxBatchCommands + 1, 9*maxBatchCommands + 7} {
		queue, want := make([]*Hold, long), make([]*Hold, long)
		for i := range queue {
			queue[i] = new(Hold)
		}
		copy(want, queue)
		gone := make(chan struct{})
		runtime.AddCleanup(&queue[0], func(gone chan struct{}) { close(gone) }, gone)
		for len(queue) > 0 {
			n := min(len(queue), maxBatchCommands)
			require.True(t, slices.Equal(want[:n], queue[:n]))
			queue, want = behind(queue, n), want[n:]
		}
		require.LessOrEqual(t, cap(queue), maxBatchCommands)
		if long > maxBatchCommands {
			eventually(t, "the long room is given back", func() bool { runtime.GC(); return isClosed(gone) })
		}
		runtime.KeepAlive(queue)
	}
}

func TestCancelledWaitLeavesNothing(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		// The acquire is committed only after its caller has gone.
		s.alter(func() { s.faults.late = 1 })
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, err := nodes[1].Acquire(ctx, "job")
		require.ErrorIs(t, err, ErrNoQuorum)
		s.alter(func() { s.faults.late = 0 })
		s.moveLeader()
		h, err := nodes[2].Acquire(soon(t), "job")
		require.NoError(t, err)
		require.NoError(t, h.Release(soon(t)))
		elapse(time.Second)
		require.Zero(t, nodes[1].Status().Holds)
		require.Zero(t, nodes[1].Status().Locks)
	})
}

func TestSnapshotInstallSettlesWhatIsUnderWay(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		held, err := nodes[1].Acquire(soon(t), "mine")
		require.NoError(t, err)
		taken, err := nodes[2].Acquire(soon(t), "theirs")
		require.NoError(t, err)

		s.pause(1, true) // commits, but sees nothing of it
		var wg sync.WaitGroup
		wg.Go(func() { require.NoError(t, held.Release(soon(t))) })
		wg.Go(func() {
			_, err := nodes[1].TryAcquire(soon(t), "theirs")
			require.ErrorIs(t, err, ErrHeld)
		})
		wg.Go(func() {
			h, err := nodes[1].Acquire(soon(t), "new")
			require.NoError(t, err)
			require.NoError(t, h.Validate(soon(t)))
		})
		wg.Go(func() {
			_, err := nodes[1].OpenSession(soon(t))
			require.NoError(t, err)
		})
		wg.Go(func() {
			h, err := nodes[1].Acquire(soon(t), "theirs")
			require.NoError(t, err)
			require.Greater(t, h.Token(), taken.Token())
		})
		elapse(time.Second)
		s.mu.Lock()
		log := s.log
		s.mu.Unlock()
		s.replicas[1].install(log)
		s.pause(1, false)
		synctest.Wait()
		require.NoError(t, taken.Release(soon(t)))
		wg.Wait()
	})
}

func TestListInPages(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		ctx := soon(t)
		var want []string
		for i := range 25 {
			name := fmt.Sprintf("invoice/%02d", i)
			_, err := nodes[1].Acquire(ctx, name)
			require.NoError(t, err)
			want = append(want, name)
		}
		_, err := nodes[1].Acquire(ctx, "report")
		require.NoError(t, err)
		var got []string
		for page := []LockInfo{{}}; ; {
			page, err = nodes[2].List(ctx, "invoice/", Limit(10), After(page[len(page)-1].Name))
			require.NoError(t, err)
			if len(page) == 0 {
				break
			}
			for _, l := range page {
				got = append(got, l.Name)
				require.Equal(t, uint64(1), l.Holders[0].Replica)
				require.Equal(t, Exclusive, l.Mode)
				require.WithinDuration(t, time.Now(), l.Holders[0].AcquiredAt, time.Minute)
				require.WithinDuration(t, time.Now().Add(DefaultSessionTTL), l.Holders[0].LeaseUntil, DefaultSessionTTL/2)
			}
		}
		require.Equal(t, want, got)
		all, err := nodes[3].List(ctx, "")
		require.NoError(t, err)
		require.Len(t, all, 26)
	})
}

func TestClosedNodeSaysSo(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		n := nodes[1]
		h, err := n.Acquire(soon(t), "job")
		require.NoError(t, err)
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := n.Acquire(soon(t), "job")
			require.ErrorIs(t, err, ErrClosed)
			require.NotErrorIs(t, err, context.Canceled)
		})
		synctest.Wait()
		require.NoError(t, n.Close())
		require.NoError(t, n.Close(), "again")
		wg.Wait()
		require.ErrorIs(t, h.Release(soon(t)), ErrLost)
		require.ErrorIs(t, h.Err(), ErrClosed)
		_, err = n.TryAcquire(soon(t), "job")
		require.ErrorIs(t, err, ErrClosed)
		_, err = n.Describe(soon(t), "job")
		require.ErrorIs(t, err, ErrClosed)
		_, err = n.OpenSession(soon(t))
		require.ErrorIs(t, err, ErrClosed)
		require.ErrorIs(t, n.Ready(soon(t)), ErrClosed)
	})
}

// A node that can send nothing queues so many acquires and no more. What gives
// something back is never refused, and goes first when the cluster is there again.
func TestBusy(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		n := nodes[1]
		h, err := n.Acquire(soon(t), "job")
		require.NoError(t, err)
		s.cut(1)
		var wg sync.WaitGroup
		for i := range window { // as many batches are under way as may be: nothing is taken from the queue
			wg.Go(func() {
				_, err := n.Acquire(soon(t), fmt.Sprint("under way ", i))
				require.NoError(t, err)
			})
			synctest.Wait()
		}
		n.mu.Lock()
		for range maxPending {
			n.groups[0].stream.acquires = append(n.groups[0].stream.acquires, &Hold{part: h.part, abandoned: true})
		}
		n.mu.Unlock()
		start := time.Now()
		_, err = n.Acquire(soon(t), "other")
		require.ErrorIs(t, err, ErrBusy)
		_, err = n.TryAcquire(soon(t), "other")
		require.ErrorIs(t, err, ErrBusy)
		require.Zero(t, time.Since(start), "at once")

		wg.Go(func() { require.NoError(t, h.Release(soon(t))) })
		synctest.Wait()
		s.heal()
		wg.Wait()
		_, err = n.Acquire(soon(t), "other")
		require.NoError(t, err)
	})
}
