package quorumlock

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// markerOptions are those of replica 1 of three.
func markerOptions(dir string) Options {
	return Options{
		ReplicaID: 1,
		Address:   "a:1",
		Members:   map[uint64]string{1: "a:1", 2: "b:1", 3: "c:1"},
		Dir:       dir,
		Cluster:   "test",
	}
}

// used makes a directory as a replica leaves it that has run once.
func used(t *testing.T) Options {
	t.Helper()
	o := markerOptions(t.TempDir())
	useOnce(t, o)
	return o
}

func useOnce(t *testing.T, o Options) *directory {
	t.Helper()
	d, err := claimDirectory(o)
	require.NoError(t, err)
	_, err = d.begin()
	require.NoError(t, err)
	require.NoError(t, d.bootstrapped())
	d.release()
	return d
}

func onHost(t *testing.T, name string) {
	t.Helper()
	before := hostname
	hostname = func() (string, error) { return name, nil }
	t.Cleanup(func() { hostname = before })
}

func TestMarkerRefuses(t *testing.T) {
	tests := []struct {
		name   string
		change func(t *testing.T, o *Options)
		is     error
		says   []string
	}{
		{"another cluster", func(_ *testing.T, o *Options) { o.Cluster = "staging" }, ErrDirectory, []string{`"test"`, `"staging"`}},
		{"another replica", func(_ *testing.T, o *Options) { o.ReplicaID = 2 }, ErrDirectory, []string{"replica 1", "not 2"}},
		{"another host", func(t *testing.T, _ *Options) { onHost(t, "pod-77") }, ErrDirectory, []string{`"pod-77"`, "old name"}},
		{"a member more", func(_ *testing.T, o *Options) {
			o.Members = map[uint64]string{1: "a:1", 2: "b:1", 3: "c:1", 4: "d:1"}
		}, ErrMembers, []string{"[1 2 3 4]", "[1 2 3]"}},
		{"a truncated marker", func(t *testing.T, o *Options) { edit(t, o, func(s string) string { return s[:len(s)/2] }) }, ErrDirectory, []string{"damaged"}},
		{"an empty marker", func(t *testing.T, o *Options) { edit(t, o, func(string) string { return "" }) }, ErrDirectory, []string{"damaged"}},
		{"a flipped digit", func(t *testing.T, o *Options) {
			edit(t, o, func(s string) string { return strings.Replace(s, `"epoch": 1`, `"epoch": 9`, 1) })
		}, ErrDirectory, []string{"checksum"}},
		{"a newer marker", func(t *testing.T, o *Options) {
			edit(t, o, func(s string) string { return strings.Replace(s, `"format": 1`, `"format": 2`, 1) })
		}, ErrDirectory, []string{"format 2"}},
		{"a lost marker", func(t *testing.T, o *Options) { require.NoError(t, os.Remove(filepath.Join(o.Dir, markerName))) }, ErrDirectory, []string{bookName, "restore that file"}},
		{"a lost marker, no members", func(t *testing.T, o *Options) {
			require.NoError(t, os.Remove(filepath.Join(o.Dir, markerName)))
			o.Members = nil
		}, ErrDirectory, []string{bookName}},
		{"a marker that cannot be read", func(t *testing.T, o *Options) {
			require.NoError(t, os.Remove(filepath.Join(o.Dir, markerName)))
			require.NoError(t, os.Mkdir(filepath.Join(o.Dir, markerName), 0o700))
		}, ErrDirectory, nil},
		{"a file in place of the directory", func(t *testing.T, o *Options) {
			o.Dir = filepath.Join(o.Dir, bookName)
		}, ErrDirectory, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := used(t)
			before := listing(t, o.Dir)
			tt.change(t, &o)
			d, err := claimDirectory(o)
			require.ErrorIs(t, err, tt.is)
			require.Nil(t, d)
			for _, s := range tt.says {
				require.ErrorContains(t, err, s)
			}
			if tt.is == ErrMembers || strings.HasPrefix(tt.name, "another") {
				require.Equal(t, before, listing(t, o.Dir), "a refused start changes nothing")
			}
		})
	}
}

func edit(t *testing.T, o *Options, change func(string) string) {
	t.Helper()
	name := filepath.Join(o.Dir, markerName)
	raw, err := os.ReadFile(name)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(name, []byte(change(string(raw))), 0o600))
}

func listing(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		raw, _ := os.ReadFile(filepath.Join(dir, e.Name()))
		fmt.Fprintf(&all, "%s: %s\n", e.Name(), raw)
	}
	return all.String()
}

func TestMarkerAllows(t *testing.T) {
	tests := []struct {
		name   string
		change func(t *testing.T, o *Options)
	}{
		{"the same", func(*testing.T, *Options) {}},
		{"no members on a restart", func(_ *testing.T, o *Options) { o.Members = nil }},
		{"join on a restart", func(_ *testing.T, o *Options) { o.Members, o.Join = nil, true }},
		{"other addresses", func(_ *testing.T, o *Options) {
			o.Members = map[uint64]string{1: "x:1", 2: "y:1", 3: "z:1"}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := used(t)
			first, err := claimDirectory(o)
			require.NoError(t, err)
			first.release()
			tt.change(t, &o)
			d := useOnce(t, o)
			require.EqualValues(t, 2, d.marker.Epoch)
			require.Equal(t, first.marker.storage(), d.marker.storage())
			require.Equal(t, first.marker.foundersHash(), d.marker.foundersHash())
			if o.Members != nil {
				require.Equal(t, o.Members, d.marker.Founders)
			}
		})
	}
}

func TestMarkerFirstStart(t *testing.T) {
	t.Run("nothing to go by", func(t *testing.T) {
		o := markerOptions(filepath.Join(t.TempDir(), "new"))
		o.Members = nil
		_, err := claimDirectory(o)
		require.ErrorIs(t, err, ErrOptions)
		require.ErrorContains(t, err, "Members, or Join")
		require.NoDirExists(t, o.Dir)
	})
	t.Run("foreign files", func(t *testing.T) {
		o := markerOptions(t.TempDir())
		require.NoError(t, os.WriteFile(filepath.Join(o.Dir, "thesis.txt"), nil, 0o600))
		_, err := claimDirectory(o)
		require.ErrorIs(t, err, ErrDirectory)
		require.ErrorContains(t, err, "thesis.txt")
	})
	t.Run("a fresh mount", func(t *testing.T) {
		o := markerOptions(t.TempDir())
		require.NoError(t, os.Mkdir(filepath.Join(o.Dir, "lost+found"), 0o700))
		useOnce(t, o)
	})
	t.Run("joined", func(t *testing.T) {
		o := markerOptions(t.TempDir())
		o.Members, o.Join = nil, true
		d := useOnce(t, o)
		require.True(t, d.marker.Joined)
		require.Zero(t, d.marker.foundersHash())
		_, err := claimDirectory(markerOptions(o.Dir))
		require.ErrorIs(t, err, ErrMembers)
	})
}

// A first start that was cut short keeps its storage, since peers may have it
// on record, and throws away what its engine wrote, since nobody heard of it.
func TestMarkerCutShort(t *testing.T) {
	o := markerOptions(t.TempDir())
	d, err := claimDirectory(o)
	require.NoError(t, err)
	_, err = d.begin()
	require.NoError(t, err)
	half := filepath.Join(d.file(engineName), "half")
	require.NoError(t, os.MkdirAll(half, 0o700))
	d.release()

	o.Members[4] = "d:1" // what was mistaken may be mended
	onHost(t, "renamed")
	again := useOnce(t, o)
	require.Equal(t, d.marker.storage(), again.marker.storage())
	require.EqualValues(t, 2, again.marker.Epoch)
	require.NoDirExists(t, half)
	require.Len(t, again.marker.Founders, 4)

	require.NoError(t, os.MkdirAll(half, 0o700))
	useOnce(t, o)
	require.DirExists(t, half, "what a bootstrapped replica wrote is never thrown away")
}

func TestMarkerLostRecord(t *testing.T) {
	o := used(t)
	require.NoError(t, os.Remove(filepath.Join(o.Dir, bookName)))
	d, err := claimDirectory(o)
	require.NoError(t, err)
	defer d.release()
	_, err = d.begin()
	require.ErrorIs(t, err, ErrDirectory, "without its record a replica would trust a wiped one")
}

func TestDirectoryInUse(t *testing.T) {
	o := used(t)
	d, err := claimDirectory(o)
	require.NoError(t, err)
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(o.Dir, link))
	other := o
	other.Dir = link
	_, err = claimDirectory(other)
	require.ErrorIs(t, err, ErrDirectory)
	require.ErrorContains(t, err, "in use by this process")
	d.release()
	d.release() // idempotent

	child, stop := childProcess(t, "hold-directory", o.Dir)
	require.Equal(t, "held", child())
	_, err = claimDirectory(o)
	require.ErrorIs(t, err, ErrDirectory)
	require.ErrorContains(t, err, "in use by another process (pid ")
	stop() // killed: the lock is free at once
	d, err = claimDirectory(o)
	require.NoError(t, err)
	d.release()
}

// childProcess runs one of the child roles in a process of its own. next
// returns its next line; stop kills it, if it still runs, and waits.
func childProcess(t *testing.T, role string, args ...string) (next func() string, stop func()) {
	t.Helper()
	return childProcessIn(t, nil, role, args...)
}

// childProcessIn is childProcess with what the system is to do for the child.
func childProcessIn(t *testing.T, attr *syscall.SysProcAttr, role string, args ...string) (next func() string, stop func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestChildProcess$")
	cmd.Env = append(os.Environ(), "QUORUMLOCK_TEST_CHILD="+role, "QUORUMLOCK_TEST_ARGS="+strings.Join(args, "\n"))
	cmd.SysProcAttr = attr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = os.Stderr
	if os.Getenv("QUORUMLOCK_TEST_LOG") == "" {
		cmd.Stderr = nil
	}
	err = cmd.Start()
	if attr != nil && errors.Is(err, fs.ErrPermission) {
		t.Skip("this user may not have namespaces of its own")
	}
	require.NoError(t, err)
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	t.Cleanup(stop)
	lines := bufio.NewScanner(out)
	return func() string {
		for lines.Scan() {
			if line, ok := strings.CutPrefix(lines.Text(), "> "); ok {
				return line
			}
		}
		return "ended"
	}, stop
}

// childRoles are what TestChildProcess does when it runs as a child.
var childRoles = map[string]func(args []string) error{
	"hold-directory": func(args []string) error {
		if _, err := claimDirectory(markerOptions(args[0])); err != nil {
			return err
		}
		fmt.Println("> held")
		select {}
	},
}

func TestChildProcess(t *testing.T) {
	role := childRoles[os.Getenv("QUORUMLOCK_TEST_CHILD")]
	if role == nil {
		t.Skip("only runs as a child of other tests")
	}
	if err := role(strings.Split(os.Getenv("QUORUMLOCK_TEST_ARGS"), "\n")); err != nil {
		fmt.Println("> error:", err)
	}
	os.Exit(0)
}
