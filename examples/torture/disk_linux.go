package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// diskSize is what a worker's disk has room for: its log is some four segments of
// 16 MiB, and its snapshots are small.
const diskSize = 128 << 20

// disks gives each directory a disk of its own, in memory, in a mount namespace that
// only this thread and the processes that it starts are in: so the kernel removes them
// when these have gone. It is called on a locked thread.
func disks(dirs []string) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts to ourselves: %w", err)
	}
	for _, dir := range dirs {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700", diskSize)); err != nil {
			return fmt.Errorf("mount a disk: %w", err)
		}
	}
	return nil
}

func unmount(dirs []string) error {
	var errs []error
	for _, dir := range dirs {
		errs = append(errs, unix.Unmount(dir, unix.MNT_DETACH))
	}
	return errors.Join(errs...)
}

// fill leaves no byte free on the disk, and returns what makes room again.
func fill(dir string) (free func() error, err error) {
	path := filepath.Join(dir, "filler")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	free = func() error { return os.Remove(path) }
	var size int64
	for {
		var st unix.Statfs_t
		if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
			return nil, errors.Join(err, free())
		}
		left := int64(st.Bavail) * st.Bsize
		if left == 0 {
			return free, nil
		}
		switch err := unix.Fallocate(int(f.Fd()), 0, size, left); {
		case err == nil:
			size += left
		case !errors.Is(err, unix.ENOSPC): // the worker may have taken some of it meanwhile
			return nil, errors.Join(err, free())
		}
	}
}
