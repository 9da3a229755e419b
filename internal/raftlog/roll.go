package raftlog

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/lni/dragonboat/v4/raftio"
	"github.com/lni/dragonboat/v4/raftpb"
	"github.com/lni/vfs"
)

// A choice says which entries are to be carried over into a new segment; nil chooses none.
type choice func(location) bool

func (c choice) takes(at location) bool { return c != nil && c(at) }

func (c choice) or(other choice) choice {
	return func(at location) bool { return c.takes(at) || other.takes(at) }
}

// crowding chooses the entries of the oldest segments when what is kept takes more than
// twice the space of what is needed: a few entries that nobody removes, of a group that is
// idle, must not hold all segments behind theirs. A short segment, as each start leaves one,
// counts for more than it takes, since it is an open file. On average less than half of what the
// segments hold is needed then, so that in the long run more is gained than is written
// again; and at one time no more is than a segment holds.
func (s *Store) crowding() choice {
	var needed, kept int64
	for _, g := range s.segments {
		needed += g.bytes
		kept += max(g.size, s.segSize/4)
	}
	excess := kept - 2*needed - 4*s.segSize
	var moved int64
	var last uint32
	for _, g := range s.segments[:len(s.segments)-1] {
		if excess <= 0 || last > 0 && moved+g.bytes > s.segSize {
			break
		}
		excess -= max(g.size, s.segSize/4)
		moved += g.bytes
		last = g.number
	}
	if last == 0 {
		return nil
	}
	return func(at location) bool { return at.segment <= last }
}

// roll begins a new segment, with a checkpoint and the entries that move there. Its number
// is the next one; the sequence goes on.
func (s *Store) roll(moves choice) error {
	file, err := s.newFile()
	if err != nil {
		return fmt.Errorf("begin a segment: %w", err)
	}
	g := &segment{file: file, header: header{salt: s.salt, number: 1, first: s.sequence}}
	if len(s.segments) > 0 {
		g.number = s.last().number + 1
	}
	changes, err := s.checkpoint(moves)
	if err == nil {
		err = s.begin(g, changes, moves)
	}
	if err != nil {
		_ = file.Close()
		return err
	}
	return s.free(g.oldest)
}

// begin writes the start of g and makes g the newest segment.
func (s *Store) begin(g *segment, changes []change, moves choice) error {
	g.oldest = s.oldest(g.number, moves)
	payload := appendRecord(make([]byte, frameHeader, frameHeader+recordSize(changes)+frameAlign), kindCheckpoint, changes)
	kind, decoded, err := decodeRecord(payload[frameHeader:])
	if err == nil && len(payload) > maxPayload {
		err = fmt.Errorf("a checkpoint of %d bytes", len(payload))
	}
	if err != nil {
		return err
	}
	info, err := g.file.Stat()
	if err != nil {
		return err
	}
	g.size = info.Size()
	if err := g.write(append(g.append(nil), s.salt.close(payload, g.first)...), s.growth); err != nil {
		return err
	}
	g.start = g.end
	if err := s.fs.Rename(s.path(newName), s.path(nameOf(g.number))); err != nil {
		return err
	}
	if err := s.names.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", s.dir, err)
	}
	s.sequence = g.first + 1
	s.reading.Lock()
	defer s.reading.Unlock()
	s.segments = append(s.segments, g)
	s.nodes.apply(kind, decoded, g.number, segmentHeader+frameHeader, s)
	return nil
}

// noFiles tells whether it was only a descriptor that was lacking, so that nothing has
// happened.
func noFiles(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// newFile returns a file under newName, one whose blocks were written already if there is
// any.
func (s *Store) newFile() (vfs.File, error) {
	if n := len(s.spares); n > 0 {
		if err := s.fs.Rename(s.path(s.spares[n-1]), s.path(newName)); err != nil {
			return nil, err
		}
		s.spares = s.spares[:n-1]
	} else {
		f, err := s.fs.Create(s.path(newName))
		if err != nil {
			return nil, err
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
	return s.fs.ReuseForWrite(s.path(newName), s.path(newName)) // to read and to write
}

// checkpoint says all that is known.
func (s *Store) checkpoint(moves choice) ([]change, error) {
	changes := make([]change, 0, len(s.nodes))
	for id, n := range s.nodes {
		runs, err := s.moving(n, moves)
		if err != nil {
			return nil, err
		}
		changes = append(changes, n.all(id, runs))
	}
	slices.SortFunc(changes, func(a, b change) int { return compare(a.id, b.id) })
	return changes, nil
}

// all says what is known of n.
func (n *node) all(id raftio.NodeInfo, runs []run) change {
	c := change{id: id, bootstrap: n.bootstrap, state: n.state, snapshot: n.snapshot, extent: n.log, runs: runs}
	if n.bootstrap != nil {
		c.parts |= partBootstrap
	}
	if !raftpb.IsEmptyState(n.state) {
		c.parts |= partState
	}
	if n.snapshot.index != 0 {
		c.parts |= partSnapshot
	}
	if n.log != (extent{}) {
		c.parts |= partExtent
	}
	if len(runs) > 0 {
		c.parts |= partRuns
	}
	return c
}

func compare(a, b raftio.NodeInfo) int {
	return cmp.Or(cmp.Compare(a.ShardID, b.ShardID), cmp.Compare(a.ReplicaID, b.ReplicaID))
}

// moving reads the entries of n that move.
func (s *Store) moving(n *node, moves choice) (runs []run, err error) {
	next := uint64(0)
	for i, at := range n.where {
		if !moves.takes(at) {
			continue
		}
		k := n.log.first + uint64(i)
		if k != next {
			runs = append(runs, run{first: k})
		}
		raw := make([]byte, at.length)
		if err := s.read(raw, at.segment, at.at); err != nil {
			return nil, err
		}
		if err := at.check(raw); err != nil {
			return nil, s.locate(at, err)
		}
		r := &runs[len(runs)-1]
		r.raw = append(r.raw, raw)
		next = k + 1
	}
	return runs, nil
}

// oldest returns the number of the first segment that is needed once those entries have
// moved to a new one.
func (s *Store) oldest(number uint32, moves choice) uint32 {
	leaving := make(map[uint32]int)
	for _, n := range s.nodes {
		for _, at := range n.where {
			if moves.takes(at) {
				leaving[at.segment]++
			}
		}
	}
	for _, g := range s.segments {
		if g.entries > leaving[g.number] {
			return g.number
		}
	}
	return number
}

// free gives up the segments before the one with this number, which the newest one says
// are not needed.
func (s *Store) free(oldest uint32) error {
	if s.segments[0].number >= oldest {
		return nil
	}
	s.reading.Lock()
	n := int(oldest - s.segments[0].number)
	old := s.segments[:n]
	s.segments = slices.Clone(s.segments[n:])
	s.reading.Unlock()
	var closed error
	for _, g := range old {
		closed = errors.Join(closed, g.file.Close())
	}
	if closed != nil {
		return closed
	}
	for _, g := range old {
		if err := s.discard(nameOf(g.number), g.size); err != nil {
			return err
		}
	}
	return nil
}

// discard keeps a file for later, or removes it. After a power loss it may come back under its
// old name, with whatever was written into it since; nobody looks, as its number is below
// what the newest segment needs.
func (s *Store) discard(name string, size int64) error {
	if len(s.spares) >= maxSpares || size > 2*s.segSize {
		return s.fs.Remove(s.path(name))
	}
	spare := fmt.Sprintf("%s%010d", spareName, numberOf(name))
	if err := s.fs.Rename(s.path(name), s.path(spare)); err != nil {
		return err
	}
	s.spares = append(s.spares, spare)
	return nil
}
