package main

import "golang.org/x/sys/unix"

// machineTime reads the clock that all processes of this machine share, in
// nanoseconds. Nobody sets it. The kernel is asked, and not Go: package harm, which
// changes the rate of a worker's clocks, leaves this system call alone.
func machineTime() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // no Linux that Go runs on is without it
	}
	return ts.Nano()
}
