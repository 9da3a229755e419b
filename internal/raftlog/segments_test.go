package raftlog

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"syscall"
	"testing"

	"github.com/lni/dragonboat/v4/raftio"
	"github.com/lni/dragonboat/v4/raftpb"
	"github.com/lni/vfs"
	"github.com/stretchr/testify/require"
)

func names(t testing.TB, s *Store) []string {
	t.Helper()
	list, err := s.fs.List(s.dir)
	require.NoError(t, err)
	slices.Sort(list)
	return list
}

// A busy log that is compacted uses the same few files again and again.
func TestSegmentsAreUsedAgain(t *testing.T) {
	s := open(t, newFS(t), small)
	for i := uint64(1); i <= 400; i++ {
		save(t, s, update(1, state(1, 1, i-1), entry(i, 1, 500)))
		if i%20 == 0 {
			require.NoError(t, s.RemoveEntriesTo(1, 1, i-10))
		}
		require.LessOrEqual(t, len(names(t, s)), 12)
		if i%90 == 0 {
			s = reopen(t, s, i%180 == 0)
		}
		require.Equal(t, entries(max(i/20*20, 10)-9, i, 1, 500), all(t, s, 1, max(i/20*20, 10)-9))
	}
	require.Greater(t, s.last().number, uint32(50))
	for _, g := range s.segments {
		require.GreaterOrEqual(t, g.size, s.segSize/2)
	}
	require.NoError(t, s.Close())
}

// Groups that are idle, with a few entries that nobody removes, do not hold the segments of
// a busy one.
func TestIdleGroupsHoldNoSegments(t *testing.T) {
	s := open(t, newFS(t), small)
	for shard := uint64(2); shard <= 9; shard++ {
		require.NoError(t, s.SaveBootstrapInfo(shard, 1, raftpb.Bootstrap{Join: true}))
		save(t, s, update(shard, state(1, shard, 1), entries(1, 2, 1, 100)...))
	}
	for i := uint64(1); i <= 500; i++ {
		save(t, s, update(1, state(1, 1, i-1), entry(i, 1, 500)))
		if i%10 == 0 {
			require.NoError(t, s.RemoveEntriesTo(1, 1, i-5))
		}
		require.LessOrEqual(t, len(names(t, s)), 16)
	}
	again(t, s, func(s *Store) {
		for shard := uint64(2); shard <= 9; shard++ {
			require.Equal(t, entries(1, 2, 1, 100), all(t, s, shard, 1))
			require.Equal(t, state(1, shard, 1), readState(t, s, shard, 0).State)
		}
	})
}

// A process that is started over and over leaves no more than one that runs.
func TestManyStarts(t *testing.T) {
	for most, f := range map[int]Factory{12: small, 20: {}} {
		s := open(t, newFS(t), f)
		save(t, s, update(1, state(1, 1, 1), entries(1, 3, 1, 100)...))
		for i := range 100 {
			s = reopen(t, s, i%2 == 0)
			require.LessOrEqual(t, len(names(t, s)), most)
			require.Equal(t, entries(1, 3, 1, 100), all(t, s, 1, 1))
		}
		require.NoError(t, s.Close())
	}
}

// A file that is used again has frames of its former use behind the new ones, whole and
// with the right salt. Nor does a record that holds the picture of a frame make one.
func TestStaleFramesAreNotTaken(t *testing.T) {
	fs := newFS(t)
	s := open(t, fs, small)
	stale := 0
	for i := uint64(1); i <= 200; i++ {
		save(t, s, update(1, state(1, 1, i-1), entry(i, 1, 2+2*int(i%40))))
		require.NoError(t, s.RemoveEntriesTo(1, 1, i-1))
		g := s.last()
		b := getFile(t, fs, nameOf(g.number))
		for back := uint64(1); back < 200 && back < s.sequence; back++ {
			if _, _, ok := s.salt.open(b[g.end:], s.sequence-back); ok {
				stale++
			}
		}
		s = reopen(t, s, false)
		require.Equal(t, entries(i, i, 1, 2+2*int(i%40)), all(t, s, 1, i))
		require.EqualValues(t, 1, readState(t, s, 1, 0).EntryCount)
		for range 3 {
			save(t, s, update(1, state(i+1, 1, i-1)), update(2, state(i, 1, 0)))
		}
		save(t, s, update(1, state(1, 1, i-1)))
	}
	require.NotZero(t, stale, "the test did not come to what it is about")

	// The picture is that of the next frame, and stands where it would stand; only the salt is
	// not known to who made it.
	for salt, taken := range map[seal]bool{0: false, s.salt: true} {
		frame := salt.close(append(make([]byte, frameHeader), appendRecord(nil, kindUpdate, nil)...), s.sequence+1)
		behind := append(s.salt.close(append(make([]byte, frameHeader), appendRecord(nil, kindUpdate, nil)...), s.sequence), frame...)
		_, size, ok := s.salt.open(behind, s.sequence)
		require.True(t, ok)
		_, _, ok = s.salt.open(behind[size:], s.sequence+1)
		require.Equal(t, taken, ok)
		_, found := s.salt.later(append(make([]byte, 64), frame...), s.sequence)
		require.Equal(t, taken, found)
	}
	require.NoError(t, s.Close())
}

// A process is killed between a write and its fsync, or after an fsync that failed: the next
// one finds the record in the page cache. What it then believes must survive a power loss.
func TestWhatWasFoundIsDurable(t *testing.T) {
	for _, left := range []int{1, 0} { // at the fsync, or at the write
		fs := newFS(t)
		off := &failingFS{MemFS: fs, left: math.MaxInt, how: cached}
		s := open(t, off, small)
		save(t, s, update(1, state(1, 0, 0), entries(1, 2, 1, 50)...))
		off.left = left
		require.ErrorIs(t, s.SaveRaftState([]raftpb.Update{update(1, state(2, 3, 0), entry(3, 2, 50))}, 1), errPower)
		_ = s.release()
		s = open(t, fs, small)
		found, log := readState(t, s, 1, 0), all(t, s, 1, 1)
		require.Equal(t, state(2, 3, 0), found.State, "the vote is in the page cache")
		require.NoError(t, s.release())
		fs.ResetToSyncedState()
		s = open(t, fs, small)
		require.Equal(t, found, readState(t, s, 1, 0))
		require.Equal(t, log, all(t, s, 1, 1))
		require.NoError(t, s.Close())
	}
}

// noFilesFS has no descriptor for a new file while it is exhausted.
type noFilesFS struct {
	*vfs.MemFS
	exhausted bool
}

func (f *noFilesFS) ReuseForWrite(from, to string) (vfs.File, error) {
	if f.exhausted {
		return nil, fmt.Errorf("open %s: %w", to, syscall.EMFILE)
	}
	return f.MemFS.ReuseForWrite(from, to)
}

// Without a descriptor for the next segment, the log goes on in the one it has.
func TestOutOfDescriptors(t *testing.T) {
	fs := &noFilesFS{MemFS: newFS(t)}
	s := open(t, fs, small)
	for i := uint64(1); i <= 60; i++ {
		fs.exhausted = i > 20 && i < 40
		save(t, s, update(1, state(1, 1, i-1), entry(i, 1, 500)))
		if i > 5 {
			require.NoError(t, s.RemoveEntriesTo(1, 1, i-5))
		}
	}
	require.LessOrEqual(t, len(names(t, s)), 10)
	again(t, s, func(s *Store) { require.Equal(t, entries(56, 60, 1, 500), all(t, s, 1, 56)) })
	fs.exhausted = true
	_, err := Open(fs, "/d/log", small)
	require.ErrorIs(t, err, syscall.EMFILE)
}

func TestRotIsFoundWhenAnEntryIsRead(t *testing.T) {
	fs := newFS(t)
	s := open(t, fs, small)
	save(t, s, update(1, state(1, 1, 1), entries(1, 5, 1, 50)...))
	at := s.nodes[raftio.NodeInfo{ShardID: 1, ReplicaID: 1}].where[2]
	raw := make([]byte, 1)
	g := s.last()
	require.NoError(t, readAt(g.file, raw, int64(at.at)+10))
	raw[0] ^= 4
	_, err := g.file.WriteAt(raw, int64(at.at)+10)
	require.NoError(t, err)
	_, _, err = s.IterateEntries(nil, 0, 1, 1, 1, 6, math.MaxUint64)
	require.ErrorIs(t, err, errDamaged)
	require.ErrorContains(t, err, nameOf(g.number))
	e, _, err := s.IterateEntries(nil, 0, 1, 1, 1, 3, math.MaxUint64)
	require.NoError(t, err)
	require.Len(t, e, 2)
	require.NoError(t, s.Close())
	_, err = Open(fs, "/d/log", small)
	require.True(t, errors.Is(err, errDamaged), "%v", err)
}

func benchmarkSave(b *testing.B, count uint64, size int) {
	s, err := Open(vfs.Default, b.TempDir(), Factory{})
	require.NoError(b, err)
	next := uint64(1)
	b.SetBytes(int64(count) * int64(size))
	b.ReportAllocs()
	for b.Loop() {
		u := []raftpb.Update{update(1, state(1, 1, next-1), entries(next, next+count-1, 1, size)...)}
		if err := s.SaveRaftState(u, 1); err != nil {
			b.Fatal(err)
		}
		if next += count; next%10_000 < count {
			require.NoError(b, s.RemoveEntriesTo(1, 1, next-1_000))
		}
	}
	require.NoError(b, s.Close())
}

func BenchmarkSaveRaftState1x100B(b *testing.B) { benchmarkSave(b, 1, 100) }
func BenchmarkSaveRaftState5x20KB(b *testing.B) { benchmarkSave(b, 5, 20_000) }

func BenchmarkSaveRaftState1x16MB(b *testing.B) { benchmarkSave(b, 1, 16<<20) }

// BenchmarkOpen reads a log of 100,000 entries.
func BenchmarkOpen(b *testing.B) {
	dir := b.TempDir()
	s, err := Open(vfs.Default, dir, Factory{})
	require.NoError(b, err)
	for i := uint64(1); i < 100_000; i += 100 {
		require.NoError(b, s.SaveRaftState([]raftpb.Update{update(1, state(1, 1, i), entries(i, i+99, 1, 200)...)}, 1))
	}
	require.NoError(b, s.Close())
	for b.Loop() {
		s, err := Open(vfs.Default, dir, Factory{})
		require.NoError(b, err)
		require.NoError(b, s.Close())
	}
}
