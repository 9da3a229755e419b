package quorumlock

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
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

var rewrite = flag.Bool("rewrite", false, "write what testdata/fsm/*.txt expect anew; "+
	"commit that only if you understand each change")

// TestRules runs the scripts. A line that is not indented is a comment, the name
// of a state to look at, or one entry of the log; below it stand, indented, its
// effects.
//
//	1.2 boot                     replica 1 begins its life with epoch 2
//	1.2 renew 5                  its renewal 5, outside the batches
//	2.1 expire 1.2 5 10s         replica 2 asks to end what 1.2 has with a TTL up to 10s
//	1.2 #7 open 1 10s; ...       its batch 7: any of
//	                             open SESSION TTL, close SESSION,
//	                             release|cancel SESSION/HOLD [NAME], its own name if none is given,
//	                             acquire|try SESSION/HOLD NAME [limit=N] [mode=N]
//	1.2 #7 renewal=5 ...         a renewal that travels with it
//	raw 02ff                     an entry of these bytes
//	again                        the last entry once more
//	state                        everything there is
//
// Beside what the script says, each entry is applied by a second machine with other
// times and owners in it, and by a third one that was restored from a snapshot of
// the state before it: their effects must be the same.
func TestRules(t *testing.T) {
	files, err := filepath.Glob("testdata/fsm/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			got := newStory(t).tell(string(text))
			if *rewrite {
				require.NoError(t, os.WriteFile(file, []byte(got), 0o666))
				return
			}
			require.Equal(t, string(text), got)
		})
	}
}

type story struct {
	t            *testing.T
	fsm, strange *lockFSM // strange is told other times and owners
	last         func()
	out          strings.Builder
	names        map[[4]uint64]string // what each acquisition asked for: replica, epoch, session, number
}

func newStory(t *testing.T) *story {
	return &story{t: t, fsm: newLockFSM(), strange: newLockFSM(), names: make(map[[4]uint64]string)}
}

// tell runs a script and returns it with what really happened.
func (s *story) tell(script string) string {
	for line := range strings.Lines(script) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "\t") {
			continue
		}
		s.out.WriteString(line + "\n")
		switch words := strings.Fields(line); {
		case len(words) == 0 || words[0] == "#":
		case words[0] == "state":
			s.note(describeFSM(s.fsm))
		case words[0] == "again":
			s.last()
		case words[0] == "raw":
			b, err := hex.DecodeString(strings.Join(words[1:], ""))
			require.NoError(s.t, err)
			s.run(func() { s.apply(b, b) })
		default:
			e := s.entry(line)
			other := *e
			other.At = -e.At - 1
			other.Commands = append([]wire.Command{}, e.Commands...)
			for i := range other.Commands {
				if c := &other.Commands[i]; c.Op == wire.Open {
					c.Owner = "somebody else"
				}
			}
			s.run(func() { s.apply(wire.AppendEntry(nil, e), wire.AppendEntry(nil, &other)) })
		}
	}
	return s.out.String()
}

func (s *story) run(f func()) {
	s.last = f
	f()
}

func (s *story) note(text string) {
	for line := range strings.Lines(text) {
		s.out.WriteString("\t" + line)
	}
}

func (s *story) apply(cmd, other []byte) {
	restored, err := restoreFSM(bytes.NewReader(s.fsm.bytes()), nil)
	require.NoError(s.t, err)
	restored.halted = s.fsm.halted
	effects := slices.Clone(s.fsm.apply(cmd))
	for _, e := range effects {
		s.note(e.String() + "\n")
	}
	if len(effects) == 0 {
		s.note("nothing\n")
	}
	require.True(s.t, slices.Equal(effects, s.strange.apply(other)), "times or owners have decided something")
	require.True(s.t, slices.Equal(effects, restored.apply(cmd)), "a restored machine does something else")
	require.Equal(s.t, s.fsm.bytes(), restored.bytes())
	require.Equal(s.t, describeFSM(s.fsm), describeFSM(s.strange))
	checkFSM(s.t, s.fsm)
}

// entry reads one line of a script.
func (s *story) entry(line string) *wire.Entry {
	who, rest, _ := strings.Cut(line, " ")
	e := &wire.Entry{At: 1_700_000_000_000}
	e.Replica, e.Epoch = s.pair(who, ".")
	number, what, _ := strings.Cut(rest, " ")
	if n, isBatch := strings.CutPrefix(number, "#"); isBatch {
		e.Batch = s.number(n)
		rest = what
	}
	for part := range strings.SplitSeq(rest, ";") {
		words := strings.Fields(part)
		if len(words) == 0 {
			continue
		}
		if n, ok := strings.CutPrefix(words[0], "renewal="); ok {
			e.Renewal = s.number(n)
			words = words[1:]
		}
		switch {
		case len(words) == 0:
		case words[0] == "renew":
			e.Renewal = s.number(words[1])
		default:
			c := s.command(words)
			key := [4]uint64{e.Replica, e.Epoch, c.Session, c.Hold}
			switch c.Op {
			case wire.Acquire:
				s.names[key] = c.Name
			case wire.Release, wire.Cancel:
				c.Lock = hashOf(s.names[key])
				if len(words) > 2 {
					c.Lock = hashOf(words[2])
				}
			}
			e.Commands = append(e.Commands, c)
		}
	}
	return e
}

func (s *story) command(w []string) (c wire.Command) {
	switch op := w[0]; op {
	case "boot":
		return wire.Command{Op: wire.Boot}
	case "open":
		return wire.Command{Op: wire.Open, Session: s.number(w[1]), TTL: s.millis(w[2]), Owner: "owner"}
	case "close":
		return wire.Command{Op: wire.Close, Session: s.number(w[1])}
	case "expire":
		c = wire.Command{Op: wire.Expire, Renewal: s.number(w[2]), TTL: s.millis(w[3])}
		c.Replica, c.Epoch = s.pair(w[1], ".")
		return c
	case "release", "cancel":
		c = wire.Command{Op: wire.Release}
		if op == "cancel" {
			c.Op = wire.Cancel
		}
		c.Session, c.Hold = s.pair(w[1], "/")
		return c
	case "acquire", "try":
		c = wire.Command{Op: wire.Acquire, Name: w[2], Mode: uint8(queue.Exclusive), Wait: op == "acquire", Limit: 100}
		c.Session, c.Hold = s.pair(w[1], "/")
		for _, option := range w[3:] {
			switch key, value, _ := strings.Cut(option, "="); key {
			case "limit":
				c.Limit = s.number(value)
			case "mode":
				c.Mode = uint8(s.number(value))
			}
		}
		return c
	}
	s.t.Fatalf("script: %q", w)
	return c
}

func (s *story) number(word string) uint64 {
	n, err := strconv.ParseUint(word, 10, 64)
	require.NoError(s.t, err)
	return n
}

func (s *story) pair(word, sep string) (uint64, uint64) {
	a, b, ok := strings.Cut(word, sep)
	require.True(s.t, ok, word)
	return s.number(a), s.number(b)
}

func (s *story) millis(word string) uint64 {
	d, err := time.ParseDuration(word)
	require.NoError(s.t, err)
	return uint64(d / time.Millisecond)
}

// describeFSM writes the state for a person, without what is only for display.
func describeFSM(f *lockFSM) string {
	var b strings.Builder
	fmt.Fprintf(&b, "last token %d\n", f.token)
	for p := range f.roll.Processes() {
		fmt.Fprintf(&b, "process %d.%d: renewal %d, batch %d", p.Replica, p.Epoch, p.Renewal, p.Batch)
		sep := ", sessions"
		for s := range p.Sessions() {
			fmt.Fprintf(&b, "%s %d (%v)", sep, s.ID.Seq, s.TTL)
			sep = ","
		}
		b.WriteByte('\n')
	}
	for i := range pages {
		for _, name := range slices.Sorted(slices.Values(f.table.lineNames(i))) {
			l := f.table.line(name)
			fmt.Fprintf(&b, "%s:", name)
			for c := range l.Holders() {
				fmt.Fprintf(&b, " held by %v/%d with token %d", c.Session, c.Seq, c.Token)
			}
			sep := ", waiting "
			for c := range l.Waiters() {
				fmt.Fprintf(&b, "%s%v/%d", sep, c.Session, c.Seq)
				sep = ", "
			}
			b.WriteByte('\n')
		}
	}
	if f.halted != nil {
		fmt.Fprintf(&b, "halted: %v\n", f.halted)
	}
	return b.String()
}

// checkFSM checks what must be true of the state after every entry.
func checkFSM(t testing.TB, f *lockFSM) {
	t.Helper()
	lines := 0
	tokens := map[fencing.Token]bool{}
	claims := map[sessions.ID]int{}
	for i := range pages {
		if f.table.page[i].index == nil && f.table.lines[i] == nil {
			continue
		}
		checkPage(t, &f.table, i)
		for _, name := range f.table.lineNames(i) {
			lines++
			l := f.table.line(name)
			switch {
			case name != l.Name || pageOf(hashOf(name)) != i:
				t.Fatalf("line %q stands as %q on page %d", l.Name, name, i)
			case l.Empty():
				t.Fatalf("line %q is empty and not forgotten", name)
			case l.Holding() > 1:
				t.Fatalf("%q has %d holders", name, l.Holding())
			case l.Holding() == 0:
				t.Fatalf("%d wait for %q, which is free", l.Waiting(), name)
			case l.Waiting() == 0 && f.table.lines[i][name] != nil:
				t.Fatalf("%q is held alone and no record", name)
			}
			for _, side := range []func(func(*queue.Claim) bool){l.Holders(), l.Waiters()} {
				for c := range side {
					claims[c.Session]++
					switch own := f.table.claim(c.Session, name, c.Seq); {
					case own == nil || own.Seq != c.Seq || own.Token != c.Token:
						t.Fatalf("%q: claim %v/%d is not found", name, c.Session, c.Seq)
					case f.roll.Session(c.Session) == nil:
						t.Fatalf("%q: claim %v/%d of a dead session", name, c.Session, c.Seq)
					case c.Holds() && (c.Token > f.token || tokens[c.Token]):
						t.Fatalf("%q: token %d stands twice or was never granted", name, c.Token)
					}
					tokens[c.Token] = c.Holds()
				}
			}
		}
	}
	if lines != f.table.n {
		t.Fatalf("%d lines, counted as %d", lines, f.table.n)
	}
	checkMembers(t, f, claims)
}

// checkPage checks how records are kept.
func checkPage(t testing.TB, tab *table, i int) {
	t.Helper()
	p := &tab.page[i]
	live, garbage := 0, len(p.names)
	for slot := range p.records {
		x := &p.records[slot]
		if x.member == 0 {
			continue
		}
		live++
		garbage -= int(x.room)
		name := p.name(x)
		if x.hash != hashOf(name) || p.find(x.hash, name) != slot || p.claimed(x.hash, x.member, x.seq) != slot {
			t.Fatalf("page %d: record %q in slot %d is not found", i, name, slot)
		}
	}
	entered := 0
	for _, e := range p.index {
		if e != 0 {
			entered++
		}
	}
	switch {
	case live != p.live || entered != live || garbage != p.garbage:
		t.Fatalf("page %d: %d records counted as %d, %d in the index; %d bytes of garbage counted as %d", i, live, p.live, entered, garbage, p.garbage)
	case live == 0 && (cap(p.records) > 2 || cap(p.names) > 128 || len(p.index) > 8), tab.lines[i] != nil && len(tab.lines[i]) == 0:
		t.Fatalf("page %d has no line and keeps its room", i)
	}
}

// checkMembers checks that the members are the live sessions, and that each leads to
// its claims, of which there are so many.
func checkMembers(t testing.TB, f *lockFSM, claims map[sessions.ID]int) {
	t.Helper()
	alive := 0
	for p := range f.roll.Processes() {
		alive += p.Len()
	}
	if alive != len(f.table.byID) {
		t.Fatalf("%d sessions are alive, %d are members", alive, len(f.table.byID))
	}
	for id, m := range f.table.byID {
		own := &f.table.members[m]
		n := len(own.claims)
		for r, prev := own.first, ref(0); r != 0; r, prev = f.table.at(r).next, r {
			if x := f.table.at(r); x.member != m || x.prev != prev {
				t.Fatalf("record %q is chained to the wrong ones", f.table.nameAt(r))
			}
			n++
		}
		if own.id != id || f.roll.Session(id) == nil || n != claims[id] {
			t.Fatalf("member %v has %d claims, not %d; session on the roll: %v", id, n, claims[id], f.roll.Session(id))
		}
		if own.claims != nil && len(own.claims) == 0 {
			t.Fatalf("member %v keeps the room of its claims", id)
		}
	}
}

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
	for c := causeHeld; c <= causeStranger; c++ {
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
	newer := bytes.Clone(whole)
	newer[0]++
	require.ErrorIs(t, m.restore(bytes.NewReader(newer), nil), wire.ErrVersion)
	require.ErrorIs(t, m.restore(bytes.NewReader(newer), nil), ErrFormat)

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
		w := wire.NewSnapshotWriter(&b)
		_, _ = w.Write(wire.AppendHead(nil, wire.Head{Token: 10, Roll: roll, Lines: len(ls)}))
		for _, l := range ls {
			_, _ = w.Write(wire.AppendLine(nil, l))
		}
		_ = w.Close()
		_, err := restoreFSM(&b, nil)
		return err
	}
	require.NoError(t, read(lines{line("a", id, 1, 10), line("b", id, 2, 1)}))
	for what, ls := range map[string]lines{
		"a line that nobody is in":  {{Name: "a"}},
		"a line that stands twice":  {line("a", id, 1, 1), line("a", id, 2, 2)},
		"a claim that stands twice": {line("a", id, 1, 1), line("b", id, 1, 2)},
		"a token never granted":     {line("a", id, 1, 11)},
		"a number never given":      {line("a", id, 3, 1)},
		"a session not on the roll": {line("a", sessions.ID{Replica: 1, Epoch: 1, Seq: 2}, 1, 1)},
		"a life that is over":       {line("a", sessions.ID{Replica: 1, Epoch: 2, Seq: 1}, 1, 1)},
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
	m.apply([]logEntry{{1, []byte{wire.EntryVersion + 1}}, {2, []byte{wire.EntryVersion + 1}}})
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
	require.Nil(t, m.fsm.table.capture)

	require.NoError(t, m.snapshot()(nil, nil))
	require.Nil(t, m.fsm.table.capture, "what the mark holds is given back")

	stopped := make(chan struct{})
	close(stopped)
	require.ErrorIs(t, m.snapshot()(io.Discard, stopped), errStopped)
	require.Nil(t, m.fsm.table.capture)
	require.NoError(t, m.restore(&b, nil))
	require.Equal(t, want, m.fsm.bytes())

	broken := errors.New("no space left on device")
	require.ErrorIs(t, m.snapshot()(brokenWriter{broken}, nil), broken)
	require.Nil(t, m.fsm.table.capture)
}

type brokenWriter struct{ err error }

func (w brokenWriter) Write([]byte) (int, error) { return 0, w.err }

// A second capture ends the first, which must then give nothing rather than
// something of a later state.
func TestEndedCaptureGivesNothing(t *testing.T) {
	f := someState()
	_, first := f.mark()
	_, second := f.mark()
	require.Panics(t, func() { first.take(nil, 0) })
	second.take(nil, 0)
	first.drop() // not its own any more
	second.take(nil, 1)
	second.drop()
	require.Panics(t, func() { second.take(nil, 2) })
	require.Nil(t, f.table.capture)
}

// Where a name's page is sets the order of a snapshot, on every replica of every
// version.
func TestPageOfANameIsForEver(t *testing.T) {
	require.Equal(t, 4096, pages)
	for name, page := range map[string]int{"": 0, "a": 816, "invoice/2026-00017": 1685, "Größe/€": 780} {
		require.Equal(t, page, pageOf(hashOf(name)), name)
	}
}
