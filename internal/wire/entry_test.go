package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/sessions"
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

// entryV1 is an entry with each operation of version 1 in it.
func entryV1() *Entry {
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

// entryV2 is an entry with each operation of version 2 in it, and each field with a
// value that no other field has.
func entryV2() *Entry {
	return &Entry{Replica: 4, Epoch: 70_001, Renewal: 130, Batch: 5_000_000_001, At: 1_767_225_600_124,
		Commands: []Command{
			{Op: Take, Session: 11, Hold: 51, Mode: 3, Wait: true, Limit: 100_001, More: &More{
				Names: []string{"Größe/€", "account/17", "account/4"}, MaxWaits: 2_001, Permits: 5, Of: 64_001,
				MaxHold: 60_001, MinHold: 5_001, Delay: 15_001, Value: "leader at 10.0.0.11:7000"}},
			{Op: Start, Session: 12, Hold: 52, Lock: 4_000_000_012, More: &More{}},
			{Op: Downgrade, Session: 13, Hold: 53, Lock: 4_000_000_013, More: &More{Call: 61}},
			{Op: Resize, Name: "pool/14", More: &More{Of: 24, Call: 62}},
			{Op: Revoke, Name: "report/15", More: &More{Token: 9_000_000_015, Call: 63, By: "anna", Reason: "it hangs"}},
			{Op: Evict, More: &More{Who: sessions.ID{Replica: 6, Epoch: 300, Seq: 76}, Call: 64, By: "berta", Reason: "its host burns"}},
			{Op: Ask, Name: "nightly/17", More: &More{Call: 65, By: "carla", Reason: "urgent"}},
			{Op: Due, Hold: 58, More: &More{Who: sessions.ID{Replica: 8, Epoch: 400, Seq: 78}, What: 2}},
			{Op: Publish, Session: 21, Hold: 59, Lock: 4_000_000_016, More: &More{Call: 66, Value: "größer als €"}},
			{Op: HandOver, Session: 22, Hold: 60, Lock: 4_000_000_017, More: &More{Call: 67, Who: sessions.ID{Replica: 9, Epoch: 500, Seq: 79}}},
			{Op: Claim, Name: "backup/18", More: &More{Tick: -1_767_225_600, Call: 68}},
			{Op: Forget, Name: "rotate/19", More: &More{Call: 69}},
		}}
}

// entryV3 is an entry with each operation of version 3 in it.
func entryV3() *Entry {
	return &Entry{Replica: 5, Epoch: 70_002, Renewal: 131, Batch: 5_000_000_002, At: 1_767_225_600_125,
		Commands: []Command{
			{Op: Restore, More: &More{Part: &Part{
				Origin: Origin{Sum: strings.Repeat("7e", 32), Done: 71, Of: 91},
				Token:  9_000_000_020,
				Ticks:  []Tick{{"nightly/€", -1_767_225_601, 1_767_225_600_126}, {"rotate", 1_767_225_602, 1_767_225_600_127}},
				Bars:   []NamedBar{{"account/21", 15_002 * time.Millisecond}, {"account/22", MaxTerm}},
			}}},
		}}
}

func entries() []*Entry { return []*Entry{entryV1(), entryV2(), entryV3()} }

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
	want := fromHex(t, name)
	require.Equal(t, hex.Dump(want), hex.Dump(b), "the durable format has changed: it needs a new version")
	return want
}

func fromHex(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	require.NoError(t, err)
	b, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	require.NoError(t, err)
	return b
}

func TestEntryGolden(t *testing.T) {
	require.Equal(t, 3, Version, "keep the golden files of old versions, and add one")
	for i, e := range entries() {
		b := golden(t, fmt.Sprintf("entry.v%d.hex", i+1), AppendEntry(nil, e))
		require.EqualValues(t, i+1, b[0])
		require.Equal(t, e, decoded(t, b))
	}
}

func TestEveryOpIsInAGoldenEntry(t *testing.T) {
	met := map[Op]bool{}
	for i, e := range entries() {
		for _, c := range e.Commands {
			met[c.Op] = true
			require.EqualValues(t, i+1, c.Op.since())
		}
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

// Were two fields of the golden entry equal, the file would not tell if they
// changed places.
func TestGoldenFieldsDiffer(t *testing.T) {
	met := map[string]string{}
	var walk func(where string, v reflect.Value)
	walk = func(where string, v reflect.Value) {
		switch {
		case v.IsZero(), where == ".Op":
		case v.Kind() == reflect.Pointer:
			walk(where, v.Elem())
		case v.Kind() == reflect.Struct:
			for i := range v.NumField() {
				walk(where+"."+v.Type().Field(i).Name, v.Field(i))
			}
		case v.Kind() == reflect.Slice:
			for i := range v.Len() {
				walk(fmt.Sprintf("%s[%d]", where, i), v.Index(i))
			}
		default:
			value := fmt.Sprint(v)
			require.Empty(t, met[value], "%s is %s too", where, value)
			met[value] = where
		}
	}
	e := entryV2()
	commands := e.Commands
	e.Commands = nil
	walk("entry", reflect.ValueOf(*e))
	for _, c := range commands {
		c.Op = 0
		walk(c.Name, reflect.ValueOf(c))
	}
	require.Greater(t, len(met), 60)
}

// fieldsOf tells which fields each operation has. The others are not written.
var fieldsOf = map[Op]string{
	Boot:      "",
	Open:      "Session TTL Owner",
	Close:     "Session",
	Acquire:   "Session Hold Name Mode Wait Limit",
	Release:   "Session Hold Lock",
	Cancel:    "Session Hold Lock",
	Expire:    "Replica Epoch Renewal TTL",
	Take:      "Session Hold Names Mode Wait Limit MaxWaits Permits Of MaxHold MinHold Delay Value",
	Start:     "Session Hold Lock",
	Downgrade: "Session Hold Lock Call",
	Resize:    "Name Of Call",
	Revoke:    "Name Token Call By Reason",
	Evict:     "Who Call By Reason",
	Ask:       "Name Call By Reason",
	Due:       "Who Hold What",
	Publish:   "Session Hold Lock Call Value",
	HandOver:  "Session Hold Lock Call Who",
	Claim:     "Name Tick Call",
	Forget:    "Name Call",
	Restore:   "Part",
}

// A command with every field filled comes back with those that its operation has,
// each as it was, and nothing else.
func TestFieldsOfEachOp(t *testing.T) {
	full := Command{Mode: 201, Wait: true, Lock: 1_000_001, Session: 1_000_002, Hold: 1_000_003, Name: "name",
		Limit: 1_000_004, TTL: 1_000_005, Owner: "owner", Replica: 1_000_006, Epoch: 1_000_007, Renewal: 1_000_008}
	more := More{Names: []string{"a", "b"}, Permits: 1_000_009, Of: 1_000_010, MaxWaits: 1_000_011,
		MaxHold: 1_000_012, MinHold: 1_000_013, Delay: 1_000_014, Call: 1_000_015, Token: 1_000_016,
		Who: sessions.ID{Replica: 1_000_017, Epoch: 1_000_018, Seq: 1_000_019}, What: 202, By: "by", Reason: "reason",
		Value: "value", Tick: -1_000_020,
		Part: &Part{Origin: anOrigin(), Token: 1_000_021, Ticks: []Tick{{"job", 1, 2}}, Bars: []NamedBar{{"name", time.Second}}}}
	// pick copies the fields of these names.
	pick := func(to, from reflect.Value, names []string) (n int) {
		for i := range to.NumField() {
			if name := to.Type().Field(i).Name; slices.Contains(names, name) {
				require.False(t, from.Field(i).IsZero(), name)
				to.Field(i).Set(from.Field(i))
				n++
			}
		}
		return n
	}
	for op := Op(1); op <= lastOp; op++ {
		names := strings.Fields(fieldsOf[op])
		want := Command{Op: op}
		n := pick(reflect.ValueOf(&want).Elem(), reflect.ValueOf(full), names)
		if op.since() > 1 {
			want.More = new(More)
			n += pick(reflect.ValueOf(want.More).Elem(), reflect.ValueOf(more), names)
		}
		require.Equal(t, len(names), n, "%s: a field has another name", op)
		c := full
		c.Op, c.More = op, &more
		got := decoded(t, AppendEntry(nil, &Entry{Replica: 1, Epoch: 1, Commands: []Command{c}}))
		require.Equal(t, []Command{want}, got.Commands, op)
	}
}

// An entry has the lowest version that can say what it says, so that a replica that
// was not upgraded yet stops only at what it cannot do.
func TestEntryHasTheLowestVersion(t *testing.T) {
	b := AppendEntry(nil, &Entry{Replica: 1, Epoch: 1, Renewal: 1})
	require.EqualValues(t, 1, b[0])
	for op := Op(1); op <= lastOp; op++ {
		e := &Entry{Replica: 1, Epoch: 1, Commands: []Command{{Op: op, Name: "n", More: &More{Names: []string{"n"}, Part: &Part{Origin: anOrigin()}}}}}
		b := AppendEntry(nil, e)
		require.Equal(t, op.since(), b[0], op)
		for _, at := range []int{0, 1} {
			mixed := *e
			mixed.Commands = slices.Insert(slices.Clone(e.Commands), at, Command{Op: Boot})
			require.Equal(t, op.since(), AppendEntry(nil, &mixed)[0], op)
		}
		// To a replica of version 1, the new operations are malformed in an entry
		// that says it is of version 1, and so they must be here.
		b[0] = 1
		err := DecodeEntry(b, new(Entry))
		if op.since() == 1 {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, ErrMalformed)
			require.ErrorContains(t, err, fmt.Sprintf("operation %d", op))
		}
	}
}

func TestAppendEntryAppends(t *testing.T) {
	for _, e := range entries() {
		alone := AppendEntry(nil, e)
		b := AppendEntry([]byte("before"), e)
		require.Equal(t, append([]byte("before"), alone...), b)
	}
}

// What was decoded before leaves no trace in what is decoded into the same Entry
// next. Its texts are views of the bytes, and all else is its own.
func TestDecodeIntoAUsedEntry(t *testing.T) {
	b := AppendEntry(nil, entryV1())
	e := decoded(t, b)
	require.Equal(t, entryV1(), e)
	clear(b)
	for i, c := range entryV1().Commands {
		require.Len(t, e.Commands[i].Name, len(c.Name))
		e.Commands[i].Name, e.Commands[i].Owner = c.Name, c.Owner
	}
	require.Equal(t, entryV1(), e)

	require.NoError(t, DecodeEntry(AppendEntry(nil, entryV2()), e))
	require.Equal(t, entryV2(), e)
	require.NoError(t, DecodeEntry(AppendEntry(nil, entryV1()), e))
	require.Equal(t, entryV1(), e)

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
	const most = math.MaxUint64
	names := make([]string, MaxNames)
	for i := range names {
		names[i] = fmt.Sprintf("%02d%s", i, strings.Repeat("n", MaxName-2))
	}
	by, reason := strings.Repeat("b", MaxOwner), strings.Repeat("€", MaxReason/3)+"!"
	value := strings.Repeat("€", MaxValue/3) + "!"
	require.Len(t, value, MaxValue)
	for range MaxCommands - 13 {
		e.Commands = append(e.Commands, Command{Op: Release, Session: math.MaxUint64, Hold: math.MaxUint64})
	}
	e.Commands = append(e.Commands,
		Command{Op: Open, TTL: math.MaxUint64, Owner: strings.Repeat("o", MaxOwner)},
		Command{Op: Acquire, Name: strings.Repeat("€", MaxName/3), Mode: math.MaxUint8, Limit: math.MaxUint64},
		Command{Op: Take, Session: most, Hold: most, Mode: math.MaxUint8, Limit: most, More: &More{Names: names,
			MaxWaits: most, Permits: most, Of: most, MaxHold: most, MinHold: most, Delay: most, Value: value}},
		Command{Op: Downgrade, Session: most, Hold: most, Lock: math.MaxUint32, More: &More{Call: most}},
		Command{Op: Resize, Name: names[0], More: &More{Of: most, Call: most}},
		Command{Op: Revoke, Name: names[1], More: &More{Token: most, Call: most, By: by, Reason: reason}},
		Command{Op: Evict, More: &More{Who: sessions.ID{Replica: most, Epoch: most, Seq: most}, By: by, Reason: reason}},
		Command{Op: Due, Hold: most, More: &More{Who: sessions.ID{Replica: most, Epoch: most, Seq: most}, What: math.MaxUint8}},
		Command{Op: Publish, Session: most, Hold: most, Lock: math.MaxUint32, More: &More{Call: most, Value: value}},
		Command{Op: HandOver, Session: most, Hold: most, Lock: math.MaxUint32, More: &More{Call: most, Who: sessions.ID{Replica: most, Epoch: most, Seq: most}}},
		Command{Op: Claim, Name: names[2], More: &More{Tick: math.MinInt64, Call: most}},
		Command{Op: Claim, Name: names[3], More: &More{Tick: math.MaxInt64}},
		Command{Op: Forget, Name: names[4], More: &More{Call: most}})
	require.Len(t, e.Commands, MaxCommands)
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
	raw := func(f func(writer)) []byte { return encode([]byte{Version}, f) }
	head := func(w writer) {
		w.array(entryArity)
		for range 4 {
			w.uint(1)
		}
		w.int(0)
	}
	take := func(names ...string) []byte { return with(Command{Op: Take, More: &More{Names: names}}) }
	many := make([]string, MaxNames+1)
	for i := range many {
		many[i] = fmt.Sprintf("%02d", i)
	}
	// fields is a command of these fields, and of so many of them as it says.
	fields := func(n int, op Op, f func(writer)) []byte {
		return raw(func(w writer) { head(w); w.array(1); w.array(n); w.uint(uint64(op)); f(w) })
	}
	require.NoError(t, DecodeEntry(take(many[:MaxNames]...), new(Entry)))
	require.NoError(t, DecodeEntry(fields(4, Start, func(w writer) { w.uint(1); w.uint(1); w.uint(math.MaxUint32) }), new(Entry)))
	for what, b := range map[string][]byte{
		"nothing":           {},
		"version 0":         {0},
		"version alone":     {Version},
		"no speaker":        AppendEntry(nil, &Entry{Epoch: 1}),
		"no epoch":          AppendEntry(nil, &Entry{Replica: 1}),
		"more behind it":    append(AppendEntry(nil, entryV1()), 0),
		"more behind it, 2": append(AppendEntry(nil, entryV2()), 0),
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
		"take of nothing":         take(),
		"take of 65 names":        take(many...),
		"names out of order":      take("a", "c", "b"),
		"a name twice":            take("a", "b", "b"),
		"a name of two is empty":  take("", "a"),
		"a name is too long":      take("a", strings.Repeat("n", MaxName+1)),
		"a name is not UTF-8":     take("a", "b\xff"),
		"names are a text":        fields(14, Take, func(w writer) { w.uint(1); w.uint(1); w.string("n") }),
		"take of too few fields":  fields(13, Take, func(w writer) { w.uint(1); w.uint(1); w.array(1); w.string("n") }),
		"start of a huge hash":    fields(4, Start, func(w writer) { w.uint(1); w.uint(1); w.uint(math.MaxUint32 + 1) }),
		"downgrade without call":  fields(4, Downgrade, func(w writer) { w.uint(1); w.uint(1); w.uint(1) }),
		"resize of nothing":       with(Command{Op: Resize, More: &More{Of: 1}}),
		"resize not UTF-8":        with(Command{Op: Resize, Name: "\xff", More: &More{Of: 1}}),
		"revoke of nothing":       with(Command{Op: Revoke, More: &More{Token: 1}}),
		"revoke by too long":      with(Command{Op: Revoke, Name: "n", More: &More{By: strings.Repeat("b", MaxOwner+1)}}),
		"revoke reason too long":  with(Command{Op: Revoke, Name: "n", More: &More{Reason: strings.Repeat("r", MaxReason+1)}}),
		"revoke reason not UTF-8": with(Command{Op: Revoke, Name: "n", More: &More{Reason: "\xff"}}),
		"evict by not UTF-8":      with(Command{Op: Evict, More: &More{By: "\xff"}}),
		"evict reason too long":   with(Command{Op: Evict, More: &More{Reason: strings.Repeat("r", MaxReason+1)}}),
		"ask for nothing":         with(Command{Op: Ask, More: &More{}}),
		"ask over-long name":      with(Command{Op: Ask, Name: strings.Repeat("n", MaxName+1), More: &More{}}),
		"due of kind 256": fields(6, Due, func(w writer) {
			for range 4 {
				w.uint(1)
			}
			w.uint(256)
		}),
		"due of too many fields": fields(7, Due, func(w writer) {
			for range 6 {
				w.uint(1)
			}
		}),
	} {
		err := DecodeEntry(b, new(Entry))
		require.ErrorIs(t, err, ErrMalformed, what)
		require.NotErrorIs(t, err, ErrVersion, what)
	}
}

// What stands in these entries is right but for one thing, and that is what they are
// refused for.
func TestMalformedValuesAndJobs(t *testing.T) {
	raw := func(n int, op Op, f func(writer)) []byte {
		return encode([]byte{Version}, func(w writer) {
			w.array(entryArity)
			for range 5 {
				w.uint(1)
			}
			w.array(1)
			w.array(n)
			w.uint(uint64(op))
			f(w)
		})
	}
	take := func(n int, value func(writer)) []byte {
		return raw(n, Take, func(w writer) {
			w.uint(1)
			w.uint(1)
			w.array(1)
			w.string("n")
			w.uint(1)
			w.bool(true)
			for range 7 {
				w.uint(1)
			}
			value(w)
		})
	}
	numbers := func(n int, value func(writer)) func(writer) {
		return func(w writer) {
			for range n {
				w.uint(1)
			}
			value(w)
		}
	}
	publish := func(n int, value func(writer)) []byte { return raw(n, Publish, numbers(4, value)) }
	named := func(n int, op Op, name string, rest int) []byte {
		return raw(n, op, func(w writer) { w.string(name); numbers(rest, nothing)(w) })
	}
	is := func(s string) func(writer) { return func(w writer) { w.string(s) } }
	long, longName := strings.Repeat("v", MaxValue+1), strings.Repeat("n", MaxName+1)
	wide := strings.Repeat("€", MaxValue/3+1) // fewer runes than MaxValue, and more bytes

	for _, b := range [][]byte{
		take(14, is("")), take(14, is(long[1:])), publish(6, is("")), publish(6, is(long[1:])),
		raw(8, HandOver, numbers(7, nothing)), named(4, Claim, longName[1:], 2), named(3, Forget, longName[1:], 1),
	} {
		require.NoError(t, DecodeEntry(b, new(Entry)))
	}
	for what, c := range map[string]struct {
		why string
		b   []byte
	}{
		"take without value":       {"take with 13 fields", take(13, nothing)},
		"take of too many fields":  {"take with 15 fields", take(15, numbers(1, is("")))},
		"take value missing":       {"value: EOF", take(14, nothing)},
		"take value too long":      {"value: length 1025", take(14, is(long))},
		"take value too wide":      {"value: length 1026", take(14, is(wide))},
		"take value not UTF-8":     {"value is not UTF-8", take(14, is("v\xff"))},
		"take value is a number":   {"value: ", take(14, numbers(1, nothing))},
		"take value is nil":        {"value: length -1", append(take(14, nothing), 0xc0)},
		"publish without value":    {"publish with 5 fields", publish(5, nothing)},
		"publish value missing":    {"value: EOF", raw(6, Publish, func(w writer) { w.uint(1 << 20); numbers(3, nothing)(w) })},
		"publish value too long":   {"value: length 1025", publish(6, is(long))},
		"publish value too wide":   {"value: length 1026", publish(6, is(wide))},
		"publish value not UTF-8":  {"value is not UTF-8", publish(6, is("\xe2\x82"))},
		"publish value is nil":     {"value: length -1", append(publish(6, nothing), 0xc0)},
		"publish of a huge hash":   {"number 4294967296", raw(6, Publish, func(w writer) { w.uint(1); w.uint(1); w.uint(1 << 32); w.uint(1); w.string("") })},
		"hand over to nobody":      {"hand over with 5 fields", raw(5, HandOver, numbers(4, nothing))},
		"hand over to a process":   {"hand over with 7 fields", raw(7, HandOver, numbers(6, nothing))},
		"hand over of a huge hash": {"number 4294967296", raw(8, HandOver, func(w writer) { w.uint(1); w.uint(1); w.uint(1 << 32); numbers(4, nothing)(w) })},
		"claim of nothing":         {"empty name", named(4, Claim, "", 2)},
		"claim over-long name":     {"name: length 513", named(4, Claim, longName, 2)},
		"claim name not UTF-8":     {"name is not UTF-8", named(4, Claim, "\xff", 2)},
		"claim without call":       {"claim with 3 fields", named(3, Claim, "n", 1)},
		"claim of too much":        {"claim with 5 fields", named(5, Claim, "n", 3)},
		"claim of a text":          {"number: ", raw(4, Claim, func(w writer) { w.string("n"); w.string("1"); w.uint(1) })},
		"forget of nothing":        {"empty name", named(3, Forget, "", 1)},
		"forget over-long name":    {"name: length 513", named(3, Forget, longName, 1)},
		"forget name not UTF-8":    {"name is not UTF-8", named(3, Forget, "\xff", 1)},
		"forget without call":      {"forget with 2 fields", named(2, Forget, "n", 0)},
		"forget a tick":            {"forget with 4 fields", named(4, Forget, "n", 2)},
	} {
		err := DecodeEntry(c.b, new(Entry))
		require.ErrorIs(t, err, ErrMalformed, what)
		require.ErrorContains(t, err, c.why, what)
	}
}

func nothing(writer) {}

func TestEntryCutAnywhere(t *testing.T) {
	for _, e := range entries() {
		whole := AppendEntry(nil, e)
		for n := range whole {
			require.ErrorIs(t, DecodeEntry(whole[:n:n], new(Entry)), ErrMalformed, "first %d bytes", n)
		}
	}
}

// A flipped bit gives another entry or one of the two errors, and nothing else.
func TestEntryWithAFlippedBit(t *testing.T) {
	for _, e := range entries() {
		whole := AppendEntry(nil, e)
		for i := range len(whole) * 8 {
			b := bytes.Clone(whole)
			b[i/8] ^= 1 << (i % 8)
			var got Entry
			switch err := DecodeEntry(b, &got); {
			case i < 8 && b[0] > Version:
				require.ErrorIs(t, err, ErrVersion, "bit %d", i)
			case err != nil:
				require.ErrorIs(t, err, ErrMalformed, "bit %d", i)
				require.NotErrorIs(t, err, ErrVersion, "bit %d", i)
			default:
				require.Equal(t, &got, decoded(t, AppendEntry(nil, &got)), "bit %d", i)
			}
		}
	}
}

func TestNewerEntry(t *testing.T) {
	for v := Version + 1; v <= math.MaxUint8; v++ {
		for _, b := range [][]byte{{byte(v)}, {byte(v), 0xc1}, append([]byte{byte(v)}, AppendEntry(nil, entryV2())...)} {
			require.ErrorIs(t, DecodeEntry(b, new(Entry)), ErrVersion)
		}
	}
}

// Lengths are believed only as far as there are bytes: the largest that an array
// or a text can claim must not make anything of that size.
func TestHostileLengthsMakeNothing(t *testing.T) {
	huge := []byte{0xdd, 0xff, 0xff, 0xff, 0xff} // an array of 2^32-1
	text := []byte{0xdb, 0xff, 0xff, 0xff, 0xff}
	head := []byte{Version, 0x96, 1, 1, 1, 1, 1}
	one := func(op Op, fields ...byte) []byte { // an entry of one command that begins like this
		b := append(head[:len(head):len(head)], 0x91, 0x90|byte(arity(op)), byte(op))
		return append(b, fields...)
	}
	var e Entry
	for _, b := range [][]byte{
		append([]byte{Version}, huge...),
		append(head[:len(head):len(head)], huge...),
		append(append(head[:len(head):len(head)], 0x91), huge...),
		append(one(Open, 1, 1), text...),
		append(one(Acquire, 1, 1), text...),
		append(one(Take, 1, 1), huge...),
		append(one(Take, 1, 1), 0xdc, 0, MaxNames), // as many as there may be, and none is there
		append(one(Take, 1, 1, 0x91), text...),
		append(one(Resize), text...),
		append(one(Revoke, 0xa1, 'n', 1, 1), text...),
		append(one(Revoke, 0xa1, 'n', 1, 1, 0xa0), text...),
		append(one(Evict, 1, 1, 1, 1), text...),
		append(one(Ask, 0xa1, 'n', 1, 0xa0), text...),
		append(one(Take, 1, 1, 0x91, 0xa1, 'n', 1, 0xc3, 1, 1, 1, 1, 1, 1, 1), text...),
		append(one(Publish, 1, 1, 1, 1), text...),
		append(one(Publish, 1, 1, 1, 1), 0xda, MaxValue>>8, 0), // as long as it may be, and nothing is there
		append(one(Claim), text...),
		append(one(Forget), text...),
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
			c.Session, c.Hold, c.Lock = number(), number(), rnd.Uint32()
		case Expire:
			c.Replica, c.Epoch, c.Renewal, c.TTL = number(), number(), number(), number()
		}
		if c.Op.since() > 1 {
			c.More = new(More)
			randomMore(rnd, &c, number, text)
		}
		e.Commands = append(e.Commands, c)
	}
	return e
}

func randomMore(rnd *rand.Rand, c *Command, number func() uint64, text func(least, most int) string) {
	m := c.More
	who := func() sessions.ID { return sessions.ID{Replica: number(), Epoch: number(), Seq: number()} }
	because := func() { m.Call, m.By, m.Reason = number(), text(0, MaxOwner), text(0, MaxReason) }
	switch c.Op {
	case Take:
		c.Session, c.Hold, c.Limit = number(), number(), number()
		c.Mode, c.Wait = uint8(rnd.IntN(256)), rnd.IntN(2) == 0
		for range 1 + rnd.IntN(1<<rnd.IntN(7)) {
			m.Names = append(m.Names, text(1, MaxName))
		}
		slices.Sort(m.Names)
		m.Names = slices.Compact(m.Names)
		m.MaxWaits, m.Permits, m.Of = number(), number(), number()
		m.MaxHold, m.MinHold, m.Delay = number(), number(), number()
		m.Value = text(0, rnd.IntN(2)*MaxValue)
	case Start:
		c.Session, c.Hold, c.Lock = number(), number(), rnd.Uint32()
	case Downgrade:
		c.Session, c.Hold, c.Lock = number(), number(), rnd.Uint32()
		m.Call = number()
	case Resize:
		c.Name, m.Of, m.Call = text(1, MaxName), number(), number()
	case Revoke:
		c.Name, m.Token = text(1, MaxName), fencing.Token(number())
		because()
	case Evict:
		m.Who = who()
		because()
	case Ask:
		c.Name = text(1, MaxName)
		because()
	case Due:
		m.Who, c.Hold, m.What = who(), number(), uint8(rnd.IntN(256))
	case Publish:
		c.Session, c.Hold, c.Lock = number(), number(), rnd.Uint32()
		m.Call, m.Value = number(), text(0, rnd.IntN(2)*MaxValue)
	case HandOver:
		c.Session, c.Hold, c.Lock = number(), number(), rnd.Uint32()
		m.Call, m.Who = number(), who()
	case Claim:
		c.Name, m.Tick, m.Call = text(1, MaxName), int64(number())*int64(1-2*rnd.IntN(2)), number()
	case Forget:
		c.Name, m.Call = text(1, MaxName), number()
	case Restore:
		m.Part = &Part{Origin: anOrigin(), Token: fencing.Token(number())}
		for range rnd.IntN(5) {
			m.Part.Ticks = append(m.Part.Ticks, Tick{text(1, MaxName), int64(number()), -int64(number())})
			m.Part.Bars = append(m.Part.Bars, NamedBar{text(1, MaxName), time.Duration(rnd.IntN(1<<30)) * time.Millisecond})
		}
	}
}

func TestRandomEntriesComeBack(t *testing.T) {
	rnd := dice(t)
	got := Entry{Commands: []Command{}}
	for range 3_000 {
		want := randomEntry(rnd)
		b := AppendEntry(nil, want)
		version := byte(1)
		for _, c := range want.Commands {
			version = max(version, c.Op.since())
		}
		require.Equal(t, version, b[0])
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
	f.Add([]byte{Version + 1})
	for _, e := range entries() {
		b := AppendEntry(nil, e)
		f.Add(b)
		b = bytes.Clone(b)
		b[0] ^= 3 // as the other version
		f.Add(b)
	}
	f.Add(AppendEntry(nil, &Entry{Replica: 1, Epoch: 1, Renewal: 1}))
	for _, c := range entryV2().Commands { // each alone, that it is near to change
		f.Add(AppendEntry(nil, &Entry{Replica: 1, Epoch: 1, Commands: []Command{c}}))
	}
	f.Add([]byte{Version, 0x96, 1, 1, 1, 1, 1, 0xdd, 0xff, 0xff, 0xff, 0xff})
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
		for _, c := range e.Commands {
			switch isNew := c.Op.since() > 1; {
			case isNew != (c.More != nil), isNew && b[0] < 2:
				t.Fatalf("%s in an entry of version %d: %+v", c.Op, b[0], c)
			case c.Op == Take && (len(c.More.Names) == 0 || len(c.More.Names) > MaxNames || cap(c.More.Names) > 2*len(b)+16):
				t.Fatalf("%d names, and room for %d", len(c.More.Names), cap(c.More.Names))
			case isNew && !ValidText(c.More.Value, MaxValue), c.Op == Claim && c.Name == "", c.Op == Forget && c.Name == "":
				t.Fatalf("%s is not within its limits: %+v %+v", c.Op, c, c.More)
			}
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

// An entry may be written in a higher version than it needs, so that whoever does not
// know that one stops there.
func TestEntryOfAHigherVersion(t *testing.T) {
	require.Zero(t, VersionOf(nil))
	for _, e := range append(entries(), &Entry{Replica: 1, Epoch: 1}) {
		lowest := AppendEntry(nil, e)
		for v := byte(1); v <= Version; v++ {
			b := AppendEntryOf(v, nil, e)
			require.Equal(t, max(v, VersionOf(lowest)), VersionOf(b))
			require.Equal(t, lowest[1:], b[1:])
			require.Equal(t, e, decoded(t, b))
		}
		err := DecodeEntry(AppendEntryOf(Version+1, nil, e), new(Entry))
		require.ErrorIs(t, err, ErrVersion)
		var newer *VersionError
		require.ErrorAs(t, err, &newer)
		require.EqualValues(t, Version+1, newer.Version)
	}
}

func TestMalformedParts(t *testing.T) {
	sum := anOrigin().Sum
	for why, p := range map[string]Part{
		"":                 {Origin: anOrigin()},
		"origin":           {Origin: Origin{Sum: sum[:63], Of: 1}},
		"sum: length 65":   {Origin: Origin{Sum: sum + "0", Of: 1}},
		"0 of 0":           {Origin: Origin{Sum: sum}},
		"2 of 1":           {Origin: Origin{Sum: sum, Done: 2, Of: 1}},
		"empty name":       {Origin: anOrigin(), Ticks: []Tick{{}}},
		"name: length 513": {Origin: anOrigin(), Bars: []NamedBar{{strings.Repeat("n", MaxName+1), 1}}},
		"a time of":        {Origin: anOrigin(), Bars: []NamedBar{{"n", MaxTerm + time.Millisecond}}},
	} {
		b := AppendEntry(nil, &Entry{Replica: 1, Epoch: 1, Commands: []Command{{Op: Restore, More: &More{Part: &p}}}})
		if err := DecodeEntry(b, new(Entry)); why != "" {
			require.ErrorIs(t, err, ErrMalformed, why)
			require.ErrorContains(t, err, why)
		} else {
			require.NoError(t, err)
		}
		b[0] = 2
		require.ErrorIs(t, DecodeEntry(b, new(Entry)), ErrMalformed, "version 2 has no such operation")
	}
}
