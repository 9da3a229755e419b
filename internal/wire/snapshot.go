package wire

import (
	"bufio"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/queue"
	"github.com/quorumlock/quorumlock/sessions"
)

// maxHolders is how many holders a line is read with. No rule bounds those who share
// a lock, so this is more than there can be.
const maxHolders = 1 << 30

// A Head is the part of a snapshot before the lines.
type Head struct {
	Level byte          // the feature level: it is the version in which the snapshot is written
	Token fencing.Token // the last one granted
	Roll  *sessions.Roll
	Lines int   // how many follow
	Jobs  []Job // in the order of their names

	Origin Origin // since version 3
}

// A Job is the last tick of a job that was claimed, and by which call.
type Job struct {
	Name string
	Tick int64
	By   sessions.ID // a process: its session is 0
	Call uint64
	At   int64 // Unix milliseconds, for display
}

// AppendHead appends h's encoding to b.
func AppendHead(b []byte, h Head) []byte {
	return encode(b, func(w writer) {
		if h.Level < 3 {
			w.array(4)
		} else {
			w.array(5)
		}
		w.uint(uint64(h.Token))
		w.roll(h.Roll)
		w.uint(uint64(h.Lines))
		w.array(len(h.Jobs))
		for _, j := range h.Jobs {
			w.array(7)
			w.string(j.Name)
			w.int(j.Tick)
			w.session(j.By)
			w.uint(j.Call)
			w.int(j.At)
		}
		switch {
		case h.Level < 3:
		case h.Origin == (Origin{}):
			w.array(0)
		default:
			w.array(3)
			w.origin(h.Origin)
		}
	})
}

// AppendLine appends l's encoding to b.
func AppendLine(b []byte, l *queue.Line) []byte {
	return encode(b, func(w writer) {
		plain := l.Limit() == 0 && len(l.Bars()) == 0
		if plain {
			w.array(3)
		} else {
			w.array(5)
		}
		w.string(l.Name)
		w.array(l.Holding())
		for c := range l.Holders() {
			w.claim(c)
		}
		w.array(l.Waiting())
		for c := range l.Waiters() {
			w.claim(c)
		}
		if plain {
			return
		}
		w.uint(uint64(l.Limit()))
		w.array(len(l.Bars()))
		for _, b := range l.Bars() {
			w.array(2)
			w.uint(b.ID)
			w.duration(b.For)
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

func (w writer) duration(d time.Duration) { w.uint(uint64(d / time.Millisecond)) }

func (w writer) claim(c *queue.Claim) {
	if c.Plain() {
		w.array(7)
	} else {
		w.array(15)
	}
	w.uint(c.Session.Replica)
	w.uint(c.Session.Epoch)
	w.uint(c.Session.Seq)
	w.uint(c.Seq)
	w.uint(uint64(c.Mode))
	w.uint(uint64(c.Token))
	w.int(c.At)
	if c.Plain() {
		return
	}
	w.uint(uint64(c.Permits))
	w.array(len(c.Slots))
	for _, slot := range c.Slots {
		w.uint(uint64(slot))
	}
	terms := termsOf(c)
	w.duration(terms.MaxHold)
	w.duration(terms.MinHold)
	w.duration(terms.Delay)
	w.uint(uint64(c.State))
	w.uint(uint64(len(c.Parts())))
	w.string(c.Value)
}

func termsOf(c *queue.Claim) queue.Terms {
	if c.Terms == nil {
		return queue.Terms{}
	}
	return *c.Terms
}

// A SnapshotWriter writes a snapshot: what AppendHead gave, then every line that
// the head counted, in pieces of any size.
type SnapshotWriter struct {
	blocks blockWriter
	level  byte
	begun  bool
}

// NewSnapshotWriter returns a SnapshotWriter that writes to w, at the level of the head.
func NewSnapshotWriter(w io.Writer, level byte) *SnapshotWriter {
	return &SnapshotWriter{blocks: blockWriter{w: w}, level: level}
}

// Write writes the next piece.
func (s *SnapshotWriter) Write(p []byte) (int, error) {
	if !s.begun {
		s.begun = true
		if _, err := s.blocks.w.Write([]byte{s.level}); err != nil {
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
	blocks  blockReader
	r       reader
	version byte
	token   fencing.Token // the last one granted
	lines   int           // yet to come
	parts   map[claimID]*partsOf
	bars    map[uint64]bool // those that were met
}

// A claimID is what a claim is known by.
type claimID struct {
	Session sessions.ID
	Seq     uint64
}

// partsOf are the claims of one acquisition of several names, as they are met.
type partsOf struct {
	claims []*queue.Claim
	want   int
}

// ReadSnapshot reads the head of a snapshot. Line gives the lines after it.
func ReadSnapshot(src io.Reader) (*SnapshotReader, Head, error) {
	var version [1]byte
	if err := readFull(src, version[:]); err != nil {
		return nil, Head{}, err
	}
	switch {
	case version[0] > Version:
		return nil, Head{}, &VersionError{version[0]}
	case version[0] == 0:
		return nil, Head{}, malformed("snapshot version 0")
	}
	s := &SnapshotReader{blocks: blockReader{r: src}, version: version[0],
		parts: make(map[claimID]*partsOf), bars: make(map[uint64]bool)}
	s.r.dec = msgpack.NewDecoder(bufio.NewReaderSize(&s.blocks, 64<<10))
	h := Head{Roll: new(sessions.Roll), Level: max(s.version, BaseVersion)}
	fields := min(2+int(s.version), 5)
	s.r.array(fields, "snapshot head")
	h.Token = fencing.Token(s.r.uint())
	s.r.roll(h.Roll)
	h.Lines = int(min(s.r.uint(), 1<<40))
	s.token, s.lines = h.Token, h.Lines
	if fields > 3 {
		h.Jobs = s.r.jobs()
	}
	if fields > 4 {
		switch n := s.r.arrayLen(3, "origin"); n {
		case 0:
		case 3:
			h.Origin = s.r.origin()
		default:
			s.r.fail("origin with %d fields", n)
		}
	}
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
// snapshot ends there too. Claims on several names are joined once all of them were
// met, so nothing can be said of who is next before the end.
func (s *SnapshotReader) Line() (*queue.Line, error) {
	if s.r.err == nil && s.lines == 0 {
		var more [1]byte
		if err := s.r.dec.ReadFull(more[:]); errors.Is(err, io.EOF) {
			return nil, s.end()
		}
		s.r.fail("snapshot goes on after its last line")
	}
	l := s.line()
	if err := s.err(); err != nil {
		return nil, err
	}
	s.lines--
	return l, nil
}

// end joins the claims of each acquisition of several names.
func (s *SnapshotReader) end() error {
	for id, p := range s.parts {
		if len(p.claims) != p.want {
			return malformed("claim %s/%d on %d names is one on %d", id.Session, id.Seq, p.want, len(p.claims))
		}
		slices.SortFunc(p.claims, func(a, b *queue.Claim) int { return strings.Compare(a.Line().Name, b.Line().Name) })
		first := p.claims[0]
		for i, c := range p.claims {
			// Their times run once for all of them, so no part may have others.
			if c.Mode != queue.Exclusive || c.Holds() != first.Holds() || c.State != first.State || termsOf(c) != termsOf(first) || c.Value != first.Value {
				return malformed("claim %s/%d on %d names: its parts differ", id.Session, id.Seq, p.want)
			}
			if i > 0 && c.Line().Name == p.claims[i-1].Line().Name {
				return malformed("claim %s/%d stands twice in %q", id.Session, id.Seq, c.Line().Name)
			}
		}
		queue.Join(p.claims)
	}
	return io.EOF
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

func (r *reader) jobs() (jobs []Job) {
	n := r.arrayLen(MaxJobs, "jobs")
	for i := 0; i < n && r.err == nil; i++ {
		r.array(7, "job")
		j := Job{Name: r.name(), Tick: r.int(), By: r.session(), Call: r.uint(), At: r.int()}
		if r.err == nil && i > 0 && j.Name <= jobs[i-1].Name {
			r.fail("job %q out of order", j.Name)
		}
		if r.err == nil && (j.By.Replica == 0 || j.By.Epoch == 0 || j.By.Seq != 0) {
			r.fail("job %q by %s, which is no process", j.Name, j.By)
		}
		jobs = append(jobs, j)
	}
	return jobs
}

func (r *reader) ttl() time.Duration {
	ms := r.uint()
	if ms > uint64(MaxTTL/time.Millisecond) {
		r.fail("TTL of %d ms", ms)
		return 0
	}
	return time.Duration(ms) * time.Millisecond
}

func (s *SnapshotReader) line() *queue.Line {
	r := &s.r
	l := new(queue.Line)
	fields := r.arrayLen(5, "line")
	if r.err == nil && fields != 3 && (fields != 5 || s.version < 2) {
		r.fail("line with %d fields", fields)
	}
	l.Name = r.name()
	holders := s.claims(maxHolders, "holders")
	waiters := s.claims(MaxWaiters, "waiters")
	if fields == 5 {
		s.extras(l)
	}
	for _, c := range holders {
		if r.err == nil && (!c.Holds() || !l.Restore(c)) {
			r.fail("%q: %s/%d cannot hold it", l.Name, c.Session, c.Seq)
		}
	}
	for _, c := range waiters {
		if r.err == nil && (c.Holds() || len(c.Slots) > 0 || c.State != 0) {
			r.fail("%q: %s/%d waits for it and has it", l.Name, c.Session, c.Seq)
		}
		if r.err == nil && (c.Mode == queue.Counted) != (l.Limit() > 0) {
			r.fail("%q: %s/%d waits for it in another mode", l.Name, c.Session, c.Seq)
		}
		if r.err == nil && c.Permits > l.Limit() {
			r.fail("%q: %s/%d waits for more than there is", l.Name, c.Session, c.Seq)
		}
		l.Wait(c)
	}
	return l
}

// extras reads what only a line that is counted or barred has.
func (s *SnapshotReader) extras(l *queue.Line) {
	r := &s.r
	limit := r.uint()
	if limit > MaxPermits {
		r.fail("%q: %d permits", l.Name, limit)
		return
	}
	l.SetLimit(uint32(limit))
	n := r.arrayLen(maxHolders, "bars")
	if r.err == nil && limit == 0 && n == 0 {
		r.fail("%q: a plain line that is written as another", l.Name)
	}
	for i := 0; i < n && r.err == nil; i++ {
		r.array(2, "bar")
		b := queue.Bar{ID: r.uint(), For: r.term()}
		if r.err == nil && (b.ID == 0 || b.ID > uint64(s.token) || s.bars[b.ID]) {
			r.fail("%q: bar %d was never set, or stands twice", l.Name, b.ID)
		}
		s.bars[b.ID] = true
		l.Bar(b)
	}
}
