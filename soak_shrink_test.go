package quorumlock

import (
	"slices"
	"testing"
	"time"
)

// shrink makes a script that breaks a promise shorter, for at most limit: chunks of
// steps are left out, from half of all down to single ones, as long as a promise is
// still broken without them. (Delta debugging: Zeller and Hildebrandt, TSE 2002.)
// What steps happen at one moment is not replayed, so a script gets three tries.
func shrink(s *script, limit time.Duration, breaks func(*script) bool) *script {
	best, until := *s, time.Now().Add(limit)
	without := func(from, to int) bool {
		shorter := best
		shorter.steps = slices.Delete(slices.Clone(best.steps), from, to)
		for range 3 {
			if time.Now().After(until) {
				return false
			}
			if breaks(&shorter) {
				best = shorter
				return true
			}
		}
		return false
	}
	for chunk := (len(best.steps) + 1) / 2; chunk > 0 && time.Now().Before(until); {
		shorter := false
		// From the end: what comes after the break goes first.
		for end := len(best.steps); end > 0; end -= chunk {
			shorter = without(max(end-chunk, 0), end) || shorter
		}
		if chunk > 1 || !shorter {
			chunk /= 2
		}
	}
	return &best
}

// A script shrinks to what breaks it, whatever the order, and can be written and read.
func TestShrink(t *testing.T) {
	s := newScript(seeds(t, 1)[0])
	needed := []step{s.steps[3], s.steps[len(s.steps)/2], s.steps[len(s.steps)-1]}
	got := shrink(s, time.Minute, func(s *script) bool {
		read, err := parseScript([]byte(s.String()))
		if err != nil || read.String() != s.String() {
			t.Fatalf("%v: %s", err, s)
		}
		for _, x := range needed {
			if !slices.ContainsFunc(read.steps, func(y step) bool { return y.String() == x.String() }) {
				return false
			}
		}
		return true
	})
	if len(got.steps) != len(needed) {
		t.Fatalf("%s=%d: %d steps are left, not %d: %s", seedVar, s.Seed, len(got.steps), len(needed), got)
	}
}
