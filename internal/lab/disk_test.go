package lab

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/lni/vfs"
	"github.com/stretchr/testify/require"
)

func write(t *testing.T, f vfs.File, s string) {
	t.Helper()
	_, err := f.Write([]byte(s))
	require.NoError(t, err)
}

func content(t *testing.T, d *Disk, name string) string {
	t.Helper()
	f, err := d.Open(name)
	require.NoError(t, err)
	b := make([]byte, 64)
	n, _ := f.ReadAt(b, 0) // short, as it ends before
	require.NoError(t, f.Close())
	return string(b[:n])
}

// newLog returns a disk with a file whose name is durable.
func newLog(t *testing.T) (*Disk, vfs.File) {
	t.Helper()
	d := NewDisk()
	require.NoError(t, d.MkdirAll("/a/b", 0o755))
	for _, dir := range []string{"/a", "/a/b"} {
		f, err := d.OpenDir(dir)
		require.NoError(t, err)
		require.NoError(t, f.Sync())
	}
	f, err := d.Create("/a/b/log")
	require.NoError(t, err)
	dir, err := d.OpenDir("/a/b")
	require.NoError(t, err)
	require.NoError(t, dir.Sync())
	return d, f
}

// A disk that is slow no more is so also for what it has begun.
func TestSlowDiskIsHealedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, f := newLog(t)
		d.Slow(time.Hour)
		start, synced := time.Now(), make(chan error, 1)
		go func() { synced <- f.Sync() }()
		<-time.After(time.Minute)
		d.Slow(3 * time.Minute) // less, but not over
		<-time.After(time.Minute)
		require.Empty(t, synced)
		d.Slow(0)
		require.NoError(t, <-synced)
		require.Equal(t, 2*time.Minute, time.Since(start))

		d.Slow(time.Minute)
		go func() { synced <- f.Sync() }()
		synctest.Wait()
		d.PowerOff()
		require.NoError(t, <-synced)
		require.Equal(t, 2*time.Minute, time.Since(start))
	})
}

func TestPowerOffLosesWhatWasNotSynced(t *testing.T) {
	d, f := newLog(t)
	write(t, f, "kept")
	require.NoError(t, f.Sync())
	write(t, f, " lost")
	unnamed, err := d.Create("/a/b/unnamed")
	require.NoError(t, err)
	require.NoError(t, unnamed.Sync())
	d.PowerOff()
	write(t, f, " late")
	require.NoError(t, f.Sync(), "what is left of the owner gets to its end")
	d.PowerOn()
	require.Equal(t, "kept", content(t, d, "/a/b/log"))
	_, err = d.Open("/a/b/unnamed")
	require.Error(t, err, "a name that was not synced is gone")
}

// A broken disk promises nothing: the write returns only once the power is off, and what
// it wrote is not there after.
func TestBrokenDiskPromisesNothing(t *testing.T) {
	d, f := newLog(t)
	told := make(chan struct{})
	d.Break(func() { close(told) })
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		_, _ = f.Write([]byte("no"))
		_ = f.Sync()
	}()
	<-told
	select {
	case <-returned:
		t.Fatal("a write to a broken disk returned")
	default:
	}
	d.PowerOff()
	<-returned
	d.PowerOn()
	require.Empty(t, content(t, d, "/a/b/log"))
	f, err := d.Create("/a/b/next")
	require.NoError(t, err)
	write(t, f, "mended")
	require.Equal(t, "mended", content(t, d, "/a/b/next"))
}

func TestStoppedDiskGoesOn(t *testing.T) {
	d, f := newLog(t)
	d.Stop()
	returned := make(chan error, 1)
	go func() { returned <- f.Sync() }()
	select {
	case <-returned:
		t.Fatal("a sync of a stopped disk returned")
	case <-time.After(10 * time.Millisecond):
	}
	d.Go()
	require.NoError(t, <-returned)
}

func TestSlowDiskTakesItsTime(t *testing.T) {
	d, f := newLog(t)
	d.Slow(20 * time.Millisecond)
	began := time.Now()
	require.NoError(t, f.Sync())
	require.GreaterOrEqual(t, time.Since(began), 20*time.Millisecond)

	d.Slow(time.Hour)
	returned := make(chan error, 1)
	go func() { returned <- f.Sync() }()
	d.PowerOff()
	require.NoError(t, <-returned, "a loss of power waits for no sync")
}
