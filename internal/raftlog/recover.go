package raftlog

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/lni/vfs"
)

// Open reads the log in dir, or begins one. An error says what is wrong with which file:
// nothing that was ever acknowledged is left out in silence.
func Open(fs vfs.FS, dir string, f Factory) (*Store, error) {
	s := &Store{fs: fs, dir: dir, segSize: f.SegmentSize, nodes: make(index), sequence: 1}
	if s.segSize <= 0 {
		s.segSize = DefaultSegmentSize
	}
	s.growth = min(s.segSize, maxGrowth)
	if err := s.open(); err != nil {
		_ = s.release()
		return nil, fmt.Errorf("raftlog: %s: %w", dir, err)
	}
	return s, nil
}

// OpenToRead reads the log in dir and changes nothing there: it is for looking at what a
// stopped process has left. A Store that is open to read takes no writes.
func OpenToRead(fs vfs.FS, dir string) (*Store, error) {
	s := &Store{fs: fs, dir: dir, nodes: make(index), sequence: 1, toRead: true}
	if err := s.open(); err != nil {
		_ = s.release()
		return nil, fmt.Errorf("raftlog: %s: %w", dir, err)
	}
	return s, nil
}

func (s *Store) open() error {
	numbers, err := s.list()
	if err != nil {
		return err
	}
	if len(numbers) == 0 && s.toRead {
		return errors.New("there is no log")
	}
	if len(numbers) == 0 {
		var salt [8]byte
		_, _ = rand.Read(salt[:]) // never fails
		s.salt = seal(binary.LittleEndian.Uint64(salt[:]))
		return s.roll(nil)
	}
	if err := s.openSegments(numbers); err != nil {
		return err
	}
	doubtful, err := s.replay()
	if err != nil {
		return err
	}
	for id, n := range s.nodes {
		if k, missing := n.missing(); missing {
			return fmt.Errorf("entry %d of shard %d, replica %d is missing", k, id.ShardID, id.ReplicaID)
		}
	}
	if s.toRead {
		return nil
	}
	// What the last frame says is written again, in its place.
	return s.roll(doubtful.or(s.crowding()))
}

// list prepares the directory and returns the numbers of the segments in it.
func (s *Store) list() ([]uint32, error) {
	if err := s.makeDir(); err != nil {
		return nil, err
	}
	names, err := s.fs.List(s.dir)
	if err != nil {
		return nil, err
	}
	var numbers []uint32
	for _, name := range names {
		number := numberOf(name)
		switch {
		case number != 0:
			numbers = append(numbers, number)
		case s.toRead:
		case name == newName || sparePrefix.MatchString(name) && len(s.spares) >= maxSpares:
			if err := s.fs.Remove(s.path(name)); err != nil {
				return nil, err
			}
		case sparePrefix.MatchString(name):
			s.spares = append(s.spares, name)
		}
	}
	slices.Sort(numbers)
	if s.toRead {
		return numbers, nil
	}
	// What the last life has renamed may not be durable yet, and what its newest segment
	// makes superfluous is going to be removed.
	return numbers, s.names.Sync()
}

// makeDir makes the directory, and its name durable.
func (s *Store) makeDir() (err error) {
	if s.toRead {
		return nil
	}
	if err := s.fs.MkdirAll(s.dir, 0o755); err != nil {
		return err
	}
	if s.names, err = s.fs.OpenDir(s.dir); err != nil {
		return err
	}
	return s.syncParent()
}

func (s *Store) syncParent() error {
	parent, err := s.fs.OpenDir(s.fs.PathDir(s.dir))
	if err != nil {
		return err
	}
	return errors.Join(parent.Sync(), parent.Close())
}

// openSegments opens those that the newest one says are needed, and removes the others: the
// last life ended before it could.
func (s *Store) openSegments(numbers []uint32) error {
	newest, err := s.openSegment(numbers[len(numbers)-1])
	if err != nil {
		return err
	}
	s.salt = newest.salt
	for _, number := range numbers[:len(numbers)-1] {
		if number < newest.oldest {
			if s.toRead {
				continue
			}
			if err := s.fs.Remove(s.path(nameOf(number))); err != nil {
				return errors.Join(err, newest.file.Close())
			}
			continue
		}
		g, err := s.openSegment(number)
		if err != nil {
			return errors.Join(err, newest.file.Close())
		}
		s.segments = append(s.segments, g)
	}
	s.segments = append(s.segments, newest)
	for i, g := range s.segments {
		switch {
		case g.number != newest.oldest+uint32(i):
			return fmt.Errorf("%s is missing", nameOf(newest.oldest+uint32(i)))
		case g.salt != newest.salt:
			return fmt.Errorf("%s is of another log than %s", nameOf(g.number), nameOf(newest.number))
		case i > 0 && g.first < s.segments[i-1].first:
			return fmt.Errorf("%s: %w header", nameOf(g.number), errDamaged)
		}
	}
	return nil
}

func (s *Store) openSegment(number uint32) (*segment, error) {
	name := nameOf(number)
	f, err := s.fs.Open(s.path(name))
	if err != nil {
		return nil, err
	}
	g := &segment{file: f}
	info, err := f.Stat()
	if err == nil {
		g.size = info.Size()
		b := make([]byte, min(segmentHeader, g.size))
		if err = readAt(f, b, 0); err == nil {
			g.header, err = decodeHeader(b)
		}
	}
	if err == nil && g.number != number {
		err = fmt.Errorf("%w header: its number is %d", errDamaged, g.number)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", name, err), f.Close())
	}
	return g, nil
}

// replay applies all records, and chooses the entries of the last one.
func (s *Store) replay() (doubtful choice, err error) {
	for i, g := range s.segments {
		until := uint64(math.MaxUint64)
		if i+1 < len(s.segments) {
			until = s.segments[i+1].first // whatever lies behind was taken back
		}
		last, err := s.replaySegment(g, until)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", nameOf(g.number), err)
		}
		doubtful = func(at location) bool { return at.segment == g.number && int64(at.at) >= last }
	}
	return doubtful, nil
}

// replaySegment applies the records of g before the one with sequence number until, and
// returns where the last one begins.
func (s *Store) replaySegment(g *segment, until uint64) (last int64, err error) {
	b := make([]byte, g.size)
	if err := readAt(g.file, b, 0); err != nil {
		return 0, err
	}
	g.end = segmentHeader
	sequence := g.first
	for ; sequence < until; sequence++ {
		payload, size, ok := s.salt.open(b[g.end:], sequence)
		if !ok {
			if err := s.tail(g, b, sequence, until); err != nil {
				return 0, err
			}
			break
		}
		kind, changes, err := decodeRecord(payload)
		if err == nil && (sequence == g.first) != (kind == kindCheckpoint) {
			err = errMalformed
		}
		if err != nil {
			return 0, fmt.Errorf("record %d at %d: %w", sequence, g.end, err)
		}
		s.nodes.apply(kind, changes, g.number, uint32(g.end)+frameHeader, s)
		last = g.end
		g.end += int64(size)
	}
	if sequence > g.first {
		s.sequence = sequence - 1 // of the last one, which will be written again
	}
	return last, nil
}

// tail is called where the frame with this sequence number should begin and does not. It
// returns nil if that can be the end of the log.
func (s *Store) tail(g *segment, b []byte, sequence, until uint64) error {
	switch {
	case until != math.MaxUint64:
		return fmt.Errorf("%w at %d: the record with number %d is not there, but the next segment begins with %d",
			errDamaged, g.end, sequence, until)
	case sequence == g.first:
		return fmt.Errorf("%w at %d: it does not begin with its record %d", errDamaged, g.end, sequence)
	}
	if at, found := s.salt.later(b[g.end:], sequence); found {
		return fmt.Errorf("%w at %d: the record with number %d is not there, but there is a later one at %d",
			errDamaged, g.end, sequence, g.end+int64(at))
	}
	return nil
}
