//go:build unix

package quorumlock

import (
	"bytes"
	"context"
	"crypto/md5"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"weak"

	"github.com/lni/dragonboat/v4/logger"
	"github.com/lni/dragonboat/v4/raftio"
	"github.com/lni/dragonboat/v4/raftpb"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/quorumlock/quorumlock/internal/raftlog"
)

func init() {
	childRoles["removed"] = childRemoved
	childRoles["full-disk"] = childFullDisk
	childRoles["panic-in-apply"] = childPanicInApply
	childRoles["fail-save"] = childFailSave
	childRoles["damage"] = childDamage
	childRoles["count"] = childCount
}

// childReplica opens the only replica of a cluster.
func childReplica(dir, addr string, m *listMachine, change func(o *Options)) (engineHost, error) {
	o := Options{
		ReplicaID: 1,
		Address:   addr,
		Members:   map[uint64]string{1: addr},
		Dir:       dir,
		Logger:    testLogger(nil),

		ElectionTimeout: 200 * time.Millisecond,

		OnFatal: func(err error) { fmt.Println("> fatal:", strings.ReplaceAll(err.Error(), "\n", " ")) },
	}
	if change != nil {
		change(&o)
	}
	o, err := o.complete()
	if err != nil {
		return nil, err
	}
	e, _, err := openReplica(o, []stateMachine{m}, engineEvents{})
	return e, err
}

func childPropose(e engineHost, cmd string) error {
	ctx, cancel := context.WithTimeout(context.Background(), enough)
	defer cancel()
	return proposeAgain(ctx, e.group(0), cmd)
}

func childRemoved(args []string) error {
	tuning.snapshotEntries, tuning.compactionOverhead = 20, 5
	e, err := childReplica(args[0], args[1], newListMachine(), nil)
	if err != nil {
		return err
	}
	parts, err := filepath.Glob(args[2])
	if err != nil || len(parts) != 1 {
		return fmt.Errorf("%v: %w", parts, err)
	}
	if err := errors.Join(childPropose(e, "before"), os.RemoveAll(parts[0]), childPropose(e, "after")); err != nil {
		return err
	}
	fmt.Println("> goes on")
	for range 100 {
		if err := childPropose(e, "x"); err != nil {
			return err
		}
	}
	return nil
}

// A directory that is removed under a replica, in whole or in part, is missed when the
// next snapshot is due. OnFatal hears that it is gone, which the engine alone would have
// told nobody.
func TestReplicaDirectoryRemoved(t *testing.T) {
	t.Parallel()
	for part, gone := range map[string]string{"": engineName, engineName: engineName, engineName + "/*/*/snapshot-part-1": "snapshot-1-1"} {
		dir := t.TempDir()
		next, _ := childProcess(t, "removed", dir, freeAddresses(t, 1)[0], filepath.Join(dir, part))
		require.Equal(t, "goes on", next())
		line := next()
		require.Contains(t, line, "fatal: ")
		require.Contains(t, line, gone+" was removed")
		require.Contains(t, line, dir)
		require.Equal(t, "ended", next())
	}
}

// childFullDisk lets no file grow any more, which is what a full disk does.
func childFullDisk(args []string) error {
	signal.Ignore(syscall.SIGXFSZ)
	e, err := childReplica(args[0], args[1], newListMachine(), nil)
	if err != nil {
		return err
	}
	if err := childPropose(e, "before"); err != nil {
		return err
	}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 1, Max: 1}); err != nil {
		return err
	}
	fmt.Println("> full")
	err = childPropose(e, "after")
	fmt.Println("> went on:", err)
	return nil
}

// A disk that fails stops the process: nothing is acknowledged that is not on
// the disk. OnFatal hears which file it was and why, and then nothing else happens.
func TestReplicaFullDisk(t *testing.T) {
	dir := t.TempDir()
	next, _ := childProcess(t, "full-disk", dir, freeAddresses(t, 1)[0])
	require.Equal(t, "full", next())
	line := next()
	require.Contains(t, line, "fatal: ")
	require.Contains(t, line, dir)
	require.Contains(t, line, "cannot be trusted any more")
	require.Contains(t, line, syscall.EFBIG.Error())
	require.Equal(t, "ended", next())
}

// A snapshot that cannot be read, or not be found where it was, is noticed
// before the engine stops the process over it.
func TestReplicaDamagedSnapshot(t *testing.T) {
	before := tuning
	tuning.snapshotEntries, tuning.compactionOverhead = 20, 5
	defer func() { tuning = before }()
	c := newReplicas(t, 1)
	c.openAll()
	// While one is written none is begun, so the second may take any number of entries.
	for i := 0; i < 60 || c.running[1].saves() < 2 && i < 100_000; i++ {
		c.propose(1, fmt.Sprint(i))
	}
	require.GreaterOrEqual(t, c.running[1].saves(), 2)
	c.close(1)
	for name, damage := range map[string]func(raw []byte) []byte{
		"a flipped byte":  func(raw []byte) []byte { raw[(snapshotHeader+len(raw))/2] ^= 1; return raw },
		"in the header":   func(raw []byte) []byte { raw[12] ^= 1; return raw },
		"of the header":   func(raw []byte) []byte { raw[2] ^= 1; return raw },
		"in the tail":     func(raw []byte) []byte { raw[len(raw)-snapshotTail] ^= 1; return raw },
		"truncated":       func(raw []byte) []byte { return raw[:len(raw)-30] },
		"truncated a lot": func(raw []byte) []byte { return raw[:100] },
		"empty":           func([]byte) []byte { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			restore := damageSnapshots(t, c.options[1].Dir, damage)
			_, err := c.tryOpen(1)
			require.ErrorIs(t, err, ErrDirectory)
			require.ErrorContains(t, err, ".gbsnap")
			restore()
		})
	}
	c.open(1)
	c.running[1].awaitLen(t, 60)
	c.close(1)

	before1 := c.options[1].Dir
	moved := filepath.Join(t.TempDir(), "moved")
	require.NoError(t, os.Rename(before1, moved))
	c.change(1, func(o *Options) { o.Dir = moved })
	_, err := c.tryOpen(1)
	require.ErrorIs(t, err, ErrDirectory)
	require.ErrorContains(t, err, before1)
	require.NoError(t, os.Symlink(moved, before1)) // no help: the path is resolved
	c.change(1, func(o *Options) { o.Dir = before1 })
	_, err = c.tryOpen(1)
	require.ErrorIs(t, err, ErrDirectory)
}

// childDamage opens copies of the directory whole, each with one file of the
// engine's damaged, and says what came of it.
func childDamage(args []string) error {
	whole, dir, addr := args[0], args[1], args[2]
	return fs.WalkDir(os.DirFS(filepath.Join(whole, engineName)), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := os.ReadFile(filepath.Join(whole, engineName, path))
		if err != nil {
			return err
		}
		for _, damaged := range [][]byte{nil, raw[:len(raw)/2], flip(raw, len(raw)/2), flip(raw, 60), bytes.Repeat([]byte{0xa5}, 100)} {
			err := errors.Join(
				os.RemoveAll(dir),
				os.CopyFS(dir, os.DirFS(whole)),
				os.WriteFile(filepath.Join(dir, engineName, path), damaged, 0o600))
			if err != nil {
				return err
			}
			e, err := childReplica(dir, addr, newListMachine(), nil)
			switch {
			case err == nil:
				fmt.Println("> opened", filepath.Base(path))
				err = e.close()
			case errors.Is(err, ErrDirectory):
				fmt.Println("> refused", filepath.Base(path))
				err = nil
			}
			if err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
		}
		return nil
	})
}

// Whatever is wrong with the engine's files, Open says so and lets go of all
// that it had opened.
func TestReplicaDamagedEngine(t *testing.T) {
	before := tuning
	tuning.snapshotEntries, tuning.compactionOverhead = 20, 5
	defer func() { tuning = before }()
	c := newReplicas(t, 1)
	c.openAll()
	for i := 0; c.running[1].saves() == 0; i++ {
		c.propose(1, fmt.Sprintf("%0200d", i))
	}
	c.close(1)
	o := c.options[1]
	whole := filepath.Join(t.TempDir(), "whole")
	require.NoError(t, os.CopyFS(whole, os.DirFS(o.Dir)))
	next, _ := childProcess(t, "damage", whole, o.Dir, o.Address)
	outcome := make(map[string]int)
	for line := next(); line != "ended"; line = next() {
		require.NotContains(t, line, "error")
		require.NotContains(t, line, "fatal")
		outcome[regexp.MustCompile(`snapshot-\w+`).ReplaceAllString(line, "snapshot")]++
	}
	require.Equal(t, map[string]int{
		"refused NODEHOST.ID":      5,
		"refused dragonboat.ds":    5,
		"refused 0000000001.log":   3,
		"opened 0000000001.log":    2, // its second half was never used
		"refused snapshot.gbsnap":  4,
		"opened snapshot.gbsnap":   1, // its header has room
		"opened snapshot.metadata": 5, // of no use any more
		"opened LOCK":              5,
	}, outcome)
}

// childCount tells how many entries a replica has, the one that it adds included.
func childCount(args []string) error {
	m := newListMachine()
	e, err := childReplica(args[0], args[1], m, nil)
	if errors.Is(err, ErrDirectory) {
		fmt.Println("> refused:", strings.ReplaceAll(err.Error(), "\n", " "))
		return nil
	}
	if err != nil {
		return err
	}
	if err := childPropose(e, "more"); err != nil {
		return err
	}
	fmt.Println("> entries:", len(m.snapshotOfList()))
	return e.close()
}

// The log of a replica that was never closed, as a crash leaves it, is opened; what was
// not written to its end, or never belonged to it, is cut off. Rot in front of that is
// refused: a promise may be in it.
func TestReplicaDamagedLog(t *testing.T) {
	c := newReplicas(t, 1)
	c.openAll()
	for i := range 5 {
		c.propose(1, fmt.Sprint(i))
	}
	o := c.options[1]
	crashed := filepath.Join(t.TempDir(), "crashed")
	require.NoError(t, os.CopyFS(crashed, os.DirFS(o.Dir)))
	c.close(1)
	logs, err := filepath.Glob(filepath.Join(crashed, engineName, "*", "*", "raftlog", "*.log"))
	require.NoError(t, err)
	require.Len(t, logs, 1)
	raw, err := os.ReadFile(logs[0])
	require.NoError(t, err)
	end := len(bytes.TrimRight(raw, "\x00"))
	outcome, wanted := make(map[string]func() string), make(map[string]string)
	for what, damage := range map[string]struct {
		log  []byte
		want string
	}{
		"nothing":               {raw, "entries: 6"},
		"garbage at the tail":   {append(bytes.Clone(raw[:end+8]), bytes.Repeat([]byte{0xa5}, 4096)...), "entries: 6"},
		"a torn tail":           {raw[:end-3], "entries: 5"},
		"zeroes at the tail":    {append(bytes.Clone(raw[:end-20]), make([]byte, 4096)...), "entries: 5"},
		"a bit before the tail": {flip(raw, end-100), "refused: "},
	} {
		require.NoError(t, os.WriteFile(logs[0], damage.log, 0o600))
		dir := filepath.Join(t.TempDir(), "opened")
		require.NoError(t, os.CopyFS(dir, os.DirFS(crashed)))
		wanted[what] = damage.want
		outcome[what], _ = childProcess(t, "count", dir, freeAddresses(t, 1)[0])
	}
	for what, next := range outcome {
		require.Contains(t, next(), wanted[what], what)
		require.Equal(t, "ended", next(), what)
	}
}

func flip(b []byte, at int) []byte {
	b = bytes.Clone(b)
	if len(b) > 0 {
		b[min(at, len(b)-1)] ^= 0xff
	}
	return b
}

// A directory whose log was written by the engine's own store is refused.
func TestReplicaLogOfAnotherStore(t *testing.T) {
	c := newReplicas(t, 1)
	c.openAll()
	c.propose(1, "x")
	c.close(1)
	var flags []string
	require.NoError(t, filepath.WalkDir(c.options[1].Dir, func(path string, _ fs.DirEntry, err error) error {
		if filepath.Base(path) == "dragonboat.ds" {
			flags = append(flags, path)
		}
		return err
	}))
	require.Len(t, flags, 1)
	status, err := os.ReadFile(flags[0])
	require.NoError(t, err)
	var written raftpb.RaftDataStatus
	require.NoError(t, written.Unmarshal(status[8:]))
	require.Equal(t, raftlog.Name, written.LogdbType)
	written.LogdbType, written.BinVer = "sharded-pebble", raftio.PlainLogDBBinVersion
	other, err := written.Marshal()
	require.NoError(t, err)
	sum := md5.Sum(other)
	require.NoError(t, os.WriteFile(flags[0], append(sum[8:], other...), 0o600))
	_, err = c.tryOpen(1)
	require.ErrorIs(t, err, ErrDirectory)
	require.ErrorContains(t, err, "logdb type changed")
	require.NoError(t, os.WriteFile(flags[0], status, 0o600))
	c.open(1)
	c.running[1].awaitLen(t, 1)
	c.close(1)
}

func damageSnapshots(t *testing.T, dir string, damage func([]byte) []byte) (restore func()) {
	t.Helper()
	whole := make(map[string][]byte)
	require.NoError(t, filepath.WalkDir(filepath.Join(dir, engineName), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".gbsnap") {
			return err
		}
		raw, err := os.ReadFile(path)
		require.NoError(t, err)
		whole[path] = bytes.Clone(raw)
		return os.WriteFile(path, damage(raw), 0o600)
	}))
	require.NotEmpty(t, whole)
	return func() {
		for path, raw := range whole {
			require.NoError(t, os.WriteFile(path, raw, 0o600))
		}
	}
}

func childPanicInApply(args []string) error {
	m := newListMachine()
	m.apply1 = func([]byte) { panic(fmt.Errorf("%w: command version 99", ErrFormat)) }
	e, err := childReplica(args[0], args[1], m, nil)
	if err != nil {
		return err
	}
	return childPropose(e, "hello")
}

// A machine that meets what it must not guess at stops the replica.
func TestReplicaMachinePanics(t *testing.T) {
	next, _ := childProcess(t, "panic-in-apply", t.TempDir(), freeAddresses(t, 1)[0])
	line := next()
	require.Contains(t, line, "fatal: ")
	require.Contains(t, line, "command version 99")
	require.Equal(t, "ended", next())
}

func childFailSave(args []string) error {
	tuning.snapshotEntries = 10
	m := newListMachine()
	m.failSave = errors.New("no space left on device")
	e, err := childReplica(args[0], args[1], m, nil)
	if err != nil {
		return err
	}
	for range 1000 {
		if err := childPropose(e, "hello"); err != nil {
			return err
		}
	}
	return nil
}

// A snapshot that cannot be written stops the process: the log would grow for
// ever. OnFatal hears why.
func TestReplicaSnapshotCannotBeWritten(t *testing.T) {
	next, _ := childProcess(t, "fail-save", t.TempDir(), freeAddresses(t, 1)[0])
	line := next()
	require.Contains(t, line, "fatal:")
	require.Contains(t, line, "no space left on device")
	require.Equal(t, "ended", next())
}

// The engine keeps something of the first replica of a process for ever. That
// must not be the state.
func TestReplicaIsForgotten(t *testing.T) {
	var machines []weak.Pointer[listMachine]
	for range 2 {
		c := newReplicas(t, 1)
		c.openAll()
		c.propose(1, "x")
		machines = append(machines, weak.Make(c.running[1].listMachine))
		c.close(1)
	}
	for i, m := range machines {
		late := time.After(enough)
		for m.Value() != nil {
			runtime.GC()
			select {
			case <-late:
				t.Fatalf("the state of replica %d is kept after close", i)
			default:
			}
		}
	}
}

// Importing the engine takes the standard logger over; it is given back.
func TestStandardLoggerIsGivenBack(t *testing.T) {
	require.Equal(t, os.Stderr, log.Writer())
	require.Equal(t, log.LstdFlags, log.Flags())
	require.Empty(t, log.Prefix())
}

// withLogger has the engine's lines written to a buffer.
func withLogger(t *testing.T, onFatal func(error)) *bytes.Buffer {
	t.Helper()
	var out bytes.Buffer
	v := &voice{logger: slog.New(slog.NewTextHandler(&out, nil)), onFatal: onFatal}
	process.add(v)
	t.Cleanup(func() { process.remove(v) })
	return &out
}

func TestEngineLog(t *testing.T) {
	out := withLogger(t, nil)
	l := &engineLog{area: "raft"}
	l.Debugf("not %s", "shown")
	l.Infof("index %d", 7)
	for range 1000 {
		l.Warningf("dropped %d", 1)
	}
	require.NotContains(t, out.String(), "shown")
	require.Contains(t, out.String(), "index 7")
	require.Equal(t, 1, strings.Count(out.String(), "dropped"), "a repeated warning is held back")
	l.lines["dropped %d"].next = time.Time{}
	l.Warningf("dropped %d", 2)
	require.Contains(t, out.String(), "repeated=999")
}

func TestEngineLogPanics(t *testing.T) {
	var said error
	withLogger(t, func(err error) { said = err })
	var l logger.ILogger = &engineLog{area: "raft"}
	cause := errors.New("disk gone")
	err := guarded("open", func() error { l.Panicf("cannot go on: %v", cause); return nil })
	require.ErrorContains(t, err, "disk gone")
	require.NoError(t, said, "who gets an error needs no last word")

	require.Panics(t, func() { l.Panicf("cannot go on: %v", cause) })
	require.ErrorContains(t, said, "disk gone")
	require.ErrorContains(t, guarded("x", func() error { panic("a string") }), "a string")
	require.ErrorIs(t, guarded("x", func() error { panic(cause) }), cause)
}

func TestLastWordsAreBounded(t *testing.T) {
	t.Parallel()
	stuck := make(chan struct{})
	defer close(stuck)
	begun := time.Now()
	lastWords(errors.New("x"),
		&voice{logger: testLogger(t), onFatal: func(error) { <-stuck }},
		&voice{logger: testLogger(t), onFatal: func(error) { panic("no") }},
		&voice{logger: testLogger(t)})
	require.Less(t, time.Since(begun), 2*lastWordTime)
}
