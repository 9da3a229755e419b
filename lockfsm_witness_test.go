package quorumlock

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/queue"
	"github.com/quorumlock/quorumlock/sessions"
)

// A witness knows no rules. It sees what was asked for and what came of it, and
// holds that against what was promised: who may be beside whom, that nobody
// overtakes, that tokens grow, that what is barred is not granted, and that a set of
// names is had as a whole.
type witness struct {
	t     *testing.T
	asked map[claimKey][]wire.Command // in the present entry, not answered yet
	seen  map[claimKey]*seenClaim
	lines map[string]*seenLine
	bars  []uint64          // told of, and not known yet of which name
	barOf map[uint64]string // which name a bar keeps
}

type claimKey struct {
	session sessions.ID
	hold    uint64
}

type seenClaim struct {
	claimKey
	names   []string
	mode    queue.Mode
	permits uint64
	of      uint64
	delay   bool
	lingers bool // it was released, and its session has nothing to do with it any more
	held    map[string]fencing.Token
	slots   map[string][]uint32
}

type seenLine struct {
	waiting []*seenClaim
	holding []*seenClaim
	last    fencing.Token            // granted
	slots   map[uint32]fencing.Token // the last one granted with each
	limit   uint64
	bars    int
}

func newWitness(t *testing.T) *witness {
	return &witness{t: t, seen: map[claimKey]*seenClaim{}, lines: map[string]*seenLine{}, barOf: map[uint64]string{}}
}

func (w *witness) line(name string) *seenLine {
	if w.lines[name] == nil {
		w.lines[name] = &seenLine{slots: map[uint32]fencing.Token{}}
	}
	return w.lines[name]
}

// entry looks at one entry, its effects without those that only watchers are told,
// and the state after it.
func (w *witness) entry(e *wire.Entry, effects []effect, f *lockFSM) {
	w.asked = map[claimKey][]wire.Command{}
	for _, c := range e.Commands {
		if c.Op == wire.Acquire || c.Op == wire.Take {
			k := claimKey{sessions.ID{Replica: e.Replica, Epoch: e.Epoch, Seq: c.Session}, c.Hold}
			w.asked[k] = append(w.asked[k], c)
		}
	}
	for i := range effects {
		w.effect(&effects[i])
	}
	require.Empty(w.t, w.bars, "a bar that keeps no name")
	for k, x := range w.seen {
		require.True(w.t, len(x.held) == 0 || len(x.held) == len(x.names), "%v has a part of %v: %v", k, x.names, x.held)
		if x.mode == queue.Counted && len(x.held) > 0 {
			w.slots(x, f.table.line(x.names[0]))
		}
	}
}

func (w *witness) effect(e *effect) {
	k := claimKey{e.session, e.hold}
	switch e.kind {
	case queued:
		l, x := w.line(e.name), w.claim(k)
		if len(l.waiting)+len(l.holding) == 0 {
			l.limit = x.of
		}
		l.waiting = append(l.waiting, x)
	case granted:
		w.granted(e, w.claim(k))
	case refused:
		if x := w.seen[k]; x != nil && len(w.asked[k]) == 0 { // it waited, for more permits than there are now
			w.leave(x)
		} else {
			w.asked[k] = w.asked[k][1:]
		}
	case released, left:
		w.gone(k, e.name, false)
	case lost:
		w.gone(k, e.name, true)
	case ended:
		w.ended(e)
	case lingers:
		require.NotEmpty(w.t, w.seen[k].held[e.name])
		w.seen[k].lingers = true
	case downgraded:
		x := w.seen[k]
		require.Equal(w.t, queue.Exclusive, x.mode)
		require.Equal(w.t, e.token, x.held[e.name], "its token stays")
		x.mode = queue.Shared
	case resized:
		w.line(e.name).limit = e.n
	case timed:
		if e.what == lockDelay {
			w.bars = append(w.bars, e.hold)
		}
	case untimed:
		if name, barred := w.barOf[e.hold]; e.what == lockDelay && barred {
			delete(w.barOf, e.hold)
			w.line(name).bars--
		}
	}
}

// claim returns what an effect speaks of, met now or before.
func (w *witness) claim(k claimKey) *seenClaim {
	if x := w.seen[k]; x != nil {
		return x
	}
	require.NotEmpty(w.t, w.asked[k], "%v was not asked for", k)
	c := w.asked[k][0]
	w.asked[k] = w.asked[k][1:]
	x := &seenClaim{claimKey: k, names: []string{c.Name}, mode: queue.Mode(c.Mode), held: map[string]fencing.Token{}, slots: map[string][]uint32{}}
	if c.Op == wire.Take {
		x.names, x.permits, x.of, x.delay = slices.Clone(c.More.Names), c.More.Permits, c.More.Of, c.More.Delay > 0
	}
	w.seen[k] = x
	return x
}

func (w *witness) granted(e *effect, x *seenClaim) {
	l := w.line(e.name)
	require.Zero(w.t, l.bars, "%q is barred and was granted to %v", e.name, x.claimKey)
	if len(l.waiting)+len(l.holding) == 0 {
		l.limit = x.of // whoever comes first decides
	}
	if len(l.waiting) > 0 {
		require.Same(w.t, l.waiting[0], x, "%q: %v has overtaken %v", e.name, x.claimKey, l.waiting[0].claimKey)
		l.waiting = l.waiting[1:]
	}
	sum := x.permits
	for _, y := range l.holding {
		require.True(w.t, x.mode == y.mode && x.mode != queue.Exclusive, "%q: %v is granted to %v beside %v to %v", e.name, x.mode, x.claimKey, y.mode, y.claimKey)
		sum += y.permits
		if x.mode == queue.Shared {
			require.Equal(w.t, y.held[e.name], e.token, "readers that overlap are one generation")
		}
	}
	require.LessOrEqual(w.t, sum, l.limit, "%q: permits", e.name)
	if x.mode != queue.Shared || len(l.holding) == 0 {
		require.Greater(w.t, e.token, l.last, "%q: tokens grow", e.name)
	}
	l.last = e.token
	l.holding = append(l.holding, x)
	x.held[e.name] = e.token
}

// gone takes a claim out of one line.
func (w *witness) gone(k claimKey, name string, lost bool) {
	x := w.seen[k]
	require.NotNil(w.t, x, "%v has gone and was not there", k)
	require.Contains(w.t, x.names, name)
	if _, held := x.held[name]; lost && held && x.delay {
		w.barred(name)
	}
	is := func(y *seenClaim) bool { return y == x }
	l := w.line(name)
	l.waiting, l.holding = slices.DeleteFunc(l.waiting, is), slices.DeleteFunc(l.holding, is)
	delete(x.held, name)
	x.names = slices.DeleteFunc(x.names, func(s string) bool { return s == name })
	if len(x.names) == 0 {
		delete(w.seen, k)
	}
}

func (w *witness) leave(x *seenClaim) {
	for _, name := range slices.Clone(x.names) {
		w.gone(x.claimKey, name, false)
	}
}

// barred notes that the bar that was told of first is for this name.
func (w *witness) barred(name string) {
	require.NotEmpty(w.t, w.bars, "%q was lost and there is no bar", name)
	w.barOf[w.bars[0]] = name
	w.bars = w.bars[1:]
	w.line(name).bars++
}

// ended takes out all that a session had. What lingers is not its own any more.
func (w *witness) ended(e *effect) {
	var own []*seenClaim
	for k, x := range w.seen {
		if k.session == e.session && !x.lingers {
			own = append(own, x)
		}
	}
	slices.SortFunc(own, func(a, b *seenClaim) int { return int(a.hold) - int(b.hold) })
	for _, x := range own {
		for _, name := range slices.Clone(x.names) {
			w.gone(x.claimKey, name, e.cause != causeClosed)
		}
	}
}

// slots checks that the permits of one claim are nobody else's, and that their
// tokens are higher than all before.
func (w *witness) slots(x *seenClaim, l *queue.Line) {
	name := x.names[0]
	if x.slots[name] != nil {
		return
	}
	for c := range l.Holders() {
		if c.Session != x.session || c.Seq != x.hold {
			continue
		}
		require.Len(w.t, c.Slots, int(x.permits))
		x.slots[name] = slices.Clone(c.Slots)
		for _, k := range c.Slots {
			for _, y := range w.line(name).holding {
				require.False(w.t, y != x && slices.Contains(y.slots[name], k), "%q: slot %d of %v and %v", name, k, x.claimKey, y.claimKey)
			}
			require.Greater(w.t, c.Token, w.line(name).slots[k], "%q: the token of slot %d", name, k)
			w.line(name).slots[k] = c.Token
		}
	}
	require.NotNil(w.t, x.slots[name], "%v holds and is not there", x.claimKey)
}
