//go:build unix

package quorumlock

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// lockFile takes f for this process until f is closed, and tells whether it
// got it. The kernel gives it back when the process dies, however it dies.
func lockFile(f *os.File) (bool, error) {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}
