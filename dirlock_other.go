//go:build !unix

package quorumlock

import (
	"errors"
	"os"
)

// lockFile refuses: without a lock two processes could run one replica.
func lockFile(*os.File) (bool, error) {
	return false, errors.New("files cannot be locked on this system")
}

func unlockFile(f *os.File) { _ = f.Close() }
