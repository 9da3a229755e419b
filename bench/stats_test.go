package main

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPercentileIsAMeasuredSample(t *testing.T) {
	hundred := make([]int, 100)
	for i := range hundred {
		hundred[i] = i + 1
	}
	for _, c := range []struct {
		samples []int
		p       float64
		want    int
	}{
		{hundred, 0.50, 50},
		{hundred, 0.99, 99},
		{hundred, 1, 100},
		{hundred, 0, 1},
		{[]int{7}, 0.99, 7},
		{[]int{1, 2}, 0.5, 1},
		{[]int{1, 2}, 0.51, 2},
		{[]int{1, 2, 3}, 0.99, 3},
	} {
		got, ok := percentile(c.samples, c.p)
		require.True(t, ok)
		require.Equal(t, c.want, got, "%v of %v", c.p, c.samples)
	}
	_, ok := percentile([]int(nil), 0.5)
	require.False(t, ok, "of nothing there is none")
}

func TestMedian(t *testing.T) {
	values := []float64{9, 1, 5}
	require.Equal(t, 5.0, median(values))
	require.Equal(t, []float64{9, 1, 5}, values, "its argument stays as it is")
	require.Equal(t, 2.5, median([]float64{4, 1, 2, 3}))
	require.True(t, math.IsNaN(median(nil)))
}

func TestRatioNeedsBothValues(t *testing.T) {
	v, ok := ratio(6, 3, true)
	require.True(t, ok)
	require.Equal(t, 2.0, v)
	for _, c := range []struct {
		a, b     float64
		measured bool
	}{{1, 0, true}, {1, 2, false}, {math.NaN(), 2, true}, {1, math.NaN(), true}} {
		_, ok := ratio(c.a, c.b, c.measured)
		require.False(t, ok, "%v", c)
	}
}

func TestSpreadSortsAndLeavesOutWhatIsNotThere(t *testing.T) {
	values := make(map[string]float64)
	spread(values, "pair_", []time.Duration{3 * time.Millisecond, time.Millisecond, 2 * time.Millisecond})
	require.Equal(t, map[string]float64{"pair_p50_ms": 2, "pair_p99_ms": 3}, values)
	spread(values, "", nil)
	require.Len(t, values, 2)
}

func TestExtremes(t *testing.T) {
	values := make(map[string]float64)
	extremes(values, []time.Duration{4 * time.Second, time.Second, 2 * time.Second})
	require.Equal(t, map[string]float64{"min_ms": 1000, "median_ms": 2000, "max_ms": 4000}, values)
	extremes(values, nil)
	require.Len(t, values, 3)
}

func TestHalfOfTheCallsArePairs(t *testing.T) {
	l := &load{tally: []tally{
		{calls: 3, acquires: make([]time.Duration, 2), pairs: make([]time.Duration, 1), errors: 1},
		{calls: 5, acquires: make([]time.Duration, 2), pairs: make([]time.Duration, 3), busy: 2},
	}}
	r := l.sum(2 * time.Second)
	require.Equal(t, 2.0, r.perSecond)
	require.Len(t, r.acquires, 4)
	require.Len(t, r.pairs, 4)
	require.Equal(t, 1, r.errors)
	require.Equal(t, 2, r.busy)
}
