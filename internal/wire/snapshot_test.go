package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/queue"
	"github.com/quorumlock/quorumlock/sessions"
)

// stateV1 is a small state with everything in it that a snapshot of version 1 can
// hold.
func stateV1() (Head, []*queue.Line) {
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

// aState is a small state with everything in it that a snapshot can hold: that of
// version 1, and each mode, time and state, permits with gaps between them and more
// of them than there are, a lock that is barred, acquisitions of several names, values,
// and jobs.
func aState() (Head, []*queue.Line) {
	h, lines := stateV1()
	h.Roll.Number(sessions.ID{Replica: 2, Epoch: 70_000, Seq: 1}, 90)
	seq, at := uint64(50), int64(1_767_225_700_000)
	claim := func(m queue.Mode, permits uint32) *queue.Claim {
		seq++
		at += 100
		return &queue.Claim{Session: sessions.ID{Replica: 2, Epoch: 70_000, Seq: 1 + seq%2}, Seq: seq, Mode: m, At: at, Permits: permits}
	}
	timed := func(c *queue.Claim, terms queue.Terms, s queue.State) *queue.Claim {
		c.Terms, c.State = &terms, s
		return c
	}
	line := func(name string) *queue.Line {
		l := &queue.Line{Name: name}
		lines = append(lines, l)
		h.Lines = len(lines)
		return l
	}
	const ms = time.Millisecond

	l := line("timed")
	l.Hold(timed(claim(queue.Exclusive, 0), queue.Terms{MaxHold: 60_001 * ms, MinHold: 5_001 * ms, Delay: 15_001 * ms}, queue.Started|queue.Matured), 401)
	l.Wait(timed(claim(queue.Exclusive, 0), queue.Terms{MaxHold: MaxTerm}, 0))
	l.Wait(claim(queue.Exclusive, 0))

	l = line("shared")
	l.Hold(claim(queue.Shared, 0), 402)
	l.Hold(timed(claim(queue.Shared, 0), queue.Terms{MaxHold: 60_002 * ms}, queue.Started), 402)
	l.Wait(claim(queue.Exclusive, 0))
	l.Wait(timed(claim(queue.Shared, 0), queue.Terms{Delay: 15_002 * ms}, 0))

	l = line("downgraded")
	c := claim(queue.Exclusive, 0)
	l.Hold(c, 403)
	c.Downgrade()
	l.Hold(claim(queue.Shared, 0), 403)

	l = line("leaving") // and its session is over
	c = timed(claim(queue.Exclusive, 0), queue.Terms{MinHold: 5_003 * ms}, queue.Leaving)
	c.Session.Seq = 9
	l.Hold(c, 404)

	l = line("counted")
	l.SetLimit(70)
	c = claim(queue.Counted, 2)
	l.Hold(c, 405)
	l.Hold(claim(queue.Counted, 65), 406)
	c.Leave()
	l.Hold(timed(claim(queue.Counted, 5), queue.Terms{MinHold: 5_004 * ms, MaxHold: 60_004 * ms}, queue.Started|queue.Leaving), 407)
	l.SetLimit(3)
	l.Wait(claim(queue.Counted, 3))

	l = line("barred") // and nobody knows it now, but that it was counted
	l.SetLimit(27)
	l.Bar(queue.Bar{ID: 408, For: 15_005 * ms})
	l.Bar(queue.Bar{ID: 409, For: MaxTerm})
	l = line("barred for two")
	l.Hold(claim(queue.Shared, 0), 410)
	l.Bar(queue.Bar{ID: 411, For: ms})
	l.Wait(claim(queue.Shared, 0))

	join := func(terms queue.Terms, s queue.State, token fencing.Token, lines ...*queue.Line) {
		parts := []*queue.Claim{claim(queue.Exclusive, 0)}
		for range lines[1:] {
			c := *parts[0]
			parts = append(parts, &c)
		}
		for i, c := range parts {
			if terms != (queue.Terms{}) {
				timed(c, terms, s)
			}
			if token > 0 {
				lines[i].Hold(c, token+fencing.Token(i))
			} else {
				lines[i].Wait(c)
			}
		}
		queue.Join(parts)
	}
	// In a snapshot, lines stand in another order than the names of an acquisition.
	z, y, x, w := line("z"), line("y"), line("x"), line("w")
	join(queue.Terms{MinHold: 5_006 * ms, Delay: 15_006 * ms}, queue.Matured, 412, x, z)
	join(queue.Terms{}, 0, 0, w, x, y)
	join(queue.Terms{MaxHold: 60_007 * ms}, 0, 0, y, z)

	valued := func(c *queue.Claim, value string) *queue.Claim {
		c.Value = value
		return c
	}
	l = line("valued") // and plain but for that
	l.Hold(valued(claim(queue.Exclusive, 0), "leader at 10.0.0.11:7000"), 414)
	l.Wait(valued(claim(queue.Exclusive, 0), "größer als €"))
	l.Wait(claim(queue.Exclusive, 0))
	l = line("valued and counted")
	l.SetLimit(28)
	l.Hold(valued(claim(queue.Counted, 4), "slots 0 to 3"), 415)
	l = line("valued and leaving")
	l.Hold(valued(timed(claim(queue.Shared, 0), queue.Terms{MinHold: 5_008 * ms}, queue.Leaving), "not for long"), 416)
	v, u := line("v"), line("u")
	join(queue.Terms{}, 0, 417, u, v)
	for _, l := range []*queue.Line{u, v} {
		for c := range l.Holders() {
			valued(c, "of both")
		}
	}

	h.Jobs = []Job{ // one of them claimed by a process that is not known any more
		{Name: "Großputz/€", Tick: -1_767_225_601, By: sessions.ID{Replica: 2, Epoch: 70_000}, Call: 501, At: 1_767_225_800_100},
		{Name: "backup", Tick: 1_767_225_602, By: sessions.ID{Replica: 5, Epoch: 1}, Call: 502, At: -1_767_225_800_200},
		{Name: "backup/2", Tick: math.MaxInt64, By: sessions.ID{Replica: 6, Epoch: 300}, Call: 70_003, At: 1_767_225_800_300},
	}
	return h, lines
}

func written(t testing.TB, h Head, lines []*queue.Line) []byte {
	t.Helper()
	var b bytes.Buffer
	w := NewSnapshotWriter(&b, max(h.Level, BaseVersion))
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
	if h.Origin != (Origin{}) {
		fmt.Fprintf(&b, "from %s, %d of %d parts\n", h.Origin.Sum, h.Origin.Done, h.Origin.Of)
	}
	for p := range h.Roll.Processes() {
		fmt.Fprintf(&b, "process %d.%d renewal %d batch %d claimed %d\n", p.Replica, p.Epoch, p.Renewal, p.Batch, p.Claimed)
		for s := range p.Sessions() {
			fmt.Fprintf(&b, "  session %v ttl %v owner %q at %d\n", s.ID, s.TTL, s.Owner, s.OpenedAt)
		}
	}
	for _, j := range h.Jobs {
		fmt.Fprintf(&b, "job %q tick %d by %v call %d at %d\n", j.Name, j.Tick, j.By, j.Call, j.At)
	}
	for _, l := range lines {
		fmt.Fprintf(&b, "line %q", l.Name)
		if l.Limit() > 0 {
			fmt.Fprintf(&b, " %d of %d taken", l.Taken(), l.Limit())
		}
		for _, bar := range l.Bars() {
			fmt.Fprintf(&b, " barred %d for %v", bar.ID, bar.For)
		}
		b.WriteByte('\n')
		for c := range l.Holders() {
			tellClaim(&b, "holds", l, c)
		}
		for c := range l.Waiters() {
			tellClaim(&b, "waits", l, c)
		}
	}
	return b.String()
}

func tellClaim(b *strings.Builder, how string, l *queue.Line, c *queue.Claim) {
	fmt.Fprintf(b, "  %s %v/%d %v token %d at %d", how, c.Session, c.Seq, c.Mode, c.Token, c.At)
	if c.Line() != l {
		b.WriteString(" astray")
	}
	if c.Permits > 0 {
		fmt.Fprintf(b, " permits %d slots %d", c.Permits, c.Slots)
	}
	if c.Terms != nil {
		fmt.Fprintf(b, " terms %v %v %v", c.Terms.MaxHold, c.Terms.MinHold, c.Terms.Delay)
	}
	if c.State != 0 {
		fmt.Fprintf(b, " state %03b", c.State)
	}
	if c.Value != "" {
		fmt.Fprintf(b, " value %q", c.Value)
	}
	if c.Joint() {
		b.WriteString(" with")
		for _, p := range c.Parts() {
			fmt.Fprintf(b, " %q", p.Line().Name)
		}
	}
	b.WriteByte('\n')
}

func TestSnapshotGolden(t *testing.T) {
	require.Equal(t, 3, Version, "keep the golden files of old versions, and add one")
	for level := byte(2); level <= Version; level++ {
		h, lines := aState()
		if h.Level = level; level >= 3 {
			h.Origin = anOrigin()
		}
		b := golden(t, fmt.Sprintf("snapshot.v%d.hex", level), written(t, h, lines))
		require.Equal(t, level, b[0])
		gotHead, gotLines, err := readAll(bytes.NewReader(b))
		require.NoError(t, err)
		require.Equal(t, level, gotHead.Level)
		require.Equal(t, tell(h, lines), tell(gotHead, gotLines))
		require.Equal(t, b, written(t, gotHead, gotLines))
	}
}

func anOrigin() Origin { return Origin{Sum: strings.Repeat("6f", 32), Done: 3, Of: 17} }

// A cluster that was founded empty has no origin, and what no cluster can have is
// malformed.
func TestOrigins(t *testing.T) {
	h, lines := aState()
	for o, ok := range map[Origin]bool{
		{}:                                      true,
		anOrigin():                              true,
		{Sum: anOrigin().Sum, Done: 17, Of: 17}: true,
		{Sum: anOrigin().Sum, Done: 18, Of: 17}: false,
		{Sum: anOrigin().Sum}:                   false,
		{Sum: anOrigin().Sum[1:], Done: 1, Of: 17}: false,
		{Sum: "", Done: 1, Of: 17}:                 false,
	} {
		h.Level, h.Origin = 3, o
		got, _, err := readAll(bytes.NewReader(written(t, h, lines)))
		if !ok {
			require.ErrorIs(t, err, ErrMalformed, o)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, o, got.Origin)
	}
	// Of level 3 the head has the field, and of a lower one it has not.
	h.Level, h.Origin = 3, anOrigin()
	for level := byte(1); level < Version; level++ {
		b := written(t, h, lines)
		b[0] = level
		_, _, err := readAll(bytes.NewReader(b))
		require.ErrorIs(t, err, ErrMalformed)
	}
}

// What is written is msgpack to anybody, and not only to us: each array has as many
// elements as it says.
func TestEverythingIsWellFormed(t *testing.T) {
	rnd := dice(t)
	wellFormed := func(what string, b []byte) {
		dec := msgpack.NewDecoder(bytes.NewReader(b))
		require.NoError(t, dec.Skip(), what)
		require.ErrorIs(t, dec.Skip(), io.EOF, what)
	}
	for i := range 100 {
		h, lines := randomState(rnd)
		e := randomEntry(rnd)
		if i == 0 {
			h, lines = aState()
			e = entryV2()
		}
		wellFormed("head", AppendHead(nil, h))
		for _, l := range lines {
			wellFormed(l.Name, AppendLine(nil, l))
		}
		wellFormed("entry", AppendEntry(nil, e)[1:])
	}
	wellFormed("entry", AppendEntry(nil, entryV1())[1:])
}

// What version 1 has written is read, and written anew it is of version 2.
func TestSnapshotOfVersion1(t *testing.T) {
	b := fromHex(t, "snapshot.v1.hex")
	require.EqualValues(t, 1, b[0])
	gotHead, gotLines, err := readAll(bytes.NewReader(b))
	require.NoError(t, err)
	h, lines := stateV1()
	require.Equal(t, tell(h, lines), tell(gotHead, gotLines))
	require.Equal(t, `token 18446744073709551615, 2 lines
process 2.70000 renewal 129 batch 3 claimed 0
  session 2.70000.1 ttl 10s owner "payouts-7f9c" at 1767225600123
  session 2.70000.2 ttl 24h0m0s owner "" at -1
process 5.1 renewal 0 batch 0 claimed 0
line "invoice/2026-00017"
  holds 2.70000.1/41 exclusive token 300 at 1767225600200
line "Größe/€"
  holds 2.70000.1/42 exclusive token 18446744073709551615 at 1767225600300
  waits 2.70000.2/44 exclusive token 0 at 1767225600400
  waits 2.70000.2/43 exclusive token 0 at 1767225600500
`, tell(gotHead, gotLines))
	require.Empty(t, gotHead.Jobs)
	again := written(t, gotHead, gotLines)
	require.EqualValues(t, BaseVersion, again[0])
	was, is := blocksOf(t, b), blocksOf(t, again)
	require.Len(t, was, 1+len(lines)) // the head, and each line
	require.Equal(t, was[1:], is[1:], "a line that is plain is written as it was")
	// The head has one more field: no jobs.
	require.EqualValues(t, 0x93, was[0][0])
	require.Equal(t, slices.Concat([]byte{0x94}, was[0][1:], []byte{0x90}), is[0])
}

// blocksOf returns what is in a snapshot's blocks.
func blocksOf(t *testing.T, b []byte) (blocks [][]byte) {
	r := blockReader{r: bytes.NewReader(b[1:])}
	for {
		p, err := r.next()
		if err == io.EOF {
			return blocks
		}
		require.NoError(t, err)
		blocks = append(blocks, bytes.Clone(p))
	}
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
	w := NewSnapshotWriter(&b, BaseVersion)
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
		if b[0] > Version {
			want = ErrVersion
		}
		require.ErrorIs(t, err, want, "bit %d", i)
	}
}

// The checksums find every flipped bit. Without them, it gives another snapshot or
// a malformed one, and nothing else.
func TestSnapshotWithAFlippedBitUnderItsChecksum(t *testing.T) {
	h, lines := aState()
	body := snapshotBody(h, lines)
	step := 1
	if testing.Short() {
		step = 7
	}
	for i := 0; i < len(body)*8; i += step {
		b := bytes.Clone(body)
		b[i/8] ^= 1 << (i % 8)
		requireReadOrMalformed(t, sealed(b), "bit %d", i)
	}
	for n := range body {
		require.ErrorIs(t, readSealed(body[:n]), ErrMalformed, "first %d bytes", n)
	}
}

func snapshotBody(h Head, lines []*queue.Line) []byte {
	b := AppendHead(nil, h)
	for _, l := range lines {
		b = AppendLine(b, l)
	}
	return b
}

// requireReadOrMalformed checks that what can be read is written so that it can be
// read again, and what cannot is malformed or of a newer version.
func requireReadOrMalformed(t *testing.T, b []byte, what string, args ...any) {
	t.Helper()
	head, lines, err := readAll(bytes.NewReader(b))
	if err != nil {
		if errors.Is(err, ErrVersion) == errors.Is(err, ErrMalformed) {
			t.Fatalf(what+": %v matches neither or both", append(args, err)...)
		}
		return
	}
	again := written(t, head, lines)
	head2, lines2, err := readAll(bytes.NewReader(again))
	require.NoError(t, err, append([]any{what}, args...)...)
	require.Equal(t, tell(head, lines), tell(head2, lines2), append([]any{what}, args...)...)
	require.Equal(t, again, written(t, head2, lines2), append([]any{what}, args...)...)
}

func TestNewerSnapshot(t *testing.T) {
	h, lines := aState()
	b := written(t, h, lines)
	for v := Version + 1; v <= math.MaxUint8; v++ {
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
		w := NewSnapshotWriter(&failWriter{room}, BaseVersion)
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
	b.WriteByte(BaseVersion)
	w := blockWriter{w: &b}
	_, _ = w.Write(body)
	_ = w.Close()
	return b.Bytes()
}

// A rawClaim is written as it is, whatever it says.
type rawClaim struct {
	short                        bool // without what came with version 2
	replica, epoch, session, seq uint64
	mode, token                  uint64
	at                           int64
	permits                      uint64
	slots                        []uint64
	maxHold, minHold, delay      uint64
	state, parts                 uint64
	value                        string
}

func (c rawClaim) write(w writer) {
	if c.short {
		w.array(7)
	} else {
		w.array(15)
	}
	for _, v := range []uint64{c.replica, c.epoch, c.session, c.seq, c.mode, c.token} {
		w.uint(v)
	}
	w.int(c.at)
	if c.short {
		return
	}
	w.uint(c.permits)
	w.array(len(c.slots))
	for _, slot := range c.slots {
		w.uint(slot)
	}
	for _, v := range []uint64{c.maxHold, c.minHold, c.delay, c.state, c.parts} {
		w.uint(v)
	}
	w.string(c.value)
}

// A rawLine is written as it is, whatever it says.
type rawLine struct {
	name             string
	holders, waiters []rawClaim
	long             bool // with what came with version 2
	limit            uint64
	bars             [][2]uint64
}

func (l rawLine) write(w writer) {
	if l.long {
		w.array(5)
	} else {
		w.array(3)
	}
	w.string(l.name)
	for _, side := range [][]rawClaim{l.holders, l.waiters} {
		w.array(len(side))
		for _, c := range side {
			c.write(w)
		}
	}
	if l.long {
		w.uint(l.limit)
		w.array(len(l.bars))
		for _, b := range l.bars {
			w.array(2)
			w.uint(b[0])
			w.uint(b[1])
		}
	}
}

// rawLines is the body of a snapshot of these lines. The last token is 1,000.
func rawLines(lines ...rawLine) []byte {
	return behind(AppendHead(nil, Head{Token: 1_000, Roll: new(sessions.Roll), Lines: len(lines)}), lines...)
}

// behind appends lines to a head.
func behind(head []byte, lines ...rawLine) []byte {
	return encode(head, func(w writer) {
		for _, l := range lines {
			l.write(w)
		}
	})
}

// headV1 is the head of a snapshot of version 1 that rawLines would write.
func headV1(lines int) []byte {
	return encode(nil, func(w writer) { w.array(3); w.uint(1_000); w.array(0); w.uint(uint64(lines)) })
}

// A rawJob is written as it is, whatever it says.
type rawJob struct {
	fields                        int // 0 for as many as there are
	name                          string
	tick                          int64
	replica, epoch, session, call uint64
	at                            int64
}

// rawJobs is the body of a snapshot of these jobs and no lines.
func rawJobs(jobs ...rawJob) []byte {
	return encode(nil, func(w writer) {
		w.array(4)
		w.uint(1_000)
		w.array(0)
		w.uint(0)
		w.array(len(jobs))
		for _, j := range jobs {
			if j.fields == 0 {
				j.fields = 7
			}
			w.array(j.fields)
			w.string(j.name)
			w.int(j.tick)
			for _, v := range []uint64{j.replica, j.epoch, j.session, j.call} {
				w.uint(v)
			}
			w.int(j.at)
			for range j.fields - 7 {
				w.uint(1)
			}
		}
	})
}

// job is one that is right.
func job(name string) rawJob {
	return rawJob{name: name, tick: 3, replica: 2, epoch: 7, call: 4, at: 5}
}

// with returns a copy of j that f has changed.
func (j rawJob) with(f func(*rawJob)) rawJob {
	f(&j)
	return j
}

// holder is a claim of so many permits, with slots from 0 on. In another mode it is
// 0 of them.
func holder(seq uint64, mode queue.Mode, permits uint64) rawClaim {
	c := waiter(seq, mode, permits)
	c.token = seq
	for slot := range permits {
		c.slots = append(c.slots, slot)
	}
	return c
}

func waiter(seq uint64, mode queue.Mode, permits uint64) rawClaim {
	return rawClaim{short: mode == queue.Exclusive, replica: 2, epoch: 7, session: 1, seq: seq, mode: uint64(mode), permits: permits, parts: 1}
}

// with returns a copy of c that f has changed.
func (c rawClaim) with(f func(*rawClaim)) rawClaim {
	c.short = false
	f(&c)
	return c
}

const maxTerm = uint64(MaxTerm / time.Millisecond)

// Whatever an honest replica can come to hold is read.
func TestHonestLines(t *testing.T) {
	const x, s, n = queue.Exclusive, queue.Shared, queue.Counted
	many := make([]rawLine, MaxNames)
	for i := range many {
		many[i] = rawLine{name: fmt.Sprintf("%02d", i), waiters: []rawClaim{waiter(1, x, 0).with(func(c *rawClaim) { c.parts = MaxNames })}}
	}
	value := func(value string) func(*rawClaim) { return func(c *rawClaim) { c.value = value } }
	for what, lines := range map[string][]rawLine{
		"plain but for their values": {{name: "n", holders: []rawClaim{holder(1, x, 0).with(value("h"))},
			waiters: []rawClaim{waiter(2, x, 0).with(value("w")), waiter(3, x, 0)}}},
		"longest values": {{name: "n", holders: []rawClaim{holder(1, x, 0).with(value(strings.Repeat("v", MaxValue)))},
			waiters: []rawClaim{waiter(2, x, 0).with(value(strings.Repeat("€", MaxValue/3)))}}},
		"shared with values":           {{name: "n", holders: []rawClaim{holder(1, s, 0).with(value("h"))}, waiters: []rawClaim{waiter(2, s, 0).with(value("w"))}}},
		"counted with values":          {{name: "n", long: true, limit: 3, holders: []rawClaim{holder(1, n, 2).with(value("h"))}, waiters: []rawClaim{waiter(2, n, 3).with(value("w"))}}},
		"valued, on two names":         {{name: "b", waiters: []rawClaim{waiter(1, x, 0).with(func(c *rawClaim) { c.parts, c.value = 2, "v" })}}, {name: "a", waiters: []rawClaim{waiter(1, x, 0).with(func(c *rawClaim) { c.parts, c.value = 2, "v" })}}},
		"plain":                        {{name: "n", holders: []rawClaim{holder(1, x, 0)}, waiters: []rawClaim{waiter(2, x, 0)}}},
		"waiters for what is not held": {{name: "n", waiters: []rawClaim{waiter(1, x, 0)}}}, // its other name may be; not for us to tell
		"downgraded":                   {{name: "n", holders: []rawClaim{holder(1, s, 0)}}},
		"downgraded, others wait":      {{name: "n", holders: []rawClaim{holder(1, s, 0)}, waiters: []rawClaim{waiter(2, x, 0), waiter(3, s, 0)}}},
		"shared by two":                {{name: "n", holders: []rawClaim{holder(2, s, 0), holder(1, s, 0).with(func(c *rawClaim) { c.token = 2 })}}},
		"counted":                      {{name: "n", long: true, limit: 3, holders: []rawClaim{holder(1, n, 2)}, waiters: []rawClaim{waiter(2, n, 3)}}},
		"fewer permits than are taken": {{name: "n", long: true, limit: 1, holders: []rawClaim{holder(1, n, 3)}, waiters: []rawClaim{waiter(2, n, 1)}}},
		"slots with gaps": {{name: "n", long: true, limit: 1, holders: []rawClaim{
			holder(1, n, 3).with(func(c *rawClaim) { c.slots = []uint64{1, 64, MaxPermits - 1} }),
			holder(2, n, 2).with(func(c *rawClaim) { c.slots = []uint64{0, 2} }),
		}}},
		"all permits":             {{name: "n", long: true, limit: MaxPermits, holders: []rawClaim{holder(1, n, MaxPermits)}}},
		"barred":                  {{name: "n", long: true, bars: [][2]uint64{{1_000, maxTerm}, {1, 1}}}},
		"barred, and was counted": {{name: "n", long: true, limit: 5, bars: [][2]uint64{{7, 1}}}},
		"barred, and waited for":  {{name: "n", long: true, bars: [][2]uint64{{7, 1}}, waiters: []rawClaim{waiter(8, x, 0)}}},
		"barred, and shared":      {{name: "n", long: true, bars: [][2]uint64{{7, 1}}, holders: []rawClaim{holder(6, s, 0)}}},
		"longest times": {{name: "n", holders: []rawClaim{holder(1, x, 0).with(func(c *rawClaim) {
			c.maxHold, c.minHold, c.delay, c.state = maxTerm, maxTerm, maxTerm, uint64(queue.Started|queue.Matured)
		})}}},
		"leaving": {{name: "n", holders: []rawClaim{holder(1, s, 0).with(func(c *rawClaim) {
			c.maxHold, c.minHold, c.state = 2, 1, uint64(queue.Started|queue.Leaving)
		})}, waiters: []rawClaim{waiter(2, x, 0)}}},
		"leaving two names": {
			{name: "b", holders: []rawClaim{holder(1, x, 0).with(func(c *rawClaim) { c.minHold, c.state, c.parts = 1, uint64(queue.Leaving), 2 })}},
			{name: "a", holders: []rawClaim{holder(1, x, 0).with(func(c *rawClaim) { c.minHold, c.state, c.parts, c.token = 1, uint64(queue.Leaving), 2, 2 })}},
		},
		"64 names": many,
	} {
		body := rawLines(lines...)
		head, got, err := readAll(bytes.NewReader(sealed(body)))
		require.NoError(t, err, what)
		require.Equal(t, body, snapshotBody(head, got), what)
	}
}

// No rule bounds those who share a lock, nor therefore the bars that they leave, so
// there may be more of them than may wait. Here none of them is there, so it is the
// first that is missed, or the length that is refused.
func TestMoreMayHoldThanMayWait(t *testing.T) {
	more := func(w writer) { w.array(MaxWaiters + 1) }
	read := func(rest ...func(writer)) error {
		return readSealed(encode(AppendHead(nil, Head{Roll: new(sessions.Roll), Lines: 1}), func(w writer) {
			w.array(5)
			w.string("n")
			for _, f := range rest {
				f(w)
			}
		}))
	}
	none := func(w writer) { w.array(0) }
	limit := func(w writer) { w.uint(1) }
	require.ErrorContains(t, read(more), "claim: EOF")
	require.ErrorContains(t, read(none, none, limit, more), "bar: EOF")
	require.ErrorContains(t, read(none, more), "waiters: length")
}

func TestMalformedLines(t *testing.T) {
	const x, s, n = queue.Exclusive, queue.Shared, queue.Counted
	type list = []rawClaim
	plain := func(holders, waiters list) []rawLine {
		return []rawLine{{name: "n", holders: holders, waiters: waiters}}
	}
	limited := func(limit uint64, holders, waiters list) []rawLine {
		return []rawLine{{name: "n", long: true, limit: limit, holders: holders, waiters: waiters}}
	}
	barred := func(bars ...[2]uint64) []rawLine { return []rawLine{{name: "n", long: true, bars: bars}} }
	timed := func(maxHold, minHold, delay uint64, state queue.State) func(*rawClaim) {
		return func(c *rawClaim) {
			c.maxHold, c.minHold, c.delay, c.state = maxHold, minHold, delay, uint64(state)
		}
	}
	slots := func(slots ...uint64) func(*rawClaim) {
		return func(c *rawClaim) { c.slots, c.permits = slots, uint64(len(slots)) }
	}
	// part is a claim that is one of so many.
	part := func(seq, parts uint64) rawClaim { return waiter(seq, x, 0).with(func(c *rawClaim) { c.parts = parts }) }
	holds := func(c *rawClaim) { c.token = 1 }
	waitFor := func(name string, claims ...rawClaim) rawLine { return rawLine{name: name, waiters: claims} }
	value := func(value string) func(*rawClaim) { return func(c *rawClaim) { c.value = value } }
	const hold, wait, mode, over = "cannot hold it", "waits for it and has it", "in another mode", "a time of"

	for what, c := range map[string]struct {
		why   string
		lines []rawLine
	}{
		"holder without token":       {hold, plain(list{waiter(1, x, 0)}, nil)},
		"waiter with token":          {wait, plain(list{holder(1, x, 0)}, list{holder(2, x, 0)})},
		"two exclusive holders":      {hold, plain(list{holder(1, x, 0), holder(2, x, 0)}, nil)},
		"shared beside exclusive":    {hold, plain(list{holder(1, x, 0), holder(2, s, 0)}, nil)},
		"exclusive beside shared":    {hold, plain(list{holder(1, s, 0), holder(2, x, 0)}, nil)},
		"shared beside counted":      {hold, limited(5, list{holder(1, n, 1), holder(2, s, 0)}, nil)},
		"exclusive beside counted":   {hold, limited(5, list{holder(1, n, 1), holder(2, x, 0)}, nil)},
		"counted without limit":      {hold, plain(list{holder(1, n, 1)}, nil)},
		"counted with limit 0":       {hold, []rawLine{{name: "n", long: true, bars: [][2]uint64{{1, 1}}, holders: list{holder(1, n, 1)}}}},
		"exclusive with limit":       {hold, limited(5, list{holder(1, x, 0)}, nil)},
		"shared with limit":          {hold, limited(5, list{holder(1, s, 0)}, nil)},
		"counted waits, no limit":    {mode, plain(nil, list{waiter(1, n, 1)})},
		"exclusive waits, limit":     {mode, limited(5, nil, list{waiter(1, x, 0)})},
		"shared waits, limit":        {mode, limited(5, list{holder(1, n, 1)}, list{waiter(2, s, 0)})},
		"waits for more than is":     {"for more than there is", limited(5, list{holder(1, n, 1)}, list{waiter(2, n, 6)})},
		"waiter with a slot":         {wait, limited(5, nil, list{waiter(1, n, 1).with(func(c *rawClaim) { c.slots = []uint64{0} })})},
		"waiter in a state":          {wait, plain(nil, list{waiter(1, x, 0).with(timed(1, 1, 0, queue.Started))})},
		"limit too high":             {"permits", limited(MaxPermits+1, nil, nil)},
		"limit that wraps":           {"permits", limited(1<<32+5, list{holder(1, n, 1)}, nil)},
		"slot too high":              {"slot", limited(5, list{holder(1, n, 1).with(slots(MaxPermits))}, nil)},
		"slot that wraps":            {"number", limited(5, list{holder(1, n, 1).with(slots(1 << 32))}, nil)},
		"slot twice in a claim":      {hold, limited(5, list{holder(1, n, 1).with(slots(1, 1))}, nil)},
		"slot twice in a line":       {hold, limited(5, list{holder(1, n, 1).with(slots(1, 2)), holder(2, n, 1).with(slots(2, 3))}, nil)},
		"slots out of order":         {hold, limited(5, list{holder(1, n, 1).with(slots(2, 1))}, nil)},
		"more slots than permits":    {hold, limited(5, list{holder(1, n, 2).with(func(c *rawClaim) { c.permits = 1 })}, nil)},
		"fewer slots than permits":   {hold, limited(5, list{holder(1, n, 2).with(func(c *rawClaim) { c.permits = 3 })}, nil)},
		"shared with slots":          {hold, plain(list{holder(1, s, 0).with(func(c *rawClaim) { c.slots = []uint64{0} })}, nil)},
		"counted without permits":    {"permits in mode", limited(5, list{holder(1, n, 0)}, nil)},
		"shared with permits":        {"permits in mode", plain(list{holder(1, s, 1)}, nil)},
		"permits too many":           {"permits in mode", limited(MaxPermits, nil, list{waiter(1, n, MaxPermits+1)})},
		"permits that wrap":          {"permits in mode", limited(5, nil, list{waiter(1, n, 1<<32+1)})},
		"mode 0":                     {"mode 0", plain(list{holder(1, 0, 0)}, nil)},
		"unknown mode":               {"mode 4", plain(list{holder(1, 4, 0)}, nil)},
		"mode that wraps":            {"number", plain(list{holder(1, x, 0).with(func(c *rawClaim) { c.mode = 257 })}, nil)},
		"shared in few fields":       {"mode 2 with 7 fields", plain(list{holder(1, s, 0).with(func(c *rawClaim) { c.short = true })}, nil)},
		"counted in few fields":      {"mode 3 with 7 fields", limited(5, list{holder(1, n, 1).with(func(c *rawClaim) { c.short = true })}, nil)},
		"value too long":             {"value: length 1025", plain(list{holder(1, x, 0).with(value(strings.Repeat("v", MaxValue+1)))}, nil)},
		"value too wide":             {"value: length 1026", plain(nil, list{waiter(1, x, 0).with(value(strings.Repeat("€", MaxValue/3+1)))})},
		"value not UTF-8":            {"value is not UTF-8", plain(list{holder(1, s, 0).with(value("v\xff"))}, nil)},
		"plain waiter, many fields":  {"plain claim", plain(nil, list{waiter(1, x, 0).with(value(""))})},
		"plain in many fields":       {"plain claim", plain(list{holder(1, x, 0).with(func(*rawClaim) {})}, nil)},
		"plain line in many fields":  {"plain line", limited(0, list{holder(1, x, 0)}, nil)},
		"longest hold too long":      {over, plain(list{holder(1, x, 0).with(timed(maxTerm+1, 0, 0, 0))}, nil)},
		"shortest hold too long":     {over, plain(list{holder(1, x, 0).with(timed(0, maxTerm+1, 0, 0))}, nil)},
		"delay too long":             {over, plain(list{holder(1, x, 0).with(timed(0, 0, maxTerm+1, 0))}, nil)},
		"time that would wrap":       {over, plain(list{holder(1, x, 0).with(timed(1<<63/1_000_000+1, 0, 0, 0))}, nil)},
		"bar for too long":           {over, barred([2]uint64{1, maxTerm + 1})},
		"unknown state":              {"state 8", plain(list{holder(1, x, 0).with(timed(1, 1, 1, 8))}, nil)},
		"unknown state beside known": {"state 129", plain(list{holder(1, x, 0).with(timed(1, 1, 1, queue.Started|128))}, nil)},
		"state that wraps":           {"number", plain(list{holder(1, x, 0).with(func(c *rawClaim) { c.maxHold, c.state = 1, 257 })}, nil)},
		"started without longest":    {"state 1", plain(list{holder(1, x, 0).with(timed(0, 1, 1, queue.Started))}, nil)},
		"matured without shortest":   {"state 2", plain(list{holder(1, x, 0).with(timed(1, 0, 1, queue.Matured))}, nil)},
		"leaving without shortest":   {"state 4", plain(list{holder(1, x, 0).with(timed(1, 0, 1, queue.Leaving))}, nil)},
		"leaving though matured":     {"state 6", plain(list{holder(1, x, 0).with(timed(1, 1, 1, queue.Leaving|queue.Matured))}, nil)},
		"state of a shared hold":     {"state 1", plain(list{holder(1, s, 0).with(timed(0, 0, 0, queue.Started))}, nil)},
		"bar 0":                      {"bar 0", barred([2]uint64{0, 1})},
		"bar of a token to come":     {"bar 1001", barred([2]uint64{1_001, 1})},
		"bar twice in a line":        {"bar 7", barred([2]uint64{7, 1}, [2]uint64{7, 1})},
		"bar twice":                  {"bar 7", []rawLine{barred([2]uint64{7, 1})[0], {name: "m", long: true, bars: [][2]uint64{{7, 1}}}}},
		"of no names":                {"claim on 0 names", []rawLine{waitFor("a", part(1, 0))}},
		"of 65 names":                {"claim on 65 names", []rawLine{waitFor("a", part(1, MaxNames+1))}},
		"of names that wrap":         {"claim on 4294967298 names", []rawLine{waitFor("a", part(1, 1<<32+2)), waitFor("b", part(1, 1<<32+2))}},
		"a part is missing":          {"on 3 names is one on 2", []rawLine{waitFor("a", part(1, 3)), waitFor("b", part(1, 3))}},
		"a part is alone":            {"on 2 names is one on 1", []rawLine{waitFor("a", part(1, 2))}},
		"a part too many":            {"too often", []rawLine{waitFor("a", part(1, 2)), waitFor("b", part(1, 2)), waitFor("c", part(1, 2))}},
		"parts count differently":    {"too often", []rawLine{waitFor("a", part(1, 2)), waitFor("b", part(1, 3))}},
		"a part is of another":       {"is one on 1", []rawLine{waitFor("a", part(1, 2)), waitFor("b", part(2, 2))}},
		"a part is of another session": {"is one on 1", []rawLine{waitFor("a", part(1, 2)),
			waitFor("b", part(1, 2).with(func(c *rawClaim) { c.session = 2 }))}},
		"two parts in a line": {"stands twice", []rawLine{waitFor("a", part(1, 2), part(1, 2))}},
		"a part holds":        {"differ", []rawLine{waitFor("a", part(1, 2)), {name: "b", holders: list{part(1, 2).with(holds)}}}},
		"parts share":         {"differ", []rawLine{waitFor("a", part(1, 2).with(func(c *rawClaim) { c.mode = 2 })), waitFor("b", part(1, 2).with(func(c *rawClaim) { c.mode = 2 }))}},
		"a part shares":       {"differ", []rawLine{waitFor("a", part(1, 2)), waitFor("b", part(1, 2).with(func(c *rawClaim) { c.mode = 2 }))}},
		"parts of other times": {"differ", []rawLine{waitFor("a", part(1, 2).with(timed(1, 2, 3, 0))),
			waitFor("b", part(1, 2).with(timed(1, 2, 4, 0)))}},
		"a part without times":  {"differ", []rawLine{waitFor("a", part(1, 2).with(timed(1, 0, 0, 0))), waitFor("b", part(1, 2))}},
		"parts of other values": {"differ", []rawLine{waitFor("a", part(1, 2).with(value("v"))), waitFor("b", part(1, 2).with(value("w")))}},
		"a part without value":  {"differ", []rawLine{waitFor("a", part(1, 2).with(value("v"))), waitFor("b", part(1, 2))}},
		"third is of no value": {"differ", []rawLine{waitFor("a", part(1, 3).with(value("v"))), waitFor("b", part(1, 3).with(value("v"))),
			waitFor("c", part(1, 3))}},
		"parts in other states": {"differ", []rawLine{
			{name: "a", holders: list{part(1, 2).with(timed(1, 2, 3, queue.Started)).with(holds)}},
			{name: "b", holders: list{part(1, 2).with(timed(1, 2, 3, queue.Matured)).with(holds)}}}},
	} {
		err := readSealed(rawLines(c.lines...))
		require.ErrorIs(t, err, ErrMalformed, what)
		require.ErrorContains(t, err, c.why, what)
	}
}

// Version 1 knows the short forms and nothing else.
func TestSnapshotOfVersion1HasNothingNew(t *testing.T) {
	good := rawLine{name: "n", holders: []rawClaim{holder(1, queue.Exclusive, 0)}}
	claimed := func(c rawClaim) rawLine { return rawLine{name: "n", holders: []rawClaim{c}} }
	valued := holder(1, queue.Exclusive, 0).with(func(c *rawClaim) { c.value = "v" })
	for _, c := range []struct {
		why  string
		head []byte // of version 1; nil for one of version 2
		line rawLine
	}{
		{"", headV1(1), good},
		{"claim with 15 fields", headV1(1), claimed(holder(1, queue.Shared, 0))},
		{"claim with 15 fields", headV1(1), claimed(valued)},
		{"line with 5 fields", headV1(1), rawLine{name: "n", long: true, bars: [][2]uint64{{1, 1}}}},
		{"snapshot head: length 4", nil, good},
	} {
		b := sealed(rawLines(c.line))
		_, _, err := readAll(bytes.NewReader(b))
		require.NoError(t, err, "all of this is right in version 2")
		if c.head != nil {
			b = sealed(behind(c.head, c.line))
			_, _, err = readAll(bytes.NewReader(b))
			require.ErrorIs(t, err, ErrMalformed, "but for the head")
			require.ErrorContains(t, err, "snapshot head with 3 fields")
		}
		b[0] = 1
		_, _, err = readAll(bytes.NewReader(b))
		if c.why == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, ErrMalformed)
		require.ErrorContains(t, err, c.why)
	}
}

// Whatever an honest replica can remember of jobs is read. A process may be known no
// more, and a call has whatever number its process gave it.
func TestHonestJobs(t *testing.T) {
	most := make([]rawJob, MaxJobs)
	for i := range most {
		most[i] = job(fmt.Sprintf("%05d", i))
	}
	for what, jobs := range map[string][]rawJob{
		"none":           nil,
		"ordered":        {job("A"), job("a"), job("a/b"), job("aa"), job("ä")}, // by bytes
		"longest name":   {job(strings.Repeat("n", MaxName))},
		"least tick":     {job("n").with(func(j *rawJob) { j.tick = math.MinInt64 })},
		"largest tick":   {job("n").with(func(j *rawJob) { j.tick = math.MaxInt64 })},
		"tick 0, call 0": {job("n").with(func(j *rawJob) { j.tick, j.call = 0, 0 })},
		"all is large": {job("n").with(func(j *rawJob) {
			j.replica, j.epoch, j.call, j.at = math.MaxUint64, math.MaxUint64, math.MaxUint64, math.MinInt64
		})},
		"as many as can": most,
	} {
		body := rawJobs(jobs...)
		head, lines, err := readAll(bytes.NewReader(sealed(body)))
		require.NoError(t, err, what)
		require.Len(t, head.Jobs, len(jobs), what)
		require.Equal(t, body, snapshotBody(head, lines), what)
	}
}

func TestMalformedJobs(t *testing.T) {
	changed := func(f func(*rawJob)) []byte { return rawJobs(job("n").with(f)) }
	named := func(names ...string) []byte {
		var jobs []rawJob
		for _, name := range names {
			jobs = append(jobs, job(name))
		}
		return rawJobs(jobs...)
	}
	tooMany := make([]string, MaxJobs+1)
	for i := range tooMany {
		tooMany[i] = fmt.Sprintf("%05d", i)
	}
	// head is one of so many fields, the jobs as f writes them.
	head := func(n int, f func(writer)) []byte {
		return encode(nil, func(w writer) { w.array(n); w.uint(1); w.array(0); w.uint(0); f(w) })
	}
	for what, c := range map[string]struct {
		why  string
		body []byte
	}{
		"head without jobs":   {"snapshot head with 3 fields", head(3, nothing)},
		"jobs missing":        {"jobs: EOF", head(4, nothing)},
		"head goes on":        {"snapshot head: length 5", head(5, func(w writer) { w.array(0); w.uint(0) })},
		"jobs are nil":        {"jobs: length -1", append(head(4, nothing), 0xc0)},
		"jobs are a text":     {"jobs: ", head(4, func(w writer) { w.string("n") })},
		"job is a text":       {"job: ", head(4, func(w writer) { w.array(1); w.string("n") })},
		"one too many":        {"jobs: length 65537", named(tooMany...)},
		"one is missing":      {"job: EOF", head(4, func(w writer) { w.array(1) })},
		"one is behind":       {"goes on after", append(named("n"), 0x97)},
		"of 6 fields":         {"job with 6 fields", changed(func(j *rawJob) { j.fields = 6 })},
		"of 8 fields":         {"job: length 8", changed(func(j *rawJob) { j.fields = 8 })},
		"empty name":          {"empty name", named("")},
		"over-long name":      {"name: length 513", named(strings.Repeat("n", MaxName+1))},
		"name not UTF-8":      {"name is not UTF-8", named("\xff")},
		"twice":               {`job "a" out of order`, named("a", "a")},
		"out of order":        {`job "a" out of order`, named("b", "a")},
		"last out of order":   {`job "aa" out of order`, named("a", "b", "aa")},
		"by replica 0":        {`job "n" by 0.7.0`, changed(func(j *rawJob) { j.replica = 0 })},
		"by epoch 0":          {`job "n" by 2.0.0`, changed(func(j *rawJob) { j.epoch = 0 })},
		"by a session":        {`job "n" by 2.7.1`, changed(func(j *rawJob) { j.session = 1 })},
		"by nobody":           {`job "n" by 0.0.0`, changed(func(j *rawJob) { j.replica, j.epoch = 0, 0 })},
		"upper case is lower": {`job "B" out of order`, named("a", "B")},
	} {
		err := readSealed(c.body)
		require.ErrorIs(t, err, ErrMalformed, what)
		require.ErrorContains(t, err, c.why, what)
	}
}

func TestMalformedSnapshots(t *testing.T) {
	good := rawLine{name: "n", holders: []rawClaim{holder(1, queue.Exclusive, 0)}}
	named := func(name string) []byte { l := good; l.name = name; return rawLines(l) }
	process := func(w writer, replica, epoch uint64) {
		w.array(6)
		w.uint(replica)
		w.uint(epoch)
		for range 3 {
			w.uint(1)
		}
	}
	session := func(w writer, seq, ttl uint64, owner string) {
		w.array(4)
		w.uint(seq)
		w.uint(ttl)
		w.string(owner)
		w.int(0)
	}
	head := func(f func(writer)) []byte {
		return encode(nil, func(w writer) { w.array(4); w.uint(1); f(w); w.uint(0); w.array(0) })
	}
	// of is one process with these sessions.
	of := func(n int, sessions func(writer)) []byte {
		return head(func(w writer) { w.array(1); process(w, 1, 1); w.array(n); sessions(w) })
	}
	// ofFields is a line or a claim with so many fields.
	ofFields := func(line, claim int) []byte {
		return encode(AppendHead(nil, Head{Roll: new(sessions.Roll), Lines: 1}), func(w writer) {
			w.array(line)
			w.string("n")
			w.array(1)
			w.array(claim)
			for range 30 {
				w.uint(1)
			}
		})
	}
	// barOf is a bar with so many fields.
	barOf := func(fields int) []byte {
		return encode(AppendHead(nil, Head{Token: 9, Roll: new(sessions.Roll), Lines: 1}), func(w writer) {
			w.array(5)
			w.string("n")
			w.array(0)
			w.array(0)
			w.uint(0)
			w.array(1)
			w.array(fields)
			for range fields {
				w.uint(1)
			}
		})
	}
	require.NoError(t, readSealed(rawLines(good)))
	require.NoError(t, readSealed(barOf(2)))
	require.NoError(t, readSealed(of(2, func(w writer) { session(w, 1, 1, ""); session(w, 2, uint64(MaxTTL/time.Millisecond), "") })))

	for what, c := range map[string]struct {
		why  string
		body []byte
	}{
		"nothing":                 {"snapshot head", nil},
		"head too short":          {"head with 2 fields", encode(nil, func(w writer) { w.array(2) })},
		"a line is missing":       {"line", AppendHead(nil, Head{Roll: new(sessions.Roll), Lines: 1})},
		"goes on after its lines": {"goes on", append(rawLines(good), 0xc0)},
		"line without name":       {"empty name", named("")},
		"over-long name":          {"name: length", named(strings.Repeat("n", MaxName+1))},
		"name not UTF-8":          {"name is not UTF-8", named("\xff")},
		"line of 4 fields":        {"line with 4", ofFields(4, 7)},
		"line of 6 fields":        {"line: length 6", ofFields(6, 7)},
		"claim of 8 fields":       {"claim with 8", ofFields(3, 8)},
		"claim of 13 fields":      {"claim with 13", ofFields(3, 13)},
		"claim of 14 fields":      {"claim with 14", ofFields(3, 14)},
		"claim of 16 fields":      {"claim: length 16", ofFields(3, 16)},
		"bar of 1 field":          {"bar with 1 fields", barOf(1)},
		"bar of 3 fields":         {"bar: length 3", barOf(3)},
		"two million processes":   {"processes: length", head(func(w writer) { w.array(1 << 21) })},
		"process of replica 0":    {"process 0.1", head(func(w writer) { w.array(1); process(w, 0, 1); w.array(0) })},
		"process of epoch 0":      {"process 1.0", head(func(w writer) { w.array(1); process(w, 1, 0); w.array(0) })},
		"replica stands twice":    {"replica 1 stands twice", head(func(w writer) { w.array(2); process(w, 1, 1); w.array(0); process(w, 1, 2); w.array(0) })},
		"session stands twice":    {"session 1.1.1 stands twice", of(2, func(w writer) { session(w, 1, 1, ""); session(w, 1, 1, "") })},
		"TTL too long":            {"TTL", of(1, func(w writer) { session(w, 1, uint64(MaxTTL/time.Millisecond)+1, "") })},
		"TTL that would wrap":     {"TTL", of(1, func(w writer) { session(w, 1, 1<<63/1_000_000+1, "") })},
		"over-long owner":         {"owner: length", of(1, func(w writer) { session(w, 1, 1, strings.Repeat("o", MaxOwner+1)) })},
	} {
		err := readSealed(c.body)
		require.ErrorIs(t, err, ErrMalformed, what)
		require.ErrorContains(t, err, c.why, what)
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
		b := binary.BigEndian.AppendUint32([]byte{BaseVersion}, n)
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

// Lengths are believed only as far as there are bytes, also in a stream, whose
// length nobody knows.
func TestHostileLengthsInASnapshot(t *testing.T) {
	array := func(n uint32) []byte { return binary.BigEndian.AppendUint32([]byte{0xdd}, n) }
	head := AppendHead(nil, Head{Token: 9, Roll: new(sessions.Roll), Lines: 1})
	after := func(begin []byte, more ...byte) func(uint32) []byte {
		return func(n uint32) []byte { return slices.Concat(begin, more, array(n)) }
	}
	name := []byte{0xa1, 'n'}
	line := slices.Concat(head, []byte{0x93}, name)
	long := slices.Concat(head, []byte{0x95}, name)
	claim := []byte{1, 1, 1, 1, byte(queue.Counted), 1, 1, 1}
	process := []byte{0x94, 1, 0x91, 0x96, 1, 1, 1, 1, 1}
	jobs := []byte{0x94, 1, 0x90, 0}
	text := []byte{0xdb, 0xff, 0xff, 0xff, 0xff}
	cases := [][]byte{
		slices.Concat(head, []byte{0x93}, text),
		slices.Concat(jobs, []byte{0x91, 0x97}, text),                                                          // a job's name
		slices.Concat(line, []byte{0x91, 0x9f}, claim, []byte{0x91, 0, 0, 0, 0, 0, 1}, text),                   // a value
		slices.Concat(line, []byte{0x91, 0x9f}, claim, []byte{0x91, 0, 0, 0, 0, 0, 1, 0xda, MaxValue >> 8, 0}), // as long as it may be
	}
	for _, n := range []uint32{math.MaxUint32, 1 << 30, MaxWaiters, MaxPermits} {
		for _, f := range []func(uint32) []byte{
			after(nil), after([]byte{0x94, 1}), after(process), // processes, sessions
			after(jobs), after(jobs, 0x91), // jobs, a job's fields
			after(head), after(line), after(line, 0x90), // fields, holders, waiters
			after(line, 0x91), after(line, append([]byte{0x91, 0x9f}, claim...)...), // a claim's fields, slots
			after(long, 0x90, 0x90, 0), after(long, 0x90, 0x90, 5), // bars
		} {
			cases = append(cases, f(n))
		}
	}
	for i, body := range cases {
		b := sealed(body)
		_, _, err := readAll(bytes.NewReader(b))
		require.ErrorIs(t, err, ErrMalformed, "case %d", i)
		require.Less(t, bytesMade(func() { _, _, _ = readAll(bytes.NewReader(b)) }), uint64(128<<10), "case %d", i)
	}
}

// randomState returns what a machine of locks might come to hold.
func randomState(rnd *rand.Rand) (Head, []*queue.Line) {
	number := func() uint64 { return rnd.Uint64() >> rnd.IntN(64) }
	term := func() time.Duration {
		return time.Duration(rnd.Uint64N(maxTerm+1)>>rnd.IntN(35)) * time.Millisecond * time.Duration(rnd.IntN(2))
	}
	h := Head{Token: fencing.Token(1_000_000 + number()>>1), Roll: new(sessions.Roll)}
	var ids []sessions.ID
	for replica := range uint64(1 + rnd.IntN(4)) {
		p := sessions.Process{Replica: 1 + replica, Epoch: 1 + number()>>1, Renewal: number(), Batch: number(), Claimed: number()}
		h.Roll.Restore(p)
		for seq := range uint64(1 + rnd.IntN(3)) {
			id := sessions.ID{Replica: p.Replica, Epoch: p.Epoch, Seq: 1 + seq}
			ids = append(ids, id)
			h.Roll.Open(sessions.Session{ID: id, TTL: time.Duration(rnd.IntN(86_400_001)) * time.Millisecond,
				Owner: strings.Repeat("ö", rnd.IntN(MaxOwner/2)), OpenedAt: int64(number())})
		}
	}
	seq := uint64(0)
	claim := func(m queue.Mode) *queue.Claim {
		seq += 1 + rnd.Uint64N(1<<rnd.IntN(40))
		c := &queue.Claim{Session: ids[rnd.IntN(len(ids))], Seq: seq, Mode: m, At: int64(number())}
		if terms := (queue.Terms{MaxHold: term(), MinHold: term(), Delay: term()}); terms != (queue.Terms{}) {
			c.Terms = &terms
		}
		if rnd.IntN(3) == 0 {
			c.Value = strings.Repeat([]string{"v", "€"}[rnd.IntN(2)], rnd.IntN(MaxValue/3+1)>>rnd.IntN(10))
		}
		return c
	}
	// settle is what may have become of a hold.
	settle := func(c *queue.Claim) {
		if c.Terms != nil && c.Terms.MaxHold > 0 && rnd.IntN(2) == 0 {
			c.State |= queue.Started
		}
		if c.Terms != nil && c.Terms.MinHold > 0 {
			c.State |= []queue.State{0, queue.Matured, queue.Leaving}[rnd.IntN(3)]
		}
	}
	token := func() fencing.Token { return 1 + fencing.Token(number()%uint64(h.Token)) }

	lines := make([]*queue.Line, rnd.IntN(30))
	var single []*queue.Line // those that are not counted
	bar := uint64(0)
	for i := range lines {
		l := &queue.Line{Name: fmt.Sprintf("%x/%s", rnd.Uint64(), strings.Repeat("€", rnd.IntN(MaxName/4)))}
		lines[i] = l
		var held []*queue.Claim
		hold := func(c *queue.Claim) {
			t := l.Generation(c.Mode)
			if t.IsZero() {
				t = token()
			}
			l.Hold(c, t)
			settle(c)
			held = append(held, c)
		}
		switch mode := queue.Mode(rnd.IntN(4)); mode {
		case queue.Exclusive:
			hold(claim(mode))
		case queue.Shared:
			c := claim(queue.Mode(1 + rnd.IntN(2)))
			hold(c)
			c.Downgrade()
			for range rnd.IntN(5) {
				hold(claim(mode))
			}
		case queue.Counted:
			limit := 1 + rnd.Uint32N(1<<rnd.IntN(10))
			l.SetLimit(limit)
			for range rnd.IntN(20) {
				c := claim(mode)
				if c.Permits = 1 + rnd.Uint32N(limit); l.Taken()+c.Permits <= limit {
					hold(c)
				}
				if len(held) > 0 && rnd.IntN(3) == 0 {
					k := rnd.IntN(len(held))
					held[k].Leave()
					held = slices.Delete(held, k, k+1)
				}
			}
			l.SetLimit(1 + rnd.Uint32N(limit))
		}
		if l.Limit() == 0 {
			single = append(single, l)
		}
		for range rnd.IntN(1 + rnd.IntN(5)) {
			c := claim(queue.Mode(1 + rnd.IntN(2)))
			if l.Limit() > 0 {
				c.Mode, c.Permits = queue.Counted, 1+rnd.Uint32N(l.Limit())
			}
			l.Wait(c)
		}
		for range max(0, rnd.IntN(6)-3) {
			bar += 1 + rnd.Uint64N(1_000)
			l.Bar(queue.Bar{ID: bar, For: term()})
		}
	}
	for i := range rnd.IntN(10) {
		if i == 0 { // some that may be held
			single = append(single, &queue.Line{Name: "first"}, &queue.Line{Name: "last"})
			lines = append(lines, single[len(single)-1], single[len(single)-2])
		}
		rnd.Shuffle(len(single), func(i, j int) { single[i], single[j] = single[j], single[i] })
		where := slices.SortedFunc(slices.Values(single[:2+rnd.IntN(1+rnd.IntN(min(MaxNames, len(single))-1))]),
			func(a, b *queue.Line) int { return strings.Compare(a.Name, b.Name) })
		holds := !slices.ContainsFunc(where, func(l *queue.Line) bool { return l.Holding() > 0 })
		first := claim(queue.Exclusive)
		if holds {
			settle(first)
		}
		parts := make([]*queue.Claim, len(where))
		for i, l := range where {
			c := *first
			if parts[i] = &c; holds {
				l.Hold(&c, token())
			} else {
				l.Wait(&c)
			}
		}
		queue.Join(parts)
	}
	h.Lines = len(lines)
	if h.Level = BaseVersion + byte(rnd.IntN(2)); h.Level >= 3 && rnd.IntN(2) == 0 {
		h.Origin = anOrigin()
	}
	for range rnd.IntN(10) {
		by := ids[rnd.IntN(len(ids))]
		h.Jobs = append(h.Jobs, Job{Name: fmt.Sprintf("%x/%s", rnd.Uint64()>>rnd.IntN(64), strings.Repeat("€", rnd.IntN(MaxName/4))),
			Tick: int64(number()), By: sessions.ID{Replica: by.Replica, Epoch: by.Epoch}, Call: number(), At: int64(number())})
	}
	slices.SortFunc(h.Jobs, func(a, b Job) int { return strings.Compare(a.Name, b.Name) })
	h.Jobs = slices.CompactFunc(h.Jobs, func(a, b Job) bool { return a.Name == b.Name })
	return h, lines
}

func TestRandomSnapshotsComeBack(t *testing.T) {
	rnd := dice(t)
	var joint, held, shrunk, leaving, valued, jobs int
	for range 200 {
		h, lines := randomState(rnd)
		jobs += len(h.Jobs)
		for _, l := range lines {
			for c := range l.Holders() {
				held++
				joint += len(c.Parts()) - 1
				leaving += int(c.State & queue.Leaving)
				if without := *c; c.Value != "" {
					if without.Value = ""; without.Plain() {
						valued++
					}
				}
			}
			if l.Taken() > l.Limit() {
				shrunk++
			}
		}
		b := written(t, h, lines)
		h2, lines2, err := readAll(bytes.NewReader(b))
		require.NoError(t, err)
		require.Equal(t, tell(h, lines), tell(h2, lines2))
		require.Equal(t, b, written(t, h2, lines2))
	}
	t.Logf("%d holders, %d of several names, %d leaving, %d plain but for a value, %d locks shrunk, %d jobs", held, joint, leaving, valued, shrunk, jobs)
	require.True(t, joint > 0 && held > 0 && shrunk > 0 && leaving > 0 && valued > 0 && jobs > 0)
}

func FuzzReadSnapshot(f *testing.F) {
	h, lines := aState()
	f.Add(snapshotBody(h, lines), false)
	f.Add(snapshotBody(stateV1()), false)
	f.Add(AppendHead(nil, Head{Roll: new(sessions.Roll)}), false)
	f.Add(written(f, h, lines), true)
	f.Add(fromHex(f, "snapshot.v1.hex"), true)
	f.Add([]byte{Version + 1}, true)
	f.Add(rawJobs(job("a"), job("b").with(func(j *rawJob) { j.tick, j.call = math.MinInt64, 0 })), false)
	f.Add(rawJobs(job("b"), job("a")), false)
	f.Add(rawLines(rawLine{name: "n", holders: []rawClaim{holder(1, queue.Exclusive, 0).with(func(c *rawClaim) { c.value = "v" })}}), false)
	rnd := rand.New(rand.NewPCG(1, 1))
	for range 20 {
		f.Add(snapshotBody(randomState(rnd)), false)
	}
	// The checksums keep a fuzzer out, so it may also write what they seal.
	f.Fuzz(func(t *testing.T, b []byte, raw bool) {
		if !raw {
			b = sealed(b)
		}
		requireReadOrMalformed(t, b, "%x", b)
	})
}
