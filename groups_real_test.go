package quorumlock

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/fencing"
)

func fourGroups(o *Options) { o.Groups = 4 }

// takeAll takes so many names, from all nodes in turn.
func (c *cluster) takeAll(ctx context.Context, prefix string, names int) map[string]*Hold {
	c.t.Helper()
	ids := c.ids()
	var mu sync.Mutex
	held := make(map[string]*Hold)
	var wg sync.WaitGroup
	for i := range names {
		wg.Go(func() {
			name := fmt.Sprintf("%s%03d", prefix, i)
			h, err := c.node(ids[i%len(ids)]).Acquire(ctx, name)
			if err != nil {
				c.t.Errorf("%s: %v", name, err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			held[name] = h
		})
	}
	wg.Wait()
	return held
}

// Four groups on the real engine: calls on all names, one that leads dies and comes
// back, those who were down are brought up by a snapshot of each group, and after a
// restart of all everything goes on, with tokens that grow.
func TestGroupsReal(t *testing.T) {
	before := tuning
	defer func() { tuning = before }()
	tuning.snapshotEntries, tuning.compactionOverhead = 60, 5
	c := newCluster(t, brisk, fourGroups)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()

	held := c.takeAll(ctx, "job/", 40)
	names := slices.Sorted(maps.Keys(held))
	infos, err := c.node(2).List(ctx, "job/")
	require.NoError(t, err)
	require.Len(t, infos, 40)
	for i, info := range infos {
		require.Equal(t, names[i], info.Name)
		require.Equal(t, held[info.Name].Token(), info.Holders[0].Token)
	}

	// A leader of some group dies. Its holds are freed when it comes back.
	dead := c.node(1).Status().Groups[3].Leader
	c.closeNodes(dead)
	rest := c.ids()
	for i := range 400 { // enough for snapshots of each group
		err := c.node(rest[i%4]).Do(ctx, fmt.Sprint("other/", i), func(context.Context, fencing.Token) error { return nil })
		require.NoError(t, err)
	}
	c.openNodes(dead)
	for name, h := range held {
		if h.part.id.Replica != dead {
			require.NoError(t, h.Validate(ctx))
			continue
		}
		require.ErrorIs(t, h.Err(), ErrClosed)
		next, err := c.node(dead).TryAcquire(ctx, name)
		require.NoError(t, err)
		require.Greater(t, next.Token(), h.Token())
		held[name] = next
	}
	files, err := newestSnapshots(filepath.Join(c.options[dead].Dir, engineName))
	require.NoError(t, err)
	require.Len(t, files, 4, "a snapshot of each group")

	all, err := c.node(3).AcquireAll(ctx, "set/1", "set/2", "set/3", "set/4", "set/5", "set/6")
	require.NoError(t, err)
	_, err = c.node(4).TryAcquireAll(ctx, "set/6", "set/7")
	require.ErrorIs(t, err, ErrHeld)
	require.NoError(t, all.Release(ctx))
	c.lead(ctx, 2, 5)
	eventually(t, "5 leads all", func() bool {
		return !slices.ContainsFunc(c.node(1).Status().Groups, func(g GroupStatus) bool { return g.Leader != 5 })
	})

	ids := c.ids()
	c.closeNodes(ids...)
	c.openNodes(ids...)
	for name, h := range held {
		next, err := c.node(1).Acquire(ctx, name)
		require.NoError(t, err)
		require.Greater(t, next.Token(), h.Token())
		require.NoError(t, next.Release(ctx))
	}
	goesOn(t, c.nodes)
	settled(t, c.nodes)
}

// A damaged snapshot of any group is found before the engine is started.
func TestGroupsDamagedSnapshot(t *testing.T) {
	dir := t.TempDir()
	for shard, file := range []string{"snapshot-000000000000000A", "snapshot-0000000000000002", "snapshot-0000000000000009"} {
		at := filepath.Join(dir, fmt.Sprintf("snapshot-part-%d", shard/2), file)
		require.NoError(t, os.MkdirAll(at, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(at, file+".gbsnap"), nil, 0o600))
	}
	files, err := newestSnapshots(dir)
	require.NoError(t, err)
	require.Len(t, files, 2)
	require.ErrorContains(t, checkSnapshots(dir), "snapshot-000000000000000A.gbsnap")
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "snapshot-part-0")))
	require.ErrorContains(t, checkSnapshots(dir), "snapshot-0000000000000009.gbsnap")
}

// The number of groups can neither be changed nor be another one than the others': a
// replica is told, and the others are not disturbed.
func TestGroupsDiffer(t *testing.T) {
	c := newReplicas(t, 3)
	for id := range c.options {
		c.change(id, func(o *Options) { o.Groups = 2 })
	}
	c.open(1, 2)
	c.leader()
	c.change(3, func(o *Options) { o.Groups = 4 })
	_, err := c.tryOpen(3)
	require.ErrorIs(t, err, ErrGroups)
	require.ErrorContains(t, err, "with 2 groups")
	require.ErrorContains(t, err, "replica 3 with 4")

	c.toldLater(ErrGroups)
	c.close(3)

	before := listing(t, c.options[2].Dir)
	c.close(2)
	c.change(2, func(o *Options) { o.Groups = 1 })
	_, err = c.tryOpen(2)
	require.ErrorIs(t, err, ErrGroups)
	require.ErrorContains(t, err, "Options.Groups is 1")
	require.ErrorContains(t, err, "founded with 2")
	require.Equal(t, before, listing(t, c.options[2].Dir), "a refused start changes nothing")
	c.change(2, func(o *Options) { o.Groups = 2 })
	c.open(2)
	c.propose(2, "as before")
}

// What an idle group costs: no goroutine, and little memory.
func TestIdleGroupsCostLittle(t *testing.T) {
	type cost struct{ heap, goroutines int }
	measure := func(groups int) (got cost) {
		c := newCluster(t, func(o *Options) { o.Groups = groups })
		for _, id := range c.ids() {
			require.NoError(t, c.node(id).Do(t.Context(), "job", func(context.Context, fencing.Token) error { return nil }))
		}
		settled(t, c.nodes)
		got.goroutines = runtime.NumGoroutine()
		eventually(t, "those who began a life have gone", func() bool {
			before := got.goroutines
			got.goroutines = runtime.NumGoroutine()
			return got.goroutines == before
		})
		got.heap = heapInUse()
		c.closeNodes(c.ids()...)
		return got
	}
	measure(1) // what is made once
	few, many := measure(4), measure(16)
	each := (many.heap - few.heap) / (12 * 5)
	t.Logf("4 groups: %+v; 16 groups: %+v; an idle group: %d bytes", few, many, each)
	require.LessOrEqual(t, many.goroutines, few.goroutines+3*5*4, "none for each of 60 groups, but connections between all of those that lead one")
	require.Less(t, each, 3<<18)
}
