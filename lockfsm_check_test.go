package quorumlock

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/queue"
	"github.com/quorumlock/quorumlock/sessions"
)

// A census is what checkFSM counts while it looks at every line.
type census struct {
	lines  int
	tokens map[fencing.Token]string // which name's, for as long as no two have one
	claims map[sessions.ID]int      // that a member leads to: of several names, one
	places map[sessions.ID]uint64
	parts  map[*queue.Claim]bool // met in a line
	bars   map[uint64]bool
	times  map[timeID]time.Duration // that should run
}

// checkFSM checks what must be true of the state after every entry.
func checkFSM(t testing.TB, f *lockFSM) {
	t.Helper()
	n := &census{tokens: map[fencing.Token]string{}, claims: map[sessions.ID]int{}, places: map[sessions.ID]uint64{},
		parts: map[*queue.Claim]bool{}, bars: map[uint64]bool{}, times: map[timeID]time.Duration{}}
	for i := range pages {
		if f.table.page[i] == nil {
			continue
		}
		checkPage(t, &f.table, i)
		for _, name := range f.table.lineNames(i) {
			l := f.table.line(name)
			if name != l.Name || pageOf(hashOf(name)) != i {
				t.Fatalf("line %q stands as %q on page %d", l.Name, name, i)
			}
			n.lines++
			n.line(t, f, l)
		}
	}
	for c := range n.parts {
		for _, p := range c.Parts() {
			if !n.parts[p] || p.Holds() != c.Holds() || p.State != c.State || p.Session != c.Session || p.Seq != c.Seq || p.Value != c.Value {
				t.Fatalf("%q: claim %v/%d and what it is joined with on %q are not one", c.Line().Name, c.Session, c.Seq, p.Line().Name)
			}
		}
	}
	if n.lines != f.table.n {
		t.Fatalf("%d lines, counted as %d", n.lines, f.table.n)
	}
	n.checkMembers(t, f)
	n.checkTimes(t, f)
	checkJobs(t, f)
}

// checkJobs checks that each job is known by its name, and was claimed by a life of a
// process that was.
func checkJobs(t testing.TB, f *lockFSM) {
	t.Helper()
	if len(f.jobs) > wire.MaxJobs {
		t.Fatalf("%d jobs", len(f.jobs))
	}
	epochs := map[uint64]uint64{}
	for p := range f.roll.Processes() {
		epochs[p.Replica] = p.Epoch
	}
	for name, j := range f.jobs {
		if name != j.Name || j.By.Epoch == 0 || j.By.Epoch > epochs[j.By.Replica] || j.By.Seq != 0 {
			t.Fatalf("job %q stands as %q, claimed by %v", j.Name, name, j.By)
		}
	}
}

// alone reports whether a record says all there is to say of a line: one exclusive
// hold without terms or value, and nothing beside it.
func alone(l *queue.Line) bool {
	if l.Holding() != 1 || l.Waiting() > 0 || len(l.Bars()) > 0 {
		return false
	}
	for c := range l.Holders() {
		return c.Mode == queue.Exclusive && !c.Joint() && c.Terms == nil && c.Value == "" && c.State == 0
	}
	return false
}

// line checks one line, and counts it.
func (n *census) line(t testing.TB, f *lockFSM, l *queue.Line) {
	t.Helper()
	thin := f.table.page[pageOf(hashOf(l.Name))].lines[l.Name] == nil
	switch {
	case l.Empty():
		t.Fatalf("line %q is empty and not forgotten", l.Name)
	case l.Next() != nil:
		t.Fatalf("%q: nobody is in the way of %v/%d, which waits", l.Name, l.Next().Session, l.Next().Seq)
	case alone(l) && !thin:
		t.Fatalf("%q is held alone and no record", l.Name)
	case !alone(l) && thin:
		t.Fatalf("%q is a record, which cannot say all there is to say", l.Name)
	}
	for _, b := range l.Bars() {
		if n.bars[b.ID] || fencing.Token(b.ID) > f.token {
			t.Fatalf("%q: bar %d stands twice or has a number to come", l.Name, b.ID)
		}
		n.bars[b.ID] = true
		n.times[timeID{hold: b.ID, what: lockDelay}] = b.For
	}
	n.beside(t, l)
	for _, side := range []func(func(*queue.Claim) bool){l.Holders(), l.Waiters()} {
		for c := range side {
			n.claim(t, f, l, c)
			if !thin {
				n.parts[c] = true
			}
		}
	}
}

// beside checks that those who hold may hold beside each other.
func (n *census) beside(t testing.TB, l *queue.Line) {
	t.Helper()
	taken := map[uint32]bool{}
	var first *queue.Claim
	for c := range l.Holders() {
		if first == nil {
			first = c
		}
		switch {
		case c.Mode != first.Mode, c.Mode == queue.Exclusive && c != first, (c.Mode == queue.Counted) != (l.Limit() > 0):
			t.Fatalf("%q: held in mode %v beside %v, of %d permits", l.Name, c.Mode, first.Mode, l.Limit())
		case c.Mode == queue.Shared && c.Token != first.Token:
			t.Fatalf("%q: readers with tokens %d and %d", l.Name, first.Token, c.Token)
		case int(c.Permits) != len(c.Slots) || !slices.IsSorted(c.Slots):
			t.Fatalf("%q: %d permits, slots %v", l.Name, c.Permits, c.Slots)
		}
		for _, k := range c.Slots {
			if taken[k] {
				t.Fatalf("%q: slot %d is taken twice", l.Name, k)
			}
			taken[k] = true
		}
		if c == first || c.Mode != queue.Shared {
			if n.tokens[c.Token] != "" {
				t.Fatalf("%q: token %d stands twice", l.Name, c.Token)
			}
			n.tokens[c.Token] = l.Name
		}
	}
	if len(taken) != int(l.Taken()) {
		t.Fatalf("%q: %d slots are taken, counted as %d", l.Name, len(taken), l.Taken())
	}
	for c := range l.Waiters() {
		if (c.Mode == queue.Counted) != (l.Limit() > 0) || c.Permits > l.Limit() {
			t.Fatalf("%q: %v/%d waits for %d permits of %d", l.Name, c.Session, c.Seq, c.Permits, l.Limit())
		}
	}
}

// claim checks one claim, and counts it.
func (n *census) claim(t testing.TB, f *lockFSM, l *queue.Line, c *queue.Claim) {
	t.Helper()
	leaving := c.Is(queue.Leaving)
	terms := queue.Terms{}
	if c.Terms != nil {
		terms = *c.Terms
	}
	switch {
	case c.Token > f.token || n.bars[uint64(c.Token)]:
		t.Fatalf("%q: token %d was never granted", l.Name, c.Token)
	case !wire.ValidText(c.Value, wire.MaxValue):
		t.Fatalf("%q: %v/%d has a value of %d bytes", l.Name, c.Session, c.Seq, len(c.Value))
	case !c.Holds() && c.State != 0:
		t.Fatalf("%q: %v/%d waits in state %d", l.Name, c.Session, c.Seq, c.State)
	case c.Is(queue.Started) && terms.MaxHold == 0, c.Is(queue.Matured) && terms.MinHold == 0, leaving && (terms.MinHold == 0 || c.Is(queue.Matured)):
		t.Fatalf("%q: %v/%d is in state %d without terms for that", l.Name, c.Session, c.Seq, c.State)
	}
	if c.Holds() && terms.MinHold > 0 && !c.Is(queue.Matured) {
		n.times[timeID{c.Session, c.Seq, minHold}] = terms.MinHold
	}
	if c.Is(queue.Started) && !leaving {
		n.times[timeID{c.Session, c.Seq, maxHold}] = terms.MaxHold
	}
	own := f.table.claim(c.Session, l.Name, c.Seq)
	if leaving {
		if own != nil {
			t.Fatalf("%q: %v/%d was released and its session still leads there", l.Name, c.Session, c.Seq)
		}
		return
	}
	switch {
	case own == nil || own.Seq != c.Seq || own.Session != c.Session || own.Token.IsZero() == c.Holds():
		t.Fatalf("%q: claim %v/%d is not found", l.Name, c.Session, c.Seq)
	case len(c.Parts()) > 1 && own != c.Parts()[0]:
		t.Fatalf("%q: claim %v/%d of several names is not known by its first", l.Name, c.Session, c.Seq)
	case f.roll.Session(c.Session) == nil:
		t.Fatalf("%q: claim %v/%d of a dead session", l.Name, c.Session, c.Seq)
	}
	if !c.Holds() {
		n.places[c.Session]++
	}
	if len(c.Parts()) == 1 || own == c {
		n.claims[c.Session]++
	}
}

// checkPage checks how records are kept.
func checkPage(t testing.TB, tab *table, i int) {
	t.Helper()
	p := tab.page[i]
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
	case live == 0 && (cap(p.records) > 2 || cap(p.names) > 128 || len(p.index) > 8), p.lines != nil && len(p.lines) == 0:
		t.Fatalf("page %d has no line and keeps its room", i)
	}
}

// checkMembers checks that the members are the live sessions, and that each leads to
// its claims, of which there are so many, and counts its places in lines.
func (n *census) checkMembers(t testing.TB, f *lockFSM) {
	t.Helper()
	alive := 0
	for p := range f.roll.Processes() {
		alive += p.Len()
	}
	if alive != len(f.table.byID) {
		t.Fatalf("%d sessions are alive, %d are members", alive, len(f.table.byID))
	}
	if len(f.table.members) > 0 && (f.table.members[0].claims != nil || f.table.members[0].places != 0) {
		t.Fatalf("nobody has claims")
	}
	for id, m := range f.table.byID {
		own := &f.table.members[m]
		found := len(own.claims)
		for r, prev := own.first, ref(0); r != 0; r, prev = f.table.at(r).next, r {
			if x := f.table.at(r); x.member != m || x.prev != prev {
				t.Fatalf("record %q is chained to the wrong ones", f.table.nameAt(r))
			}
			found++
		}
		for seq, c := range own.claims {
			if c.Seq != seq || c.Session != id || !n.parts[c] {
				t.Fatalf("member %v leads to claim %v/%d as its %d", id, c.Session, c.Seq, seq)
			}
		}
		switch {
		case own.id != id || f.roll.Session(id) == nil || found != n.claims[id]:
			t.Fatalf("member %v has %d claims, not %d; session on the roll: %v", id, found, n.claims[id], f.roll.Session(id))
		case own.places != n.places[id]:
			t.Fatalf("member %v waits in %d places, counted as %d", id, n.places[id], own.places)
		case own.claims != nil && len(own.claims) == 0:
			t.Fatalf("member %v keeps the room of its claims", id)
		}
	}
}

// checkTimes checks that exactly those times run that should.
func (n *census) checkTimes(t testing.TB, f *lockFSM) {
	t.Helper()
	run := map[timeID]time.Duration{}
	for id, x := range f.times {
		run[id] = x.d
		switch {
		case id.what == lockDelay && !f.table.has(x.line):
			t.Fatalf("%v of %d runs for a line that is gone", id.what, id.hold)
		case id.what != lockDelay && (!n.parts[x.claim] || x.claim.Session != id.who || x.claim.Seq != id.hold):
			t.Fatalf("%v of %v/%d runs for a claim that is gone", id.what, id.who, id.hold)
		}
	}
	if !maps.Equal(run, n.times) {
		t.Fatalf("these times run: %v, and these should: %v", run, n.times)
	}
}
