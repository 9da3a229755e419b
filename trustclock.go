package quorumlock

import (
	"time"

	"github.com/benbjohnson/clock"
)

// A trustClock tells the time by which a holder judges its own lease: only
// differences count, and it must go on while the machine is suspended.
type trustClock func() time.Duration

var processStart = time.Now()

func sinceStart() time.Duration { return time.Since(processStart) }

// trustClockFor returns the trust clock that goes with clk: with a clock that a
// test moves, trust moves along.
func trustClockFor(clk clock.Clock) trustClock {
	mock, ok := clk.(*clock.Mock)
	if !ok {
		return bootTime
	}
	start := mock.Now()
	return func() time.Duration { return mock.Now().Sub(start) }
}
