package lab

import (
	"errors"
	"os"
	"sync"
	"time"

	"github.com/lni/vfs"
)

// A Disk is a file system in memory that keeps, when the power goes off, only what was
// synced: of a file its content, of a directory its names. It can be stopped, slow, or
// break.
//
// A broken disk returns no error. The engine would answer one by ending the process,
// which is right in production and of no use in a test. So the operation that fails
// waits, and nothing that it would have made durable is promised, until the owner has
// cut the power.
type Disk struct {
	*vfs.MemFS

	mu      sync.Mutex
	changed *sync.Cond
	stopped bool
	broken  func() // called, in a goroutine, by the operation that fails first
	failed  bool   // one has
	off     chan struct{}
	isOff   bool
	slow    time.Duration
	turned  chan struct{} // closed when slow changes
}

var _ vfs.FS = (*Disk)(nil)

// NewDisk returns an empty one.
func NewDisk() *Disk {
	d := &Disk{MemFS: vfs.NewStrictMem(), off: make(chan struct{}), turned: make(chan struct{})}
	d.changed = sync.NewCond(&d.mu)
	return d
}

// Stop holds up every operation that changes anything, until Go or PowerOff.
func (d *Disk) Stop() { d.set(func() { d.stopped = true }) }

// Go ends Stop.
func (d *Disk) Go() { d.set(func() { d.stopped = false }) }

// Slow makes each sync take that much longer, also those under way, counted from when
// they began.
func (d *Disk) Slow(by time.Duration) {
	d.set(func() {
		d.slow = by
		close(d.turned)
		d.turned = make(chan struct{})
	})
}

// Break lets no operation succeed from now on. The first that fails calls told.
func (d *Disk) Break(told func()) { d.set(func() { d.broken = told }) }

// Broken tells whether Break was called since the power was last on.
func (d *Disk) Broken() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.broken != nil
}

// PowerOff leaves what is not synced unsynced for ever. What waits goes on, so that its
// owner can end.
func (d *Disk) PowerOff() {
	d.set(func() {
		if !d.isOff {
			d.SetIgnoreSyncs(true)
			d.isOff = true
			close(d.off)
		}
	})
}

// PowerOn is a new start after PowerOff, with what was synced, on a disk that works. The
// former owner must have ended.
func (d *Disk) PowerOn() {
	d.set(func() {
		if d.isOff {
			d.ResetToSyncedState()
			d.SetIgnoreSyncs(false)
			d.isOff, d.off = false, make(chan struct{})
		}
		d.stopped, d.broken, d.failed = false, nil, false
	})
}

func (d *Disk) set(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
	d.changed.Broadcast()
}

// pass waits until an operation may go on.
func (d *Disk) pass() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for !d.isOff && (d.stopped || d.broken != nil) {
		if !d.stopped && !d.failed {
			d.failed = true
			go d.broken()
		}
		d.changed.Wait()
	}
}

// delay is how long a sync takes.
func (d *Disk) delay() {
	began := time.Now()
	for {
		d.mu.Lock()
		left, turned, off := d.slow-time.Since(began), d.turned, d.off
		d.mu.Unlock()
		if left <= 0 {
			return
		}
		t := time.NewTimer(left)
		select {
		case <-t.C:
		case <-turned:
		case <-off:
			return
		}
		t.Stop()
	}
}

func (d *Disk) wrap(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &diskFile{File: f, disk: d}, nil
}

// Create implements vfs.FS.
func (d *Disk) Create(name string) (vfs.File, error) {
	d.pass()
	return d.wrap(d.MemFS.Create(name))
}

// Open implements vfs.FS.
func (d *Disk) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	return d.wrap(d.MemFS.Open(name, opts...))
}

// OpenDir implements vfs.FS.
func (d *Disk) OpenDir(name string) (vfs.File, error) { return d.wrap(d.MemFS.OpenDir(name)) }

// OpenForAppend implements vfs.FS.
func (d *Disk) OpenForAppend(name string) (vfs.File, error) {
	return d.wrap(d.MemFS.OpenForAppend(name))
}

// ReuseForWrite implements vfs.FS.
func (d *Disk) ReuseForWrite(from, to string) (vfs.File, error) {
	d.pass()
	return d.wrap(d.MemFS.ReuseForWrite(from, to))
}

// Rename implements vfs.FS.
func (d *Disk) Rename(from, to string) error {
	d.pass()
	return d.MemFS.Rename(from, to)
}

// Remove implements vfs.FS.
func (d *Disk) Remove(name string) error {
	d.pass()
	return d.MemFS.Remove(name)
}

// MkdirAll implements vfs.FS. The directories that lead to the new one are durable, as
// those of a real machine were before any replica ran on it; its own name is not.
func (d *Disk) MkdirAll(name string, perm os.FileMode) error {
	d.pass()
	parent := d.PathDir(name)
	if err := d.MemFS.MkdirAll(parent, perm); err != nil {
		return err
	}
	for above := parent; above != d.PathDir(above); {
		above = d.PathDir(above)
		dir, err := d.MemFS.OpenDir(above)
		if err != nil {
			return err
		}
		if err := errors.Join(dir.Sync(), dir.Close()); err != nil {
			return err
		}
	}
	return d.MemFS.MkdirAll(name, perm)
}

type diskFile struct {
	vfs.File
	disk *Disk
}

func (f *diskFile) Write(b []byte) (int, error) {
	f.disk.pass()
	return f.File.Write(b)
}

func (f *diskFile) WriteAt(b []byte, at int64) (int, error) {
	f.disk.pass()
	return f.File.WriteAt(b, at)
}

func (f *diskFile) Sync() error {
	f.disk.delay()
	f.disk.pass()
	return f.File.Sync()
}
