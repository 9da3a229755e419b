package quorumlock

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// What a directory says of its replica is what the replica was, and looking changes
// nothing. One that is in use, or is none, is refused.
func TestInspectDirectory(t *testing.T) {
	was := tuning
	t.Cleanup(func() { tuning = was })
	tuning.snapshotEntries, tuning.compactionOverhead = 20, 5
	c := newCluster(t, brisk)
	goesOn(t, c.nodes)
	n := c.nodes[2]
	for range 60 {
		h, err := n.Acquire(soon(t), "job")
		require.NoError(t, err)
		require.NoError(t, h.Release(soon(t)))
	}
	dir := c.options[2].Dir
	_, err := InspectDirectory(dir)
	require.ErrorIs(t, err, ErrDirectory)
	require.ErrorContains(t, err, "in use")
	applied, term := n.Status().Applied, n.Status().Term
	c.closeNodes(2)
	files := filesIn(t, dir)
	info, err := InspectDirectory(dir)
	require.NoError(t, err)
	require.Equal(t, files, filesIn(t, dir))
	require.EqualValues(t, 2, info.Replica)
	require.Equal(t, c.options[2].Members, info.Founders)
	require.Equal(t, c.options[1].Address, info.Peers[1])
	require.EqualValues(t, 1, info.Epoch)
	require.Len(t, info.Groups, 1)
	g := info.Groups[0]
	require.GreaterOrEqual(t, g.Last, applied)
	require.GreaterOrEqual(t, g.Term, term)
	require.Greater(t, g.First, uint64(1), "the log was compacted")
	require.NotZero(t, g.Snapshot)
	require.LessOrEqual(t, g.First, g.Snapshot+1, "nothing is missing in between")
	require.FileExists(t, g.SnapshotFile)
	_, err = InspectDirectory(t.TempDir())
	require.ErrorIs(t, err, ErrDirectory)
	_, err = InspectDirectory(filepath.Join(t.TempDir(), "nowhere"))
	require.ErrorIs(t, err, ErrDirectory)
}
