package quorumlock

import (
	"time"

	"golang.org/x/sys/unix"
)

// bootTime is the time since the machine started, including the time for which it
// was suspended. Go's own monotonic time leaves that out on Linux, and a holder
// that slept through its lease would believe that it still has it.
func bootTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return sinceStart() // a kernel before 2.6.39
	}
	return time.Duration(ts.Nano())
}
