package quorumlock

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"
)

// A simClock is the clock of one simulated machine. It runs at a rate of its own, its
// wall clock may be set to anything, its trust clock may have gone on while the
// machine slept, and while its processes are frozen, no timer runs.
type simClock struct {
	clock.Clock // the true one

	mu     sync.Mutex
	start  time.Time     // true
	since  time.Time     // true, when the rate was set
	local  time.Duration // what it showed then
	rate   int           // in thousandths of the true rate
	wall   time.Duration // by which the wall clock is off
	slept  time.Duration // by which the trust clock is ahead of the other
	thawed chan struct{} // closed unless frozen
}

func newSimClock(rate int) *simClock {
	c := &simClock{Clock: clock.New(), start: time.Now(), since: time.Now(), rate: rate, thawed: make(chan struct{})}
	close(c.thawed)
	return c
}

// shows is what the machine has counted since the start. c.mu is held.
func (c *simClock) shows() time.Duration {
	return c.local + time.Since(c.since)*time.Duration(c.rate)/1000
}

// truly is how long the machine takes to count d.
func (c *simClock) truly(d time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return (d*1000 + time.Duration(c.rate) - 1) / time.Duration(c.rate)
}

func (c *simClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return reading(c.start.Add(c.shows()+c.wall), c.shows())
}

func (c *simClock) trust() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Hour + c.shows() + c.slept
}

func (c *simClock) AfterFunc(d time.Duration, f func()) *clock.Timer {
	return c.Clock.AfterFunc(c.truly(d), func() {
		c.awake()
		f()
	})
}

// Timer's Reset counts true time: such a timer is early, or late.
func (c *simClock) Timer(d time.Duration) *clock.Timer {
	fired := make(chan time.Time, 1)
	t := c.AfterFunc(d, func() {
		select {
		case fired <- c.Now():
		default:
		}
	})
	t.C = fired
	return t
}

func (c *simClock) WithTimeout(parent context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return c.Clock.WithTimeout(parent, c.truly(d))
}

func (c *simClock) set(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

func (c *simClock) setRate(rate int) {
	c.set(func() { c.local, c.since, c.rate = c.shows(), time.Now(), rate })
}

func (c *simClock) freeze() {
	c.set(func() {
		if isClosed(c.thawed) {
			c.thawed = make(chan struct{})
		}
	})
}

func (c *simClock) thaw() {
	c.set(func() {
		if !isClosed(c.thawed) {
			close(c.thawed)
		}
	})
}

// awake waits while the machine's processes are frozen.
func (c *simClock) awake() {
	c.mu.Lock()
	thawed := c.thawed
	c.mu.Unlock()
	<-thawed
}

// reading makes what time.Now returns on a machine whose wall clock and monotonic
// clock differ as much as one likes, for which package time has no function. A
// library that compared readings where it should count, or that lost the monotonic
// one on the way, would be seen by it.
func reading(wall time.Time, monotonic time.Duration) time.Time {
	const from1885 = (1969-1884)*365*86400 + ((1969/4-1969/100+1969/400)-(1884/4-1884/100+1884/400))*86400
	r := struct {
		wall uint64
		ext  int64
		loc  *time.Location
	}{1<<63 | uint64(wall.Unix()+from1885)<<30 | uint64(wall.Nanosecond()), int64(monotonic) + 1, time.UTC}
	return *(*time.Time)(unsafe.Pointer(&r))
}

// The readings are what they are made for, also in the next version of Go.
func TestReading(t *testing.T) {
	wall := time.Date(2026, 2, 3, 4, 5, 6, 789, time.UTC)
	a, b := reading(wall, time.Second), reading(wall.Add(-time.Hour), 3*time.Second)
	require.True(t, a.Round(0).Equal(wall), a)
	require.Equal(t, 2*time.Second, b.Sub(a), "monotonic")
	require.True(t, a.Before(b))
	require.Equal(t, time.Hour, a.Round(0).Sub(b.Round(0)), "wall")
	require.Equal(t, 7*time.Second, b.Add(5*time.Second).Sub(a))
	require.True(t, b.Add(time.Second).Round(0).Equal(wall.Add(-time.Hour+time.Second)))
	synctest.Test(t, func(t *testing.T) {
		c := newSimClock(500)
		from := c.Now()
		woke := c.Timer(time.Second)
		<-woke.C
		require.Equal(t, 2*time.Second, time.Since(c.start), "half the rate")
		require.Equal(t, time.Second, c.Now().Sub(from))
		c.setRate(2000)
		c.set(func() { c.wall = time.Hour })
		time.Sleep(time.Second)
		require.Equal(t, 3*time.Second, c.Now().Sub(from))
		require.Equal(t, time.Hour+3*time.Second, c.Now().Round(0).Sub(from.Round(0)))
		c.freeze()
		fired := time.Now()
		c.AfterFunc(time.Second, func() { fired = time.Now() })
		time.Sleep(time.Minute)
		c.thaw()
		synctest.Wait()
		require.Equal(t, fired, time.Now(), "no timer runs in a frozen process")
	})
}
