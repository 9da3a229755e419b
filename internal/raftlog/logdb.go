package raftlog

import (
	"fmt"
	"hash/crc32"
	"slices"

	"github.com/lni/dragonboat/v4/raftio"
	"github.com/lni/dragonboat/v4/raftpb"
)

// SaveRaftState implements raftio.ILogDB. All updates become durable together; of those that
// only move a commit index nothing is written.
func (s *Store) SaveRaftState(updates []raftpb.Update, _ uint64) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.failed != nil {
		return s.failed
	}
	s.changes = s.changes[:0]
	for i := range updates {
		u := &updates[i]
		c := change{id: raftio.NodeInfo{ShardID: u.ShardID, ReplicaID: u.ReplicaID}}
		if s.changing(c.id) != nil {
			return fmt.Errorf("raftlog: two updates of shard %d, replica %d at once", u.ShardID, u.ReplicaID)
		}
		if err := s.prepare(&c, u); err != nil {
			return fmt.Errorf("raftlog: shard %d, replica %d: %w", u.ShardID, u.ReplicaID, err)
		}
		if c.parts != 0 {
			s.changes = append(s.changes, c)
		}
	}
	if len(s.changes) == 0 {
		return nil
	}
	err := s.append(s.changes)
	clear(s.changes) // they hold entries
	return err
}

// node returns what is known of a replica, be it nothing.
func (s *Store) node(id raftio.NodeInfo) *node {
	if n := s.nodes[id]; n != nil {
		return n
	}
	return &node{}
}

func (s *Store) changing(id raftio.NodeInfo) *change {
	if i := slices.IndexFunc(s.changes, func(c change) bool { return c.id == id }); i >= 0 {
		return &s.changes[i]
	}
	return nil
}

// prepare puts into c what u brings.
func (s *Store) prepare(c *change, u *raftpb.Update) error {
	n := s.node(c.id)
	last, length := n.log.last, n.log.length()
	if u.Snapshot.Index > n.snapshot.index {
		if err := c.putSnapshot(&u.Snapshot); err != nil {
			return err
		}
		// A snapshot that comes from the leader stands in place of the whole log.
		c.extent = extent{u.Snapshot.Index + 1, u.Snapshot.Index}
		c.parts |= partExtent
		last, length = u.Snapshot.Index, 0
	}
	if e := u.EntriesToSave; len(e) > 0 {
		if err := checkEntries(e, last, length); err != nil {
			return err
		}
		if c.parts&partSnapshot != 0 && e[len(e)-1].Index < last {
			return fmt.Errorf("entries up to %d come with a snapshot of %d", e[len(e)-1].Index, last)
		}
		c.runs = []run{{first: e[0].Index, entries: e}}
		c.parts |= partRuns
	}
	s.putState(c, n, u.State)
	if c.parts == 0 {
		s.reading.Lock()
		n.state = c.state
		s.reading.Unlock()
	}
	return nil
}

// putState decides whether the state must be written. See the package's comment for why
// a commit index alone need not, and why it must not fall behind the snapshot.
func (s *Store) putState(c *change, n *node, state raftpb.State) {
	c.state = state
	if raftpb.IsEmptyState(state) {
		c.state = n.state
	}
	if raftpb.IsEmptyState(c.state) {
		return
	}
	c.state.Commit = max(c.state.Commit, n.snapshot.index, c.snapshot.index)
	promised := c.state.Term == n.saved.Term && c.state.Vote == n.saved.Vote && !raftpb.IsEmptyState(n.saved)
	if c.parts == 0 && promised {
		return
	}
	if c.state != n.saved {
		c.parts |= partState
	}
}

func (c *change) putSnapshot(ss *raftpb.Snapshot) error {
	raw, err := ss.Marshal()
	if err != nil {
		return err
	}
	c.snapshot = snapshot{index: ss.Index, raw: raw}
	c.parts |= partSnapshot
	return nil
}

// checkEntries refuses entries that would leave a gap in a log with this last index.
func checkEntries(e []raftpb.Entry, last uint64, length int) error {
	for i := range e {
		if e[i].Index != e[0].Index+uint64(i) {
			return fmt.Errorf("entry %d follows entry %d", e[i].Index, e[0].Index+uint64(i)-1)
		}
	}
	switch {
	case e[0].Index == 0:
		return fmt.Errorf("there is no entry 0")
	case last > 0 && e[0].Index > last+1:
		return fmt.Errorf("entry %d follows entry %d", e[0].Index, last)
	case length+len(e) > maxEntries:
		return fmt.Errorf("more than %d entries: it was never compacted", maxEntries)
	}
	return nil
}

// SaveSnapshots implements raftio.ILogDB. One that is older than what is known is ignored.
func (s *Store) SaveSnapshots(updates []raftpb.Update) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.changes = s.changes[:0]
	for i := range updates {
		u := &updates[i]
		id := raftio.NodeInfo{ShardID: u.ShardID, ReplicaID: u.ReplicaID}
		n, c := s.node(id), s.changing(id)
		if u.Snapshot.Index <= n.snapshot.index || c != nil && u.Snapshot.Index <= c.snapshot.index {
			continue
		}
		if c == nil {
			s.changes = append(s.changes, change{id: id})
			c = &s.changes[len(s.changes)-1]
		}
		if err := c.putSnapshot(&u.Snapshot); err != nil {
			return err
		}
		s.putState(c, n, raftpb.State{})
	}
	if len(s.changes) == 0 {
		return s.failed
	}
	return s.append(s.changes)
}

// GetSnapshot implements raftio.ILogDB.
func (s *Store) GetSnapshot(shard, replica uint64) (ss raftpb.Snapshot, err error) {
	s.reading.RLock()
	defer s.reading.RUnlock()
	if n := s.node(raftio.NodeInfo{ShardID: shard, ReplicaID: replica}); s.failed == nil && n.snapshot.index != 0 {
		err = ss.Unmarshal(n.snapshot.raw)
		return ss, err
	}
	return raftpb.Snapshot{}, s.failed
}

// SaveBootstrapInfo implements raftio.ILogDB.
func (s *Store) SaveBootstrapInfo(shard, replica uint64, info raftpb.Bootstrap) error {
	raw, err := info.Marshal()
	if err != nil {
		return err
	}
	return s.save(change{id: raftio.NodeInfo{ShardID: shard, ReplicaID: replica}, parts: partBootstrap, bootstrap: raw})
}

func (s *Store) save(c change) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	return s.append([]change{c})
}

// GetBootstrapInfo implements raftio.ILogDB.
func (s *Store) GetBootstrapInfo(shard, replica uint64) (info raftpb.Bootstrap, err error) {
	s.reading.RLock()
	defer s.reading.RUnlock()
	if s.failed != nil {
		return info, s.failed
	}
	n := s.node(raftio.NodeInfo{ShardID: shard, ReplicaID: replica})
	if n.bootstrap == nil {
		return info, raftio.ErrNoBootstrapInfo
	}
	err = info.Unmarshal(n.bootstrap)
	return info, err
}

// ListNodeInfo implements raftio.ILogDB: who has a bootstrap record.
func (s *Store) ListNodeInfo() ([]raftio.NodeInfo, error) {
	s.reading.RLock()
	defer s.reading.RUnlock()
	all := make([]raftio.NodeInfo, 0, len(s.nodes))
	for id, n := range s.nodes {
		if n.bootstrap != nil {
			all = append(all, id)
		}
	}
	slices.SortFunc(all, compare)
	return all, s.failed
}

// ReadRaftState implements raftio.ILogDB. The range is that of the entries from the
// snapshot's on.
func (s *Store) ReadRaftState(shard, replica, snapshotIndex uint64) (raftio.RaftState, error) {
	s.reading.RLock()
	defer s.reading.RUnlock()
	n := s.node(raftio.NodeInfo{ShardID: shard, ReplicaID: replica})
	switch {
	case s.failed != nil:
		return raftio.RaftState{}, s.failed
	case raftpb.IsEmptyState(n.state):
		return raftio.RaftState{}, raftio.ErrNoSavedLog
	}
	state := raftio.RaftState{State: n.state, FirstIndex: snapshotIndex}
	if n.log.length() > 0 && snapshotIndex < n.log.last {
		state.FirstIndex = max(snapshotIndex, n.log.first)
		state.EntryCount = n.log.last - state.FirstIndex + 1
	}
	return state, nil
}

// RemoveEntriesTo implements raftio.ILogDB. The index is that of the last one to go.
func (s *Store) RemoveEntriesTo(shard, replica, last uint64) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	id := raftio.NodeInfo{ShardID: shard, ReplicaID: replica}
	e := s.node(id).log
	if e.length() == 0 || last < e.first {
		return s.failed
	}
	e.first = min(last, e.last) + 1
	return s.append([]change{{id: id, parts: partExtent, extent: e}})
}

// CompactEntriesTo implements raftio.ILogDB. Space is given back a segment at a time,
// when the next one begins: there is nothing to wait for.
func (s *Store) CompactEntriesTo(uint64, uint64, uint64) (<-chan struct{}, error) {
	done := make(chan struct{})
	close(done)
	return done, nil
}

// RemoveNodeData implements raftio.ILogDB.
func (s *Store) RemoveNodeData(shard, replica uint64) error {
	return s.save(change{id: raftio.NodeInfo{ShardID: shard, ReplicaID: replica}, parts: partRemoved})
}

// ImportSnapshot implements raftio.ILogDB: the replica starts from this snapshot, as one that
// has joined, and from nothing else.
func (s *Store) ImportSnapshot(ss raftpb.Snapshot, replica uint64) error {
	if ss.Type == raftpb.UnknownStateMachine {
		return fmt.Errorf("raftlog: a snapshot of no known type of state machine")
	}
	bootstrap := raftpb.Bootstrap{Join: true, Type: ss.Type}
	raw, err := bootstrap.Marshal()
	if err != nil {
		return err
	}
	c := change{
		id:        raftio.NodeInfo{ShardID: ss.ShardID, ReplicaID: replica},
		bootstrap: raw,
		state:     raftpb.State{Term: ss.Term, Commit: ss.Index},
		extent:    extent{ss.Index + 1, ss.Index},
	}
	if err := c.putSnapshot(&ss); err != nil {
		return err
	}
	c.parts |= partRemoved | partBootstrap | partState | partExtent
	return s.save(c)
}

// readAhead is how much of a segment is read at once.
const readAhead = 1 << 20

// IterateEntries implements raftio.ILogDB: it appends entries from low on to ents, until
// there is none, or high is reached, or their size has passed maxSize.
func (s *Store) IterateEntries(ents []raftpb.Entry, size, shard, replica, low, high, maxSize uint64) ([]raftpb.Entry, uint64, error) {
	s.reading.RLock()
	defer s.reading.RUnlock()
	if s.failed != nil {
		return nil, 0, s.failed
	}
	where := s.node(raftio.NodeInfo{ShardID: shard, ReplicaID: replica}).between(low, high)
	for len(where) > 0 {
		n, length := together(where, min(readAhead, maxSize))
		b := make([]byte, length)
		if err := s.read(b, where[0].segment, where[0].at); err != nil {
			return nil, 0, err
		}
		for _, at := range where[:n] {
			var e raftpb.Entry
			if err := at.decode(b[at.at-where[0].at:][:at.length], low, &e); err != nil {
				return nil, 0, s.locate(at, err)
			}
			ents = append(ents, e)
			low++
			if size += uint64(e.SizeUpperLimit()); size > maxSize {
				return ents, size, nil
			}
		}
		where = where[n:]
	}
	return ents, size, nil
}

// together returns how many of these entries, the first at least, lie close to each
// other, and what they span.
func together(where []location, limit uint64) (n int, length uint32) {
	first := where[0]
	length = first.length
	for n = 1; n < len(where); n++ {
		at := where[n]
		end := uint64(first.at) + uint64(length)
		if at.segment != first.segment || uint64(at.at) < end || uint64(at.at) > end+4096 ||
			uint64(at.at)+uint64(at.length) > uint64(first.at)+limit {
			break
		}
		length = at.at + at.length - first.at
	}
	return n, length
}

func (s *Store) read(b []byte, number, at uint32) error {
	g := s.segment(number)
	if err := readAt(g.file, b, int64(at)); err != nil {
		return fmt.Errorf("raftlog: read %s: %w", s.path(nameOf(number)), err)
	}
	return nil
}

// check tells whether raw is what was written there.
func (at location) check(raw []byte) error {
	if crc32.Checksum(raw, castagnoli) != at.sum {
		return errDamaged
	}
	return nil
}

func (at location) decode(raw []byte, index uint64, e *raftpb.Entry) error {
	if err := at.check(raw); err != nil {
		return err
	}
	if err := e.Unmarshal(raw); err != nil {
		return err
	}
	if e.Index != index {
		return fmt.Errorf("%w: it is entry %d and not %d", errDamaged, e.Index, index)
	}
	return nil
}

func (s *Store) locate(at location, err error) error {
	return fmt.Errorf("raftlog: %s: entry at %d: %w", s.path(nameOf(at.segment)), at.at, err)
}
