package quorumlock

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/fencing"
)

// anew prepares a cluster with empty directories and another name, to be founded from a
// backup.
func anew(t *testing.T, backup []byte) *cluster {
	t.Helper()
	c := &cluster{t: t, options: make(map[uint64]Options), nodes: make(map[uint64]*Node)}
	members := make(map[uint64]string)
	for i, addr := range freeAddresses(t, 5) {
		members[uint64(i+1)] = addr
	}
	path := inFile(t, backup)
	for id, addr := range members {
		o := Options{ReplicaID: id, Address: addr, Members: members, Dir: t.TempDir(), Cluster: "second",
			Groups: 2, Restore: path, Logger: testLogger(t)}
		brisk(&o)
		c.options[id] = o
	}
	t.Cleanup(func() { c.closeNodes(c.ids()...) })
	return c
}

func copyOf(t *testing.T, dir string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "copy")
	require.NoError(t, os.CopyFS(to, os.DirFS(dir)))
	return to
}

// filesIn returns what is in a directory, but for its lock file.
func filesIn(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := make(map[string]string)
	require.NoError(t, filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() || e.Name() == lockName {
			return err
		}
		b, err := os.ReadFile(path)
		files[path] = string(b)
		return err
	}))
	return files
}

// The worst day, as docs/OPERATIONS.md has it: three of five directories are gone. A new
// cluster is founded from what one of the other two has, and what must not happen twice
// does not.
func TestWorstDay(t *testing.T) {
	before := tuning
	tuning.snapshotEntries, tuning.compactionOverhead = 150, 20
	defer func() { tuning = before }()
	c := newCluster(t, brisk, func(o *Options) { o.Groups = 2 })
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var store fencing.MemGuard
	var last fencing.Token
	pay := func(n *Node) {
		t.Helper()
		require.NoError(t, n.Do(ctx, "invoice", func(ctx context.Context, token fencing.Token) error {
			last = token
			return store.Admit(ctx, "invoice", token)
		}))
	}
	var load sync.WaitGroup
	stop := make(chan struct{})
	for id, n := range c.nodes {
		load.Go(func() {
			for i := 0; !isClosed(stop); i++ {
				if err := n.Do(ctx, fmt.Sprint("load/", i%7), func(context.Context, fencing.Token) error { return nil }); err != nil {
					t.Errorf("replica %d: %v", id, err)
					return
				}
			}
		})
	}
	const half = 20
	for tick := range int64(half) {
		pay(c.node(uint64(1 + tick%5)))
		_, err := c.node(uint64(1+tick%5)).ClaimTick(ctx, "nightly", tick)
		require.NoError(t, err)
	}
	running, live := backupOf(t, c.node(2))
	for tick := int64(half); tick < 2*half; tick++ { // what the backup knows nothing of
		pay(c.node(uint64(1 + tick%5)))
		_, err := c.node(uint64(1+tick%5)).ClaimTick(ctx, "nightly", tick)
		require.NoError(t, err)
	}
	require.ErrorIs(t, BackupDirectory(c.options[4].Dir, new(bytes.Buffer)), ErrDirectory, "it is in use")
	eventually(t, "replicas 4 and 5 have seen the last tick", func() bool {
		jobs4, err4 := c.node(4).Jobs(ctx, "")
		jobs5, err5 := c.node(5).Jobs(ctx, "")
		return err4 == nil && err5 == nil && jobs4[0].Tick == 2*half-1 && jobs5[0].Tick == 2*half-1
	})
	_, err := c.node(4).Acquire(ctx, "held", LockDelay(time.Second))
	require.NoError(t, err)
	close(stop)
	load.Wait()
	c.closeNodes(1, 2, 3, 4, 5)
	for id := uint64(1); id <= 3; id++ {
		require.NoError(t, os.RemoveAll(c.options[id].Dir))
	}

	// Each survivor gives a backup, and keeps its directory as it is.
	newest, newestInfo := running, live
	for _, id := range []uint64{4, 5} {
		was := filesIn(t, c.options[id].Dir)
		name, err := newestSnapshots(filepath.Join(c.options[id].Dir, engineName))
		require.NoError(t, err)
		require.NotEmpty(t, name, "there is no snapshot to be read")
		var b bytes.Buffer
		require.NoError(t, BackupDirectory(c.options[id].Dir, &b))
		require.Equal(t, was, filesIn(t, c.options[id].Dir), "something was changed")
		info, err := InspectBackup(bytes.NewReader(b.Bytes()))
		require.NoError(t, err)
		t.Logf("replica %d: %+v", id, info)
		require.Len(t, info.Groups, 2)
		for i, g := range info.Groups {
			require.GreaterOrEqual(t, g.Index, live.Groups[i].Index)
			require.Positive(t, g.Term)
		}
		g, best := info.Groups[0], newestInfo.Groups[0]
		if g.Term > best.Term || g.Term == best.Term && g.Index > best.Index {
			newest, newestInfo = b.Bytes(), info
		}
	}
	require.NotEqual(t, live.Sum, newestInfo.Sum)

	begun := time.Now()
	second := anew(t, newest)
	second.openNodes(1, 2, 3, 4, 5)
	require.GreaterOrEqual(t, time.Since(begun), 1500*time.Millisecond, "no full grace")
	for _, id := range second.ids() {
		for tick := int64(0); tick < 2*half; tick += 3 {
			again, err := second.node(id).ClaimTick(ctx, "nightly", tick)
			require.NoError(t, err)
			require.False(t, again, "tick %d ran twice", tick)
		}
	}
	first, err := second.node(2).ClaimTick(ctx, "nightly", 2*half)
	require.NoError(t, err)
	require.True(t, first)
	lost := last
	pay(second.node(3))
	require.Greater(t, last, lost+1<<40)
	require.ErrorIs(t, store.Admit(ctx, "invoice", lost), fencing.ErrStale)
	h, err := second.node(1).Acquire(ctx, "held")
	require.NoError(t, err)
	require.NoError(t, h.Release(ctx))

	// The file may be gone, be the same, but not be another one.
	path := second.options[1].Restore
	require.NoError(t, os.Remove(path))
	second.closeNodes(1)
	second.openNodes(1)
	second.closeNodes(1)
	require.NoError(t, os.WriteFile(path, running, 0o600))
	_, err = Open(second.options[1])
	require.ErrorIs(t, err, ErrDirectory)
	require.ErrorContains(t, err, live.Sum[:8])
	require.NoError(t, os.WriteFile(path, newest, 0o600))
	second.openNodes(1)
	goesOn(t, second.nodes)
	settled(t, second.nodes)
}

// Founders with different backups refuse each other, and so do one with a backup and one
// without. A directory that holds a replica is not restored into.
func TestRestoreIsForAllFoundersAndEmptyDirectories(t *testing.T) {
	var backups [][]byte
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		_, err := nodes[1].ClaimTick(soon(t), "nightly", 1)
		require.NoError(t, err)
		one, _ := backupOf(t, nodes[1])
		_, err = nodes[1].ClaimTick(soon(t), "nightly", 2)
		require.NoError(t, err)
		two, _ := backupOf(t, nodes[1])
		backups = [][]byte{one, two}
	})
	c := anew(t, backups[0])
	ids := slices.Sorted(maps.Keys(c.options))
	// No majority is needed for a refusal, and none is there.
	n, err := Open(c.options[1])
	require.NoError(t, err)
	defer func() { require.NoError(t, n.Close()) }()
	other, err := Open(c.options[2])
	require.NoError(t, err)
	defer func() { require.NoError(t, other.Close()) }()
	for i, restore := range []string{inFile(t, backups[1]), ""} {
		o := c.options[ids[2+i]]
		o.Restore = restore
		_, err := Open(o)
		require.ErrorIs(t, err, ErrMembers)
		require.ErrorContains(t, err, "another backup")
	}
	require.False(t, n.Status().Ready)

	old := newCluster(t, brisk)
	old.closeNodes(1)
	o := old.options[1]
	o.Restore = inFile(t, backups[0])
	_, err = Open(o)
	require.ErrorIs(t, err, ErrDirectory)
	require.ErrorContains(t, err, "holds a replica already")
	old.openNodes(1)
}

func TestBackupDirectoryBadInput(t *testing.T) {
	var b bytes.Buffer
	require.ErrorIs(t, BackupDirectory(filepath.Join(t.TempDir(), "nowhere"), &b), ErrDirectory)
	require.ErrorIs(t, BackupDirectory(t.TempDir(), &b), ErrDirectory)
	c := newCluster(t, brisk)
	goesOn(t, c.nodes)
	c.closeNodes(1)
	dir := c.options[1].Dir
	require.NoError(t, BackupDirectory(dir, &b))
	require.NoError(t, BackupDirectory(dir, &b), "it was given back")
	full := fmt.Errorf("no space left on device")
	require.ErrorIs(t, BackupDirectory(dir, brokenWriter{full}), full)

	damaged := copyOf(t, dir)
	logs, err := filepath.Glob(filepath.Join(damaged, engineName, "*", "*", "raftlog", "*.log"))
	require.NoError(t, err)
	require.NotEmpty(t, logs)
	raw, err := os.ReadFile(logs[0])
	require.NoError(t, err)
	raw[300] ^= 1
	require.NoError(t, os.WriteFile(logs[0], raw, 0o600))
	b.Reset()
	require.ErrorIs(t, BackupDirectory(damaged, &b), ErrDirectory)
	require.Zero(t, b.Len())
	require.NoError(t, os.Remove(filepath.Join(damaged, markerName)))
	require.ErrorIs(t, BackupDirectory(damaged, &b), ErrDirectory)
	c.openNodes(1)
}
