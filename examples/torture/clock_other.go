//go:build !linux

package main

import "time"

// machineTime reads the clock that all processes of this machine share, in
// nanoseconds. Here it is the wall clock: do not set it during a run.
func machineTime() int64 { return time.Now().UnixNano() }
