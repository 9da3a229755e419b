package quorumlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/quorumlock/quorumlock/fencing"
)

// A lockState is what the model knows of one name: a mutex whose grants carry
// tokens that grow.
//
// What a caller cannot know is modelled as late as possible. A hold whose end was
// not confirmed (it was lost, or its release went on in the background) becomes
// soft: it may go at any moment from then on, and whatever needs it gone may take
// it that it has. A call that ended without an answer is a ghost: its acquire may
// take effect at any later moment and be given back at any moment after that, so a
// ghost needs no step of its own. It shows when somebody sees a holder with a token
// that no call returned. Both choices allow every later step that an earlier end
// or no effect at all would have allowed, so nothing right is called wrong, and no
// step of the model has two outcomes.
type lockState struct {
	last, holder fencing.Token
	soft         bool
	ghosts       [6]uint8 // by replica
}

type lockOpKind uint8

const (
	opGrant  lockOpKind = iota // an acquire or a try that returned a hold
	opFree                     // a release that was confirmed
	opSoften                   // a hold that may go from now on
	opGhost                    // an acquire that ended without an answer, from its call on
	opHeld                     // a try that was refused
	opSeen                     // who holds, as Describe or a refusal says
)

type lockOp struct {
	kind    lockOpKind
	name    string
	token   fencing.Token // opSeen: zero for nobody
	replica uint64
	ghost   bool // opSeen: no call returned this token
}

func (k lockOpKind) String() string {
	return [...]string{"grant", "free", "soften", "ghost", "held", "seen"}[k]
}

func (o lockOp) String() string {
	return fmt.Sprintf("%s %s token %s replica %d ghost %v", o.kind, o.name, o.token, o.replica, o.ghost)
}

var lockModel = porcupine.Model{
	Partition: func(ops []porcupine.Operation) [][]porcupine.Operation {
		byName := make(map[string][]porcupine.Operation)
		for _, op := range ops {
			name := op.Input.(lockOp).name
			byName[name] = append(byName[name], op)
		}
		var parts [][]porcupine.Operation
		for _, part := range byName {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return lockState{} },
	Step: func(state, input, _ any) (bool, any) {
		s, op := state.(lockState), input.(lockOp)
		ok := s.step(op)
		return ok, s
	},
}

func (s *lockState) step(op lockOp) bool {
	free := s.holder == 0 || s.soft
	switch op.kind {
	case opGrant:
		if !free || op.token <= s.last {
			return false
		}
		s.last, s.holder, s.soft = op.token, op.token, false
	case opFree:
		if s.holder != op.token {
			return false
		}
		s.holder, s.soft = 0, false
	case opSoften:
		if s.holder != op.token {
			return false
		}
		s.soft = true
	case opGhost:
		s.ghosts[op.replica]++
	case opHeld:
		return s.holder != 0 || s.ghosts != [6]uint8{}
	case opSeen:
		return s.see(op, free)
	}
	return true
}

func (s *lockState) see(op lockOp, free bool) bool {
	switch {
	case op.token == 0:
		s.holder, s.soft = 0, false
		return free
	case s.holder == op.token:
		return true
	case !op.ghost || !free || op.token <= s.last || s.ghosts[op.replica] == 0:
		return false
	}
	s.ghosts[op.replica]--
	s.last, s.holder, s.soft = op.token, op.token, true
	return true
}

// A history is what the callers of a run saw. Its clock counts: it orders events as
// they happened even when no time passes between them.
type history struct {
	clock atomic.Int64

	mu    sync.Mutex
	ops   []porcupine.Operation
	known map[grantKey]uint64 // grants that calls returned, and on which replica
	lives []life
}

// A life is a span in which a hold was certainly trusted by its holder.
type life struct {
	name     string
	token    fencing.Token
	from, to int64
}

// A grantKey names a grant: two of different groups may have the same token.
type grantKey struct {
	name  string
	token fencing.Token
}

func newHistory() *history { return &history{known: make(map[grantKey]uint64)} }

func (h *history) now() int64 { return h.clock.Add(1) }

func (h *history) add(call, ret int64, op lockOp) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: len(h.ops), Input: op, Call: call, Return: ret})
	if op.kind == opGrant {
		h.known[grantKey{op.name, op.token}] = op.replica
	}
}

// check returns what is wrong with the history.
func (h *history) check() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	granted := 0
	for i := range h.ops {
		op := h.ops[i].Input.(lockOp)
		if op.kind == opGrant {
			granted++
		}
		if op.kind != opSeen || op.token == 0 {
			continue
		}
		replica, known := h.known[grantKey{op.name, op.token}]
		if known && replica != op.replica {
			return fmt.Errorf("token %s was granted on replica %d and seen as of %d", op.token, replica, op.replica)
		}
		op.ghost = !known
		h.ops[i].Input = op
	}
	if granted != len(h.known) {
		return fmt.Errorf("%d grants carry %d different tokens", granted, len(h.known))
	}
	if err := h.overlap(); err != nil {
		return err
	}
	for _, part := range lockModel.Partition(h.ops) {
		switch porcupine.CheckOperationsTimeout(lockModel, part, time.Minute) {
		case porcupine.Illegal:
			return fmt.Errorf("not linearizable:%s", inOrder(part))
		case porcupine.Unknown:
			return errors.New("the history could not be judged in a minute")
		}
	}
	return nil
}

// inOrder shows what was done with a name, in the order in which it was begun.
func inOrder(ops []porcupine.Operation) string {
	slices.SortFunc(ops, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
	var b strings.Builder
	for _, op := range ops {
		fmt.Fprintf(&b, "\n%6d to %6d: %v", op.Call, op.Return, op.Input)
	}
	return b.String()
}

// A mix is how many operations of each kind there were.
type mix map[string]int

func (m mix) add(h *history) {
	for _, op := range h.ops {
		m[op.Input.(lockOp).kind.String()]++
	}
}

// overlap looks for two holders of one name at the same time, each trusting its
// own hold.
func (h *history) overlap() error {
	slices.SortFunc(h.lives, func(a, b life) int { return int(a.from - b.from) })
	last := make(map[string]life)
	for _, l := range h.lives {
		if before, ok := last[l.name]; ok && before.to > l.from && before.token != l.token {
			return fmt.Errorf("%q has two holders: token %s until %d, token %s from %d", l.name, before.token, before.to, l.token, l.from)
		}
		if l.to > last[l.name].to {
			last[l.name] = l
		}
	}
	return nil
}

// A locker is what a caller needs: a Node, or a Session.
type locker interface {
	Acquire(ctx context.Context, name string, opts ...AcquireOption) (*Hold, error)
	TryAcquire(ctx context.Context, name string, opts ...AcquireOption) (*Hold, error)
}

// A caller makes calls on one replica and records them.
type caller struct {
	h       *history
	t       *testing.T
	rng     *rand.Rand
	replica uint64
	node    func() *Node
	scale   time.Duration // what the spans of the program are counted in
}

// take acquires or tries, keeps the lock for a while and gives it back.
func (c *caller) take(ctx context.Context, on locker, name string) {
	try := c.rng.IntN(3) == 0
	ctx, cancel := context.WithTimeout(ctx, c.span(1, 100))
	defer cancel()
	call := c.h.now()
	acquire := on.Acquire
	if try {
		acquire = on.TryAcquire
	}
	hold, err := acquire(ctx, name)
	ret := c.h.now()
	if err == nil {
		c.h.add(call, ret, lockOp{kind: opGrant, name: name, token: hold.Token(), replica: c.replica})
		c.keep(hold)
		return
	}
	var held *HeldError
	if try && errors.As(err, &held) {
		c.h.add(call, ret, lockOp{kind: opHeld, name: name})
		c.saw(call, ret, name, held.Holders)
		return
	}
	c.checkError(ctx, err)
	c.h.add(call, call, lockOp{kind: opGhost, name: name, replica: c.replica})
}

// checkError checks that a call ended for a reason that it may have.
func (c *caller) checkError(ctx context.Context, err error) {
	for _, want := range []error{ErrClosed, ErrSessionExpired, ErrSessionClosed} {
		if errors.Is(err, want) {
			return
		}
	}
	if (errors.Is(err, ErrNoQuorum) || errors.Is(err, ErrHeld)) && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return
	}
	c.t.Errorf("replica %d: unexpected error: %v", c.replica, err)
}

func (c *caller) saw(call, ret int64, name string, holders []Holder) {
	for _, h := range holders {
		if h.Owner != fmt.Sprintf("owner-%d", h.Replica) || h.Session.Replica != h.Replica {
			c.t.Errorf("holder %+v has another's name", h)
		}
		c.h.add(call, ret, lockOp{kind: opSeen, name: name, token: h.Token, replica: h.Replica})
	}
}

// keep looks at the hold for a while, and then releases it unless it is lost.
func (c *caller) keep(hold *Hold) {
	l := life{name: hold.Name(), token: hold.Token()}
	seen := c.h.now() // the last moment before which it was held for sure
	looks := c.rng.IntN(12)
	if c.rng.IntN(16) == 0 {
		looks = 400 // until it is lost, if it is to be
	}
	for range looks {
		now := c.h.now()
		if hold.Err() != nil {
			break
		}
		seen, l.to = now, now
		if l.from == 0 {
			l.from = c.h.now()
		}
		select {
		case <-hold.Done():
		case <-time.After(c.scale):
		}
	}
	if l.to > l.from && l.from > 0 {
		c.h.mu.Lock()
		c.h.lives = append(c.h.lives, l)
		c.h.mu.Unlock()
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.span(1, 40))
	defer cancel()
	if c.rng.IntN(4) == 0 {
		cancel()
	}
	call := c.h.now()
	err := hold.Release(ctx)
	op := lockOp{kind: opFree, name: hold.Name(), token: hold.Token()}
	switch {
	case err == nil:
		c.h.add(call, c.h.now(), op)
		return
	case errors.Is(err, ErrLost):
		call = seen
	case errors.Is(err, ErrClosed), errors.Is(err, ErrNoQuorum) && errors.Is(err, ctx.Err()):
	default:
		c.t.Errorf("release: unexpected error: %v", err)
	}
	op.kind = opSoften
	c.h.add(call, call, op)
}

func (c *caller) describe(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(ctx, c.span(20, 60))
	defer cancel()
	call := c.h.now()
	info, err := c.node().Describe(ctx, name)
	ret := c.h.now()
	switch {
	case err != nil:
		c.checkError(ctx, err)
	case len(info.Holders) == 0:
		c.h.add(call, ret, lockOp{kind: opSeen, name: name})
	default:
		c.saw(call, ret, name, info.Holders)
	}
}

// span is a random span of the program.
func (c *caller) span(least, most int) time.Duration {
	return time.Duration(least+c.rng.IntN(most-least)) * c.scale
}

// run makes steps calls on one of names each, on the node's session or on one of
// its own.
func (c *caller) run(ctx context.Context, steps int, names []string) {
	var own *Session
	for range steps {
		if ctx.Err() != nil {
			break
		}
		name := names[c.rng.IntN(len(names))]
		switch c.rng.IntN(10) {
		case 0, 1, 2:
			c.describe(ctx, name)
		case 3:
			if own != nil {
				c.close(own)
			}
			own = c.open(ctx)
		case 4, 5, 6:
			if own != nil {
				c.take(ctx, own, name)
				continue
			}
			fallthrough
		default:
			c.take(ctx, c.node(), name)
		}
	}
	if own != nil {
		c.close(own)
	}
}

func (c *caller) open(ctx context.Context) *Session {
	ctx, cancel := context.WithTimeout(ctx, c.span(10, 40))
	defer cancel()
	s, err := c.node().OpenSession(ctx)
	if err != nil {
		c.checkError(ctx, err)
		return nil
	}
	return s
}

func (c *caller) close(s *Session) {
	ctx, cancel := context.WithTimeout(context.Background(), c.span(10, 40))
	defer cancel()
	if err := s.Close(ctx); err != nil {
		c.checkError(ctx, err)
	}
}

// seedVar replays one run: QUORUMLOCK_SEED=17 go test -run TestLinearizable/sim .
const seedVar = "QUORUMLOCK_SEED"

// seeds are those to run: the next ones, or the one to be replayed.
func seeds(t *testing.T, n int) []uint64 {
	if text := os.Getenv(seedVar); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return []uint64{seed}
	}
	first := uint64(time.Now().UnixNano())
	all := make([]uint64, n)
	for i := range all {
		all[i] = first + uint64(i)
	}
	return all
}

// Histories from five nodes over the simulated log, whose leader changes, whose
// replicas are cut off, fall silent, lag, restart and skip ahead by snapshots, and
// whose proposals are dropped, delayed, repeated and committed late, are those of a
// fenced mutex. When all is healed, nothing is left. A third of them is over three groups.
func TestLinearizableSim(t *testing.T) {
	ops, kinds := 0, make(mix)
	simulations(t, 150, 3*time.Second, func(t *testing.T, seed uint64) {
		h := newHistory()
		inTrouble(t, seed, h.check, func(ctx context.Context, id, k uint64, node func() *Node) {
			c := &caller{h: h, t: t, rng: rand.New(rand.NewPCG(seed, 10*id+k)), replica: id, node: node, scale: 10 * time.Millisecond}
			c.run(ctx, 40, []string{"a", "b", "c"})
		})
		ops += len(h.ops)
		kinds.add(h)
	})
	t.Logf("%d operations: %v", ops, kinds)
}

// simulations runs one simulation after the other, each from a seed that replays it,
// until there were most of them or they have taken so long.
func simulations(t *testing.T, most int, limit time.Duration, one func(t *testing.T, seed uint64)) {
	start := time.Now()
	for _, seed := range seeds(t, most) {
		ok := t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { one(t, seed) })
		})
		if !ok {
			t.Fatalf("replay with %s=%d", seedVar, seed)
		}
		if time.Since(start) > limit {
			break
		}
	}
}

// inTrouble lets two callers on each of five nodes call while there is trouble. When
// they are done all is healed; then nothing may be left, and check is asked.
func inTrouble(t *testing.T, seed uint64, check func() error, call func(ctx context.Context, id, k uint64, node func() *Node)) {
	s := newSim(seed, 5)
	var mu sync.Mutex // guards nodes
	nodes := make(map[uint64]*Node)
	options := make(map[uint64]Options)
	for id := range s.replicas {
		o := s.options(id)
		brisk(&o)
		if seed%3 == 0 {
			o.Groups = 3
		}
		options[id] = o
		nodes[id] = s.open(t, o)
	}
	defer func() {
		for id, n := range nodes {
			if err := n.Close(); err != nil {
				t.Errorf("close %d: %v", id, err)
			}
		}
	}()
	ctx, cancel := context.WithCancel(t.Context())
	var calls, nemesis sync.WaitGroup
	for id := range s.replicas {
		node := func() *Node {
			mu.Lock()
			defer mu.Unlock()
			return nodes[id]
		}
		for k := range uint64(2) {
			calls.Go(func() { call(ctx, id, k, node) })
		}
	}
	rng := rand.New(rand.NewPCG(seed, 0))
	nemesis.Go(func() {
		for ctx.Err() == nil {
			time.Sleep(time.Duration(rng.IntN(300)) * time.Millisecond)
			s.trouble(rng, func(id uint64) {
				mu.Lock()
				n := nodes[id]
				mu.Unlock()
				if err := n.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
				n = s.open(t, options[id])
				mu.Lock()
				nodes[id] = n
				mu.Unlock()
			})
		}
	})
	calls.Wait()
	cancel()
	nemesis.Wait()
	s.alterAll(func(s *sim) { s.faults = simFaults{} })
	s.heal()
	s.each((*sim).moveLeader)
	goesOn(t, nodes)
	settled(t, nodes)
	if err := check(); err != nil {
		t.Error(err)
	}
}

// trouble does one thing to the simulation.
func (s *sim) trouble(rng *rand.Rand, restart func(id uint64)) {
	id := uint64(1 + rng.IntN(len(s.replicas)))
	switch rng.IntN(12) {
	case 0:
		all := s.all(1)
		all[rng.IntN(len(all))].moveLeader()
	case 1:
		s.cut(id)
	case 2:
		s.cut(id, 1+id%uint64(len(s.replicas)))
	case 3:
		s.pause(id, true)
	case 4:
		// Its renewals are applied, but it sees that late, and can send no more.
		s.pause(id, true)
		time.Sleep(400 * time.Millisecond)
		s.mute(id, true)
		time.Sleep(time.Duration(rng.IntN(600)) * time.Millisecond)
		s.pause(id, false)
		time.Sleep(30 * time.Millisecond)
		s.cut(id)
		time.Sleep(1200 * time.Millisecond)
	case 5:
		s.mute(id, true)
	case 6:
		restart(id)
	case 7, 8:
		s.alterAll(func(s *sim) {
			s.faults = simFaults{drop: 0.05, duplicate: 0.2, late: 0.1, snapshot: 0.2, delay: 20 * time.Millisecond}
		})
	case 9:
		s.alterAll(func(s *sim) { s.faults = simFaults{} })
	default:
		s.heal()
	}
}

// The same on the real engine, whose messages are dropped, repeated, delayed and
// cut off, whose leader changes, and who brings up by snapshots those who lag.
func TestLinearizableReal(t *testing.T) {
	before := tuning
	defer func() { tuning = before }()
	tuning.snapshotEntries, tuning.compactionOverhead = 200, 20
	seed := seeds(t, 1)[0]
	c := newCluster(t, brisk, func(o *Options) { o.Owner = fmt.Sprintf("owner-%d", o.ReplicaID) })
	rng := rand.New(rand.NewPCG(seed, 0))
	ops, kinds := 0, make(mix)
	span := 7 * time.Second
	if os.Getenv(longVar) != "" {
		span = time.Minute
	}
	end := time.Now().Add(span)
	for round := uint64(0); time.Now().Before(end); round++ {
		h := newHistory()
		names := make([]string, 12)
		for i := range names {
			names[i] = fmt.Sprintf("%d-%d", round, i)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var calls, nemesis sync.WaitGroup
		for _, id := range c.ids() {
			for k := range uint64(8) {
				caller := &caller{
					h: h, t: t, rng: rand.New(rand.NewPCG(seed, 1000*round+10*id+k)), replica: id,
					node: func() *Node { return c.node(id) }, scale: 5 * time.Millisecond,
				}
				calls.Go(func() { caller.run(ctx, 8, names) })
			}
		}
		nemesis.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-time.After(time.Duration(rng.IntN(500)) * time.Millisecond):
				}
				c.trouble(ctx, rng)
				if rng.IntN(2) == 0 {
					c.faults.Heal()
				}
			}
		})
		calls.Wait()
		cancel()
		nemesis.Wait()
		c.faults.Heal()
		goesOn(t, c.nodes)
		settled(t, c.nodes)
		if err := h.check(); err != nil {
			t.Fatalf("%v: seed %d (%s replays it, but not the engine's own timing)", err, seed, seedVar)
		}
		ops += len(h.ops)
		kinds.add(h)
	}
	t.Logf("%d operations: %v", ops, kinds)
}

// trouble does one thing to the network or the leader.
func (c *cluster) trouble(ctx context.Context, rng *rand.Rand) {
	id := uint64(1 + rng.IntN(5))
	other := 1 + id%5
	switch rng.IntN(9) {
	case 0, 1, 2:
		if leader, _ := c.node(id).groups[0].engine.leader(); leader != 0 {
			ctx, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
			defer cancel()
			_ = c.node(leader).groups[0].engine.transfer(ctx, 1+leader%5) // it may well fail
		}
	case 3:
		c.faults.Isolate(id)
	case 4:
		if leader, _ := c.node(id).groups[0].engine.leader(); leader != 0 {
			c.faults.Isolate(leader)
		}
	case 5:
		c.faults.Cut(id, other)
	case 6:
		c.faults.CutOneWay(id, other)
	default:
		c.faults.Chaos(0.05, 0.1, 10*time.Millisecond)
	}
}
