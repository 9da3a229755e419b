package wire

import (
	"bufio"
	"errors"
	"io"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/queue"
	"github.com/quorumlock/quorumlock/sessions"
)

// SnapshotVersion is the version of snapshots that this package writes.
const SnapshotVersion = 1

// A Head is the part of a snapshot before the lines.
type Head struct {
	Token fencing.Token // the last one granted
	Roll  *sessions.Roll
	Lines int // how many follow
}

// AppendHead appends h's encoding to b.
func AppendHead(b []byte, h Head) []byte {
	return encode(b, func(w writer) {
		w.array(3)
		w.uint(uint64(h.Token))
		w.roll(h.Roll)
		w.uint(uint64(h.Lines))
	})
}

// AppendLine appends l's encoding to b.
func AppendLine(b []byte, l *queue.Line) []byte {
	return encode(b, func(w writer) {
		w.array(3)
		w.string(l.Name)
		w.array(l.Holding())
		for c := range l.Holders() {
			w.claim(c)
		}
		w.array(l.Waiting())
		for c := range l.Waiters() {
			w.claim(c)
		}
	})
}

func (w writer) roll(roll *sessions.Roll) {
	n := 0
	for range roll.Processes() {
		n++
	}
	w.array(n)
	for p := range roll.Processes() {
		w.array(6)
		w.uint(p.Replica)
		w.uint(p.Epoch)
		w.uint(p.Renewal)
		w.uint(p.Batch)
		w.uint(p.Claimed)
		w.array(p.Len())
		for s := range p.Sessions() {
			w.array(4)
			w.uint(s.ID.Seq)
			w.uint(uint64(s.TTL / time.Millisecond))
			w.string(s.Owner)
			w.int(s.OpenedAt)
		}
	}
}

func (w writer) claim(c *queue.Claim) {
	w.array(7)
	w.uint(c.Session.Replica)
	w.uint(c.Session.Epoch)
	w.uint(c.Session.Seq)
	w.uint(c.Seq)
	w.uint(uint64(c.Mode))
	w.uint(uint64(c.Token))
	w.int(c.At)
}

// A SnapshotWriter writes a snapshot: what AppendHead gave, then every line that
// the head counted, in pieces of any size.
type SnapshotWriter struct {
	blocks blockWriter
	begun  bool
}

// NewSnapshotWriter returns a SnapshotWriter that writes to w.
func NewSnapshotWriter(w io.Writer) *SnapshotWriter {
	return &SnapshotWriter{blocks: blockWriter{w: w}}
}

// Write writes the next piece.
func (s *SnapshotWriter) Write(p []byte) (int, error) {
	if !s.begun {
		s.begun = true
		if _, err := s.blocks.w.Write([]byte{SnapshotVersion}); err != nil {
			return 0, err
		}
	}
	return s.blocks.Write(p)
}

// Close ends the snapshot. It does not close the underlying writer.
func (s *SnapshotWriter) Close() error { return s.blocks.Close() }

// A SnapshotReader reads what a SnapshotWriter wrote. Its errors match ErrVersion
// or ErrMalformed, or are those of the underlying reader.
type SnapshotReader struct {
	blocks blockReader
	r      reader
	lines  int // yet to come
}

// ReadSnapshot reads the head of a snapshot. Line gives the lines after it.
func ReadSnapshot(src io.Reader) (*SnapshotReader, Head, error) {
	var version [1]byte
	if err := readFull(src, version[:]); err != nil {
		return nil, Head{}, err
	}
	switch {
	case version[0] > SnapshotVersion:
		return nil, Head{}, ErrVersion
	case version[0] == 0:
		return nil, Head{}, malformed("snapshot version 0")
	}
	s := &SnapshotReader{blocks: blockReader{r: src}}
	s.r.dec = msgpack.NewDecoder(bufio.NewReaderSize(&s.blocks, 64<<10))
	h := Head{Roll: new(sessions.Roll)}
	s.r.array(3, "snapshot head")
	h.Token = fencing.Token(s.r.uint())
	s.r.roll(h.Roll)
	h.Lines = int(min(s.r.uint(), 1<<40))
	s.lines = h.Lines
	if err := s.err(); err != nil {
		return nil, Head{}, err
	}
	return s, h, nil
}

// err returns what went wrong. When it was the stream that failed, that is the
// reason, and not what became of the decoding.
func (s *SnapshotReader) err() error {
	if s.r.err != nil && s.blocks.err != nil && s.blocks.err != io.EOF {
		return s.blocks.err
	}
	return s.r.err
}

// Line reads the next line. It returns io.EOF after the last one, and only if the
// snapshot ends there too.
func (s *SnapshotReader) Line() (*queue.Line, error) {
	if s.r.err == nil && s.lines == 0 {
		var more [1]byte
		if err := s.r.dec.ReadFull(more[:]); errors.Is(err, io.EOF) {
			return nil, io.EOF
		}
		s.r.fail("snapshot goes on after its last line")
	}
	l := s.r.line()
	if err := s.err(); err != nil {
		return nil, err
	}
	s.lines--
	return l, nil
}

func (r *reader) roll(roll *sessions.Roll) {
	n := r.arrayLen(1<<20, "processes")
	for i := 0; i < n && r.err == nil; i++ {
		r.array(6, "process")
		p := sessions.Process{Replica: r.uint(), Epoch: r.uint(), Renewal: r.uint(), Batch: r.uint(), Claimed: r.uint()}
		if r.err == nil && (p.Replica == 0 || p.Epoch == 0) {
			r.fail("process %d.%d", p.Replica, p.Epoch)
		}
		if r.err == nil && !roll.Restore(p) {
			r.fail("replica %d stands twice", p.Replica)
		}
		m := r.arrayLen(1<<30, "sessions")
		for j := 0; j < m && r.err == nil; j++ {
			r.array(4, "session")
			s := sessions.Session{ID: sessions.ID{Replica: p.Replica, Epoch: p.Epoch, Seq: r.uint()}}
			s.TTL = r.ttl()
			s.Owner = r.text(MaxOwner, "owner")
			s.OpenedAt = r.int()
			if r.err == nil && roll.Session(s.ID) != nil {
				r.fail("session %s stands twice", s.ID)
			}
			if r.err == nil {
				roll.Open(s)
			}
		}
	}
}

func (r *reader) ttl() time.Duration {
	ms := r.uint()
	if ms > uint64(MaxTTL/time.Millisecond) {
		r.fail("TTL of %d ms", ms)
		return 0
	}
	return time.Duration(ms) * time.Millisecond
}

func (r *reader) line() *queue.Line {
	l := new(queue.Line)
	r.array(3, "line")
	l.Name = r.text(MaxName, "name")
	if r.err == nil && l.Name == "" {
		r.fail("a line without a name")
	}
	holders := r.arrayLen(MaxWaiters, "holders")
	for i := 0; i < holders && r.err == nil; i++ {
		c := r.claim()
		if r.err == nil && !c.Holds() {
			r.fail("%q: a holder without a token", l.Name)
		}
		if r.err == nil && !l.Free(c.Mode) {
			r.fail("%q: holders that exclude each other", l.Name)
		}
		l.Hold(c, c.Token)
	}
	waiters := r.arrayLen(MaxWaiters, "waiters")
	for i := 0; i < waiters && r.err == nil; i++ {
		c := r.claim()
		if r.err == nil && c.Holds() {
			r.fail("%q: a waiter with a token", l.Name)
		}
		l.Wait(c)
	}
	if r.err == nil && l.Next() != nil {
		r.fail("%q: a waiter that nobody is in the way of", l.Name)
	}
	return l
}

func (r *reader) claim() *queue.Claim {
	r.array(7, "claim")
	c := &queue.Claim{
		Session: sessions.ID{Replica: r.uint(), Epoch: r.uint(), Seq: r.uint()},
		Seq:     r.uint(),
		Mode:    queue.Mode(r.uint8()),
		Token:   fencing.Token(r.uint()),
		At:      r.int(),
	}
	if r.err == nil && !c.Mode.Valid() {
		r.fail("claim in mode %d", c.Mode)
	}
	return c
}
