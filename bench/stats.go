package main

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// percentile returns the value below or at which a share p of the sorted samples
// lies, by nearest rank: it is always one that was measured. NaN if there is none.
func percentile[T cmp.Ordered](sorted []T, p float64) (v T, ok bool) {
	if len(sorted) == 0 {
		return v, false
	}
	rank := int(math.Ceil(p * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1], true
}

// median returns the middle of the values, or the mean of the middle two.
func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	mid := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[mid]
	}
	return (sorted[mid-1] + sorted[mid]) / 2
}

// ratio divides, if both were measured and the second is not zero.
func ratio(a, b float64, measured bool) (float64, bool) {
	if !measured || b == 0 || math.IsNaN(a) || math.IsNaN(b) {
		return 0, false
	}
	return a / b, true
}

// spread puts the percentiles of some times among the values, under names that
// begin with prefix. It sorts them.
func spread(values map[string]float64, prefix string, times []time.Duration) {
	slices.Sort(times)
	if p50, ok := percentile(times, 0.50); ok {
		values[prefix+"p50_ms"] = ms(p50)
	}
	if p99, ok := percentile(times, 0.99); ok {
		values[prefix+"p99_ms"] = ms(p99)
	}
}

// extremes puts the least, the median and the largest of some times among the values.
func extremes(values map[string]float64, times []time.Duration) {
	if len(times) == 0 {
		return
	}
	all := make([]float64, len(times))
	for i, t := range times {
		all[i] = ms(t)
	}
	values["min_ms"], values["median_ms"], values["max_ms"] = slices.Min(all), median(all), slices.Max(all)
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
