//go:build !linux || !amd64

package harm

import (
	"errors"
	"time"
)

// CanSetClocks reports whether SetWallClock and SetClockRate are there on this machine.
const CanSetClocks = false

var errClocks = errors.New("the clocks of a process are taken from it on Linux on amd64 only")

// SetWallClock returns an error here.
func SetWallClock(time.Duration) error { return errClocks }

// SetClockRate returns an error here.
func SetClockRate(float64) error { return errClocks }
