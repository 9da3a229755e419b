package quorumlock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorumlock/quorumlock/sessions"
)

// A stage is where a script is played: nodes over a simulated log, each with a clock
// of its own, and an auditor.
type stage struct {
	*script
	sim     *sim
	audit   audits
	clocks  map[uint64]*simClock
	clients sync.WaitGroup

	mu       sync.Mutex
	nodes    map[uint64]*Node // nil for one that is down
	sessions map[int]*Session
	holds    map[int]*Hold
	claimed  map[int64]bool
	done     map[string]int // steps that did something, by what they do
}

// play plays a script in a bubble of its own, and returns what promise was broken.
func play(t *testing.T, s *script) (done map[string]int, broken error) {
	synctest.Test(t, func(t *testing.T) {
		p := &stage{script: s, sim: newSim(s.Seed, s.Replicas), clocks: map[uint64]*simClock{},
			nodes: map[uint64]*Node{}, sessions: map[int]*Session{}, holds: map[int]*Hold{}, claimed: map[int64]bool{}, done: map[string]int{}}
		for _, own := range p.sim.all(max(s.Groups, 1)) {
			a := newAuditor()
			p.audit = append(p.audit, a)
			own.committed, own.reached, own.donor = a.commit, a.reached, a.donor
			own.led = func(r *simReplica) { a.led(r.id, p.clocks[r.id].Now()) }
			own.asked = func(r *simReplica, entry []byte) { a.asked(r.id, p.clocks[r.id].Now(), entry) }
		}
		for id := uint64(1); id <= uint64(s.Replicas); id++ {
			p.clocks[id] = newSimClock(s.Rates[id-1])
		}
		for id := uint64(1); id <= uint64(s.Replicas); id++ {
			p.start(t, id)
		}
		defer p.close()
		begin := time.Now()
		for _, x := range s.steps {
			// Not at the same moment as others: what happens at once is in no order.
			at := time.Duration(x.At)*time.Millisecond + time.Duration(p.sim.dice(uint64(x.At), uint64(x.ID), x.On, uint64(len(x.Do))).IntN(int(time.Millisecond)))
			time.Sleep(at - time.Since(begin))
			p.do(t, x)
			if p.audit.verdict() != nil {
				break
			}
		}
		broken, done = p.end(t), p.done
	})
	return done, broken
}

func (p *stage) start(t *testing.T, id uint64) {
	p.clocks[id].thaw()
	o := p.sim.options(id)
	brisk(&o)
	o.clock, o.trust = p.clocks[id], p.clocks[id].trust
	if p.Seed%2 == 0 {
		o.Quotas = soakQuotas
	}
	o.Groups = len(p.audit)
	n := p.sim.open(t, o)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.nodes[id] = n
}

// soakQuotas are now and then too small for what a script asks for.
var soakQuotas = []Quota{{Rate: 20, Burst: 40, Holds: 60, Waiters: 40}, {Prefix: "d", Holds: 20}, {PerSession: true, Holds: 12},
	{Prefix: "do", PerSession: true, Waiters: 4}}

func (p *stage) crash(id uint64) {
	p.mu.Lock()
	n := p.nodes[id]
	p.nodes[id] = nil
	p.mu.Unlock()
	if n != nil {
		p.clocks[id].thaw()
		_ = n.Close()
	}
}

func (p *stage) close() {
	for id := range p.clocks {
		p.crash(id)
	}
	p.clients.Wait()
	p.sim.each(func(s *sim) { s.strays.Wait() })
}

func (p *stage) node(id uint64) *Node {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.nodes[id]
}

// do does one step: a fault at once, a call in a goroutine of its own.
func (p *stage) do(t *testing.T, x step) {
	if x.On > uint64(p.Replicas) {
		return
	}
	if p.fault(t, x) {
		p.did(x.Do)
		return
	}
	if n := p.node(x.On); n != nil {
		if wrong := n.miscounted(); wrong != "" {
			p.audit.object("%s", wrong)
		}
	}
	p.clients.Go(func() {
		if p.call(x) {
			p.did(x.Do)
		}
	})
}

func (p *stage) did(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done[what]++
}

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

// fault does a step that befalls a replica or all of them, and reports whether it was
// one.
func (p *stage) fault(t *testing.T, x step) bool {
	s, c, r := p.sim, p.clocks[x.On], x.On
	switch x.Do {
	case "lead":
		all := s.all(1)
		s := all[x.At%len(all)]
		s.alter(func() {
			if s.replicas[r].connected() && s.leader != r {
				s.lead(r)
			}
		})
	case "cut":
		s.cut(r)
	case "mute":
		s.mute(r, true)
	case "pause":
		s.pause(r, true)
	case "freeze":
		c.freeze()
		s.alterAll(func(s *sim) { s.replicas[r].cut, s.replicas[r].paused = true, true })
	case "thaw":
		// It acts before it hears what became of the others.
		c.thaw()
		time.Sleep(time.Duration(p.sim.dice(uint64(x.At), r).IntN(int(5 * time.Millisecond))))
		fallthrough
	case "join":
		s.alterAll(func(s *sim) { s.replicas[r].cut, s.replicas[r].mute, s.replicas[r].paused = false, false, false })
	case "crash":
		p.crash(r)
	case "start":
		if p.node(r) == nil {
			p.start(t, r)
		}
	case "sleep":
		c.set(func() { c.slept += ms(x.For) })
	case "rate":
		c.setRate(x.N)
	case "wall":
		c.set(func() { c.wall = ms(x.N) })
	case "weather":
		part := func(percent int) float64 { return float64(percent) / 100 }
		s.alterAll(func(s *sim) {
			s.faults = simFaults{drop: part(x.Drop), duplicate: part(x.Twice), late: part(x.Late), snapshot: part(x.Skip),
				delay: ms(x.Delay), stray: 5 * time.Second}
		})
	default:
		return false
	}
	return true
}

// call makes a client's call, and reports whether it was made.
func (p *stage) call(x step) bool {
	p.mu.Lock()
	h, s, n := p.holds[x.ID], p.sessions[x.ID], p.nodes[x.On]
	if x.Session != 0 {
		s = p.sessions[x.Session]
	}
	p.mu.Unlock()
	if h != nil && x.Do != "force" {
		n = h.part.n
	} else if s != nil && x.Do == "close" {
		n = s.n
	}
	if n == nil {
		return false
	}
	at := n.opts.ReplicaID
	p.clocks[at].awake()
	ctx, cancel := context.WithTimeout(context.Background(), ms(x.For))
	defer cancel()
	switch x.Do {
	case "open":
		p.open(ctx, n, x)
	case "acquire":
		p.acquire(ctx, n, x)
	case "describe":
		from := p.audit.now()
		if info, err := n.Describe(ctx, x.Names[0]); err == nil {
			got := infoText(info)
			p.audit.seen(x.Names[0], from, fmt.Sprintf("replica %d shows %q", at, got), func(text string) bool { return text == got })
		}
	case "resize":
		_ = n.Resize(ctx, x.Names[0], x.N)
	case "yield":
		_ = n.RequestYield(ctx, x.Names[0], "somebody", "test")
	case "claim":
		p.claim(ctx, n, x)
	case "evict":
		if s := p.session(x.ID); s != nil {
			p.audit.forcing(nil, s.id)
			_ = n.ForceClose(ctx, s.id, "somebody", "test")
		}
	case "close":
		if s == nil {
			return false
		}
		_ = s.Close(ctx)
	case "force":
		if h == nil {
			return false
		}
		p.audit.forcing(h, sessions.ID{})
		_ = n.ForceRelease(ctx, h.Name(), h.TokenFor(h.Name()), "somebody", "test")
	default:
		if h == nil {
			return false
		}
		p.withHold(ctx, h, x)
	}
	return true
}

func (p *stage) session(id int) *Session {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sessions[id]
}

func (p *stage) open(ctx context.Context, n *Node, x step) {
	s, err := n.OpenSession(ctx, WithTTL(ms(x.N)))
	if err != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sessions[x.ID] = s
}

func (p *stage) claim(ctx context.Context, n *Node, x step) {
	won, _ := n.ClaimTick(ctx, x.Names[0], int64(x.N))
	if !won {
		return
	}
	p.mu.Lock()
	again := p.claimed[int64(x.N)]
	p.claimed[int64(x.N)] = true
	p.mu.Unlock()
	if again {
		p.audit.object("tick %d was given to two callers", x.N)
	}
}

// withHold makes a call about a hold.
func (p *stage) withHold(ctx context.Context, h *Hold, x step) {
	switch x.Do {
	case "release":
		p.release(ctx, h)
	case "downgrade":
		p.audit.mayShare(h)
		_ = h.Downgrade(ctx)
	case "value":
		_ = h.SetValue(ctx, strconv.Itoa(x.At))
	case "validate":
		from := p.audit.now()
		if h.Validate(ctx) == nil {
			p.audit.held(h, from)
		}
	case "hand over":
		info, err := h.part.n.Describe(ctx, h.name)
		if err == nil && x.N < len(info.Waiters) {
			_ = h.HandOver(ctx, info.Waiters[x.N].Session)
		}
	}
}

func (p *stage) release(ctx context.Context, h *Hold) {
	err := h.Release(ctx)
	if m := h.more.Load(); err == nil && (m == nil || m.minHold == 0) {
		p.audit.freed(h)
	}
}

// options are what a step asks for.
func (x step) options() (opts []AcquireOption) {
	switch x.Mode {
	case "shared":
		opts = append(opts, Share())
	case "counted":
		opts = append(opts, Permits(x.N, x.Of))
	}
	if x.MaxHold > 0 {
		opts = append(opts, MaxHold(ms(x.MaxHold)))
	}
	if x.MinHold > 0 {
		opts = append(opts, MinHold(ms(x.MinHold)))
	}
	if x.Delay > 0 {
		opts = append(opts, LockDelay(ms(x.Delay)))
	}
	return opts
}

func (p *stage) acquire(ctx context.Context, n *Node, x step) {
	from := p.audit.now()
	h, err := acquireFor(ctx, n, p.session(x.Session), x)
	var held *HeldError
	switch {
	case err == nil:
	case x.Try && errors.As(err, &held):
		if held.Name == "pool" || len(x.Names) == 1 {
			p.audit.seen(held.Name, from, "refused as held", func(text string) bool { return text != "" })
		}
		return
	default:
		p.expected(ctx, err)
		return
	}
	p.clocks[h.part.id.Replica].awake()
	p.audit.handed(h, x.Mode == "shared")
	p.mu.Lock()
	p.holds[x.ID] = h
	p.mu.Unlock()
	if x.Keep == 0 {
		return
	}
	t := time.NewTimer(ms(x.Keep))
	defer t.Stop()
	select {
	case <-h.Done():
	case <-t.C:
	}
	p.clocks[h.part.id.Replica].awake()
	ctx, cancel := context.WithTimeout(context.Background(), ms(x.For))
	defer cancel()
	p.release(ctx, h)
}

func acquireFor(ctx context.Context, n *Node, s *Session, x step) (*Hold, error) {
	type taker interface {
		locker
		AcquireAll(ctx context.Context, names ...string) (*Hold, error)
		TryAcquireAll(ctx context.Context, names ...string) (*Hold, error)
	}
	var on taker = n
	if s != nil {
		on = s
	}
	switch {
	case x.Try && len(x.Names) > 1:
		return on.TryAcquireAll(ctx, x.Names...)
	case x.Try:
		return on.TryAcquire(ctx, x.Names[0], x.options()...)
	case len(x.Names) > 1:
		return on.AcquireAll(ctx, x.Names...)
	}
	return on.Acquire(ctx, x.Names[0], x.options()...)
}

// expected checks that an acquire failed for a reason that there was.
func (p *stage) expected(ctx context.Context, err error) {
	for _, want := range []error{ErrClosed, ErrSessionExpired, ErrSessionClosed, ErrRevoked, ErrMode, ErrPermits, ErrQuota} {
		if errors.Is(err, want) {
			return
		}
	}
	if ctx.Err() == nil || !errors.Is(err, ctx.Err()) {
		p.audit.object("acquire: unexpected error: %w", err)
	}
}

// end heals everything, ends what clients still have, and looks for what is left.
func (p *stage) end(t *testing.T) error {
	p.sim.alterAll(func(s *sim) { s.faults = simFaults{} })
	for id, c := range p.clocks {
		c.thaw()
		if p.node(id) == nil {
			p.start(t, id)
		}
	}
	p.sim.heal()
	p.clients.Wait()
	p.sim.each(func(s *sim) { s.strays.Wait() })
	if err := p.audit.verdict(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, h := range p.holds {
		if err := h.Release(ctx); err != nil && !errors.Is(err, ErrLost) && !errors.Is(err, ErrClosed) {
			return fmt.Errorf("at the end: release %q: %w", h.Name(), err)
		}
	}
	for _, s := range p.sessions {
		if err := s.Close(ctx); err != nil && !errors.Is(err, ErrClosed) {
			return fmt.Errorf("at the end: close %s: %w", s.ID(), err)
		}
	}
	p.sim.each((*sim).moveLeader)
	if err := judgedBy("at the end", func() { goesOn(judgeT{}, p.nodes) }); err != nil {
		return err
	}
	left := "?"
	for until := time.Now().Add(patience); left != "" && time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
		left = leftOver(p.nodes)
	}
	if left != "" {
		return fmt.Errorf("left at the end: %s", left)
	}
	return p.audit.verdict()
}

// TestSimulation plays scripts from fresh seeds. QUORUMLOCK_SEED=n plays that one;
// QUORUMLOCK_SCRIPT=file plays the script in a file, which need not be from a seed;
// go run ./internal/soak plays for as long as one likes.
func TestSimulation(t *testing.T) {
	if file := os.Getenv("QUORUMLOCK_SCRIPT"); file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		s, err := parseScript(text)
		if err != nil {
			t.Fatal(err)
		}
		judge(t, s)
		return
	}
	t.Parallel()
	limit := 12 * time.Second
	if testing.Short() {
		limit = 3 * time.Second
	}
	first, most := seeds(t, 1)[0], 1<<30
	if os.Getenv(seedVar) != "" {
		most = 1
	}
	if text := os.Getenv("QUORUMLOCK_SOAK"); text != "" {
		for i, into := range strings.Fields(text) {
			switch n, err := strconv.ParseUint(into, 10, 64); {
			case err != nil:
				t.Fatal(err)
			case i == 0:
				limit = time.Duration(n) * time.Second
			default:
				first = n
			}
		}
	}
	start, said, did := time.Now(), time.Now(), map[string]int{}
	count := 0
	for ; count < most && time.Since(start) < limit && !t.Failed(); count++ {
		seed := first + uint64(count)
		if os.Getenv("QUORUMLOCK_SOAK") != "" {
			fmt.Printf("soak seed %d\n", seed)
		}
		for what, n := range judge(t, newScript(seed)) {
			did[what] += n
			did["all"] += n
		}
		if os.Getenv("QUORUMLOCK_SOAK") != "" && time.Since(said) > time.Second {
			said = time.Now()
			fmt.Printf("soak done %d %d\n", count+1, did["all"])
		}
	}
	if os.Getenv("QUORUMLOCK_SOAK") != "" {
		fmt.Printf("soak done %d %d\n", count, did["all"])
	}
	t.Logf("%d seeds from %d: steps %v", count, first, did)
}

// shrinkFor is how long a script that breaks a promise is made shorter.
const shrinkFor = 30 * time.Second

// judge plays a script, and if a promise is broken says so with what replays it.
func judge(t *testing.T, s *script) map[string]int {
	done, broken := play(t, s)
	if broken == nil {
		return done
	}
	short := shrink(s, shrinkFor, func(s *script) bool {
		_, again := play(t, s)
		if again != nil {
			broken = again
		}
		return again != nil
	})
	t.Errorf("seed %d: %v\n%s=%d plays all of it; QUORUMLOCK_SCRIPT=file these %d of %d steps:\n%s",
		s.Seed, broken, seedVar, s.Seed, len(short.steps), len(s.steps), short)
	return done
}
