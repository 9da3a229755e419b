package lab

import (
	"sync"
	"time"
)

// A Clock is that of a machine, set ahead and going at a rate of its own. It never goes
// back.
type Clock struct {
	mu    sync.Mutex
	rate  float64
	ahead time.Duration // of the machine's, at the moment since
	since time.Time
	shown time.Duration // the furthest that anybody was shown
}

// NewClock returns one that shows what the machine's does.
func NewClock() *Clock { return &Clock{rate: 1, since: time.Now()} }

// Show returns what the clock shows when the machine's shows something.
func (c *Clock) Show(machine time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count()
	// The two are not read at the same moment: what is shown could differ by the time between.
	c.shown = max(c.shown, machine+c.ahead)
	return c.shown
}

// Move sets the clock ahead.
func (c *Clock) Move(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead += d
}

// SetRate has the clock go so many times as fast as the machine's: at 0 it stands still.
func (c *Clock) SetRate(rate float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count()
	c.rate = rate
}

// count adds what the clock has gained since the last look. c.mu is held.
func (c *Clock) count() {
	now := time.Now()
	c.ahead += time.Duration((c.rate - 1) * float64(now.Sub(c.since)))
	c.since = now
}
