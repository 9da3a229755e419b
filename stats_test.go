package quorumlock

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestStatsCountWhatHappens(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		ctx, a, b := t.Context(), nodes[2], nodes[3]
		uncounted, err := a.Acquire(ctx, "before")
		require.NoError(t, err)
		require.Zero(t, a.Stats().Grants)
		b.Stats()
		require.NoError(t, uncounted.Release(ctx))
		of := a.Stats()
		require.Zero(t, of.Holds.Count(), "a hold of which nobody saw the beginning")

		held, err := a.Acquire(ctx, "x")
		require.NoError(t, err)
		_, err = b.TryAcquire(ctx, "x")
		require.ErrorIs(t, err, ErrHeld)
		_, err = b.Acquire(ctx, "x", MaxWaiters(0))
		require.ErrorIs(t, err, ErrQueueFull)
		_, err = b.Acquire(ctx, "x", Permits(1, 3))
		require.ErrorIs(t, err, ErrMode)

		granted := make(chan *Hold, 1)
		go func() {
			h, err := b.Acquire(ctx, "x")
			if err == nil {
				granted <- h
			}
		}()
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err = b.Acquire(short, "x")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		synctest.Wait()
		require.Equal(t, 1, b.Stats().Waiting)

		elapse(7 * time.Second)
		require.NoError(t, held.Release(ctx))
		h := <-granted
		require.NoError(t, b.ForceRelease(ctx, "x", h.Token(), "test", "to see it counted"))

		of = a.Stats()
		require.EqualValues(t, 1, of.Grants)
		require.EqualValues(t, 1, of.Holds.Count())
		require.InDelta(t, 8e6, of.Holds.Sum, 1e5, "held for a second, and for seven")
		of = b.Stats()
		require.EqualValues(t, 1, of.Grants)
		require.InDelta(t, 8e6, of.Waits.Sum, 1e5)
		require.EqualValues(t, 1, of.Waits.Counts[23], "8 s are at most 2^23 us")
		require.Equal(t, map[string]uint64{RefusalHeld: 1, RefusalQueueFull: 1, RefusalMode: 1, RefusalGaveUp: 1,
			RefusalPermits: 0, RefusalBusy: 0, RefusalQuota: 0, RefusalSession: 0}, of.Refusals)
		require.EqualValues(t, 1, of.Lost[LossRevoked])
		require.Zero(t, of.Waiting)
		require.Equal(t, []NameCount{{Name: "x", Calls: 5}}, of.Busiest)
		require.NotZero(t, of.Batches.Count())
		require.Equal(t, of.Batches.Count(), of.Proposals.Count())
		require.NotZero(t, of.Applies.Count())
		require.Zero(t, of.Unsent+of.UnderWay)
	})
}

// A replica that is cut off loses its session: it is late, and then it is over; the
// others see it expire.
func TestStatsCountLosses(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		cut, other := nodes[4], nodes[2]
		cut.Stats()
		other.Stats()
		h, err := cut.Acquire(t.Context(), "x")
		require.NoError(t, err)
		s.cut(4)
		s.moveLeader()
		<-h.Done()
		elapse(DefaultSessionTTL)
		of := cut.Stats()
		require.EqualValues(t, 1, of.LateRenewals)
		require.EqualValues(t, 1, of.Lost[LossExpired])
		of = other.Stats()
		require.EqualValues(t, 1, of.Expiries)
		require.EqualValues(t, 1, of.LeaderChanges)
		s.heal()
	})
}

// However many come and go, nobody is left waiting in the count.
func TestStatsWaitingComesBackToZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		s := newSim(seed, 3)
		s.faults = simFaults{drop: 0.1, duplicate: 0.1, snapshot: 0.2, delay: 50 * time.Millisecond}
		nodes := s.openAll(t)
		n := nodes[1]
		require.NoError(t, n.Ready(t.Context()))
		n.Stats()
		done := make(chan struct{})
		const callers = 40
		for i := range callers {
			go func() {
				defer func() { done <- struct{}{} }()
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+i%9)*time.Second)
				defer cancel()
				names := []string{"x"}
				if i%5 == 0 {
					names = []string{"x", "y"}
				}
				if h, err := n.AcquireAll(ctx, names...); err == nil {
					elapse(300 * time.Millisecond)
					_ = h.Release(context.WithoutCancel(ctx))
				}
			}()
		}
		for range callers {
			<-done
		}
		elapse(time.Minute)
		of := n.Stats()
		require.Zero(t, of.Waiting)
		require.NotZero(t, of.Refusals[RefusalGaveUp])
		require.EqualValues(t, callers, of.Grants+of.Refusals[RefusalGaveUp])
		for _, n := range nodes {
			require.NoError(t, n.Close())
		}
	})
}

func TestHistogramBuckets(t *testing.T) {
	for v, want := range map[uint64]int{0: 0, 1: 0, 2: 1, 3: 2, 4: 2, 5: 3, 1 << 20: 20, 1<<20 + 1: 21, 1 << 60: histogramBuckets - 1} {
		var h Histogram
		h.observe(v)
		require.EqualValues(t, 1, h.Counts[want], "%d: %v", v, h.Counts)
		require.EqualValues(t, 1, h.Count())
		require.Equal(t, v, h.Sum)
	}
}

// What is asked for often is found among many names, and no count is off by more than
// it says, and than choosing one call in sixteen can do by chance. An oracle that remembers
// all of them says so.
func TestBusiestFindsTheFrequent(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	var b busiest
	real := make(map[string]uint64)
	const calls = busiestHalf - 1
	zipf := rand.NewZipf(rng, 1.2, 1, 100_000)
	for range calls {
		name := fmt.Sprint(zipf.Uint64())
		real[name]++
		b.add(name)
	}
	list := b.list()
	require.Len(t, list, busiestNames)
	require.True(t, slices.IsSortedFunc(list, func(x, y NameCount) int { return int(y.Calls) - int(x.Calls) }))
	chance := func(calls uint64) float64 { return busiestStep + 7*math.Sqrt(busiestStep*float64(calls)) } // seven deviations
	for _, c := range list {
		n := real[c.Name]
		require.LessOrEqual(t, float64(n), float64(c.Calls)+chance(n), c.Name)
		require.GreaterOrEqual(t, float64(n), float64(c.Calls-c.Over)-chance(n), c.Name)
	}
	for name, n := range real {
		if float64(n) > calls/busiestNames+chance(n) {
			require.True(t, slices.ContainsFunc(list, func(c NameCount) bool { return c.Name == name }), "%s: %d calls", name, n)
		}
	}
	b.add("one more")
	require.Zero(t, b.calls)
	require.LessOrEqual(t, b.list()[0].Calls, list[0].Calls/2+1)
	require.Len(t, b.slot, busiestNames)
}

// While calls are few, each is counted, and what is said of a name is right.
func TestBusiestIsExactWhileCallsAreFew(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	var b busiest
	real := make(map[string]uint64)
	for range busiestExact {
		name := fmt.Sprint(rng.IntN(1 + rng.IntN(1000)))
		real[name]++
		b.add(name)
	}
	for _, c := range b.list() {
		require.LessOrEqual(t, real[c.Name], c.Calls, c.Name)
		require.GreaterOrEqual(t, real[c.Name], c.Calls-c.Over, c.Name)
	}
	for name, n := range real {
		if n > busiestExact/busiestNames {
			require.True(t, slices.ContainsFunc(b.list(), func(c NameCount) bool { return c.Name == name }), "%s: %d calls", name, n)
		}
	}
}

// Calls that go round among a few names are counted alike, although every eighth of
// them has the same name.
func TestBusiestFallsInWithNoOrder(t *testing.T) {
	var b busiest
	for i := range busiestHalf - 1 {
		b.add(fmt.Sprint(i % busiestStep))
	}
	list := b.list()
	require.Len(t, list, busiestStep)
	for _, c := range list {
		require.InDelta(t, busiestHalf/busiestStep, c.Calls, 7*math.Sqrt(busiestStep*float64(c.Calls)), c.Name)
	}
}

// An acquire that is counted takes no more memory than one that is not.
func TestCountingTakesNoMemory(t *testing.T) {
	s := newSim(1, 1)
	n := s.open(t, s.options(1))
	defer n.Close()
	n.Stats()
	h := &Hold{queued: true}
	names := make([]string, 1000)
	for i := range names {
		names[i] = fmt.Sprint("name ", i)
	}
	i := 0
	took := testing.AllocsPerRun(1000, func() {
		r := request{name: names[i%len(names)]}
		h.at, i = n.asked(), i+1
		n.mu.Lock()
		defer n.mu.Unlock()
		n.stats.asked(&r)
		n.stats.entered()
		n.stats.granted(h)
		n.stats.forgotten(h)
		n.stats.refused(RefusalHeld)
	})
	require.Zero(t, took)
}
