package quorumlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/sessions"
)

// These histories are of locks in every mode, and their models know whose a hold is:
// each caller speaks for sessions of its own, and a hold is named by its session and
// number, as Describe names it.
//
// As in lockState, what a caller cannot know is modelled as late as possible. A hold
// whose end was not confirmed is soft, and goes when something needs it gone. A call
// that ended without an answer is a ghost: its claim may come at any later moment.
// What it brings is only ever seen in a description, which names the session, so a
// ghost is one of that session.

// A who names a hold.
type who struct {
	session sessions.ID
	hold    uint64
}

// A modeHold is a hold as a model has it.
type modeHold struct {
	who
	mode  Mode
	token fencing.Token
	slots string // of a counted lock: a bit for each, as text, so that states can be compared
	soft  bool
}

// A modeState is one name: who holds it, how far its tokens and those of its slots
// have come, and whose calls may still take it.
type modeState struct {
	holds  []modeHold
	last   fencing.Token
	slots  [8]fencing.Token
	ghosts []sessions.ID
}

func (s *modeState) clone() modeState {
	return modeState{slices.Clone(s.holds), s.last, s.slots, slices.Clone(s.ghosts)}
}

type modeOpKind uint8

const (
	modeGrant   modeOpKind = iota // an acquire that returned a hold
	modeFree                      // a release that was confirmed
	modeSoften                    // a hold that may be gone from now on
	modeGhost                     // an acquire that ended without an answer
	modeRefused                   // a try that was refused because of others
	modeSeen                      // all who hold, as Describe says
	modeShared                    // a downgrade that was confirmed
)

type modeOp struct {
	kind modeOpKind
	name string
	hold modeHold
	seen []modeHold
}

func (o modeOp) String() string {
	kind := [...]string{"grant", "free", "soften", "ghost", "refused", "seen", "shared"}[o.kind]
	return fmt.Sprintf("%s %q %+v seen %+v", kind, o.name, o.hold, o.seen)
}

const modeLimit = 4 // permits of the counted locks

var modeModel = porcupine.Model{
	Partition: func(ops []porcupine.Operation) [][]porcupine.Operation {
		byName := make(map[string][]porcupine.Operation)
		for _, op := range ops {
			name := op.Input.(modeOp).name
			byName[name] = append(byName[name], op)
		}
		var parts [][]porcupine.Operation
		for _, part := range byName {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return modeState{} },
	Step: func(state, input, _ any) (bool, any) {
		before := state.(modeState)
		s := before.clone()
		ok := s.step(input.(modeOp))
		return ok, s
	},
	Equal: func(a, b any) bool { return fmt.Sprint(a) == fmt.Sprint(b) },
}

func (s *modeState) step(op modeOp) bool {
	switch op.kind {
	case modeGrant:
		return s.grant(op.hold, false)
	case modeFree:
		i := s.index(op.hold.who)
		if i < 0 {
			return false
		}
		s.holds = slices.Delete(s.holds, i, i+1)
	case modeSoften:
		if i := s.index(op.hold.who); i >= 0 {
			s.holds[i].soft = true
		}
	case modeShared:
		i := s.index(op.hold.who)
		if i < 0 {
			return false
		}
		s.holds[i].mode = Shared
	case modeGhost:
		s.ghosts = append(s.ghosts, op.hold.session)
		slices.SortFunc(s.ghosts, sessions.ID.Compare)
	case modeRefused:
		// Somebody may wait for other names too, while nobody holds this one.
		return op.name != "pool" || len(s.holds)+len(s.ghosts) > 0
	case modeSeen:
		return s.see(op.seen)
	}
	return true
}

func (s *modeState) index(w who) int {
	return slices.IndexFunc(s.holds, func(h modeHold) bool { return h.who == w })
}

// grant grants a hold: what is soft and in its way has gone. One that is seen first,
// as a ghost, may have been granted a while ago.
func (s *modeState) grant(h modeHold, seen bool) bool {
	if s.index(h.who) >= 0 {
		return false
	}
	for i := range s.holds {
		if x := &s.holds[i]; x.soft && h.mode == Shared && x.token == h.token {
			x.mode = Shared // a downgrade whose answer was lost
		}
	}
	s.holds = slices.DeleteFunc(s.holds, func(x modeHold) bool { return x.soft && inTheWay(x, h) })
	if slices.ContainsFunc(s.holds, func(x modeHold) bool { return inTheWay(x, h) }) {
		return false
	}
	switch h.mode {
	case Shared: // of one generation with those who hold, or with a ghost
		if h.token == s.last && len(s.holds)+len(s.ghosts) > 0 {
			s.holds = append(s.holds, h)
			return true
		}
	case Counted:
		if !s.takeSlots(h) {
			return false
		}
	}
	if h.token <= s.last && !(seen && h.mode == Counted) {
		return false
	}
	s.last = max(s.last, h.token)
	s.holds = append(s.holds, h)
	return true
}

// takeSlots takes the slots of a hold, whose tokens only grow. If there are not
// enough permits, some that are soft came back.
func (s *modeState) takeSlots(h modeHold) bool {
	for _, slot := range ones(h.slots) {
		if h.token <= s.slots[slot] {
			return false
		}
		s.slots[slot] = h.token
	}
	taken := len(ones(h.slots))
	for _, x := range s.holds {
		if !x.soft {
			taken += len(ones(x.slots))
		}
	}
	return taken <= modeLimit
}

// inTheWay reports whether one cannot hold beside another. Permits that are too few
// are another matter.
func inTheWay(x, h modeHold) bool {
	if x.mode != h.mode || h.mode == Exclusive {
		return true
	}
	if h.mode == Shared {
		return x.token != h.token
	}
	return slices.ContainsFunc(ones(x.slots), func(k int) bool { return strings.Contains(h.slots, strconv.Itoa(k)) })
}

func ones(slots string) (set []int) {
	for _, c := range slots {
		set = append(set, int(c-'0'))
	}
	return set
}

// see compares with what was described: whoever is not in it has gone, and was soft;
// whoever is not known is a ghost's, or was granted to a call whose answer was lost.
func (s *modeState) see(seen []modeHold) bool {
	for i := len(s.holds) - 1; i >= 0; i-- {
		x := s.holds[i]
		k := slices.IndexFunc(seen, func(h modeHold) bool { return h.who == x.who })
		if k < 0 {
			if !x.soft {
				return false
			}
			s.holds = slices.Delete(s.holds, i, i+1)
			continue
		}
		if seen[k].mode != x.mode && x.soft {
			s.holds[i].mode = seen[k].mode // a downgrade whose answer was lost
		} else if seen[k].mode != x.mode {
			return false
		}
		if seen[k].token != x.token || seen[k].slots != x.slots {
			return false
		}
	}
	fresh := slices.DeleteFunc(slices.Clone(seen), func(h modeHold) bool { return s.index(h.who) >= 0 })
	slices.SortStableFunc(fresh, func(a, b modeHold) int { return int(a.token) - int(b.token) })
	for _, h := range fresh {
		g := slices.Index(s.ghosts, h.session)
		if g < 0 {
			return false
		}
		h.soft = true
		if !s.grant(h, true) {
			return false
		}
		s.ghosts = slices.Delete(s.ghosts, g, g+1)
	}
	return true
}

// A modeHistory is what the callers of a run saw of locks in all modes.
type modeHistory struct {
	clock atomic.Int64
	mu    sync.Mutex
	ops   []porcupine.Operation

	lives []modeLife
}

// A modeLife is a span in which a hold was certainly trusted by its holder.
type modeLife struct {
	name     string
	hold     modeHold
	from, to int64
}

func (h *modeHistory) now() int64 { return h.clock.Add(1) }

func (h *modeHistory) add(call, ret int64, op modeOp) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: len(h.ops), Input: op, Call: call, Return: ret})
}

func (h *modeHistory) check() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.overlap(); err != nil {
		return err
	}
	for _, part := range modeModel.Partition(h.ops) {
		switch porcupine.CheckOperationsTimeout(modeModel, part, 30*time.Second) {
		case porcupine.Illegal:
			return fmt.Errorf("not linearizable:%s", inOrder(part))
		case porcupine.Unknown:
			return errors.New("the history could not be judged in time")
		}
	}
	return nil
}

// overlap looks for two holders that trust what cannot be held beside each other, at
// the same time. Those who were forced out are none: they are told late.
func (h *modeHistory) overlap() error {
	for i, a := range h.lives {
		for _, b := range h.lives[:i] {
			if a.name == b.name && a.from < b.to && b.from < a.to && inTheWay(a.hold, b.hold) {
				return fmt.Errorf("%q: %+v from %d to %d, and %+v from %d to %d", a.name, a.hold, a.from, a.to, b.hold, b.from, b.to)
			}
		}
	}
	return nil
}

// A modeCaller makes calls in all modes on one replica, and records them.
type modeCaller struct {
	h    *modeHistory
	t    *testing.T
	rng  *rand.Rand
	node func() *Node
	s    *Session
}

const modeScale = 10 * time.Millisecond

func (c *modeCaller) span(least, most int) time.Duration {
	return time.Duration(least+c.rng.IntN(most-least)) * modeScale
}

func (c *modeCaller) run(ctx context.Context, steps int) {
	for range steps {
		if ctx.Err() != nil {
			return
		}
		if c.s == nil || c.s.Err() != nil || c.rng.IntN(20) == 0 {
			c.open(ctx)
			continue
		}
		if c.rng.IntN(4) == 0 {
			c.describe(ctx, []string{"a", "b", "doc", "pool"}[c.rng.IntN(4)])
			continue
		}
		c.take(ctx)
	}
}

func (c *modeCaller) open(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, c.span(10, 60))
	defer cancel()
	if c.s != nil && c.rng.IntN(2) == 0 {
		_ = c.s.Close(ctx) // goes on in the background
	}
	c.s, _ = c.node().OpenSession(ctx)
}

// take takes some locks, keeps them and gives them back.
func (c *modeCaller) take(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, c.span(1, 120))
	defer cancel()
	names, mode, opts := []string{"doc"}, Exclusive, []AcquireOption(nil)
	switch c.rng.IntN(8) {
	case 0, 1:
		mode, opts = Shared, []AcquireOption{Share()}
	case 2, 3, 4:
		names, mode, opts = []string{"pool"}, Counted, []AcquireOption{Permits(1+c.rng.IntN(3), modeLimit)}
	case 5:
		names = []string{"a", "b"}
	case 6:
		names = []string{"b", "doc"}
	}
	if c.rng.IntN(4) == 0 && len(names) == 1 {
		opts = append(opts, MaxHold(350*time.Millisecond))
	}
	try := c.rng.IntN(3) == 0
	call := c.h.now()
	h, err := c.acquire(ctx, try, names, opts)
	ret := c.h.now()
	if err == nil {
		for _, name := range names {
			c.h.add(call, ret, modeOp{kind: modeGrant, name: name, hold: modeHoldOf(h, name, mode)})
		}
		c.keep(h, names, mode)
		return
	}
	var held *HeldError
	if try && errors.As(err, &held) {
		c.h.add(call, ret, modeOp{kind: modeRefused, name: held.Name})
		if len(c.s.n.groups) > 1 { // what it had of other groups was seen, perhaps
			c.ghosts(call, slices.DeleteFunc(names, func(name string) bool { return name == held.Name }))
		}
		return
	}
	c.ghosts(call, names)
	for _, want := range []error{ErrClosed, ErrSessionExpired, ErrSessionClosed, ErrRevoked} {
		if errors.Is(err, want) {
			return
		}
	}
	if ctx.Err() == nil || !errors.Is(err, ctx.Err()) {
		c.t.Errorf("acquire %q: unexpected error: %v", names, err)
	}
}

// ghosts notes names that were held for a while, or will be, by nobody who knows.
func (c *modeCaller) ghosts(call int64, names []string) {
	for _, name := range names {
		c.h.add(call, call, modeOp{kind: modeGhost, name: name, hold: modeHold{who: who{session: c.s.ID()}}})
	}
}

func (c *modeCaller) acquire(ctx context.Context, try bool, names []string, opts []AcquireOption) (*Hold, error) {
	switch {
	case try && len(names) > 1:
		return c.s.TryAcquireAll(ctx, names...)
	case try:
		return c.s.TryAcquire(ctx, names[0], opts...)
	case len(names) > 1:
		return c.s.AcquireAll(ctx, names...)
	}
	return c.s.Acquire(ctx, names[0], opts...)
}

func modeHoldOf(h *Hold, name string, mode Mode) modeHold {
	for _, p := range h.parts() {
		if !p.TokenFor(name).IsZero() {
			h = p // of a set, that in the group of the name
		}
	}
	return modeHold{who: who{h.part.id, h.seq}, mode: mode, token: h.TokenFor(name), slots: slotText(h.Slots())}
}

func slotText(slots []int) (text string) {
	for _, k := range slots {
		text += strconv.Itoa(k)
	}
	return text
}

// keep looks at the hold for a while, does something with it now and then, and
// releases it unless it is lost.
func (c *modeCaller) keep(h *Hold, names []string, mode Mode) {
	seen := c.h.now() // the last moment before which it was held for sure
	softened := false
	soften := func(at int64) {
		softened = true
		for _, name := range names {
			c.h.add(at, at, modeOp{kind: modeSoften, name: name, hold: modeHoldOf(h, name, mode)})
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.span(5, 60))
	defer cancel()
	switch c.rng.IntN(10) {
	case 0: // force it out oneself: the call is under way from here on
		if mode == Shared {
			break // the others of its generation would not know
		}
		soften(c.h.now())
		_ = c.node().ForceRelease(ctx, names[0], h.TokenFor(names[0]), "ops", "test")
	case 1, 2, 3, 4:
		if mode != Exclusive || len(names) > 1 {
			break
		}
		call := c.h.now()
		if err := h.Downgrade(ctx); err != nil {
			soften(call)
			break
		}
		mode = Shared
		c.h.add(call, c.h.now(), modeOp{kind: modeShared, name: names[0], hold: modeHoldOf(h, names[0], mode)})
	}
	from := int64(0)
	for range c.rng.IntN(40) {
		now := c.h.now()
		if h.Err() != nil {
			break
		}
		seen = now
		if from == 0 {
			from = c.h.now()
		}
		select {
		case <-h.Done():
		case <-time.After(modeScale):
		}
	}
	if !softened && from > 0 && seen > from {
		c.h.mu.Lock()
		for _, name := range names {
			c.h.lives = append(c.h.lives, modeLife{name, modeHoldOf(h, name, mode), from, seen})
		}
		c.h.mu.Unlock()
	}
	if c.rng.IntN(4) == 0 {
		cancel()
	}
	call := c.h.now()
	err := h.Release(ctx)
	switch {
	case softened:
	case err == nil:
		for _, name := range names {
			c.h.add(call, c.h.now(), modeOp{kind: modeFree, name: name, hold: modeHoldOf(h, name, mode)})
		}
	case errors.Is(err, ErrLost):
		soften(seen)
	case errors.Is(err, ErrClosed), errors.Is(err, ErrNoQuorum):
		soften(call)
	default:
		c.t.Errorf("release: unexpected error: %v", err)
	}
}

func (c *modeCaller) describe(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(ctx, c.span(20, 60))
	defer cancel()
	call := c.h.now()
	info, err := c.node().Describe(ctx, name)
	ret := c.h.now()
	if err != nil {
		return
	}
	op := modeOp{kind: modeSeen, name: name}
	for _, h := range info.Holders {
		op.seen = append(op.seen, modeHold{who: who{h.Session, h.Hold}, mode: h.Mode, token: h.Token, slots: slotText(h.Slots)})
	}
	c.h.add(call, ret, op)
}

// Histories of locks in every mode, by random programs on five nodes over the
// simulated log with all its faults, are those of locks that do what they say; those
// who trust what excludes each other never do so at the same time; and when all is
// healed, nothing is left.
func TestLinearizableModes(t *testing.T) {
	kinds := make(map[modeOpKind]int)
	simulations(t, 60, 2*time.Second, func(t *testing.T, seed uint64) {
		h := new(modeHistory)
		inTrouble(t, seed, h.check, func(ctx context.Context, id, k uint64, node func() *Node) {
			c := &modeCaller{h: h, t: t, rng: rand.New(rand.NewPCG(seed, 10*id+k)), node: node}
			c.run(ctx, 30)
		})
		for _, op := range h.ops {
			kinds[op.Input.(modeOp).kind]++
		}
	})
	t.Logf("operations by kind: %v", kinds)
}

// The models are worth something: they refuse what must not be.
func TestModeModelRefuses(t *testing.T) {
	id := func(n uint64) who { return who{sessions.ID{Replica: n, Epoch: 1, Seq: 1}, n} }
	grant := func(n uint64, m Mode, token fencing.Token, slots string) modeOp {
		return modeOp{kind: modeGrant, hold: modeHold{who: id(n), mode: m, token: token, slots: slots}}
	}
	free := func(n uint64) modeOp { return modeOp{kind: modeFree, hold: modeHold{who: id(n)}} }
	for what, ops := range map[string][]modeOp{
		"two writers":              {grant(1, Exclusive, 1, ""), grant(2, Exclusive, 2, "")},
		"a reader beside a writer": {grant(1, Exclusive, 1, ""), grant(2, Shared, 2, "")},
		"two generations":          {grant(1, Shared, 1, ""), grant(2, Shared, 2, "")},
		"a token that goes back":   {grant(1, Exclusive, 5, ""), free(1), grant(2, Shared, 4, "")},
		"one slot twice":           {grant(1, Counted, 1, "01"), grant(2, Counted, 2, "12")},
		"too many permits":         {grant(1, Counted, 1, "012"), grant(2, Counted, 2, "34")},
		"a slot's token goes back": {grant(1, Counted, 5, "0"), free(1), grant(2, Counted, 4, "0")},
		"a stranger":               {{kind: modeSeen, seen: []modeHold{{who: id(1), mode: Exclusive, token: 1}}}},
		"one who has not gone":     {grant(1, Exclusive, 1, ""), {kind: modeSeen}},
		"a release of nothing":     {grant(1, Exclusive, 1, ""), free(1), free(1)},
		"a refusal by nobody":      {grant(1, Exclusive, 1, ""), free(1), {kind: modeRefused, name: "pool"}},
	} {
		var s modeState
		for i, op := range ops {
			if s.step(op) == (i == len(ops)-1) {
				t.Errorf("%s: step %d", what, i)
			}
		}
	}
}
