package main

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// apart keeps the terminal's Ctrl-C from a child: that is for the parent to handle.
func apart(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// datasync is the sync that logs use: the data, and of the metadata what it takes
// to read them again.
func datasync(f *os.File) error { return unix.Fdatasync(int(f.Fd())) }

// processorTime returns how long this process has run on any core.
func processorTime() (time.Duration, bool) {
	user, system, ok := usage()
	return user + system, ok
}

// userTime is processorTime without what the kernel did for it.
func userTime() (time.Duration, bool) {
	user, _, ok := usage()
	return user, ok
}

func usage() (user, system time.Duration, ok bool) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0, 0, false
	}
	return time.Duration(u.Utime.Nano()), time.Duration(u.Stime.Nano()), true
}

// residentBytes returns how much of this process is in memory.
func residentBytes() (float64, bool) {
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, false
	}
	fields := strings.Fields(string(data))
	if len(fields) < 2 {
		return 0, false
	}
	pages, err := strconv.ParseFloat(fields[1], 64)
	return pages * float64(os.Getpagesize()), err == nil
}

// fileSystem names the file system of a directory, and tells whether it lies on a
// disk.
func fileSystem(dir string) (name string, disk bool) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return "unknown: " + err.Error(), true
	}
	switch s.Type {
	case unix.TMPFS_MAGIC, unix.RAMFS_MAGIC:
		return "memory", false
	case unix.EXT4_SUPER_MAGIC:
		return "ext4", true
	case unix.XFS_SUPER_MAGIC:
		return "xfs", true
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs", true
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlay", true
	}
	return fmt.Sprintf("type %#x", s.Type), true
}
