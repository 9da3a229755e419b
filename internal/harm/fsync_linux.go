package harm

import "golang.org/x/sys/unix"

// CanFailFsync reports whether FailFsync is there on this system.
const CanFailFsync = true

// FailFsync has the kernel answer EIO to each fsync and fdatasync of this process from
// now on, which is what it answers once when a disk could not take what was written.
func FailFsync() error {
	const denied = unix.SECCOMP_RET_ERRNO | uint32(unix.EIO)
	return filterCalls([]unix.SockFilter{
		{Code: load, K: callNumber},
		{Code: equal, Jt: 2, K: unix.SYS_FSYNC},
		{Code: equal, Jt: 1, K: unix.SYS_FDATASYNC},
		{Code: answer, K: unix.SECCOMP_RET_ALLOW},
		{Code: answer, K: denied},
	})
}
