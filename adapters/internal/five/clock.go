package five

import "time"

// A Clock is a replica's own: it is set wrong by a skew, and all clocks of a test may
// run fast, so that a second of the test's takes less.
type Clock struct {
	began time.Time
	skew  time.Duration
	speed int
}

// Clocks returns a clock for each replica. The first is 2 s ahead, the last 2 s
// behind, by their own seconds.
func Clocks(speed int) (clocks [Replicas]Clock) {
	began := time.Now()
	for i := range clocks {
		clocks[i] = Clock{began: began, skew: 2*time.Second - time.Duration(i)*time.Second, speed: speed}
	}
	clocks[1].skew += 130 * time.Millisecond // not all apart by the same
	clocks[3].skew -= 570 * time.Millisecond
	return clocks
}

// Now is what the clock shows.
func (c Clock) Now() time.Time { return c.Shows(time.Now()) }

// Shows returns what the clock shows at a moment.
func (c Clock) Shows(real time.Time) time.Time {
	return c.began.Round(0).Add(c.skew + real.Sub(c.began)*time.Duration(c.speed))
}

// At returns the first moment at which the clock shows t.
func (c Clock) At(t time.Time) time.Time {
	return c.began.Add(c.Real(t.Sub(c.began.Round(0)) - c.skew + time.Duration(c.speed) - 1))
}

// Real returns how long it really takes until d has passed by the clock.
func (c Clock) Real(d time.Duration) time.Duration { return d / time.Duration(c.speed) }
