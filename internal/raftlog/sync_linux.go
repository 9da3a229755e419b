package raftlog

import (
	"errors"
	"syscall"

	"github.com/lni/vfs"
)

// syncData makes what was written to f durable, and its length, but not the time of the
// write: that would be one more write for the file system at each record.
func syncData(f vfs.File) error {
	file, ok := f.(interface{ Fd() uintptr })
	if !ok {
		return f.Sync() // of a test
	}
	for {
		// Interrupted is not failed: os.File.Sync goes on likewise.
		if err := syscall.Fdatasync(int(file.Fd())); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}
