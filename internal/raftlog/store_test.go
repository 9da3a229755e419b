package raftlog

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/lni/dragonboat/v4/config"
	"github.com/lni/dragonboat/v4/raftio"
	"github.com/lni/dragonboat/v4/raftpb"
	"github.com/lni/vfs"
	"github.com/stretchr/testify/require"
)

// dice returns a source that a failed test can be repeated with.
func dice(t testing.TB) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("QUORUMLOCK_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("QUORUMLOCK_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// small makes every few records fill a segment.
var small = Factory{SegmentSize: 4 << 10}

// newFS returns a file system that forgets what was not synced, with one directory.
func newFS(t testing.TB) *vfs.MemFS {
	fs := vfs.NewStrictMem()
	require.NoError(t, fs.MkdirAll("/d", 0o755))
	root, err := fs.OpenDir("/")
	require.NoError(t, err)
	require.NoError(t, root.Sync())
	require.NoError(t, root.Close())
	return fs
}

func open(t testing.TB, fs vfs.FS, f Factory) *Store {
	t.Helper()
	s, err := Open(fs, "/d/log", f)
	require.NoError(t, err)
	return s
}

// reopen ends s as a kill does, or closes it.
func reopen(t testing.TB, s *Store, clean bool) *Store {
	t.Helper()
	if clean {
		require.NoError(t, s.Close())
	} else {
		require.NoError(t, s.release())
	}
	names := func() []string {
		names, err := s.fs.List(s.dir)
		require.NoError(t, err)
		return names
	}
	before := names()
	look, err := OpenToRead(s.fs, s.dir)
	require.NoError(t, err)
	require.ErrorIs(t, look.SaveRaftState([]raftpb.Update{update(1, state(99, 1, 0))}, 1), errToRead)
	require.ElementsMatch(t, before, names(), "a look has changed something")
	require.NoError(t, look.Close())
	again := open(t, s.fs, Factory{SegmentSize: s.segSize})
	require.Len(t, look.nodes, len(again.nodes))
	for id, n := range again.nodes {
		require.Equal(t, n.state, look.nodes[id].state)
		require.Equal(t, n.snapshot, look.nodes[id].snapshot)
		require.Equal(t, n.log, look.nodes[id].log)
	}
	return again
}

func entry(index, term uint64, size int) raftpb.Entry {
	return raftpb.Entry{Index: index, Term: term, Type: raftpb.EncodedEntry, Key: index * 7, ClientID: term,
		Cmd: bytes.Repeat([]byte{byte(index), byte(term)}, size/2)}
}

func entries(first, last, term uint64, size int) (e []raftpb.Entry) {
	for i := first; i <= last; i++ {
		e = append(e, entry(i, term, size))
	}
	return e
}

func update(shard uint64, st raftpb.State, e ...raftpb.Entry) raftpb.Update {
	return raftpb.Update{ShardID: shard, ReplicaID: 1, State: st, EntriesToSave: e}
}

func state(term, vote, commit uint64) raftpb.State {
	return raftpb.State{Term: term, Vote: vote, Commit: commit}
}

func save(t testing.TB, s *Store, u ...raftpb.Update) {
	t.Helper()
	require.NoError(t, s.SaveRaftState(u, 1))
}

// all returns the entries of a shard from low on.
func all(t testing.TB, s *Store, shard, low uint64) []raftpb.Entry {
	t.Helper()
	e, size, err := s.IterateEntries(nil, 0, shard, 1, low, math.MaxUint64, math.MaxUint64)
	require.NoError(t, err)
	require.Equal(t, raftpb.GetEntrySliceSize(e), size)
	return e
}

func readState(t testing.TB, s *Store, shard, snapshot uint64) raftio.RaftState {
	t.Helper()
	st, err := s.ReadRaftState(shard, 1, snapshot)
	require.NoError(t, err)
	return st
}

// again calls check now, after a kill and after a close.
func again(t *testing.T, s *Store, check func(*Store)) {
	t.Helper()
	check(s)
	for _, clean := range []bool{false, true, false} {
		s = reopen(t, s, clean)
		check(s)
	}
	require.NoError(t, s.Close())
}

func TestNothingSaved(t *testing.T) {
	again(t, open(t, newFS(t), small), func(s *Store) {
		_, err := s.ReadRaftState(1, 1, 0)
		require.ErrorIs(t, err, raftio.ErrNoSavedLog)
		_, err = s.GetBootstrapInfo(1, 1)
		require.ErrorIs(t, err, raftio.ErrNoBootstrapInfo)
		ss, err := s.GetSnapshot(1, 1)
		require.NoError(t, err)
		require.True(t, raftpb.IsEmptySnapshot(ss))
		infos, err := s.ListNodeInfo()
		require.NoError(t, err)
		require.Empty(t, infos)
		require.Empty(t, all(t, s, 1, 1))
		require.NoError(t, s.RemoveEntriesTo(1, 1, 100))
		require.NoError(t, s.SaveRaftState(nil, 1))
		require.NoError(t, s.SaveSnapshots(nil))
		e, size, err := s.IterateEntries(entries(3, 4, 1, 8), 77, 1, 1, 5, 6, math.MaxUint64)
		require.NoError(t, err)
		require.Len(t, e, 2)
		require.EqualValues(t, 77, size)
	})
}

func TestBootstrapInfo(t *testing.T) {
	s := open(t, newFS(t), small)
	info := raftpb.Bootstrap{Addresses: map[uint64]string{100: "a", 200: "b"}, Type: raftpb.ConcurrentStateMachine}
	require.NoError(t, s.SaveBootstrapInfo(2, 9, info))
	require.NoError(t, s.SaveBootstrapInfo(2, 3, raftpb.Bootstrap{Join: true}))
	require.NoError(t, s.SaveBootstrapInfo(1, 5, info))
	save(t, s, update(7, state(1, 0, 0)))
	again(t, s, func(s *Store) {
		got, err := s.GetBootstrapInfo(2, 9)
		require.NoError(t, err)
		require.Equal(t, info, got)
		got, err = s.GetBootstrapInfo(2, 3)
		require.NoError(t, err)
		require.Equal(t, raftpb.Bootstrap{Join: true}, got)
		infos, err := s.ListNodeInfo()
		require.NoError(t, err)
		require.Equal(t, []raftio.NodeInfo{{ShardID: 1, ReplicaID: 5}, {ShardID: 2, ReplicaID: 3}, {ShardID: 2, ReplicaID: 9}}, infos)
		_, err = s.GetBootstrapInfo(7, 1)
		require.ErrorIs(t, err, raftio.ErrNoBootstrapInfo)
		_, err = s.ReadRaftState(2, 9, 0)
		require.ErrorIs(t, err, raftio.ErrNoSavedLog)
	})
}

func TestEntriesComeBack(t *testing.T) {
	s := open(t, newFS(t), small)
	want := append(entries(1, 40, 1, 100), entries(41, 60, 2, 3000)...) // some larger than others, and than a segment together
	for i := 0; i < len(want); i += 5 {
		save(t, s, update(1, state(2, 3, uint64(i)), want[i:i+5]...), update(2, state(1, 1, 0), entry(uint64(i/5)+1, 1, 50)))
	}
	again(t, s, func(s *Store) {
		require.Equal(t, want, all(t, s, 1, 1))
		require.Equal(t, want[30:], all(t, s, 1, 31))
		require.Equal(t, entries(1, 12, 1, 50), all(t, s, 2, 1))
		require.Equal(t, raftio.RaftState{State: state(2, 3, 55), FirstIndex: 1, EntryCount: 60}, readState(t, s, 1, 0))
		require.Equal(t, raftio.RaftState{State: state(2, 3, 55), FirstIndex: 50, EntryCount: 11}, readState(t, s, 1, 50))
		require.Equal(t, raftio.RaftState{State: state(2, 3, 55), FirstIndex: 60}, readState(t, s, 1, 60))
		require.Equal(t, raftio.RaftState{State: state(2, 3, 55), FirstIndex: 61}, readState(t, s, 1, 61))
	})
}

func TestIterateEntriesLimits(t *testing.T) {
	s := open(t, newFS(t), small)
	want := entries(10, 19, 1, 100)
	save(t, s, update(1, state(1, 1, 10), want...))
	one := uint64(want[0].SizeUpperLimit())
	for _, c := range []struct{ low, high, limit, before, count uint64 }{
		{10, 20, math.MaxUint64, 0, 10},
		{10, 99, math.MaxUint64, 0, 10}, // high is beyond the last
		{10, 11, math.MaxUint64, 0, 1},
		{10, 20, 0, 0, 1}, // one at least
		{10, 11, 0, 0, 1},
		{10, 20, one - 1, 0, 1},
		{10, 20, one, 0, 2}, // until the limit is passed
		{10, 20, 3 * one, 0, 4},
		{10, 20, 3 * one, 2 * one, 2}, // what was there before counts
		{15, 15, math.MaxUint64, 0, 0},
		{15, 14, math.MaxUint64, 0, 0},
		{19, 20, math.MaxUint64, 0, 1},
		{20, 21, math.MaxUint64, 0, 0}, // behind the last
		{9, 20, math.MaxUint64, 0, 0},  // before the first: a gap is not skipped
		{0, 20, math.MaxUint64, 0, 0},
	} {
		e, size, err := s.IterateEntries(nil, c.before, 1, 1, c.low, c.high, c.limit)
		require.NoError(t, err)
		require.Len(t, e, int(c.count), "%+v", c)
		require.Equal(t, c.before+c.count*one, size, "%+v", c)
		if c.count > 0 {
			require.Equal(t, want[c.low-10:c.low-10+c.count], e)
		}
	}
	before := entries(8, 9, 1, 10)
	e, _, err := s.IterateEntries(before, 5, 1, 1, 10, 12, math.MaxUint64)
	require.NoError(t, err)
	require.Equal(t, append(before, want[:2]...), e)
	for _, other := range []uint64{2, 0} {
		e, _, err = s.IterateEntries(nil, 0, 1, other, 10, 12, math.MaxUint64)
		require.NoError(t, err)
		require.Empty(t, e)
	}
}

func TestNewEntriesReplaceATail(t *testing.T) {
	s := open(t, newFS(t), small)
	save(t, s, update(1, state(1, 1, 2), entries(1, 10, 1, 80)...))
	save(t, s, update(1, state(2, 2, 2), entries(5, 6, 2, 90)...))
	want := append(entries(1, 4, 1, 80), entries(5, 6, 2, 90)...)
	again(t, s, func(s *Store) {
		require.Equal(t, want, all(t, s, 1, 1))
		require.EqualValues(t, 6, readState(t, s, 1, 0).EntryCount)
	})
	s = open(t, s.fs, small)
	save(t, s, update(1, state(3, 2, 2), entries(1, 1, 3, 90)...)) // all of it
	save(t, s, update(1, state(3, 2, 2), entries(2, 3, 3, 90)...))
	again(t, s, func(s *Store) { require.Equal(t, entries(1, 3, 3, 90), all(t, s, 1, 1)) })
}

func TestGapsAreRefused(t *testing.T) {
	s := open(t, newFS(t), small)
	save(t, s, update(1, state(1, 1, 1), entries(1, 3, 1, 8)...))
	for what, u := range map[string]raftpb.Update{
		"behind the last":   update(1, state(1, 1, 1), entries(5, 6, 1, 8)...),
		"in between":        update(1, state(1, 1, 1), entry(4, 1, 8), entry(6, 1, 8)),
		"backwards":         update(1, state(1, 1, 1), entry(4, 1, 8), entry(3, 1, 8)),
		"entry 0":           update(2, state(1, 1, 1), entry(0, 1, 8)),
		"below a snapshot":  {ShardID: 1, ReplicaID: 1, Snapshot: raftpb.Snapshot{Index: 9, Term: 1}, EntriesToSave: entries(4, 6, 1, 8)},
		"beyond a snapshot": {ShardID: 1, ReplicaID: 1, Snapshot: raftpb.Snapshot{Index: 9, Term: 1}, EntriesToSave: entries(11, 12, 1, 8)},
	} {
		require.Error(t, s.SaveRaftState([]raftpb.Update{u}, 1), what)
	}
	require.Error(t, s.SaveRaftState([]raftpb.Update{update(1, state(2, 1, 1)), update(1, state(3, 1, 1))}, 1))
	save(t, s, update(1, state(1, 1, 2), entries(4, 4, 1, 8)...)) // a refusal is no failure
	again(t, s, func(s *Store) {
		require.Equal(t, entries(1, 4, 1, 8), all(t, s, 1, 1))
		require.Equal(t, state(1, 1, 2), readState(t, s, 1, 0).State)
	})
}

func TestRemoveEntriesTo(t *testing.T) {
	s := open(t, newFS(t), small)
	want := entries(1, 20, 1, 50)
	save(t, s, update(1, state(1, 1, 20), want...))
	require.NoError(t, s.RemoveEntriesTo(1, 1, 12))
	require.NoError(t, s.RemoveEntriesTo(1, 1, 5))
	again(t, s, func(s *Store) {
		require.Equal(t, want[12:], all(t, s, 1, 13))
		require.Empty(t, all(t, s, 1, 12))
		require.Equal(t, raftio.RaftState{State: state(1, 1, 20), FirstIndex: 13, EntryCount: 8}, readState(t, s, 1, 0))
	})
	s = open(t, s.fs, small)
	require.NoError(t, s.RemoveEntriesTo(1, 1, math.MaxUint64))
	require.Error(t, s.SaveRaftState([]raftpb.Update{update(1, state(1, 1, 20), entry(23, 1, 9))}, 1))
	save(t, s, update(1, state(1, 1, 20), entry(21, 1, 9)))
	again(t, s, func(s *Store) { require.Equal(t, entries(21, 21, 1, 9), all(t, s, 1, 21)) })
}

func TestCompactEntriesTo(t *testing.T) {
	s := open(t, newFS(t), small)
	done, err := s.CompactEntriesTo(1, 1, math.MaxUint64)
	require.NoError(t, err)
	_, more := <-done
	require.False(t, more)
	require.NoError(t, s.Close())
}

func snapshotAt(index, term uint64) raftpb.Snapshot {
	return raftpb.Snapshot{Index: index, Term: term, Filepath: fmt.Sprintf("/s/%d", index), FileSize: index, Checksum: []byte{1, 2},
		Membership: raftpb.Membership{ConfigChangeId: 3, Addresses: map[uint64]string{1: "a"}}, Type: raftpb.ConcurrentStateMachine}
}

func getSnapshot(t testing.TB, s *Store, shard uint64) raftpb.Snapshot {
	t.Helper()
	ss, err := s.GetSnapshot(shard, 1)
	require.NoError(t, err)
	return ss
}

func TestSaveSnapshots(t *testing.T) {
	s := open(t, newFS(t), small)
	at := func(index uint64) raftpb.Update {
		return raftpb.Update{ShardID: 1, ReplicaID: 1, Snapshot: snapshotAt(index, 1)}
	}
	require.NoError(t, s.SaveSnapshots([]raftpb.Update{at(1), at(5), at(3)}))
	require.EqualValues(t, 5, getSnapshot(t, s, 1).Index)
	_, err := s.ReadRaftState(1, 1, 5)
	require.ErrorIs(t, err, raftio.ErrNoSavedLog, "a snapshot is no state")
	require.NoError(t, s.SaveSnapshots([]raftpb.Update{at(20)}))
	require.NoError(t, s.SaveSnapshots([]raftpb.Update{at(10), at(20)})) // older ones are ignored
	again(t, s, func(s *Store) { require.Equal(t, snapshotAt(20, 1).Membership, getSnapshot(t, s, 1).Membership) })

	s = open(t, s.fs, small)
	ss := getSnapshot(t, s, 1)
	ss.Load(compactor{}) // as the engine does: what is given out is its own
	ss.Membership.Addresses[2] = "b"
	ss = getSnapshot(t, s, 1)
	ss.Load(compactor{})
	require.Len(t, ss.Membership.Addresses, 1)
	require.NoError(t, s.Close())
}

type compactor struct{}

func (compactor) Compact(uint64) error { return nil }

// The engine would not start again with a commit index below its snapshot.
func TestASnapshotRaisesTheCommitIndex(t *testing.T) {
	s := open(t, newFS(t), small)
	save(t, s, update(1, state(4, 2, 1), entries(1, 20, 4, 50)...))
	save(t, s, update(1, state(4, 2, 20))) // not written
	require.NoError(t, s.SaveSnapshots([]raftpb.Update{{ShardID: 1, ReplicaID: 1, Snapshot: snapshotAt(20, 4)}}))
	again(t, s, func(s *Store) {
		require.Equal(t, raftio.RaftState{State: state(4, 2, 20), FirstIndex: 20}, readState(t, s, 1, 20))
		require.Len(t, all(t, s, 1, 1), 20, "its own snapshot is not the end of the log")
	})

	// The engine may apply, and make a snapshot of, what it has not yet told to be committed.
	s = open(t, newFS(t), small)
	save(t, s, update(1, state(4, 2, 1), entries(1, 20, 4, 50)...))
	require.NoError(t, s.SaveSnapshots([]raftpb.Update{{ShardID: 1, ReplicaID: 1, Snapshot: snapshotAt(15, 4)}}))
	save(t, s, update(1, state(4, 2, 12), entry(21, 4, 8)))
	again(t, s, func(s *Store) {
		require.Equal(t, state(4, 2, 15), readState(t, s, 1, 15).State)
	})
}

func TestASnapshotFromTheLeaderReplacesTheLog(t *testing.T) {
	for _, last := range []uint64{5, 50} { // before the snapshot and behind it
		s := open(t, newFS(t), small)
		save(t, s, update(1, state(4, 2, 1), entries(1, last, 4, 50)...))
		save(t, s, raftpb.Update{ShardID: 1, ReplicaID: 1, State: state(5, 0, 30), Snapshot: snapshotAt(30, 5)})
		again(t, s, func(s *Store) {
			require.EqualValues(t, 30, getSnapshot(t, s, 1).Index)
			require.Equal(t, raftio.RaftState{State: state(5, 0, 30), FirstIndex: 30}, readState(t, s, 1, 30))
			for _, low := range []uint64{1, 5, 30, 31} {
				require.Empty(t, all(t, s, 1, low))
			}
		})
		s = open(t, s.fs, small)
		save(t, s, update(1, state(5, 0, 30), entries(31, 33, 5, 50)...))
		// One that is older says nothing.
		save(t, s, raftpb.Update{ShardID: 1, ReplicaID: 1, Snapshot: snapshotAt(29, 5)})
		again(t, s, func(s *Store) {
			require.Equal(t, raftio.RaftState{State: state(5, 0, 30), FirstIndex: 31, EntryCount: 3}, readState(t, s, 1, 30))
			require.Equal(t, entries(31, 33, 5, 50), all(t, s, 1, 31))
		})
	}
	s := open(t, newFS(t), small) // the two together
	save(t, s, raftpb.Update{ShardID: 1, ReplicaID: 1, State: state(5, 0, 4), Snapshot: snapshotAt(30, 5), EntriesToSave: entries(31, 32, 5, 9)})
	again(t, s, func(s *Store) {
		require.Equal(t, raftio.RaftState{State: state(5, 0, 30), FirstIndex: 31, EntryCount: 2}, readState(t, s, 1, 30))
	})
}

func TestRemoveNodeData(t *testing.T) {
	s := open(t, newFS(t), small)
	for shard := uint64(1); shard <= 2; shard++ {
		require.NoError(t, s.SaveBootstrapInfo(shard, 1, raftpb.Bootstrap{Join: true}))
		save(t, s, update(shard, state(4, 2, 1), entries(1, 9, 4, 50)...))
		require.NoError(t, s.SaveSnapshots([]raftpb.Update{{ShardID: shard, ReplicaID: 1, Snapshot: snapshotAt(5, 4)}}))
	}
	require.NoError(t, s.RemoveNodeData(1, 1))
	require.NoError(t, s.RemoveNodeData(3, 1)) // nothing there
	again(t, s, func(s *Store) {
		_, err := s.ReadRaftState(1, 1, 0)
		require.ErrorIs(t, err, raftio.ErrNoSavedLog)
		_, err = s.GetBootstrapInfo(1, 1)
		require.ErrorIs(t, err, raftio.ErrNoBootstrapInfo)
		require.Zero(t, getSnapshot(t, s, 1).Index)
		require.Empty(t, all(t, s, 1, 1))
		require.Len(t, all(t, s, 2, 1), 9)
		infos, err := s.ListNodeInfo()
		require.NoError(t, err)
		require.Equal(t, []raftio.NodeInfo{{ShardID: 2, ReplicaID: 1}}, infos)
	})
	s = open(t, s.fs, small)
	save(t, s, update(1, state(1, 0, 0), entries(3, 4, 1, 8)...)) // a new life begins anywhere
	again(t, s, func(s *Store) { require.Len(t, all(t, s, 1, 3), 2) })
}

func TestImportSnapshot(t *testing.T) {
	s := open(t, newFS(t), small)
	require.NoError(t, s.SaveBootstrapInfo(1, 1, raftpb.Bootstrap{Addresses: map[uint64]string{1: "a"}}))
	save(t, s, raftpb.Update{ShardID: 1, ReplicaID: 1, State: state(4, 2, 120), Snapshot: snapshotAt(120, 4)})
	save(t, s, update(1, state(4, 2, 120), entries(121, 140, 4, 50)...))
	ss := snapshotAt(110, 3)
	ss.ShardID = 1
	require.NoError(t, s.ImportSnapshot(ss, 1))
	again(t, s, func(s *Store) {
		require.EqualValues(t, 110, getSnapshot(t, s, 1).Index, "also an older one")
		info, err := s.GetBootstrapInfo(1, 1)
		require.NoError(t, err)
		require.Equal(t, raftpb.Bootstrap{Join: true, Type: raftpb.ConcurrentStateMachine}, info)
		require.Equal(t, raftio.RaftState{State: state(3, 0, 110), FirstIndex: 110}, readState(t, s, 1, 110))
		require.Empty(t, all(t, s, 1, 121))
	})
	s = open(t, s.fs, small)
	require.Error(t, s.ImportSnapshot(raftpb.Snapshot{Index: 1, ShardID: 1}, 1), "without a type")
	save(t, s, update(1, state(3, 0, 110), entry(111, 3, 8)))
	require.NoError(t, s.Close())
}

// What may be lost and what may not.
func TestOnlyTheCommitIndexIsVolatile(t *testing.T) {
	fs := newFS(t)
	s := open(t, fs, small)
	crash := func() raftpb.State {
		require.NoError(t, s.release())
		fs.ResetToSyncedState()
		s = open(t, fs, small)
		return readState(t, s, 1, 0).State
	}
	save(t, s, update(1, state(0, 0, 1)))
	require.Equal(t, state(0, 0, 1), crash(), "the first state is always written")
	save(t, s, update(1, state(1, 0, 1), entries(1, 9, 1, 8)...))
	was := s.sequence
	save(t, s, update(1, state(1, 0, 5)), update(2, raftpb.State{}))
	save(t, s, update(1, raftpb.State{}))
	require.Equal(t, was, s.sequence, "not written")
	require.Equal(t, state(1, 0, 5), readState(t, s, 1, 0).State, "but known")
	require.Equal(t, state(1, 0, 1), crash())
	save(t, s, update(1, state(1, 0, 5)))
	save(t, s, update(1, raftpb.State{}, entry(10, 1, 8)))
	require.Equal(t, state(1, 0, 5), crash(), "it travels with the next record")
	save(t, s, update(1, state(1, 3, 5)))
	require.Equal(t, state(1, 3, 5), crash(), "a vote")
	save(t, s, update(1, state(2, 3, 5)))
	require.Equal(t, state(2, 3, 5), crash(), "a term")
	save(t, s, update(1, state(2, 0, 5)))
	require.Equal(t, state(2, 0, 5), crash(), "no vote")
	save(t, s, update(1, state(2, 0, 8)))
	require.NoError(t, s.Close())
	s = open(t, fs, small)
	require.Equal(t, state(2, 0, 8), readState(t, s, 1, 0).State, "a clean end loses nothing")
	require.NoError(t, s.Close())
}

func TestFactory(t *testing.T) {
	f := Factory{SegmentSize: 8 << 10}
	require.NotContains(t, []string{"sharded-pebble", "sharded-rocksdb", "tan", "Tan", "pebble"}, f.Name())
	require.NotContains(t, []uint32{raftio.LogDBBinVersion, raftio.PlainLogDBBinVersion}, uint32(BinaryFormat))
	fs := newFS(t)
	conf := config.NodeHostConfig{Expert: config.ExpertConfig{FS: fs}}
	require.NoError(t, fs.MkdirAll("/fast", 0o755))
	db, err := f.Create(conf, nil, []string{"/d"}, []string{"/fast"})
	require.NoError(t, err)
	require.Equal(t, Name, db.Name())
	require.EqualValues(t, BinaryFormat, db.BinaryFormat())
	require.NoError(t, db.Close())
	require.NoError(t, db.Close())
	_, err = fs.Stat("/fast/raftlog/0000000001.log")
	require.NoError(t, err)
	_, err = f.Create(conf, nil, []string{"/a", "/b"}, nil)
	require.Error(t, err)
	_, err = f.Create(conf, nil, nil, nil)
	require.Error(t, err)

	dir := t.TempDir() // on the real file system, with the default size
	for range 3 {
		db, err = Factory{}.Create(config.NodeHostConfig{}, nil, []string{dir}, nil)
		require.NoError(t, err)
		first := uint64(1)
		if st, err := db.ReadRaftState(1, 1, 0); err == nil {
			first += st.EntryCount
		}
		require.NoError(t, db.SaveRaftState([]raftpb.Update{update(1, state(1, 1, 1), entries(first, first+9, 1, 100_000)...)}, 1))
		require.Equal(t, entries(1, first+9, 1, 100_000), all(t, db.(*Store), 1, 1))
		require.NoError(t, db.Close())
	}
	_, err = db.GetBootstrapInfo(1, 1)
	require.ErrorIs(t, err, errClosed)
}

// Readers and writers of many groups at once.
func TestConcurrency(t *testing.T) {
	s := open(t, newFS(t), small)
	var group sync.WaitGroup
	work := func(f func() error) {
		group.Go(func() {
			if err := f(); err != nil {
				t.Error(err)
			}
		})
	}
	const rounds = 60
	for shard := uint64(1); shard <= 4; shard++ {
		work(func() error {
			for i := uint64(1); i <= rounds; i++ {
				if err := s.SaveRaftState([]raftpb.Update{update(shard, state(i/9, 1, i-1), entry(i, i/9, 300))}, shard); err != nil {
					return err
				}
				if err := s.SaveRaftState([]raftpb.Update{update(shard, state(i/9, 1, i))}, shard); err != nil {
					return err
				}
				if i%10 == 0 {
					if err := s.RemoveEntriesTo(shard, 1, i-5); err != nil {
						return err
					}
				}
			}
			return nil
		})
		work(func() error {
			for i := uint64(1); i <= rounds; i++ {
				st, err := s.ReadRaftState(shard, 1, 0)
				if err != nil {
					if errors.Is(err, raftio.ErrNoSavedLog) {
						continue
					}
					return err
				}
				e, _, err := s.IterateEntries(nil, 0, shard, 1, st.FirstIndex, st.FirstIndex+st.EntryCount, math.MaxUint64)
				if err != nil {
					return err
				}
				for k, e := range e {
					if e.Index != st.FirstIndex+uint64(k) {
						return fmt.Errorf("entry %d at %d", e.Index, st.FirstIndex+uint64(k))
					}
				}
			}
			return nil
		})
		work(func() error {
			for i := uint64(1); i <= rounds; i += 7 {
				_, done := s.CompactEntriesTo(shard, 1, i)
				err := errors.Join(done, s.SaveSnapshots([]raftpb.Update{{ShardID: shard + 100, ReplicaID: 1, Snapshot: snapshotAt(i, 1)}}))
				_, got := s.GetSnapshot(shard+100, 1)
				_, listed := s.ListNodeInfo()
				if err := errors.Join(err, got, listed); err != nil {
					return err
				}
			}
			return nil
		})
	}
	group.Wait()
	for shard := uint64(1); shard <= 4; shard++ {
		e := all(t, s, shard, rounds-4)
		require.EqualValues(t, rounds, e[len(e)-1].Index)
	}
	require.NoError(t, s.Close())
}
