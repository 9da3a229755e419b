//go:build !linux

package harm

import "errors"

// CanFailFsync reports whether FailFsync is there on this system.
const CanFailFsync = false

// FailFsync returns an error: it needs the filters for system calls of Linux.
func FailFsync() error { return errors.New("the fsync of a process is made to fail on Linux only") }
