package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/queue"
	"github.com/quorumlock/quorumlock/sessions"
)

// aState is a small state with everything in it that a snapshot can hold.
func aState() (Head, []*queue.Line) {
	roll := new(sessions.Roll)
	roll.Boot(2, 70_000)
	roll.Renew(2, 70_000, 129)
	for n := range uint64(3) {
		roll.Admit(2, 70_000, n+1)
	}
	roll.Open(sessions.Session{ID: sessions.ID{Replica: 2, Epoch: 70_000, Seq: 1}, TTL: 10 * time.Second, Owner: "payouts-7f9c", OpenedAt: 1_767_225_600_123})
	roll.Open(sessions.Session{ID: sessions.ID{Replica: 2, Epoch: 70_000, Seq: 2}, TTL: MaxTTL, OpenedAt: -1})
	roll.Boot(5, 1) // has no session

	id := sessions.ID{Replica: 2, Epoch: 70_000, Seq: 1}
	held := &queue.Line{Name: "invoice/2026-00017"}
	held.Hold(&queue.Claim{Session: id, Seq: 41, Mode: queue.Exclusive, At: 1_767_225_600_200}, 300)
	line := &queue.Line{Name: "Größe/€"}
	line.Hold(&queue.Claim{Session: id, Seq: 42, Mode: queue.Exclusive, At: 1_767_225_600_300}, math.MaxUint64)
	id.Seq = 2
	line.Wait(&queue.Claim{Session: id, Seq: 44, Mode: queue.Exclusive, At: 1_767_225_600_400})
	line.Wait(&queue.Claim{Session: id, Seq: 43, Mode: queue.Exclusive, At: 1_767_225_600_500})
	return Head{Token: math.MaxUint64, Roll: roll, Lines: 2}, []*queue.Line{held, line}
}

func written(t testing.TB, h Head, lines []*queue.Line) []byte {
	t.Helper()
	var b bytes.Buffer
	w := NewSnapshotWriter(&b)
	_, err := w.Write(AppendHead(nil, h))
	require.NoError(t, err)
	for _, l := range lines {
		_, err = w.Write(AppendLine(nil, l))
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return b.Bytes()
}

// readAll reads a snapshot to its end.
func readAll(src io.Reader) (Head, []*queue.Line, error) {
	r, h, err := ReadSnapshot(src)
	if err != nil {
		return h, nil, err
	}
	var lines []*queue.Line
	for {
		switch l, err := r.Line(); {
		case err == io.EOF:
			return h, lines, nil
		case err != nil:
			return h, lines, err
		default:
			lines = append(lines, l)
		}
	}
}

// tell writes a state for a person, so that two can be compared.
func tell(h Head, lines []*queue.Line) string {
	var b strings.Builder
	fmt.Fprintf(&b, "token %d, %d lines\n", h.Token, h.Lines)
	for p := range h.Roll.Processes() {
		fmt.Fprintf(&b, "process %d.%d renewal %d batch %d\n", p.Replica, p.Epoch, p.Renewal, p.Batch)
		for s := range p.Sessions() {
			fmt.Fprintf(&b, "  session %v ttl %v owner %q at %d\n", s.ID, s.TTL, s.Owner, s.OpenedAt)
		}
	}
	for _, l := range lines {
		fmt.Fprintf(&b, "line %q\n", l.Name)
		for c := range l.Holders() {
			fmt.Fprintf(&b, "  holds %v/%d %v token %d at %d\n", c.Session, c.Seq, c.Mode, c.Token, c.At)
		}
		for c := range l.Waiters() {
			fmt.Fprintf(&b, "  waits %v/%d %v at %d\n", c.Session, c.Seq, c.Mode, c.At)
		}
	}
	return b.String()
}

func TestSnapshotGolden(t *testing.T) {
	require.Equal(t, 1, SnapshotVersion, "keep the golden files of old versions, and add one")
	h, lines := aState()
	b := golden(t, "snapshot.v1.hex", written(t, h, lines))
	gotHead, gotLines, err := readAll(bytes.NewReader(b))
	require.NoError(t, err)
	require.Equal(t, tell(h, lines), tell(gotHead, gotLines))
	require.Equal(t, b, written(t, gotHead, gotLines))
}

func TestEmptySnapshot(t *testing.T) {
	b := written(t, Head{Roll: new(sessions.Roll)}, nil)
	h, lines, err := readAll(bytes.NewReader(b))
	require.NoError(t, err)
	require.Empty(t, lines)
	require.Zero(t, h.Token)
}

// Whoever reads may get the bytes in any pieces.
func TestSnapshotReadInPieces(t *testing.T) {
	h, lines := aState()
	b := written(t, h, lines)
	for _, src := range []io.Reader{
		iotest.OneByteReader(bytes.NewReader(b)), iotest.HalfReader(bytes.NewReader(b)), iotest.DataErrReader(bytes.NewReader(b)),
	} {
		gotHead, gotLines, err := readAll(src)
		require.NoError(t, err)
		require.Equal(t, tell(h, lines), tell(gotHead, gotLines))
	}
}

// A page may be larger than a block, and a line may lie across two.
func TestSnapshotOfManyBlocks(t *testing.T) {
	h, _ := aState()
	id := sessions.ID{Replica: 2, Epoch: 70_000, Seq: 1}
	var lines []*queue.Line
	var page []byte
	for i := range 5_000 {
		l := &queue.Line{Name: fmt.Sprintf("%0512d", i)}
		l.Hold(&queue.Claim{Session: id, Seq: uint64(i), Mode: queue.Exclusive}, 1)
		lines = append(lines, l)
		page = AppendLine(page, l)
	}
	h.Lines = len(lines)
	require.Greater(t, len(page), 2*maxBlock)
	var b bytes.Buffer
	w := NewSnapshotWriter(&b)
	_, err := w.Write(AppendHead(nil, h))
	require.NoError(t, err)
	n, err := w.Write(page)
	require.NoError(t, err)
	require.Equal(t, len(page), n)
	require.NoError(t, w.Close())

	gotHead, gotLines, err := readAll(&b)
	require.NoError(t, err)
	require.Equal(t, tell(h, lines), tell(gotHead, gotLines))
}

func TestSnapshotCutAnywhere(t *testing.T) {
	h, lines := aState()
	whole := written(t, h, lines)
	for n := range whole {
		_, _, err := readAll(bytes.NewReader(whole[:n]))
		require.ErrorIs(t, err, ErrMalformed, "first %d bytes", n)
		require.NotErrorIs(t, err, ErrVersion)
	}
}

func TestSnapshotWithAFlippedBit(t *testing.T) {
	h, lines := aState()
	whole := written(t, h, lines)
	for i := range len(whole) * 8 {
		b := bytes.Clone(whole)
		b[i/8] ^= 1 << (i % 8)
		_, _, err := readAll(bytes.NewReader(b))
		want := ErrMalformed
		if b[0] > SnapshotVersion {
			want = ErrVersion
		}
		require.ErrorIs(t, err, want, "bit %d", i)
	}
}

func TestNewerSnapshot(t *testing.T) {
	h, lines := aState()
	b := written(t, h, lines)
	for v := SnapshotVersion + 1; v <= math.MaxUint8; v++ {
		b[0] = byte(v)
		_, _, err := readAll(bytes.NewReader(b))
		require.ErrorIs(t, err, ErrVersion)
		require.NotErrorIs(t, err, ErrMalformed)
	}
	b[0] = 0
	_, _, err := readAll(bytes.NewReader(b))
	require.ErrorIs(t, err, ErrMalformed)
}

// A disk that fails is not a snapshot that is damaged: its error is kept.
func TestSnapshotThatCannotBeRead(t *testing.T) {
	h, lines := aState()
	whole := written(t, h, lines)
	broken := errors.New("input/output error")
	for n := range whole {
		_, _, err := readAll(io.MultiReader(bytes.NewReader(whole[:n]), iotest.ErrReader(broken)))
		require.ErrorIs(t, err, broken, "after %d bytes", n)
		require.NotErrorIs(t, err, ErrMalformed)
	}
}

// A failWriter takes so many bytes.
type failWriter struct{ room int }

func (w *failWriter) Write(p []byte) (int, error) {
	if len(p) > w.room {
		return 0, io.ErrShortWrite
	}
	w.room -= len(p)
	return len(p), nil
}

func TestSnapshotThatCannotBeWritten(t *testing.T) {
	h, lines := aState()
	for room := range len(written(t, h, lines)) {
		w := NewSnapshotWriter(&failWriter{room})
		_, err := w.Write(AppendHead(nil, h))
		for _, l := range lines {
			if err == nil {
				_, err = w.Write(AppendLine(nil, l))
			}
		}
		if err == nil {
			err = w.Close()
		}
		require.ErrorIs(t, err, io.ErrShortWrite, "room for %d", room)
	}
}

// sealed wraps what no SnapshotWriter would write in blocks with right checksums.
func sealed(body []byte) []byte {
	var b bytes.Buffer
	b.WriteByte(SnapshotVersion)
	w := blockWriter{w: &b}
	_, _ = w.Write(body)
	_ = w.Close()
	return b.Bytes()
}

func TestMalformedSnapshots(t *testing.T) {
	id := sessions.ID{Replica: 2, Epoch: 70_000, Seq: 1}
	claim := func(seq uint64, mode queue.Mode, token fencing.Token) *queue.Claim {
		return &queue.Claim{Session: id, Seq: seq, Mode: mode, Token: token}
	}
	type list = []*queue.Claim
	// line writes holders and waiters as they are given, whatever they are.
	line := func(name string, holders, waiters list) []byte {
		return encode(nil, func(w writer) {
			w.array(3)
			w.string(name)
			for _, side := range []list{holders, waiters} {
				w.array(len(side))
				for _, c := range side {
					w.claim(c)
				}
			}
		})
	}
	h, _ := aState()
	oneLine := func(l []byte) []byte { h.Lines = 1; return append(AppendHead(nil, h), l...) }
	good := claim(1, 1, 1)
	process := func(w writer, replica, epoch uint64) {
		w.array(5)
		w.uint(replica)
		w.uint(epoch)
		w.uint(1)
		w.uint(1)
	}
	session := func(w writer, seq, ttl uint64, owner string) {
		w.array(4)
		w.uint(seq)
		w.uint(ttl)
		w.string(owner)
		w.int(0)
	}
	head := func(f func(writer)) []byte {
		return encode(nil, func(w writer) { w.array(3); w.uint(1); f(w); w.uint(0) })
	}
	require.NotErrorIs(t, readSealed(oneLine(line("n", list{good}, nil))), ErrMalformed)

	for what, body := range map[string][]byte{
		"nothing":                 {},
		"head too short":          encode(nil, func(w writer) { w.array(2) }),
		"a line is missing":       oneLine(nil),
		"goes on after its lines": append(oneLine(line("n", list{good}, nil)), 0xc0),
		"line without name":       oneLine(line("", list{good}, nil)),
		"over-long name":          oneLine(line(strings.Repeat("n", MaxName+1), list{good}, nil)),
		"name not UTF-8":          oneLine(line("\xff", list{good}, nil)),
		"holder without token":    oneLine(line("n", list{claim(1, 1, 0)}, nil)),
		"waiter with token":       oneLine(line("n", list{good}, list{claim(2, 1, 2)})),
		"two exclusive holders":   oneLine(line("n", list{good, claim(2, 1, 2)}, nil)),
		"waiters for a free lock": oneLine(line("n", nil, list{claim(1, 1, 0)})),
		"unknown mode":            oneLine(line("n", list{claim(1, 7, 1)}, nil)),
		"a million processes":     head(func(w writer) { w.array(1 << 21) }),
		"process of replica 0":    head(func(w writer) { w.array(1); process(w, 0, 1); w.array(0) }),
		"process of epoch 0":      head(func(w writer) { w.array(1); process(w, 1, 0); w.array(0) }),
		"replica stands twice":    head(func(w writer) { w.array(2); process(w, 1, 1); w.array(0); process(w, 1, 2); w.array(0) }),
		"session stands twice":    head(func(w writer) { w.array(1); process(w, 1, 1); w.array(2); session(w, 1, 1, ""); session(w, 1, 1, "") }),
		"TTL too long": head(func(w writer) {
			w.array(1)
			process(w, 1, 1)
			w.array(1)
			session(w, 1, uint64(MaxTTL/time.Millisecond)+1, "")
		}),
		"TTL that would wrap": head(func(w writer) { w.array(1); process(w, 1, 1); w.array(1); session(w, 1, 1<<63/1_000_000+1, "") }),
		"over-long owner": head(func(w writer) {
			w.array(1)
			process(w, 1, 1)
			w.array(1)
			session(w, 1, 1, strings.Repeat("o", MaxOwner+1))
		}),
	} {
		require.ErrorIs(t, readSealed(body), ErrMalformed, what)
	}
}

func readSealed(body []byte) error {
	_, _, err := readAll(bytes.NewReader(sealed(body)))
	return err
}

// Whatever is nested behind the last line, nobody follows it down: a stack that
// overflows cannot be recovered from.
func TestDeepNestingIsNotFollowed(t *testing.T) {
	body := AppendHead(nil, Head{Roll: new(sessions.Roll)})
	body = append(body, bytes.Repeat([]byte{0x91}, 16<<20)...)
	require.ErrorIs(t, readSealed(body), ErrMalformed)
}

// A block may not claim more than it can have, and its room is made once.
func TestHostileBlockLength(t *testing.T) {
	for _, n := range []uint32{maxBlock + 1, math.MaxUint32} {
		b := binary.BigEndian.AppendUint32([]byte{SnapshotVersion}, n)
		b = binary.BigEndian.AppendUint32(b, 0)
		_, _, err := readAll(bytes.NewReader(b))
		require.ErrorIs(t, err, ErrMalformed)
		require.Less(t, bytesMade(func() { _, _, _ = readAll(bytes.NewReader(b)) }), uint64(256<<10))
	}
}

// The end must be a block of length 0 with the checksum of nothing.
func TestSnapshotEnd(t *testing.T) {
	whole := sealed(AppendHead(nil, Head{Roll: new(sessions.Roll)}))
	require.Equal(t, make([]byte, 8), whole[len(whole)-8:])
	require.Zero(t, crc32.Checksum(nil, castagnoli))
	require.NoError(t, func() error {
		_, _, err := readAll(bytes.NewReader(append(whole, "what follows is not ours"...)))
		return err
	}())
}

func FuzzReadSnapshot(f *testing.F) {
	h, lines := aState()
	body := AppendHead(nil, h)
	for _, l := range lines {
		body = AppendLine(body, l)
	}
	f.Add(body, false)
	f.Add(AppendHead(nil, Head{Roll: new(sessions.Roll)}), false)
	f.Add(written(f, h, lines), true)
	f.Add([]byte{SnapshotVersion + 1}, true)
	// The checksums keep a fuzzer out, so it may also write what they seal.
	f.Fuzz(func(t *testing.T, b []byte, raw bool) {
		if !raw {
			b = sealed(b)
		}
		head, lines, err := readAll(bytes.NewReader(b))
		if err != nil {
			if errors.Is(err, ErrVersion) == errors.Is(err, ErrMalformed) {
				t.Fatalf("%v matches neither or both", err)
			}
			return
		}
		again := written(t, head, lines)
		head2, lines2, err := readAll(bytes.NewReader(again))
		require.NoError(t, err)
		require.Equal(t, tell(head, lines), tell(head2, lines2))
		require.Equal(t, again, written(t, head2, lines2))
	})
}
