package quorumlock

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/queue"
	"github.com/quorumlock/quorumlock/sessions"
)

// An auditor sees every entry at the moment it is committed, which is before any
// replica applies it, and knows who believes what at that moment. It keeps a state of
// its own, which is what every replica must come to have.
type auditor struct {
	mu      sync.Mutex
	broken  error // the first promise that was
	index   int
	fsm     *lockFSM
	witness *witness
	alive   map[sessions.ID]bool
	grants  map[claimKey]*grantSeen
	shown   map[string][]shownAt // what was to be seen of each name, and from when on
	sums    map[int]uint64       // of snapshots, by index
	hash    maphash.Seed
	latest  []byte // snapshot that a replica made
	at      int

	holds  map[*Hold]*belief
	forced map[string]map[fencing.Token]bool
	gone   map[sessions.ID]bool // somebody evicts it, or wants to

	leads map[uint64]time.Time // since when a replica has led, by its own clock
}

// audits are the auditors of all groups.
type audits []*auditor

func (as audits) of(name string) *auditor { return as[groupOf(name, len(as))] }

// each shows every part of a hold to the auditor of its group.
func (as audits) each(h *Hold, f func(a *auditor, h *Hold)) {
	parts := h.parts()
	if parts == nil {
		parts = []*Hold{h}
	}
	for _, p := range parts {
		f(as[p.part.g.index], p)
	}
}

func (as audits) now() (from []int) {
	for _, a := range as {
		from = append(from, a.now())
	}
	return from
}

func (as audits) seen(name string, from []int, what string, is func(text string) bool) {
	as.of(name).seen(name, from[groupOf(name, len(as))], what, is)
}

func (as audits) forcing(h *Hold, id sessions.ID) {
	for _, a := range as {
		a.forcing(h, id)
	}
}

func (as audits) object(format string, args ...any) { as[0].object(format, args...) }

func (as audits) handed(h *Hold, shared bool) {
	as.each(h, func(a *auditor, h *Hold) { a.handed(h, shared) })
}

func (as audits) mayShare(h *Hold) { as.each(h, (*auditor).mayShare) }
func (as audits) freed(h *Hold)    { as.each(h, (*auditor).freed) }

func (as audits) held(h *Hold, from []int) {
	as.each(h, func(a *auditor, h *Hold) { a.held(h, from[h.part.g.index]) })
}

func (as audits) verdict() error {
	for i, a := range as {
		if err := a.verdict(); err != nil {
			return fmt.Errorf("group %d of %d: %w", i, len(as), err)
		}
	}
	return nil
}

// A grantSeen is how an acquisition fared in the log.
type grantSeen struct {
	tokens    map[string]fencing.Token
	from, end int // indexes; end is 0 while it holds
}

// A shownAt is what was to be seen of a name from an index on.
type shownAt struct {
	index int
	text  string
}

// A belief is a hold that a client was handed.
type belief struct {
	shared bool // it may have been downgraded
}

// every is how often, in entries, snapshots are compared.
const every = 24

func newAuditor() *auditor {
	a := &auditor{fsm: newLockFSM(), alive: map[sessions.ID]bool{}, grants: map[claimKey]*grantSeen{}, shown: map[string][]shownAt{},
		sums: map[int]uint64{}, hash: maphash.MakeSeed(), holds: map[*Hold]*belief{}, forced: map[string]map[fencing.Token]bool{},
		gone: map[sessions.ID]bool{}, leads: map[uint64]time.Time{}}
	a.witness = newWitness(judgeT{})
	return a
}

// A judgeT stands for the test where a check is to be an error and not the end of
// the test.
type judgeT struct{ testing.TB }

// A verdictText is what such a check says.
type verdictText string

func (judgeT) Helper()                      {}
func (judgeT) Name() string                 { return "simulation" } // testify asks for it
func (judgeT) Errorf(f string, args ...any) { panic(verdictText(fmt.Sprintf(f, args...))) }
func (judgeT) Fatalf(f string, args ...any) { panic(verdictText(fmt.Sprintf(f, args...))) }
func (judgeT) FailNow()                     { panic(verdictText("failed")) }

// judgedBy returns what a check says against it.
func judgedBy(what string, check func()) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case verdictText:
			text := string(r) // of testify's, what comes after the trace
			if _, after, ok := strings.Cut(text, "Error:"); ok {
				text = after
			}
			err = fmt.Errorf("%s: %s", what, strings.Join(strings.Fields(text), " "))
		default:
			panic(r)
		}
	}()
	check()
	return nil
}

// fail notes the first promise that was broken. a.mu is held.
func (a *auditor) fail(format string, args ...any) {
	if a.broken == nil {
		a.broken = fmt.Errorf("after entry %d: %w", a.index, fmt.Errorf(format, args...))
	}
}

// object is fail for those who do not hold a.mu.
func (a *auditor) object(format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fail(format, args...)
}

func (a *auditor) verdict() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.broken
}

func (a *auditor) now() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.index
}

// commit is told of each entry when it is committed.
func (a *auditor) commit(entry []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.broken != nil {
		return
	}
	a.index++
	var e wire.Entry
	if err := wire.DecodeEntry(entry, &e); err != nil {
		a.fail("a node wrote %x: %w", entry, err)
		return
	}
	effects := slices.Clone(a.fsm.apply(entry))
	for i := range effects {
		effects[i].name = strings.Clone(effects[i].name)
	}
	if err := judgedBy("witness", func() { a.witness.entry(&e, effects, a.fsm) }); err != nil {
		a.fail("%w", err)
	}
	if err := judgedBy("state", func() { checkFSM(judgeT{}, a.fsm) }); err != nil {
		a.fail("%w", err)
	}
	for i := range effects {
		a.note(&effects[i])
	}
	for h := range a.holds {
		a.believed(h)
	}
	for _, name := range soakNames {
		a.show(name)
	}
	if a.index%every == 0 {
		a.sums[a.index] = maphash.Bytes(a.hash, a.fsm.bytes())
	}
}

// led is told when a replica begins to lead.
func (a *auditor) led(replica uint64, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.leads[replica] = now
}

// asked checks, of each entry that a node proposes, that no session is ended by a leader
// that has not led for a whole lease: whatever was renewed while nobody led could be
// renewed with nobody.
func (a *auditor) asked(replica uint64, now time.Time, entry []byte) {
	var e wire.Entry
	if err := wire.DecodeEntry(entry, &e); err != nil {
		return // commit objects
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range e.Commands {
		ttl := time.Duration(c.TTL) * time.Millisecond
		if led := now.Sub(a.leads[replica]); c.Op == wire.Expire && led < sessions.Lease(ttl) {
			a.fail("replica %d ends sessions of replica %d with a TTL of %v after it has led for %v", replica, c.Replica, ttl, led)
		}
	}
}

// note keeps account of sessions and grants by what effects say, and of nothing else.
func (a *auditor) note(e *effect) {
	k := claimKey{e.session, e.hold}
	switch e.kind {
	case opened:
		a.alive[e.session] = true
	case ended:
		delete(a.alive, e.session)
		for k, g := range a.grants {
			if k.session == e.session && g.end == 0 {
				g.end = a.index
			}
		}
	case granted:
		if !a.alive[e.session] {
			a.fail("%q is granted to %v, a session that is dead", e.name, e.session)
		}
		if a.grants[k] == nil {
			a.grants[k] = &grantSeen{tokens: map[string]fencing.Token{}, from: a.index}
		}
		a.grants[k].tokens[e.name] = e.token
	case released, lost:
		if g := a.grants[k]; g != nil {
			g.end = a.index
		}
	}
}

// believed checks that whoever trusts a hold by its own clock has it: the log has
// given it to nobody else, nor ended it. Who was forced out is told late.
func (a *auditor) believed(h *Hold) {
	switch {
	case !h.lively():
		delete(a.holds, h) // what is over stays so
		return
	case a.gone[h.part.id]:
		return
	}
	for _, name := range h.Names() {
		if a.forced[name][h.TokenFor(name)] {
			return
		}
	}
	for _, name := range h.Names() {
		switch c := partOf(a.fsm.table.claim(h.part.id, name, h.seq), name); {
		case c == nil || !c.Holds():
			a.fail("%q: %v/%d, token %v, is relied on by its holder, and by the log it is over", name, h.part.id, h.seq, h.TokenFor(name))
		case c.Token != h.TokenFor(name):
			a.fail("%q: %v/%d has token %v, and its holder was told %v", name, h.part.id, h.seq, c.Token, h.TokenFor(name))
		case c.Mode == queue.Shared && !a.holds[h].shared:
			a.fail("%q: %v/%d is relied on as exclusive, and by the log it is shared", name, h.part.id, h.seq)
		}
	}
}

// partOf returns what an acquisition has in the line of one of its names.
func partOf(c *queue.Claim, name string) *queue.Claim {
	if c == nil || !c.Joint() {
		return c
	}
	for _, p := range c.Parts() {
		if p.Line().Name == name {
			return p
		}
	}
	return nil
}

// lively reports whether a hold is trusted by its holder's clock at this moment, and
// changes nothing: the holder has not looked.
func (h *Hold) lively() bool {
	n := h.part.n
	n.mu.Lock()
	defer n.mu.Unlock()
	return !h.over.Load() && h.part.alive() && !h.overdue()
}

// handed is told of a hold that a client was just handed.
func (a *auditor) handed(h *Hold, shared bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.holds[h] = &belief{shared: shared}
	g := a.grants[claimKey{h.part.id, h.seq}]
	for _, name := range h.Names() {
		if g == nil || g.tokens[name] != h.TokenFor(name) {
			a.fail("%q: %v/%d was handed out with token %v, and the log says %+v", name, h.part.id, h.seq, h.TokenFor(name), g)
			return
		}
	}
	a.believed(h)
}

// mayShare is told before a holder asks for a downgrade.
func (a *auditor) mayShare(h *Hold) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if b := a.holds[h]; b != nil {
		b.shared = true
	}
}

// forcing is told before anybody forces out the holders of a token, or a session.
func (a *auditor) forcing(h *Hold, id sessions.ID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if h == nil {
		a.gone[id] = true
		return
	}
	for _, name := range h.Names()[:1] {
		if a.forced[name] == nil {
			a.forced[name] = map[fencing.Token]bool{}
		}
		a.forced[name][h.TokenFor(name)] = true
	}
}

// freed is told of a release that was confirmed.
func (a *auditor) freed(h *Hold) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.fsm.table.claim(h.part.id, h.name, h.seq); c != nil {
		a.fail("%q: the release of %v/%d was confirmed, and it is still there", h.name, h.part.id, h.seq)
	}
}

// show notes what is to be seen of a name.
func (a *auditor) show(name string) {
	text := ""
	if l := a.fsm.table.line(name); l != nil {
		text = lineText(l)
	}
	was := a.shown[name]
	if len(was) == 0 || was[len(was)-1].text != text {
		a.shown[name] = append(was, shownAt{a.index, text})
	}
}

func lineText(l *queue.Line) string {
	var b strings.Builder
	for c := range l.Holders() {
		fmt.Fprintf(&b, "%v/%d %v token %v slots %v value %q left %v; ", c.Session, c.Seq, c.Mode, c.Token, c.Slots, c.Value, c.Is(queue.Leaving))
	}
	for c := range l.Waiters() {
		fmt.Fprintf(&b, "%v/%d waits for %d, value %q; ", c.Session, c.Seq, c.Permits, c.Value)
	}
	if len(l.Bars()) > 0 && b.Len() == 0 {
		return "barred"
	}
	return b.String()
}

func infoText(i LockInfo) string {
	var b strings.Builder
	for _, h := range i.Holders {
		fmt.Fprintf(&b, "%v/%d %v token %v slots %v value %q left %v; ", h.Session, h.Hold, h.Mode, h.Token, h.Slots, h.Value, h.Released)
	}
	for _, w := range i.Waiters {
		fmt.Fprintf(&b, "%v/%d waits for %d, value %q; ", w.Session, w.Hold, w.Permits, w.Value)
	}
	if b.Len() == 0 && !i.DelayedUntil.IsZero() {
		return "barred"
	}
	return b.String()
}

// seen checks that something was to be seen of a name at some moment of a call that
// began when from entries were committed.
func (a *auditor) seen(name string, from int, what string, is func(text string) bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	was := a.shown[name]
	for i := len(was) - 1; i >= 0; i-- {
		if is(was[i].text) {
			return
		}
		if was[i].index <= from {
			a.fail("%q: %s, and from entry %d on there was never such a state, but %+v", name, what, from, was[i:])
			return
		}
	}
	if !is("") {
		a.fail("%q: %s, and there was never such a state, but %+v", name, what, was)
	}
}

// held checks that a hold was held at some moment of a call.
func (a *auditor) held(h *Hold, from int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if g := a.grants[claimKey{h.part.id, h.seq}]; g == nil || g.end != 0 && g.end <= from {
		a.fail("%q: %v/%d is said to be held after entry %d: %+v", h.name, h.part.id, h.seq, from, g)
	}
}

// reached compares a replica's state with the auditor's, every so often. The replica
// marks its snapshot here, and writes it when it has gone on.
func (a *auditor) reached(r *simReplica, index int) {
	if r.marked != nil {
		write, at := r.marked, r.markedAt
		r.marked = nil
		var b bytes.Buffer
		err := write(&b, nil)
		a.mu.Lock()
		defer a.mu.Unlock()
		switch sum := maphash.Bytes(a.hash, b.Bytes()); {
		case err != nil:
			a.fail("replica %d: snapshot at %d: %w", r.id, at, err)
		case sum != a.sums[at]:
			a.fail("replica %d: its snapshot at %d differs", r.id, at)
		case at > a.at:
			a.latest, a.at = b.Bytes(), at
		}
	}
	if index%every == 0 {
		r.marked, r.markedAt = r.m.snapshot(), index
	}
}

func (a *auditor) donor() (snapshot []byte, entries int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.latest, a.at
}
