package raftlog

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lni/dragonboat/v4/raftio"
	"github.com/lni/dragonboat/v4/raftpb"
	"github.com/lni/vfs"
	"github.com/stretchr/testify/require"
)

// A model is what a store should hold, kept as simply as can be. Of each replica it
// also has the state that must be on the disk: a commit index may be lost.
type model map[uint64]*group // by shard

type group struct {
	bootstrap    bool
	state, saved raftpb.State
	snapshot     uint64
	log          []raftpb.Entry // with no gap
	last         uint64         // may lie behind an empty log
}

func (m model) clone() model {
	c := make(model)
	for shard, g := range m {
		copied := *g
		copied.log = slices.Clone(g.log)
		c[shard] = &copied
	}
	return c
}

func (m model) group(shard uint64) *group {
	if m[shard] == nil {
		m[shard] = &group{}
	}
	return m[shard]
}

func (g *group) save(u raftpb.Update) {
	written := false
	if u.Snapshot.Index > g.snapshot {
		g.snapshot, g.last, g.log, written = u.Snapshot.Index, u.Snapshot.Index, nil, true
	}
	if e := u.EntriesToSave; len(e) > 0 {
		g.log = slices.DeleteFunc(g.log, func(old raftpb.Entry) bool { return old.Index >= e[0].Index })
		g.log, g.last, written = append(g.log, e...), e[len(e)-1].Index, true
	}
	if !raftpb.IsEmptyState(u.State) {
		g.state = u.State
	}
	if written || g.state.Term != g.saved.Term || g.state.Vote != g.saved.Vote {
		g.saved = g.state
	}
}

// upTo is m after a call that brings next, and did not get far: the commit indexes that it
// brings alone may have come onto the disk, with a checkpoint.
func (m model) upTo(next model) model {
	c := m.clone()
	for shard, g := range c {
		n := next[shard]
		if n != nil && n.saved == g.saved && n.snapshot == g.snapshot && slices.EqualFunc(n.log, g.log, same) {
			g.state = n.state
		}
	}
	return c
}

// A step is one call, of the store and of the model.
type step struct {
	what  string
	store func(*Store) error
	model func(model)
}

// walk draws a step that Raft could take after m.
func walk(r *rand.Rand, m model, size int) step {
	shard := 1 + r.Uint64N(3)
	switch r.IntN(20) {
	case 0:
		return step{"bootstrap", func(s *Store) error {
			return s.SaveBootstrapInfo(shard, 1, raftpb.Bootstrap{Addresses: map[uint64]string{1: "a"}})
		}, func(m model) { m.group(shard).bootstrap = true }}
	case 1:
		if g := m[shard]; g != nil && g.state.Commit > g.snapshot {
			index := g.state.Commit - r.Uint64N(min(g.state.Commit-g.snapshot, 3))
			return step{"snapshot", func(s *Store) error {
				return s.SaveSnapshots([]raftpb.Update{{ShardID: shard, ReplicaID: 1, Snapshot: snapshotAt(index, 1)}})
			}, func(m model) {
				g := m.group(shard)
				g.snapshot, g.saved = index, g.state
			}}
		}
	case 2, 3:
		if g := m[shard]; g != nil && g.snapshot > 0 {
			index := g.snapshot - r.Uint64N(min(g.snapshot, 4))
			return step{"remove entries", func(s *Store) error { return s.RemoveEntriesTo(shard, 1, index) }, func(m model) {
				g := m.group(shard)
				g.log = slices.DeleteFunc(g.log, func(e raftpb.Entry) bool { return e.Index <= index })
			}}
		}
	case 4:
		if r.IntN(10) == 0 {
			return step{"remove node", func(s *Store) error { return s.RemoveNodeData(shard, 1) }, func(m model) { delete(m, shard) }}
		}
		if r.IntN(10) == 0 {
			ss := snapshotAt(1+r.Uint64N(50), 1+r.Uint64N(5))
			ss.ShardID = shard
			st := raftpb.State{Term: ss.Term, Commit: ss.Index}
			return step{"import", func(s *Store) error { return s.ImportSnapshot(ss, 1) }, func(m model) {
				m[shard] = &group{bootstrap: true, state: st, saved: st, snapshot: ss.Index, last: ss.Index}
			}}
		}
	}
	var updates []raftpb.Update
	for other := uint64(1); other <= 3; other++ {
		if other == shard || r.IntN(4) == 0 {
			updates = append(updates, drawUpdate(r, other, m.clone().group(other), size))
		}
	}
	return step{"save", func(s *Store) error { return s.SaveRaftState(updates, 1) }, func(m model) {
		for _, u := range updates {
			m.group(u.ShardID).save(u)
		}
	}}
}

func drawUpdate(r *rand.Rand, shard uint64, g *group, size int) raftpb.Update {
	u := raftpb.Update{ShardID: shard, ReplicaID: 1}
	st := g.state
	if st.Term == 0 || r.IntN(8) == 0 {
		st.Term, st.Vote = st.Term+1+r.Uint64N(2), r.Uint64N(4)
	} else if st.Vote == 0 && r.IntN(3) == 0 {
		st.Vote = 1 + r.Uint64N(3)
	}
	last := g.last
	switch k := r.IntN(10); {
	case k == 0 && last > 0:
		u.Snapshot = snapshotAt(max(last, st.Commit)+1+r.Uint64N(9), st.Term)
		last = u.Snapshot.Index
		st.Commit = last
	case k < 6:
		first := st.Commit + 1 + r.Uint64N(last-st.Commit+1) // what is committed stays
		if r.IntN(2) == 0 {
			first = last + 1
		}
		u.EntriesToSave = entries(first, first+r.Uint64N(4), st.Term, r.IntN(size))
		last = u.EntriesToSave[len(u.EntriesToSave)-1].Index
	}
	if r.IntN(2) == 0 {
		st.Commit += r.Uint64N(last - st.Commit + 1)
	}
	if st != g.state {
		u.State = st
	}
	return u
}

// differs says where s is not what m says. After a crash, a commit index may be any between
// what was written and what was known.
func (m model) differs(s *Store, crashed bool) error {
	infos, err := s.ListNodeInfo()
	if err != nil {
		return err
	}
	for shard := uint64(1); shard <= 3; shard++ {
		g := m[shard]
		if g == nil {
			g = &group{}
		}
		if err := g.differs(s, shard, infos, crashed); err != nil {
			return fmt.Errorf("shard %d: %w", shard, err)
		}
	}
	return nil
}

func (g *group) differs(s *Store, shard uint64, infos []raftio.NodeInfo, crashed bool) error {
	_, err := s.GetBootstrapInfo(shard, 1)
	if listed := slices.Contains(infos, raftio.NodeInfo{ShardID: shard, ReplicaID: 1}); g.bootstrap != listed || g.bootstrap != (err == nil) {
		return fmt.Errorf("bootstrap: %v, %v", infos, err)
	}
	ss, err := s.GetSnapshot(shard, 1)
	if err != nil || ss.Index != g.snapshot {
		return fmt.Errorf("snapshot %d and not %d: %w", ss.Index, g.snapshot, err)
	}
	got, err := s.ReadRaftState(shard, 1, g.snapshot)
	if g.state.Term == 0 {
		if !errors.Is(err, raftio.ErrNoSavedLog) {
			return fmt.Errorf("a state: %v, %w", got, err)
		}
	} else if err != nil {
		return err
	}
	st := got.State
	least := g.state.Commit
	if crashed {
		least = g.saved.Commit
	}
	if st.Term != g.state.Term || st.Vote != g.state.Vote || st.Commit < least || st.Commit > g.state.Commit {
		return fmt.Errorf("state %v, not %v, saved %v", st, g.state, g.saved)
	}
	if g.state.Term != 0 && (st.Commit < g.snapshot || st.Commit > max(g.last, g.snapshot)) {
		return fmt.Errorf("commit %d, snapshot %d, last %d: the engine would not start", st.Commit, g.snapshot, g.last)
	}
	var want []raftpb.Entry
	for _, e := range g.log {
		if e.Index >= g.snapshot {
			want = append(want, e)
		}
	}
	if g.state.Term != 0 && g.last > g.snapshot && (got.EntryCount != uint64(len(want)) || len(want) > 0 && got.FirstIndex != want[0].Index) {
		return fmt.Errorf("%d entries from %d, not %d", got.EntryCount, got.FirstIndex, len(want))
	}
	low := uint64(1)
	if len(g.log) > 0 {
		low = g.log[0].Index
	}
	found, _, err := s.IterateEntries(nil, 0, shard, 1, low, math.MaxUint64, math.MaxUint64)
	if err != nil || !slices.EqualFunc(found, g.log, same) {
		return fmt.Errorf("%d entries from %d on, not %d: %w", len(found), low, len(g.log), err)
	}
	if before, _, err := s.IterateEntries(nil, 0, shard, 1, low-1, math.MaxUint64, math.MaxUint64); err != nil || len(before) > 0 {
		return fmt.Errorf("there is more before %d: %w", low, err)
	}
	return nil
}

func same(a, b raftpb.Entry) bool {
	return a.Index == b.Index && a.Term == b.Term && a.Key == b.Key && slices.Equal(a.Cmd, b.Cmd)
}

// bounded tells whether the log takes no more than it may, after it needed peak at most:
// space is given back when a segment begins.
func bounded(t *testing.T, s *Store, record int64, peak *int64) {
	t.Helper()
	var needed, kept int64
	for _, g := range s.segments {
		needed += g.bytes
		kept += g.size
	}
	*peak = max(*peak, needed)
	require.LessOrEqual(t, kept, 2**peak+6*(s.segSize+record), "in %d segments", len(s.segments))
	names, err := s.fs.List(s.dir)
	require.NoError(t, err)
	require.LessOrEqual(t, len(names), len(s.segments)+maxSpares, "%v", names)
}

// Any walk gives what the model says, also after a new start at any time.
func TestModel(t *testing.T) {
	walks := 40
	if testing.Short() {
		walks = 8
	}
	r := dice(t)
	for range walks {
		fs := newFS(t)
		s := open(t, fs, Factory{SegmentSize: 1 << (9 + r.IntN(6))})
		m := make(model)
		var peak int64
		size := 1 << (3 + r.IntN(9))
		for i := range 300 {
			step := walk(r, m, size)
			require.NoError(t, step.store(s), "step %d: %s", i, step.what)
			step.model(m)
			if r.IntN(10) == 0 {
				require.NoError(t, m.differs(s, false), "step %d: %s", i, step.what)
			}
			if r.IntN(25) == 0 {
				clean := r.IntN(3) == 0
				if !clean && r.IntN(2) == 0 {
					require.NoError(t, s.release())
					fs.ResetToSyncedState()
					s = open(t, fs, Factory{SegmentSize: s.segSize})
				} else {
					s = reopen(t, s, clean)
				}
				require.NoError(t, m.differs(s, !clean), "after a new start at step %d", i)
				m.forget(s)
			}
			bounded(t, s, int64(3*4*(size+100)), &peak)
		}
		require.NoError(t, s.Close())
	}
}

// forget sets the commit indexes that are known after a crash.
func (m model) forget(s *Store) {
	for shard, g := range m {
		if st, err := s.ReadRaftState(shard, 1, 0); err == nil {
			g.state, g.saved = st.State, st.State
		}
	}
}

var errPower = errors.New("the power is off")

// What becomes of the operation at which the power goes off.
const (
	lost    = iota // nothing of it is on the disk
	torn           // some sectors of a write are, not always the first
	done           // it is on the disk, but nobody has heard of it
	cached         // the process is killed: it is in the page cache only
	outages        // how many kinds there are
)

// A failingFS goes off after a number of operations.
type failingFS struct {
	*vfs.MemFS
	left int
	how  int
	r    *rand.Rand
	off  bool
	once bool // only that operation fails
}

// operate does op if the power is on; finish makes its effect durable.
func (f *failingFS) operate(op, finish func() error) error {
	if f.off {
		return errPower
	}
	f.left--
	if f.left >= 0 || f.once && f.left < -1 {
		return op()
	}
	f.off = !f.once
	if f.how == done || f.how == cached {
		_ = op()
	}
	if f.how == done {
		_ = finish()
	}
	return errPower
}

func (f *failingFS) syncDir() error {
	d, err := f.MemFS.OpenDir("/d/log")
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func (f *failingFS) wrap(file vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &failingFile{file, f}, nil
}

func (f *failingFS) Create(name string) (file vfs.File, err error) {
	err = f.operate(func() error { file, err = f.wrap(f.MemFS.Create(name)); return err }, f.syncDir)
	return file, err
}

func (f *failingFS) ReuseForWrite(from, to string) (file vfs.File, err error) {
	err = f.operate(func() error { file, err = f.wrap(f.MemFS.ReuseForWrite(from, to)); return err }, f.syncDir)
	return file, err
}

func (f *failingFS) Rename(from, to string) error {
	return f.operate(func() error { return f.MemFS.Rename(from, to) }, f.syncDir)
}

func (f *failingFS) Remove(name string) error {
	return f.operate(func() error { return f.MemFS.Remove(name) }, f.syncDir)
}

func (f *failingFS) OpenDir(name string) (vfs.File, error) { return f.wrap(f.MemFS.OpenDir(name)) }

func (f *failingFS) Open(name string, _ ...vfs.OpenOption) (vfs.File, error) {
	return f.wrap(f.MemFS.Open(name))
}

type failingFile struct {
	vfs.File
	fs *failingFS
}

const sector = 64 // of the disk, in a test

func (f *failingFile) WriteAt(b []byte, at int64) (n int, err error) {
	tearing := !f.fs.off && f.fs.left == 0 && f.fs.how == torn
	err = f.fs.operate(func() error { n, err = f.File.WriteAt(b, at); return err }, f.File.Sync)
	if tearing {
		before := make([]byte, len(b))
		_, _ = f.File.ReadAt(before, at)
		mixed := slices.Clone(b)
		for i := 0; i < len(b); i += sector {
			if f.fs.r.IntN(2) == 0 {
				copy(mixed[i:min(i+sector, len(b))], before[i:])
			}
		}
		_, _ = f.File.WriteAt(mixed, at)
		_ = f.File.Sync()
	}
	return n, err
}

func (f *failingFile) Sync() error {
	return f.fs.operate(f.File.Sync, f.File.Sync)
}

// The power goes off at each write, sync, rename and removal in turn. All that was
// acknowledged is there afterwards, and of what was not, the one record under way or nothing.
func TestPowerGoesOffAtEachOperation(t *testing.T) {
	r := dice(t)
	const size = 1 << 10
	seed := r.Uint64()
	for how := range outages {
		stride := 1
		if testing.Short() {
			stride = 7
		}
		for at := r.IntN(stride); ; at += stride {
			fs := newFS(t)
			off := &failingFS{MemFS: fs, left: at, how: how, r: r}
			ended := crashWalk(t, off, rand.New(rand.NewPCG(seed, 0)), Factory{SegmentSize: size}, fmt.Sprintf("outage %d at operation %d", how, at))
			if ended {
				break
			}
		}
	}
}

// crashWalk walks until the power goes off, twice: also a recovery is interrupted. It
// reports whether the walk ended before.
func crashWalk(t *testing.T, fs *failingFS, r *rand.Rand, f Factory, what string) (ended bool) {
	t.Helper()
	m := make(model)
	possible := []model{m}
	s, err := Open(fs, "/d/log", f)
	for i := 0; i < 60 && err == nil; i++ {
		step := walk(r, m, 300)
		next := m.clone()
		step.model(next)
		possible = []model{m.upTo(next), next}
		if err = step.store(s); err == nil {
			m = next
			possible = []model{m}
		}
		if err == nil && i%20 == 19 {
			if err = s.Close(); err == nil {
				for _, g := range m { // Close writes the commit indexes
					g.saved = g.state
				}
				s, err = Open(fs, "/d/log", f)
			}
		}
	}
	if err == nil {
		err = s.Close()
	}
	ended = err == nil
	if !ended {
		require.ErrorIs(t, err, errPower, what)
	}
	disk := powerCycle(t, fs)
	// A second outage, while the first is mended.
	again := &failingFS{MemFS: disk, left: fs.r.IntN(8), how: fs.how, r: fs.r}
	if s, err := Open(again, "/d/log", f); err != nil {
		require.ErrorIs(t, err, errPower, what)
	} else {
		_ = s.release()
	}
	s, err = Open(powerCycle(t, again), "/d/log", f)
	require.NoError(t, err, what)
	var faults []error
	for _, m := range possible {
		faults = append(faults, m.differs(s, true))
	}
	require.Contains(t, faults, error(nil), "%s: %v", what, errors.Join(faults...))
	m = possible[slices.Index(faults, nil)]
	m.forget(s)
	for range 10 { // it goes on, and what it writes now is found as well
		step := walk(fs.r, m, 300)
		require.NoError(t, step.store(s), what)
		step.model(m)
	}
	s = reopen(t, s, false)
	require.NoError(t, m.differs(s, true), what)
	require.NoError(t, s.Close())
	return ended
}

// powerCycle returns what is left. It is a copy, without the files that were open.
func powerCycle(t *testing.T, fs *failingFS) *vfs.MemFS {
	t.Helper()
	if fs.how != cached {
		fs.ResetToSyncedState()
	}
	disk := newFS(t)
	require.NoError(t, disk.MkdirAll("/d/log", 0o755))
	names, err := fs.List("/d/log")
	if err != nil {
		names = nil // not even the directory
	}
	for _, name := range names {
		putFile(t, disk, name, getFile(t, fs.MemFS, name))
	}
	for _, dir := range []string{"/d/log", "/d"} {
		d, err := disk.OpenDir(dir)
		require.NoError(t, err)
		require.NoError(t, errors.Join(d.Sync(), d.Close()))
	}
	return disk
}

func getFile(t *testing.T, fs vfs.FS, name string) []byte {
	t.Helper()
	f, err := fs.Open("/d/log/" + name)
	require.NoError(t, err)
	b, err := io.ReadAll(f)
	require.NoError(t, errors.Join(err, f.Close()))
	return b
}

func putFile(t *testing.T, fs vfs.FS, name string, b []byte) {
	t.Helper()
	f, err := fs.Create("/d/log/" + name)
	require.NoError(t, err)
	_, err = f.Write(b)
	require.NoError(t, errors.Join(err, f.Sync(), f.Close()))
}

// After a failed write or sync nothing works any more, whatever it is, with the same error,
// and the disk is not touched again.
func TestAFailureIsForGood(t *testing.T) {
	for left := range 2 { // the write, the sync
		fs := newFS(t)
		off := &failingFS{MemFS: fs, left: math.MaxInt, once: true}
		s := open(t, off, small)
		save(t, s, update(1, state(1, 1, 1), entries(1, 3, 1, 50)...))
		off.left = left
		err := s.SaveRaftState([]raftpb.Update{update(1, state(2, 1, 1), entry(4, 1, 8))}, 1)
		require.ErrorIs(t, err, errPower)
		require.ErrorContains(t, err, "/d/log")
		off.left = math.MaxInt // the disk works again
		calls := map[string]func() error{
			"save":        func() error { return s.SaveRaftState([]raftpb.Update{update(1, state(3, 1, 1))}, 1) },
			"commit only": func() error { return s.SaveRaftState([]raftpb.Update{update(1, state(1, 1, 2))}, 1) },
			"nothing":     func() error { return s.SaveRaftState(nil, 1) },
			"snapshots":   func() error { return s.SaveSnapshots(nil) },
			"bootstrap":   func() error { return s.SaveBootstrapInfo(1, 1, raftpb.Bootstrap{}) },
			"remove":      func() error { return s.RemoveEntriesTo(1, 1, 2) },
			"remove none": func() error { return s.RemoveEntriesTo(9, 1, 2) },
			"remove node": func() error { return s.RemoveNodeData(1, 1) },
			"import":      func() error { return s.ImportSnapshot(snapshotAt(3, 1), 1) },
			"state":       func() error { _, err := s.ReadRaftState(1, 1, 0); return err },
			"snapshot":    func() error { _, err := s.GetSnapshot(1, 1); return err },
			"info":        func() error { _, err := s.GetBootstrapInfo(1, 1); return err },
			"list":        func() error { _, err := s.ListNodeInfo(); return err },
			"entries":     func() error { _, _, err := s.IterateEntries(nil, 0, 1, 1, 1, 3, 99); return err },
		}
		for _, name := range slices.Sorted(maps.Keys(calls)) {
			require.Equal(t, err, calls[name](), name)
		}
		require.Equal(t, math.MaxInt, off.left, "the disk was touched")
		require.ErrorIs(t, s.Close(), err)
		fs.ResetToSyncedState()
		s = open(t, fs, small)
		require.Equal(t, state(1, 1, 1), readState(t, s, 1, 0).State)
		require.Equal(t, entries(1, 3, 1, 50), all(t, s, 1, 1))
		require.NoError(t, s.Close())
	}
}

// syncFS calls a function during each fsync of a segment.
type syncFS struct {
	*vfs.MemFS
	during func()
}

type syncFile struct {
	vfs.File
	fs *syncFS
}

func (f *syncFS) ReuseForWrite(from, to string) (vfs.File, error) {
	file, err := f.MemFS.ReuseForWrite(from, to)
	return &syncFile{file, f}, err
}

func (f *syncFile) Sync() error {
	f.fs.during()
	return f.File.Sync()
}

// During an fsync readers go on, and see nothing of what may still be lost.
func TestReadersDuringAnFsync(t *testing.T) {
	fs := &syncFS{MemFS: newFS(t), during: func() {}}
	s := open(t, fs, small)
	save(t, s, update(1, state(1, 1, 1), entries(1, 3, 1, 50)...))
	looks := 0
	fs.during = func() {
		looks++
		require.Equal(t, state(1, 1, 1), readState(t, s, 1, 0).State)
		require.Len(t, all(t, s, 1, 1), 3)
		require.Zero(t, getSnapshot(t, s, 1).Index)
	}
	save(t, s, raftpb.Update{ShardID: 1, ReplicaID: 1, State: state(2, 2, 9), Snapshot: snapshotAt(9, 2)})
	require.Equal(t, 1, looks, "one fsync for one call")
	fs.during = func() { looks++ }
	save(t, s, update(1, state(2, 2, 9), entries(10, 12, 1, 50)...), update(2, state(1, 0, 0)), update(3, state(1, 0, 0)))
	require.Equal(t, 2, looks, "one for all groups")
	require.NoError(t, s.Close())
}
