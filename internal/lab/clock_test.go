package lab

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A clock goes at its rates, each for as long as it was set, and never back.
func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, start := NewClock(), time.Now()
		shows := func(want time.Duration) {
			t.Helper()
			require.Equal(t, want, c.Show(time.Hour+time.Since(start))-time.Hour)
		}
		lapse := func() { <-time.After(time.Second) }
		shows(0)
		lapse()
		shows(time.Second)
		c.SetRate(0)
		lapse()
		shows(time.Second)
		c.SetRate(0.5)
		lapse()
		c.SetRate(4)
		lapse()
		shows(5500 * time.Millisecond)
		c.Move(time.Minute)
		c.SetRate(1)
		lapse()
		shows(66500 * time.Millisecond)
		require.Equal(t, c.Show(0), c.Show(time.Second), "it does not go back")
	})
}
