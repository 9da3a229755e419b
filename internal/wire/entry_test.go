package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the golden files of the present versions anew; "+
	"a version that was ever released must not change")

// dice returns a source that a failed test can be repeated with.
func dice(t *testing.T) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("QUORUMLOCK_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("QUORUMLOCK_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// everyOp is an entry with each operation in it, and each field with a value that
// no other field has.
func everyOp() *Entry {
	return &Entry{Replica: 3, Epoch: 70_000, Renewal: 129, Batch: 5_000_000_000, At: 1_767_225_600_123,
		Commands: []Command{
			{Op: Boot},
			{Op: Open, Session: 1, TTL: 10_000, Owner: "payouts-7f9c"},
			{Op: Close, Session: 2},
			{Op: Acquire, Session: 1, Hold: 41, Name: "invoice/2026-00017", Mode: 1, Wait: true, Limit: 100_000},
			{Op: Acquire, Session: 1, Hold: 42, Name: "Größe/€", Mode: 1},
			{Op: Release, Session: 1, Hold: 40},
			{Op: Cancel, Session: 1, Hold: 39},
			{Op: Expire, Replica: 5, Epoch: 9, Renewal: 77, TTL: 30_000},
		}}
}

func decoded(t testing.TB, b []byte) *Entry {
	t.Helper()
	e := new(Entry)
	require.NoError(t, DecodeEntry(b, e))
	return e
}

// golden compares b with a file of hex lines, and returns what the file holds.
func golden(t *testing.T, name string, b []byte) []byte {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		var text strings.Builder
		for rest := b; len(rest) > 0; {
			n := min(len(rest), 32)
			text.WriteString(hex.EncodeToString(rest[:n]) + "\n")
			rest = rest[n:]
		}
		require.NoError(t, os.WriteFile(path, []byte(text.String()), 0o666))
	}
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	want, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	require.NoError(t, err)
	require.Equal(t, hex.Dump(want), hex.Dump(b), "the durable format has changed: it needs a new version")
	return want
}

func TestEntryGolden(t *testing.T) {
	require.Equal(t, 1, EntryVersion, "keep the golden files of old versions, and add one")
	b := golden(t, "entry.v1.hex", AppendEntry(nil, everyOp()))
	require.Equal(t, everyOp(), decoded(t, b))
}

func TestEveryOpIsInTheGoldenEntry(t *testing.T) {
	met := map[Op]bool{}
	for _, c := range everyOp().Commands {
		met[c.Op] = true
	}
	for op := Op(1); op <= lastOp; op++ {
		require.True(t, met[op], op)
		require.NotEqual(t, "op?", op.String())
		require.NotZero(t, arity(op))
	}
	require.Equal(t, "op?", Op(0).String())
	require.Equal(t, "op?", (lastOp + 1).String())
	require.Zero(t, arity(lastOp+1))
}

func TestAppendEntryAppends(t *testing.T) {
	alone := AppendEntry(nil, everyOp())
	b := AppendEntry([]byte("before"), everyOp())
	require.Equal(t, append([]byte("before"), alone...), b)
}

// What was decoded before leaves no trace in what is decoded into the same Entry
// next. Its texts are views of the bytes, and all else is its own.
func TestDecodeIntoAUsedEntry(t *testing.T) {
	b := AppendEntry(nil, everyOp())
	e := decoded(t, b)
	require.Equal(t, everyOp(), e)
	clear(b)
	for i, c := range everyOp().Commands {
		require.Len(t, e.Commands[i].Name, len(c.Name))
		e.Commands[i].Name, e.Commands[i].Owner = c.Name, c.Owner
	}
	require.Equal(t, everyOp(), e)

	small := &Entry{Replica: 1, Epoch: 1, Commands: []Command{{Op: Boot}, {Op: Close, Session: 9}, {Op: Boot}}}
	require.NoError(t, DecodeEntry(AppendEntry(nil, small), e))
	require.Equal(t, small, e)
	require.Error(t, DecodeEntry(nil, e))
	require.Empty(t, e.Commands)
	require.NoError(t, DecodeEntry(AppendEntry(nil, &Entry{Replica: 1, Epoch: 1, Renewal: 2}), e))
	require.Equal(t, &Entry{Replica: 1, Epoch: 1, Renewal: 2, Commands: []Command{}}, e)
}

func TestEntryAtItsLimits(t *testing.T) {
	e := &Entry{Replica: math.MaxUint64, Epoch: math.MaxUint64, Renewal: math.MaxUint64, Batch: math.MaxUint64, At: math.MinInt64}
	for range MaxCommands - 2 {
		e.Commands = append(e.Commands, Command{Op: Release, Session: math.MaxUint64, Hold: math.MaxUint64})
	}
	e.Commands = append(e.Commands,
		Command{Op: Open, TTL: math.MaxUint64, Owner: strings.Repeat("o", MaxOwner)},
		Command{Op: Acquire, Name: strings.Repeat("€", MaxName/3), Mode: math.MaxUint8, Limit: math.MaxUint64})
	require.Equal(t, e, decoded(t, AppendEntry(nil, e)))

	e.At = math.MaxInt64
	require.Equal(t, e, decoded(t, AppendEntry(nil, e)))
	e.Commands = append(e.Commands, Command{Op: Boot})
	require.ErrorIs(t, DecodeEntry(AppendEntry(nil, e), new(Entry)), ErrMalformed)
}

func TestMalformedEntries(t *testing.T) {
	with := func(c Command) []byte {
		return AppendEntry(nil, &Entry{Replica: 1, Epoch: 1, Commands: []Command{c}})
	}
	raw := func(f func(writer)) []byte { return encode([]byte{EntryVersion}, f) }
	head := func(w writer) {
		w.array(entryArity)
		for range 4 {
			w.uint(1)
		}
		w.int(0)
	}
	for what, b := range map[string][]byte{
		"nothing":           {},
		"version 0":         {0},
		"version alone":     {EntryVersion},
		"no speaker":        AppendEntry(nil, &Entry{Epoch: 1}),
		"no epoch":          AppendEntry(nil, &Entry{Replica: 1}),
		"more behind it":    append(AppendEntry(nil, everyOp()), 0),
		"over-long name":    with(Command{Op: Acquire, Name: strings.Repeat("n", MaxName+1)}),
		"over-long owner":   with(Command{Op: Open, Owner: strings.Repeat("o", MaxOwner+1)}),
		"empty name":        with(Command{Op: Acquire}),
		"name not UTF-8":    with(Command{Op: Acquire, Name: "a\xff"}),
		"owner not UTF-8":   with(Command{Op: Open, Owner: "\xc3"}),
		"operation 0":       with(Command{}),
		"unknown operation": with(Command{Op: lastOp + 1}),
		"not an array":      raw(func(w writer) { w.uint(6) }),
		"too few fields":    raw(func(w writer) { w.array(entryArity - 1) }),
		"commands missing":  raw(head),
		"text for a number": raw(func(w writer) { w.array(entryArity); w.string("1") }),
		"number for a name": raw(func(w writer) {
			head(w)
			w.array(1)
			w.array(7)
			w.uint(4)
			w.uint(1)
			w.uint(1)
			w.uint(1)
		}),
		"operation 260":      raw(func(w writer) { head(w); w.array(1); w.array(1); w.uint(256 + 4) }),
		"wrong arity":        raw(func(w writer) { head(w); w.array(1); w.array(2); w.uint(uint64(Boot)); w.uint(1) }),
		"two million to go":  raw(func(w writer) { head(w); w.array(2_000_000) }),
		"more than is there": raw(func(w writer) { head(w); w.array(MaxCommands) }),
		"mode 256": raw(func(w writer) {
			head(w)
			w.array(1)
			w.array(7)
			w.uint(4)
			w.uint(1)
			w.uint(1)
			w.string("n")
			w.uint(256)
		}),
	} {
		err := DecodeEntry(b, new(Entry))
		require.ErrorIs(t, err, ErrMalformed, what)
		require.NotErrorIs(t, err, ErrVersion, what)
	}
}

func TestEntryCutAnywhere(t *testing.T) {
	whole := AppendEntry(nil, everyOp())
	for n := range whole {
		require.ErrorIs(t, DecodeEntry(whole[:n:n], new(Entry)), ErrMalformed, "first %d bytes", n)
	}
}

// A flipped bit gives another entry or one of the two errors, and nothing else.
func TestEntryWithAFlippedBit(t *testing.T) {
	whole := AppendEntry(nil, everyOp())
	for i := range len(whole) * 8 {
		b := bytes.Clone(whole)
		b[i/8] ^= 1 << (i % 8)
		switch err := DecodeEntry(b, new(Entry)); {
		case i < 8 && b[0] > EntryVersion:
			require.ErrorIs(t, err, ErrVersion, "bit %d", i)
		case err != nil:
			require.ErrorIs(t, err, ErrMalformed, "bit %d", i)
			require.NotErrorIs(t, err, ErrVersion, "bit %d", i)
		}
	}
}

func TestNewerEntry(t *testing.T) {
	for v := EntryVersion + 1; v <= math.MaxUint8; v++ {
		for _, b := range [][]byte{{byte(v)}, {byte(v), 0xc1}, append([]byte{byte(v)}, AppendEntry(nil, everyOp())...)} {
			require.ErrorIs(t, DecodeEntry(b, new(Entry)), ErrVersion)
		}
	}
}

// Lengths are believed only as far as there are bytes: the largest that an array
// or a text can claim must not make anything of that size.
func TestHostileLengthsMakeNothing(t *testing.T) {
	huge := []byte{0xdd, 0xff, 0xff, 0xff, 0xff} // an array of 2^32-1
	text := []byte{0xdb, 0xff, 0xff, 0xff, 0xff}
	head := []byte{EntryVersion, 0x96, 1, 1, 1, 1, 1}
	var e Entry
	for _, b := range [][]byte{
		append([]byte{EntryVersion}, huge...),
		append(head[:len(head):len(head)], huge...),
		append(append(head[:len(head):len(head)], 0x91), huge...),
		append(append(head[:len(head):len(head)], 0x91, 0x94, byte(Open), 1, 1), text...),
		append(append(head[:len(head):len(head)], 0x91, 0x97, byte(Acquire), 1, 1), text...),
	} {
		require.ErrorIs(t, DecodeEntry(b, &e), ErrMalformed)
		require.Less(t, bytesMade(func() { _ = DecodeEntry(b, &e) }), uint64(8<<10))
	}
}

// bytesMade returns about how many bytes one call of f allocates.
func bytesMade(f func()) uint64 {
	const runs = 100
	var before, after runtime.MemStats
	f() // what is made once and kept is not counted
	runtime.ReadMemStats(&before)
	for range runs {
		f()
	}
	runtime.ReadMemStats(&after)
	return (after.TotalAlloc - before.TotalAlloc) / runs
}

func randomEntry(rnd *rand.Rand) *Entry {
	number := func() uint64 { return rnd.Uint64() >> rnd.IntN(64) }
	text := func(least, most int) string {
		n := least + rnd.IntN(most-least+1)
		var b strings.Builder
		for b.Len() < n {
			r := rune(rnd.IntN(0x2000))
			if rnd.IntN(2) == 0 || b.Len()+3 > n {
				r = rune(rnd.IntN(128))
			}
			b.WriteRune(r)
		}
		return b.String()
	}
	e := &Entry{Replica: 1 + number()>>1, Epoch: 1 + number()>>1, Renewal: number(), Batch: number(), At: int64(number()), Commands: []Command{}}
	for range rnd.IntN(20) {
		c := Command{Op: Op(1 + rnd.IntN(int(lastOp)))}
		switch c.Op {
		case Open:
			c.Session, c.TTL, c.Owner = number(), number(), text(0, MaxOwner)
		case Close:
			c.Session = number()
		case Acquire:
			c.Session, c.Hold, c.Limit = number(), number(), number()
			c.Name, c.Mode, c.Wait = text(1, MaxName), uint8(rnd.IntN(256)), rnd.IntN(2) == 0
		case Release, Cancel:
			c.Session, c.Hold = number(), number()
		case Expire:
			c.Replica, c.Epoch, c.Renewal, c.TTL = number(), number(), number(), number()
		}
		e.Commands = append(e.Commands, c)
	}
	return e
}

func TestRandomEntriesComeBack(t *testing.T) {
	rnd := dice(t)
	got := Entry{Commands: []Command{}}
	for range 3_000 {
		want := randomEntry(rnd)
		b := AppendEntry(nil, want)
		require.NoError(t, DecodeEntry(b, &got))
		require.Equal(t, want, &got)
		require.Equal(t, b, AppendEntry(nil, &got))
	}
}

func TestValidText(t *testing.T) {
	require.True(t, ValidText("", 0))
	require.True(t, ValidText("abc", 3))
	require.False(t, ValidText("abcd", 3))
	require.True(t, ValidText("€", 3))
	require.False(t, ValidText("€", 2))
	require.False(t, ValidText("\xff", 3))
}

func FuzzDecodeEntry(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{EntryVersion + 1})
	f.Add(AppendEntry(nil, everyOp()))
	f.Add(AppendEntry(nil, &Entry{Replica: 1, Epoch: 1, Renewal: 1}))
	f.Add([]byte{EntryVersion, 0x96, 1, 1, 1, 1, 1, 0xdd, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		var e, again, third Entry
		if err := DecodeEntry(b, &e); err != nil {
			if errors.Is(err, ErrVersion) == errors.Is(err, ErrMalformed) {
				t.Fatalf("%v matches neither or both", err)
			}
			return
		}
		if cap(e.Commands) > 2*len(b)+16 {
			t.Fatalf("room for %d commands from %d bytes", cap(e.Commands), len(b))
		}
		encoded := AppendEntry(nil, &e)
		if err := DecodeEntry(encoded, &again); err != nil {
			t.Fatalf("%+v does not come back: %v", e, err)
		}
		require.Equal(t, e, again)
		// One encoding for one entry.
		require.NoError(t, DecodeEntry(AppendEntry(nil, &again), &third))
		require.Equal(t, encoded, AppendEntry(nil, &third))
	})
}

// aBatch is what one node says under load.
func aBatch(n int) *Entry {
	e := &Entry{Replica: 3, Epoch: 7, Renewal: 1_000, Batch: 123_456, At: 1_767_225_600_123}
	name := strings.Repeat("n", 52)
	for i := range n {
		e.Commands = append(e.Commands, Command{Op: Acquire, Session: 1, Hold: 1_000_000 + uint64(i),
			Name: name + strconv.Itoa(10_000_000+i), Mode: 1, Wait: true, Limit: 1 << 16})
	}
	return e
}

// The time is for one acquire of a 60-byte name, in an entry of 64.
func BenchmarkEncodeEntry(b *testing.B) {
	e := aBatch(64)
	var buf []byte
	b.ReportAllocs()
	for i := 0; i < b.N; i += len(e.Commands) {
		buf = AppendEntry(buf[:0], e)
	}
}

func BenchmarkDecodeEntry(b *testing.B) {
	batch := AppendEntry(nil, aBatch(64))
	var e Entry
	b.ReportAllocs()
	for i := 0; i < b.N; i += 64 {
		if err := DecodeEntry(batch, &e); err != nil {
			b.Fatal(err)
		}
	}
}
