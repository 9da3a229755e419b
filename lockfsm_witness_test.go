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
	t     testing.TB
	asked map[claimKey][]wire.Command // in the present entry, not answered yet
	heirs map[claimKey]sessions.ID    // who is to have what is handed over in it
	seen  map[claimKey]*seenClaim
	lines map[string]*seenLine
	bars  []uint64          // told of, and not known yet of which name
	barOf map[uint64]string // which name a bar keeps
	jobs  map[string]*seenJob
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
	value   string
}

// A seenJob is who was told yes for which tick of a job, since it was last forgotten.
type seenJob struct {
	last int64
	yes  map[int64]seenCall
}

type seenCall struct{ replica, epoch, call uint64 }

type seenLine struct {
	waiting []*seenClaim
	holding []*seenClaim
	last    fencing.Token            // granted
	slots   map[uint32]fencing.Token // the last one granted with each
	limit   uint64
	bars    int
}

func newWitness(t testing.TB) *witness {
	return &witness{t: t, seen: map[claimKey]*seenClaim{}, lines: map[string]*seenLine{}, barOf: map[uint64]string{}, jobs: map[string]*seenJob{}}
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
	w.before(e, effects)
	for i := range effects {
		w.effect(&effects[i])
	}
	w.after(e, effects)
	require.Empty(w.t, w.bars, "a bar that keeps no name")
	for k, x := range w.seen {
		require.True(w.t, len(x.held) == 0 || len(x.held) == len(x.names), "%v has a part of %v: %v", k, x.names, x.held)
		if x.mode == queue.Counted && len(x.held) > 0 {
			w.slots(x, f.table.line(x.names[0]))
		}
		if !x.lingers {
			require.Equal(w.t, x.value, f.table.claim(k.session, x.names[0], k.hold).Value, "%v: what was published last", k)
		}
	}
}

// answers pairs what an entry asks with what it was told. Every call is answered, in
// the order of the calls, if any is.
func (w *witness) answers(e *wire.Entry, effects []effect, f func(*wire.Command, cause)) {
	var told []effect
	for _, x := range effects {
		if x.kind == answered {
			told = append(told, x)
		}
	}
	if len(told) == 0 {
		return
	}
	for i := range e.Commands {
		switch c := &e.Commands[i]; c.Op {
		case wire.Downgrade, wire.Resize, wire.Revoke, wire.Evict, wire.Ask, wire.Publish, wire.HandOver, wire.Claim, wire.Forget:
			require.NotEmpty(w.t, told, "%v has no answer", c.Op)
			require.Equal(w.t, c.More.Call, told[0].hold)
			f(c, told[0].cause)
			told = told[1:]
		}
	}
	require.Empty(w.t, told, "answers that nobody asked for")
}

// before notes who is to have what is handed over in this entry. A hold ends only
// once, so a hand over that found it is what ended it.
func (w *witness) before(e *wire.Entry, effects []effect) {
	w.heirs = map[claimKey]sessions.ID{}
	w.answers(e, effects, func(c *wire.Command, why cause) {
		if c.Op == wire.HandOver && why == 0 {
			w.heirs[claimKey{sessions.ID{Replica: e.Replica, Epoch: e.Epoch, Seq: c.Session}, c.Hold}] = c.More.Who
		}
	})
}

// after looks at what calls were told: whoever handed over has nothing any more, and
// of each tick of a job one call was told that it has it.
func (w *witness) after(e *wire.Entry, effects []effect) {
	w.answers(e, effects, func(c *wire.Command, why cause) {
		k := claimKey{sessions.ID{Replica: e.Replica, Epoch: e.Epoch, Seq: c.Session}, c.Hold}
		switch x := w.seen[k]; c.Op {
		case wire.HandOver:
			require.True(w.t, why == causeGone || x == nil || x.lingers, "%v was given up, answer %q, and is still there", k, why)
		case wire.Publish:
			if why == 0 && x != nil {
				x.value = c.More.Value
			}
		case wire.Claim:
			w.tick(c, seenCall{e.Replica, e.Epoch, c.More.Call}, why)
		case wire.Forget:
			require.Equal(w.t, w.jobs[c.Name] == nil, why == causeGone, "job %q", c.Name)
			delete(w.jobs, c.Name)
		}
	})
	require.Empty(w.t, w.heirs, "handed over, and it has not ended")
}

func (w *witness) tick(c *wire.Command, who seenCall, why cause) {
	j, tick := w.jobs[c.Name], c.More.Tick
	if j == nil {
		require.Zero(w.t, why, "the first tick of job %q, refused", c.Name)
		w.jobs[c.Name] = &seenJob{tick, map[int64]seenCall{tick: who}}
		return
	}
	first, claimed := j.yes[tick]
	switch {
	case why == causeClaimed:
		require.LessOrEqual(w.t, tick, j.last, "job %q: neither tick %d was claimed nor a later one", c.Name, tick)
		require.False(w.t, tick == j.last && first == who, "job %q, tick %d: the same call, another answer", c.Name, tick)
	case claimed:
		require.Equal(w.t, first, who, "job %q: tick %d was given to two calls", c.Name, tick)
	default:
		require.Greater(w.t, tick, j.last, "job %q: its ticks grow", c.Name)
		j.last, j.yes[tick] = tick, who
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
		w.inherit(k, e.name)
		w.gone(k, e.name, false)
	case lost:
		w.gone(k, e.name, true)
	case ended:
		w.ended(e)
	case lingers:
		w.inherit(k, e.name)
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
		x.value = c.More.Value
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

// inherit puts whoever a hold is handed over to before all who wait. What waits for
// several names is not chosen.
func (w *witness) inherit(k claimKey, name string) {
	to, handed := w.heirs[k]
	if !handed {
		return
	}
	delete(w.heirs, k)
	x, l := w.seen[k], w.line(name)
	require.True(w.t, x.mode == queue.Exclusive && len(x.names) == 1, "%v of %v was handed over", x.mode, x.names)
	at := slices.IndexFunc(l.waiting, func(y *seenClaim) bool { return y.session == to && len(y.names) == 1 })
	require.GreaterOrEqual(w.t, at, 0, "%q was handed over to %v, which does not wait", name, to)
	heir := l.waiting[at]
	l.waiting = slices.Insert(slices.Delete(l.waiting, at, at+1), 0, heir)
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
