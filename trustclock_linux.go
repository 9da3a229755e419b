package quorumlock

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// bootTime is the time since the machine started, including the time for which it
// was suspended. Go's own monotonic time leaves that out on Linux, and a holder
// that slept through its lease would believe that it still has it.
func bootTime() time.Duration {
	var ts unix.Timespec
	// Raw, since it does not block: telling the scheduler costs as much again.
	_, _, errno := unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_BOOTTIME, uintptr(unsafe.Pointer(&ts)), 0)
	if errno != 0 {
		return sinceStart() // a kernel before 2.6.39
	}
	return time.Duration(ts.Nano())
}
