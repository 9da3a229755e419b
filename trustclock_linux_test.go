package quorumlock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What is carried on from a reading is never behind the clock itself, and hardly
// ahead of it.
func TestBootTimeFollowsTheClock(t *testing.T) {
	for range 200_000 {
		before, ok := readBootTime()
		require.True(t, ok)
		got := bootTime()
		after, _ := readBootTime()
		require.GreaterOrEqual(t, got, before)
		require.LessOrEqual(t, got, after+bootBracket)
	}
}

// A suspension is seen by the next look, however soon it comes: the wall clock has
// moved on and the monotonic one has not. So is a wall clock that was set back.
func TestBootTimeSeesASuspension(t *testing.T) {
	for _, d := range []time.Duration{time.Hour, 2 * bootAgree, -2 * bootAgree, -time.Hour} {
		for range 1_000 {
			boot, _ := readBootTime()
			now := time.Now()
			lastBoot.Store(&bootReading{boot - d.Abs(), now.Sub(processStart), now.Add(-d).UnixNano()})
			require.GreaterOrEqual(t, bootTime(), boot)
		}
	}
}

func BenchmarkBootTime(b *testing.B) {
	for b.Loop() {
		bootTime()
	}
}
