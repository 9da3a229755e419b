//go:build unix

package quorumlock

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// lockFile takes f for this process until unlockFile, and tells whether it got it.
// The kernel gives it back when the process dies, however it dies.
func lockFile(f *os.File) (bool, error) {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}

// unlockFile gives the lock back and closes f. To close it alone would not do at once: a
// process that is being started has a copy of it until its program runs.
func unlockFile(f *os.File) {
	_ = unix.Flock(int(f.Fd()), unix.LOCK_UN)
	_ = f.Close()
}
