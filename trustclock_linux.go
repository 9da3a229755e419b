package quorumlock

import (
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A bootReading is a reading of the boot clock, and what the others showed just
// before it.
type bootReading struct {
	boot time.Duration
	mono time.Duration // since the process started
	wall int64         // Unix nanoseconds
}

var lastBoot atomic.Pointer[bootReading]

const (
	bootFresh   = 5 * time.Millisecond  // for how long a reading is carried on
	bootAgree   = time.Millisecond      // by how much two clocks may part in that time
	bootBracket = 50 * time.Microsecond // how long a reading may take to be kept
)

// bootTime is the time since the machine started, including the time for which it
// was suspended. Go's own monotonic time leaves that out on Linux, and a holder
// that slept through its lease would believe that it still has it.
//
// Every acquire and release asks for it, and the system call costs up to 2 µs. So
// within 5 ms of a reading it is that one plus what the monotonic clock says has
// passed, if the wall clock says the same: a suspension moves the wall clock and
// not the other. What it tells then is up to 50 µs ahead, which ends trust early;
// a renewal that is dated so is trusted for that much longer, a thousandth of the
// margin of the shortest lease.
func bootTime() time.Duration {
	now := time.Now()
	if r := lastBoot.Load(); r != nil {
		passed, wall := now.Sub(processStart)-r.mono, time.Duration(now.UnixNano()-r.wall)
		if passed < bootFresh && (wall-passed).Abs() < bootAgree {
			return r.boot + passed
		}
	}
	boot, ok := readBootTime()
	if !ok {
		return sinceStart() // a kernel before 2.6.39
	}
	if time.Since(now) < bootBracket {
		lastBoot.Store(&bootReading{boot, now.Sub(processStart), now.UnixNano()})
	}
	return boot
}

func readBootTime() (time.Duration, bool) {
	var ts unix.Timespec
	// Raw, since it does not block: telling the scheduler costs as much again.
	_, _, errno := unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_BOOTTIME, uintptr(unsafe.Pointer(&ts)), 0)
	return time.Duration(ts.Nano()), errno == 0
}
