package quorumlock

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
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
//	2.1 due max|min 1.2.1/4      replica 2 says that this time of acquisition 4 of session 1.2.1 is over
//	2.1 due delay 7              replica 2 says that the lock delay of bar 7 is over
//	1.2 #7 open 1 10s; ...       its batch 7: any of
//	                             open SESSION TTL, close SESSION,
//	                             release|cancel SESSION/HOLD [NAME], its own (first) name if none is given,
//	                             acquire|try SESSION/HOLD NAME [limit=N] [mode=N]
//	                             take|trytake SESSION/HOLD NAME[+NAME...] [mode=exclusive|shared|counted|N]
//	                                [permits=K/N] [maxhold=D] [minhold=D] [delay=D] [limit=N] [waits=N] [value=V]
//	                             start|downgrade SESSION/HOLD [NAME], as release
//	                             publish SESSION/HOLD [NAME] value=V, handover SESSION/HOLD [NAME] to=SESSION-ID
//	                             resize NAME N, revoke NAME TOKEN, evict SESSION-ID, ask NAME
//	                             claim JOB TICK, forget JOB
//	                             The last eight and downgrade are calls: [call=N], 1 if none is given
//	1.2 #7 renewal=5 ...         a renewal that travels with it
//	1.2 level 3                  an entry of version 3 that says nothing
//	1.2 restore S DONE/OF [token=N] [tick=JOB:TICK] [bar=NAME:D]  a part of the backup SS...S
//	raw 02ff                     an entry of these bytes
//	again                        the last entry once more
//	state                        everything there is
//
// Beside what the script says, each entry is applied by a second machine with other
// times and owners in it, and by a third one that was restored from a snapshot of
// the state before it: their effects must be the same. So must those of a fourth
// one that somebody watches, but for what only watchers are told. A snapshot that was
// marked before the entry and is written after it is that of the state before.
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
	watched      *lockFSM
	bytes        []byte // of fsm
	last         func()
	out          strings.Builder
	names        map[[4]uint64]string // what each acquisition asked for: replica, epoch, session, number
}

func newStory(t *testing.T) *story {
	s := &story{t: t, fsm: newLockFSM(), strange: newLockFSM(), watched: newLockFSM(), names: make(map[[4]uint64]string)}
	s.watched.watched = true
	s.bytes = s.fsm.bytes()
	return s
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
			version := byte(1)
			if words[1] == "level" {
				version = byte(s.number(words[2]))
			}
			s.run(func() { s.apply(wire.AppendEntryOf(version, nil, e), wire.AppendEntryOf(version, nil, &other)) })
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
	restored, err := restoreFSM(bytes.NewReader(s.bytes), nil)
	require.NoError(s.t, err)
	require.Equal(s.t, timesOf(s.fsm), timesOf(restored))
	restored.halted = s.fsm.halted
	marked := newSlowSnapshot(s.fsm, s.bytes)
	log := slices.Clone(cmd)
	effects := slices.Clone(s.fsm.apply(log))
	for _, e := range effects {
		s.note(e.String() + "\n")
	}
	if len(effects) == 0 {
		s.note("nothing\n")
	}
	require.True(s.t, slices.Equal(effects, s.strange.apply(other)), "times or owners have decided something")
	require.True(s.t, slices.Equal(effects, restored.apply(cmd)), "a restored machine does something else")
	require.Subset(s.t, effectTexts(s.watched.apply(cmd)), effectTexts(effects))
	marked.write(s.t, pages)
	clear(log) // the state holds on to nothing of it
	s.bytes = s.fsm.bytes()
	require.Equal(s.t, s.bytes, restored.bytes())
	require.Equal(s.t, s.bytes, s.watched.bytes(), "somebody watches, and the state is another")
	require.Equal(s.t, describeFSM(s.fsm), describeFSM(s.strange))
	require.Equal(s.t, describeFSM(s.fsm), describeFSM(restored))
	require.Equal(s.t, timesOf(s.fsm), timesOf(restored))
	checkFSM(s.t, s.fsm)
	checkFSM(s.t, restored)
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
		case len(words) == 0, words[0] == "level":
		case words[0] == "renew":
			e.Renewal = s.number(words[1])
		default:
			c := s.command(words)
			s.locate(e, &c, words)
			e.Commands = append(e.Commands, c)
		}
	}
	return e
}

// locate fills in by which name an acquisition is to be found.
func (s *story) locate(e *wire.Entry, c *wire.Command, words []string) {
	key := [4]uint64{e.Replica, e.Epoch, c.Session, c.Hold}
	switch c.Op {
	case wire.Acquire:
		s.names[key] = c.Name
	case wire.Take:
		s.names[key] = c.More.Names[0]
	case wire.Release, wire.Cancel, wire.Start, wire.Downgrade, wire.Publish, wire.HandOver:
		c.Lock = hashOf(s.names[key])
		if len(words) > 2 && !strings.Contains(words[2], "=") {
			c.Lock = hashOf(words[2])
		}
	}
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
		s.options(&c, w[3:])
		return c
	case "take", "trytake":
		c = wire.Command{Op: wire.Take, Mode: uint8(queue.Exclusive), Wait: op == "take", Limit: 100}
		c.Session, c.Hold = s.pair(w[1], "/")
		c.More = &wire.More{Names: strings.Split(w[2], "+"), MaxWaits: 100}
		s.options(&c, w[3:])
		return c
	}
	return s.moreCommand(w)
}

// moreCommand reads what there is since version 2, other than takes.
func (s *story) moreCommand(w []string) (c wire.Command) {
	m := &wire.More{Call: 1, By: "ops", Reason: "stuck"}
	c.More = m
	switch w[0] {
	case "start":
		c.Op = wire.Start
		c.Session, c.Hold = s.pair(w[1], "/")
	case "downgrade":
		c.Op = wire.Downgrade
		c.Session, c.Hold = s.pair(w[1], "/")
	case "resize":
		c.Op, c.Name, m.Of = wire.Resize, w[1], s.number(w[2])
	case "revoke":
		c.Op, c.Name, m.Token = wire.Revoke, w[1], fencing.Token(s.number(w[2]))
	case "evict":
		c.Op, m.Who = wire.Evict, s.session(w[1])
	case "ask":
		c.Op, c.Name = wire.Ask, w[1]
	case "publish":
		c.Op = wire.Publish
		c.Session, c.Hold = s.pair(w[1], "/")
	case "handover":
		c.Op = wire.HandOver
		c.Session, c.Hold = s.pair(w[1], "/")
	case "claim":
		c.Op, c.Name = wire.Claim, w[1]
		tick, err := strconv.ParseInt(w[2], 10, 64)
		require.NoError(s.t, err)
		m.Tick = tick
	case "forget":
		c.Op, c.Name = wire.Forget, w[1]
	case "restore":
		return wire.Command{Op: wire.Restore, More: &wire.More{Part: s.part(w)}}
	case "due":
		c.Op = wire.Due
		switch w[1] {
		case "delay":
			c.Hold, m.What = s.number(w[2]), uint8(lockDelay)
		default:
			who, hold, _ := strings.Cut(w[2], "/")
			m.Who, c.Hold = s.session(who), s.number(hold)
			m.What = map[string]uint8{"max": uint8(maxHold), "min": uint8(minHold), "none": 9}[w[1]]
			require.NotZero(s.t, m.What, w)
		}
	default:
		s.t.Fatalf("script: %q", w)
	}
	for _, option := range w[2:] {
		switch key, value, _ := strings.Cut(option, "="); key {
		case "call":
			m.Call = s.number(value)
		case "value":
			m.Value = value
		case "to":
			m.Who = s.session(value)
		}
	}
	return c
}

// part reads a part of a backup.
func (s *story) part(w []string) *wire.Part {
	p := &wire.Part{Origin: wire.Origin{Sum: strings.Repeat(w[1], 64)}}
	p.Done, p.Of = s.pair(w[2], "/")
	for _, option := range w[3:] {
		key, value, _ := strings.Cut(option, "=")
		name, of, _ := strings.Cut(value, ":")
		switch key {
		case "token":
			p.Token = fencing.Token(s.number(value))
		case "tick":
			p.Ticks = append(p.Ticks, wire.Tick{Job: name, Tick: int64(s.number(of))})
		case "bar":
			p.Bars = append(p.Bars, wire.NamedBar{Name: name, For: time.Duration(s.millis(of)) * time.Millisecond})
		default:
			s.t.Fatalf("script: %q", option)
		}
	}
	return p
}

// options reads what an acquire or a take says beside names.
func (s *story) options(c *wire.Command, words []string) {
	for _, option := range words {
		switch key, value, _ := strings.Cut(option, "="); key {
		case "limit":
			c.Limit = s.number(value)
		case "mode":
			modes := map[string]queue.Mode{"exclusive": queue.Exclusive, "shared": queue.Shared, "counted": queue.Counted}
			if m, named := modes[value]; named {
				c.Mode = uint8(m)
			} else {
				c.Mode = uint8(s.number(value))
			}
		case "permits":
			c.More.Permits, c.More.Of = s.pair(value, "/")
		case "maxhold":
			c.More.MaxHold = s.millis(value)
		case "minhold":
			c.More.MinHold = s.millis(value)
		case "delay":
			c.More.Delay = s.millis(value)
		case "waits":
			c.More.MaxWaits = s.number(value)
		case "value":
			c.More.Value = value
		default:
			s.t.Fatalf("script: %q", option)
		}
	}
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

func (s *story) session(word string) sessions.ID {
	parts := strings.Split(word, ".")
	require.Len(s.t, parts, 3, word)
	return sessions.ID{Replica: s.number(parts[0]), Epoch: s.number(parts[1]), Seq: s.number(parts[2])}
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
	if f.level > wire.BaseVersion {
		fmt.Fprintf(&b, "level %d\n", f.level)
	}
	if f.origin.Of > 0 {
		fmt.Fprintf(&b, "%d of %d parts of %.4s...\n", f.origin.Done, f.origin.Of, f.origin.Sum)
	}
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
			b.WriteString(describeLine(f.table.line(name)) + "\n")
		}
	}
	for _, t := range timesOf(f) {
		b.WriteString(t + "\n")
	}
	for _, name := range slices.Sorted(maps.Keys(f.jobs)) {
		j := f.jobs[name]
		fmt.Fprintf(&b, "job %s: tick %d by call %d of %d.%d\n", j.Name, j.Tick, j.Call, j.By.Replica, j.By.Epoch)
	}
	if f.halted != nil {
		fmt.Fprintf(&b, "halted: %v\n", f.halted)
	}
	return b.String()
}

// describeLine writes a line: how many permits there are, what bars it, who holds,
// who waits.
func describeLine(l *queue.Line) string {
	var parts []string
	if l.Limit() > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d permits taken", l.Taken(), l.Limit()))
	}
	for _, bar := range l.Bars() {
		parts = append(parts, fmt.Sprintf("barred by %d for %v", bar.ID, bar.For))
	}
	var held, waiting []string
	for c := range l.Holders() {
		held = append(held, fmt.Sprintf("%v/%d with token %d%s", c.Session, c.Seq, c.Token, describeClaim(c)))
	}
	for c := range l.Waiters() {
		waiting = append(waiting, fmt.Sprintf("%v/%d%s", c.Session, c.Seq, describeClaim(c)))
	}
	if held != nil {
		parts = append(parts, "held by "+strings.Join(held, ", "))
	}
	if waiting != nil {
		parts = append(parts, "waiting "+strings.Join(waiting, ", "))
	}
	return l.Name + ": " + strings.Join(parts, ", ")
}

// describeClaim writes, in brackets, what sets a claim apart from a plain one.
func describeClaim(c *queue.Claim) string {
	var parts []string
	if c.Mode != queue.Exclusive {
		parts = append(parts, c.Mode.String())
	}
	if n := len(c.Parts()); n > 1 {
		parts = append(parts, fmt.Sprintf("one of %d names", n))
	}
	switch {
	case len(c.Slots) > 0:
		parts = append(parts, "slots "+strings.Trim(fmt.Sprint(c.Slots), "[]"))
	case c.Permits > 0:
		parts = append(parts, fmt.Sprintf("%d permits", c.Permits))
	}
	if t := c.Terms; t != nil {
		if t.MaxHold > 0 {
			parts = append(parts, fmt.Sprintf("max hold %v", t.MaxHold))
		}
		if t.MinHold > 0 {
			parts = append(parts, fmt.Sprintf("min hold %v", t.MinHold))
		}
		if t.Delay > 0 {
			parts = append(parts, fmt.Sprintf("delay %v", t.Delay))
		}
	}
	if c.Value != "" {
		parts = append(parts, fmt.Sprintf("value %q", c.Value))
	}
	for state, name := range []string{"started", "matured", "leaving"} {
		if c.Is(1 << state) {
			parts = append(parts, name)
		}
	}
	if parts == nil {
		return ""
	}
	return " (" + strings.Join(parts, "; ") + ")"
}

// timesOf lists the times that run.
func timesOf(f *lockFSM) []string {
	list := []string{}
	for id, t := range f.times {
		what := fmt.Sprintf("%v of %v/%d", id.what, id.who, id.hold)
		if id.what == lockDelay {
			what = fmt.Sprintf("%v of %s, bar %d", id.what, t.line.Name, id.hold)
		}
		list = append(list, fmt.Sprintf("running: %s, %v", what, t.d))
	}
	slices.Sort(list)
	return list
}
