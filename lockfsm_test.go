package quorumlock

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/queue"
	"github.com/quorumlock/quorumlock/sessions"
)

// say applies one entry of the process 1.1 and returns its effects as text.
func say(f *lockFSM, e wire.Entry, commands ...wire.Command) []string {
	e.Commands = commands
	if e.Replica == 0 {
		e.Replica, e.Epoch = 1, 1
	}
	var texts []string
	for _, e := range f.apply(wire.AppendEntry(nil, &e)) {
		texts = append(texts, e.String())
	}
	return texts
}

func TestLimitsAreThoseOfTheFormat(t *testing.T) {
	require.Equal(t, wire.MaxTTL, maxTTL)
	require.Equal(t, wire.MaxName, MaxNameLen)
	require.Equal(t, wire.MaxOwner, MaxOwnerLen)
	require.LessOrEqual(t, maxBatchCommands, wire.MaxCommands)
}

// A line is never longer than the format can hold, whatever limit is asked for.
func TestLineHasAnEnd(t *testing.T) {
	if testing.Short() {
		t.Skip("a million waiters")
	}
	f := newLockFSM()
	say(f, wire.Entry{}, wire.Command{Op: wire.Boot})
	say(f, wire.Entry{Batch: 1}, wire.Command{Op: wire.Open, Session: 1, TTL: 10_000})
	id := sessions.ID{Replica: 1, Epoch: 1, Seq: 1}
	l := &queue.Line{Name: "a"}
	f.table.addLine(pageOf(hashOf("a")), l)
	l.Hold(&queue.Claim{Session: id, Mode: queue.Exclusive}, 1)
	for range wire.MaxWaiters - 1 {
		l.Wait(&queue.Claim{Session: id, Mode: queue.Exclusive})
	}
	acquire := wire.Command{Op: wire.Acquire, Session: 1, Hold: 1, Name: "a", Mode: 1, Wait: true, Limit: math.MaxUint64}
	require.Equal(t, []string{`batch 1.1 #2`, `queued "a" to 1.1.1/1`}, say(f, wire.Entry{Batch: 2}, acquire))
	acquire.Hold = 2
	require.Equal(t, []string{`batch 1.1 #3`, `refused "a" to 1.1.1/2: queue full`}, say(f, wire.Entry{Batch: 3}, acquire))
}

func TestEffectsAndCausesHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for k := renewed; k <= halted; k++ {
		require.NotEmpty(t, k.String())
		require.False(t, seen[k.String()])
		seen[k.String()] = true
	}
	clear(seen)
	for c := causeHeld; c <= causeRestored; c++ {
		require.NotEmpty(t, c.String())
		require.False(t, seen[c.String()])
		seen[c.String()] = true
	}
}

// someState has lines, waiters, and processes with and without sessions.
func someState() *lockFSM {
	f := newLockFSM()
	say(f, wire.Entry{}, wire.Command{Op: wire.Boot})
	say(f, wire.Entry{Replica: 2, Epoch: 1}, wire.Command{Op: wire.Boot})
	commands := []wire.Command{{Op: wire.Open, Session: 1, TTL: 10_000, Owner: "me"}}
	for i := range uint64(40) {
		commands = append(commands, wire.Command{Op: wire.Acquire, Session: 1, Hold: i + 1,
			Name: fmt.Sprintf("lock/%d", i/2), Mode: 1, Wait: true, Limit: 10})
	}
	commands = append(commands, wire.Command{Op: wire.Publish, Session: 1, Hold: 1, Lock: hashOf("lock/0"), More: &wire.More{Value: "v"}},
		wire.Command{Op: wire.Claim, Name: "job", More: &wire.More{Tick: 7, Call: 2}})
	say(f, wire.Entry{Batch: 1, At: 1_700_000_000_000}, commands...)
	return f
}

// A state that cannot be restored: every cut and flipped bit is an error of its
// own, matches ErrFormat, and leaves the machine as it was.
func TestRestoreRefusesDamage(t *testing.T) {
	whole := someState().bytes()
	m := newMachine()
	m.restored = func() { t.Fatal("told of a restored state after an error") }
	m.fsm = someState()
	before := m.fsm
	step := 1
	if testing.Short() {
		step = 7
	}
	for n := 0; n < len(whole); n += step {
		err := m.restore(bytes.NewReader(whole[:n]), nil)
		require.ErrorIs(t, err, ErrFormat, "first %d bytes", n)
		require.ErrorIs(t, err, wire.ErrMalformed, "first %d bytes", n)
		b := bytes.Clone(whole)
		b[n] ^= 1 << (n % 8)
		require.ErrorIs(t, m.restore(bytes.NewReader(b), nil), ErrFormat, "byte %d", n)
	}
	broken := errors.New("input/output error")
	err := m.restore(io.MultiReader(bytes.NewReader(whole[:len(whole)/2]), iotest.ErrReader(broken)), nil)
	require.ErrorIs(t, err, broken)
	require.NotErrorIs(t, err, ErrFormat, "the disk is at fault and not the snapshot")

	stopped := make(chan struct{})
	close(stopped)
	require.ErrorIs(t, m.restore(bytes.NewReader(whole), stopped), errStopped)
	require.Same(t, before, m.fsm)
	require.Equal(t, whole, m.fsm.bytes())
}

// A snapshot of a level that is not spoken here stops this replica as an entry does,
// and not its process: the state stays as it was, and is not kept.
func TestRestoreOfANewerLevelHalts(t *testing.T) {
	newer := bytes.Clone(someState().bytes())
	newer[0] = wire.Version + 1
	of3 := someState()
	of3.level = 3
	for snapshot, speaks := range map[string]byte{string(newer): wire.Version, string(of3.bytes()): 2} {
		m := newMachine()
		m.fsm.speaks = speaks
		var effects []effect
		m.perform = func(list []effect) { effects = append(effects, list...) }
		m.restored = func() { t.Fatal("told of a restored state") }
		before := m.fsm
		require.NoError(t, m.restore(strings.NewReader(snapshot), nil))
		require.Equal(t, []effect{{kind: halted}}, effects)
		require.ErrorIs(t, m.fsm.halted, ErrFormat)
		require.ErrorContains(t, m.fsm.halted, fmt.Sprintf("level %d, and this version knows no more than %d", speaks+1, speaks))
		require.Same(t, before, m.fsm)
		require.ErrorIs(t, m.snapshot()(nil, nil), errStopped)
		m.apply([]logEntry{{1, wire.AppendEntry(nil, &wire.Entry{Replica: 1, Epoch: 1, Commands: []wire.Command{{Op: wire.Boot}}})}})
		require.Len(t, effects, 1, "it applies nothing more")
	}
}

// What is well formed and still cannot be: the machine's own invariants.
func TestRestoreRefusesWhatCannotBe(t *testing.T) {
	type lines = []*queue.Line
	line := func(name string, id sessions.ID, seq uint64, token fencing.Token) *queue.Line {
		l := &queue.Line{Name: name}
		l.Hold(&queue.Claim{Session: id, Seq: seq, Mode: queue.Exclusive}, token)
		return l
	}
	id := sessions.ID{Replica: 1, Epoch: 1, Seq: 1}
	read := func(ls lines) error {
		roll := new(sessions.Roll)
		roll.Boot(1, 1)
		roll.Open(sessions.Session{ID: id})
		roll.Number(id, 2)
		var b bytes.Buffer
		w := wire.NewSnapshotWriter(&b, wire.BaseVersion)
		_, _ = w.Write(wire.AppendHead(nil, wire.Head{Token: 10, Roll: roll, Lines: len(ls)}))
		for _, l := range ls {
			_, _ = w.Write(wire.AppendLine(nil, l))
		}
		_ = w.Close()
		_, err := restoreFSM(&b, nil)
		return err
	}
	barred := func(name string, bars ...uint64) *queue.Line {
		l := &queue.Line{Name: name}
		for _, b := range bars {
			l.Bar(queue.Bar{ID: b, For: time.Second})
		}
		return l
	}
	waiting := func(l *queue.Line, seq uint64) *queue.Line {
		l.Wait(&queue.Claim{Session: id, Seq: seq, Mode: queue.Exclusive})
		return l
	}
	set := func(seq uint64, names ...string) (ls lines) {
		var parts []*queue.Claim
		for i, name := range names {
			c := &queue.Claim{Session: id, Seq: seq, Mode: queue.Exclusive}
			parts = append(parts, c)
			ls = append(ls, &queue.Line{Name: name})
			ls[i].Hold(c, fencing.Token(i+1))
		}
		queue.Join(parts)
		return ls
	}
	require.NoError(t, read(lines{line("a", id, 1, 10), line("b", id, 2, 1)}))
	require.NoError(t, read(append(set(1, "a", "b"), waiting(barred("c", 9, 10), 2))))
	for what, ls := range map[string]lines{
		"a line that nobody is in":  {{Name: "a"}},
		"a line that stands twice":  {line("a", id, 1, 1), line("a", id, 2, 2)},
		"a claim that stands twice": {line("a", id, 1, 1), line("b", id, 1, 2)},
		"a token never granted":     {line("a", id, 1, 11)},
		"a number never given":      {line("a", id, 3, 1)},
		"a session not on the roll": {line("a", sessions.ID{Replica: 1, Epoch: 1, Seq: 2}, 1, 1)},
		"a life that is over":       {line("a", sessions.ID{Replica: 1, Epoch: 2, Seq: 1}, 1, 1)},

		"a waiter that nobody is in the way of": {waiting(&queue.Line{Name: "a"}, 1)},
		"a set and one claim of its number":     append(set(1, "b", "c"), waiting(line("d", id, 2, 3), 1)),
		"one claim and a set of its number":     append(lines{waiting(line("a", id, 2, 3), 1)}, set(1, "b", "c")...),
		"a part of a set":                       set(1, "b", "c")[:1],
		"a bar never numbered":                  {barred("a", 11)},
		"a bar that stands twice":               {barred("a", 3, 3)},
		"a bar that stands on two names":        {barred("a", 3), barred("b", 3)},
	} {
		err := read(ls)
		require.ErrorIs(t, err, ErrFormat, what)
		require.ErrorIs(t, err, wire.ErrMalformed, what)
	}
}

// A replica that met a newer version's entry has not what the others have, so it
// must not keep it as a snapshot.
func TestHaltedMachineWritesNoSnapshot(t *testing.T) {
	m := newMachine()
	var effects []effect
	m.perform = func(list []effect) { effects = append(effects, list...) }
	m.apply([]logEntry{{1, []byte{wire.Version + 1}}, {2, []byte{wire.Version + 1}}})
	require.Equal(t, []effect{{kind: halted}}, effects, "told once")
	require.ErrorIs(t, m.fsm.halted, ErrFormat)
	var b bytes.Buffer
	require.ErrorIs(t, m.snapshot()(&b, nil), errStopped)
	require.Zero(t, b.Len())
}

func TestMachineSnapshot(t *testing.T) {
	m := newMachine()
	m.fsm = someState()
	m.perform, m.restored = func([]effect) {}, func() {}
	want := m.fsm.bytes()

	var b bytes.Buffer
	save := m.snapshot()
	release := wire.Entry{Replica: 1, Epoch: 1, Batch: 2, Commands: []wire.Command{{Op: wire.Release, Session: 1, Hold: 1, Lock: hashOf("a")}, {Op: wire.Close, Session: 1}}}
	m.apply([]logEntry{{1, wire.AppendEntry(nil, &release)}})
	require.NoError(t, save(&b, nil))
	require.Equal(t, want, b.Bytes(), "the state at the mark, and not that of the moment it is written")
	require.Empty(t, m.fsm.table.captures)

	require.NoError(t, m.snapshot()(nil, nil))
	require.Empty(t, m.fsm.table.captures, "what the mark holds is given back")

	stopped := make(chan struct{})
	close(stopped)
	require.ErrorIs(t, m.snapshot()(io.Discard, stopped), errStopped)
	require.Empty(t, m.fsm.table.captures)
	require.NoError(t, m.restore(&b, nil))
	require.Equal(t, want, m.fsm.bytes())

	broken := errors.New("no space left on device")
	require.ErrorIs(t, m.snapshot()(brokenWriter{broken}, nil), broken)
	require.Empty(t, m.fsm.table.captures)
}

type brokenWriter struct{ err error }

func (w brokenWriter) Write([]byte) (int, error) { return 0, w.err }

// A capture that was dropped must give nothing rather than something of a later state.
func TestEndedCaptureGivesNothing(t *testing.T) {
	f := someState()
	_, first := f.mark()
	_, second := f.mark()
	first.take(nil, 0)
	second.take(nil, 0)
	first.drop()
	require.Panics(t, func() { first.take(nil, 1) })
	second.take(nil, 1)
	first.drop()
	second.take(nil, 2)
	second.drop()
	require.Panics(t, func() { second.take(nil, 3) })
	require.Empty(t, f.table.captures)
}

// Where a name's page is sets the order of a snapshot, on every replica of every
// version.
func TestPageOfANameIsForEver(t *testing.T) {
	require.Equal(t, 4096, pages)
	for name, page := range map[string]int{"": 0, "a": 816, "invoice/2026-00017": 1685, "Größe/€": 780} {
		require.Equal(t, page, pageOf(hashOf(name)), name)
	}
}
