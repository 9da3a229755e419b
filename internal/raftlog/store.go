package raftlog

import (
	"errors"
	"fmt"
	"path"
	"sync"

	"github.com/lni/dragonboat/v4/config"
	"github.com/lni/dragonboat/v4/raftio"
	"github.com/lni/vfs"
)

const (
	// Name is what the engine notes of a directory: it opens none of another store.
	Name = "quorumlock-raftlog"
	// Directory is the name of the directory that the log is in.
	Directory = "raftlog"
	// BinaryFormat is the version of the format, as the engine notes it.
	BinaryFormat = 0x514c_0001

	// DefaultSegmentSize is that of a Factory without one.
	DefaultSegmentSize = 16 << 20

	// maxSpares is how many files are kept to be used again.
	maxSpares = 4
	// maxBuffer is how much memory is kept from one record to the next.
	maxBuffer = 4 << 20
)

// A Factory makes the engine use this store.
type Factory struct {
	SegmentSize int64  // how long a segment may be; 0 for DefaultSegmentSize
	FS          vfs.FS // where the log is kept; nil for where the engine keeps the rest
}

var _ config.LogDBFactory = Factory{}

// Name implements config.LogDBFactory.
func (Factory) Name() string { return Name }

// Create implements config.LogDBFactory. The store is never busy in the sense of the
// callback: a call returns when it is done.
func (f Factory) Create(conf config.NodeHostConfig, _ config.LogDBCallback, dirs, fast []string) (raftio.ILogDB, error) {
	if len(fast) > 0 {
		dirs = fast
	}
	if len(dirs) != 1 {
		return nil, fmt.Errorf("raftlog: %d directories for one log", len(dirs))
	}
	fs := f.FS
	if fs == nil {
		fs = conf.Expert.FS
	}
	if fs == nil {
		fs = vfs.Default
	}
	return Open(fs, fs.PathJoin(dirs[0], Directory), f)
}

// A Store is a log. Its methods are those of raftio.ILogDB and may be called by any number
// of goroutines. Once one has failed to write, all fail with that error.
type Store struct {
	fs      vfs.FS
	dir     string
	names   vfs.File // dir itself, to make names durable
	segSize int64
	growth  int64
	toRead  bool // nothing is written

	// writing is held while a record is made and written; its holder alone changes what
	// is below, and needs no other lock to look at it.
	writing  sync.Mutex
	buffer   []byte
	changes  []change
	salt     seal
	sequence uint64 // of the next frame
	spares   []string

	// reading guards what readers look at. It is not held during a write.
	reading  sync.RWMutex
	nodes    index
	segments []*segment // by number, the newest last
	failed   error
}

var _ raftio.ILogDB = (*Store)(nil)

var (
	errClosed = errors.New("raftlog: closed")
	errToRead = errors.New("raftlog: open to read only")
)

// Name implements raftio.ILogDB.
func (s *Store) Name() string { return Name }

// BinaryFormat implements raftio.ILogDB.
func (s *Store) BinaryFormat() uint32 { return BinaryFormat }

// Close lets go of the files. The log is durable without it; but it writes the commit
// indexes, so that the next start knows them, and see the package's comment on rot in the
// last record.
func (s *Store) Close() error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if errors.Is(s.failed, errClosed) {
		return nil
	}
	if s.toRead {
		s.reading.Lock()
		defer s.reading.Unlock()
		s.failed = errClosed
		return s.release()
	}
	var changes []change
	for id, n := range s.nodes {
		if n.state != n.saved {
			changes = append(changes, change{id: id, parts: partState, state: n.state})
		}
	}
	err := s.append(changes)
	s.reading.Lock()
	defer s.reading.Unlock()
	s.failed = errClosed
	return errors.Join(err, s.release())
}

func (s *Store) release() error {
	var faults []error
	for _, g := range s.segments {
		faults = append(faults, g.file.Close())
	}
	if s.names != nil {
		faults = append(faults, s.names.Close())
	}
	return errors.Join(faults...)
}

// fail makes err the answer to all calls from now on. What a failed write or fsync has left
// on the disk is unknown, and no later fsync could tell.
func (s *Store) fail(err error) error {
	s.reading.Lock()
	defer s.reading.Unlock()
	s.failed = fmt.Errorf("raftlog: %s cannot be trusted any more: %w", s.dir, err)
	return s.failed
}

// append makes what changes say durable, and then known.
func (s *Store) append(changes []change) error {
	if s.failed != nil {
		return s.failed
	}
	if s.toRead {
		return errToRead
	}
	if need := frameHeader + recordSize(changes) + frameAlign + int(s.growth); cap(s.buffer) < need {
		s.buffer = make([]byte, 0, need)
	}
	b := appendRecord(append(s.buffer[:0], make([]byte, frameHeader)...), kindUpdate, changes)
	if s.buffer = b; cap(b) > maxBuffer {
		s.buffer = nil
	}
	kind, decoded, err := decodeRecord(b[frameHeader:])
	if err == nil && len(b) > maxPayload {
		err = fmt.Errorf("%d bytes in one record", len(b))
	}
	if err != nil {
		return fmt.Errorf("raftlog: nothing was written: %w", err)
	}
	g := s.last()
	if g.end > g.start && g.end+int64(len(b)) > s.segSize {
		// Without a descriptor for the next segment, the present one grows on.
		if err := s.roll(s.crowding()); err != nil && !noFiles(err) {
			return s.fail(err)
		}
		g = s.last()
	}
	if g.end+int64(len(b))+frameAlign > maxEnd {
		return s.fail(fmt.Errorf("%s is full", nameOf(g.number)))
	}
	base := uint32(g.end) + frameHeader
	if err := g.write(s.salt.close(b, s.sequence), s.growth); err != nil {
		return s.fail(err)
	}
	s.sequence++
	s.reading.Lock()
	defer s.reading.Unlock()
	s.nodes.apply(kind, decoded, g.number, base, s)
	return nil
}

func (s *Store) last() *segment { return s.segments[len(s.segments)-1] }

// segment returns the one with this number, or nil.
func (s *Store) segment(number uint32) *segment {
	if len(s.segments) == 0 || number < s.segments[0].number || number > s.last().number {
		return nil
	}
	return s.segments[number-s.segments[0].number]
}

// count implements usage.
func (s *Store) count(at location, n int) {
	if g := s.segment(at.segment); g != nil {
		g.entries += n
		g.bytes += int64(n) * int64(at.length+entryHeader)
	}
}

// path returns that of a file of the log.
func (s *Store) path(name string) string { return s.fs.PathJoin(s.dir, path.Base(name)) }
