package quorumlock

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"github.com/lni/vfs"
)

// engineFiles are the files that the engine writes beside the log: snapshots, and what
// it says of itself. It stops the process over every error with them, also over those
// that are none of the disk's. So a call that finds no descriptor left waits for one, in
// the engine's goroutines for snapshots, which nothing else waits for; and when the
// directory is gone the process is told that, and not which of the files it was.
type engineFiles struct {
	vfs.FS
	dir    string // exists as long as the engine runs
	logger *slog.Logger
}

const (
	minDescriptorPause = 10 * time.Millisecond
	maxDescriptorPause = time.Second
)

// snapshotsName is what the engine calls the directory of a replica's snapshots. It stops
// the process where that should be and is not, and tells nobody.
var snapshotsName = regexp.MustCompile(`^snapshot-\d+-\d+$`)

// with makes a call about name that may need a descriptor. One that is part of Open or Close
// fails at once.
func (e *engineFiles) with(name string, call func() error) error {
	for pause := minDescriptorPause; ; pause = min(2*pause, maxDescriptorPause) {
		err := call()
		if err == nil || guardedCaller() {
			return err
		}
		switch {
		case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
			e.logger.Warn("the engine waits for a file descriptor", "err", err, "pause", pause)
			<-time.After(pause)
			continue
		case errors.Is(err, fs.ErrNotExist):
			if dir := e.missing(name); dir != "" {
				(&engineLog{area: "files"}).Panicf("%s was removed, or is mounted no more, while it was in use: %v", dir, err)
			}
		}
		return err
	}
}

// missing returns the directory that is gone when there is no such name, or "".
func (e *engineFiles) missing(name string) string {
	if _, err := os.Stat(e.dir); errors.Is(err, fs.ErrNotExist) {
		return e.dir
	}
	if snapshotsName.MatchString(filepath.Base(name)) {
		return name
	}
	return ""
}

func (e *engineFiles) file(name string, open func() (vfs.File, error)) (f vfs.File, err error) {
	err = e.with(name, func() error {
		f, err = open()
		return err
	})
	return f, err
}

// Create implements vfs.FS.
func (e *engineFiles) Create(name string) (vfs.File, error) {
	return e.file(name, func() (vfs.File, error) { return e.FS.Create(name) })
}

// Open implements vfs.FS.
func (e *engineFiles) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	return e.file(name, func() (vfs.File, error) { return e.FS.Open(name, opts...) })
}

// OpenDir implements vfs.FS.
func (e *engineFiles) OpenDir(name string) (vfs.File, error) {
	return e.file(name, func() (vfs.File, error) { return e.FS.OpenDir(name) })
}

// OpenForAppend implements vfs.FS.
func (e *engineFiles) OpenForAppend(name string) (vfs.File, error) {
	return e.file(name, func() (vfs.File, error) { return e.FS.OpenForAppend(name) })
}

// RemoveAll implements vfs.FS.
func (e *engineFiles) RemoveAll(name string) error {
	return e.with(name, func() error { return e.FS.RemoveAll(name) })
}

// List implements vfs.FS.
func (e *engineFiles) List(dir string) (names []string, err error) {
	err = e.with(dir, func() error {
		names, err = e.FS.List(dir)
		return err
	})
	return names, err
}
