//go:build linux

package quorumlock

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/fencing"
)

// The tests of this file run five replicas as five processes: the test binary
// starts itself, and roleVar carries what the child is to be. A child takes orders
// on its standard input and ends with it. Times are those of one clock, bootTime,
// which all processes of a machine share.

// longVar makes TestProcessesHolderKilledOrStopped use the default TTL. It then takes
// twice as long.
const longVar = "QUORUMLOCK_TEST_LONG"

// maxChildLife ends a child that its parent forgot.
const maxChildLife = 3 * time.Minute

// A role is the options of a child's replica.
type role struct {
	ID            uint64
	Address, Dir  string
	Cluster       string // "" for the default
	Members       map[uint64]string
	TTL, Election time.Duration
	Level         byte   // that its version speaks; 0 for the newest
	Snapshots     uint64 // entries between two; 0 for the default
}

// An order is a call that a child is to make.
type order struct {
	Number  int
	Do      string
	Name    string
	Timeout time.Duration
}

// An answer is what became of it.
type answer struct {
	Number int
	Err    string        `json:",omitempty"`
	Token  fencing.Token // acquire, watch
	Called time.Duration // before the call
	At     time.Duration // when it returned

	Leader uint64 // status
	Level  int    // status: the feature level in force

	Trusted time.Duration // last words: until when this process relies on what it holds

	HoldErr, CtxErr string        // watch: at the first look after the pause
	Pause           time.Duration // watch: how long this process stood still
}

// playRole is the child.
func playRole(text string) int {
	time.AfterFunc(maxChildLife, func() { os.Exit(3) })
	var r role
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	if r.Snapshots > 0 {
		tuning.snapshotEntries, tuning.compactionOverhead = r.Snapshots, r.Snapshots/4
	}
	c := &child{holds: make(map[string]*Hold), out: json.NewEncoder(os.Stdout)}
	n, err := Open(Options{
		ReplicaID: r.ID, Address: r.Address, Dir: r.Dir, Members: r.Members, Cluster: r.Cluster,
		SessionTTL: r.TTL, ElectionTimeout: r.Election, Logger: testLogger(nil), OnFatal: c.lastWords, level: r.Level,
	})
	if err != nil {
		c.say(answer{Err: err.Error()})
		return 2
	}
	c.n = n
	in := json.NewDecoder(bufio.NewReader(os.Stdin))
	for {
		var o order
		if err := in.Decode(&o); err != nil {
			if err != io.EOF {
				fmt.Fprintln(os.Stderr, err)
			}
			return 0 // as a crash would: nothing is closed
		}
		go c.obey(o)
	}
}

type child struct {
	n     *Node
	mu    sync.Mutex // guards the rest
	holds map[string]*Hold
	out   *json.Encoder
}

func (c *child) obey(o order) {
	ctx, cancel := context.WithTimeout(context.Background(), o.Timeout)
	defer cancel()
	a := answer{Number: o.Number, Called: bootTime()}
	err := c.do(ctx, o, &a)
	if a.At == 0 {
		a.At = bootTime()
	}
	if err != nil {
		a.Err = err.Error()
	}
	c.say(a)
}

func (c *child) say(a answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.out.Encode(a) // a parent that is gone reads nothing
}

// lastWords are an answer that nobody asked for.
func (c *child) lastWords(err error) {
	a := answer{Err: err.Error(), At: bootTime()}
	c.mu.Lock()
	for _, h := range c.holds {
		a.Trusted = max(a.Trusted, bootTime()+h.Remaining())
	}
	c.mu.Unlock()
	c.say(a)
}

// harms are orders that hurt the process itself.
var harms = map[string]func(o order) error{}

func (c *child) do(ctx context.Context, o order, a *answer) error {
	switch o.Do {
	case "ready":
		return c.n.Ready(ctx)
	case "acquire":
		h, err := c.n.Acquire(ctx, o.Name)
		a.At = bootTime()
		if err != nil {
			return err
		}
		a.Token = h.Token()
		c.mu.Lock()
		c.holds[o.Name] = h
		c.mu.Unlock()
		return nil
	case "release":
		return c.hold(o.Name).Release(ctx)
	case "validate":
		h := c.hold(o.Name)
		return errors.Join(h.Err(), h.Validate(ctx))
	case "watch":
		return c.watch(ctx, c.hold(o.Name), a)
	case "shutdown":
		return c.n.Shutdown(ctx)
	case "status":
		s := c.n.Status()
		a.Leader, a.Level = s.Leader, s.Level
		return nil
	}
	if harm := harms[o.Do]; harm != nil {
		return harm(o)
	}
	return errors.New("no such order")
}

func (c *child) hold(name string) *Hold {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.holds[name]
}

// watch looks at the hold all the time until the process has stood still for a
// second, and tells what the first look after that shows.
func (c *child) watch(ctx context.Context, h *Hold, a *answer) error {
	held, cancel := h.Context(ctx)
	defer cancel()
	a.Token = h.Token()
	for last := bootTime(); ; {
		// The process may be stopped at any place here, so the clock is read last.
		looked := errors.Join(h.Err(), held.Err())
		now := bootTime()
		if pause := now - last; pause > time.Second {
			hold, ended := h.Err(), held.Err()
			a.Pause, a.HoldErr, a.CtxErr = pause, fmt.Sprint(hold), fmt.Sprint(ended)
			return nil
		}
		if looked != nil {
			return fmt.Errorf("lost without a pause: %w", looked)
		}
		last = now
		time.Sleep(time.Millisecond)
	}
}

// A replicaProcess is a child as its parent sees it.
type replicaProcess struct {
	id   uint64
	cmd  *exec.Cmd
	in   io.WriteCloser
	gone chan struct{} // closed when it has ended
	last chan answer   // its last words

	mu      sync.Mutex
	orders  int
	answers map[int]chan answer
}

// processes are five of them.
type processes struct {
	t       *testing.T
	roles   map[uint64]role
	running map[uint64]*replicaProcess
}

// newProcesses starts five processes and waits until all are ready. Whatever is
// left of them is killed after the test.
func newProcesses(t *testing.T, ttl, election time.Duration, change ...func(r *role)) *processes {
	t.Helper()
	ps := &processes{t: t, roles: make(map[uint64]role), running: make(map[uint64]*replicaProcess)}
	members := make(map[uint64]string)
	for i, addr := range freeAddresses(t, 5) {
		members[uint64(i+1)] = addr
	}
	for id, addr := range members {
		r := role{ID: id, Address: addr, Dir: t.TempDir(), Members: members, TTL: ttl, Election: election}
		for _, f := range change {
			f(&r)
		}
		ps.roles[id] = r
	}
	t.Cleanup(func() { ps.kill(ps.ids()...) })
	ps.start(1, 2, 3, 4, 5)
	ps.ready(1, 2, 3, 4, 5)
	return ps
}

func (ps *processes) ids() []uint64 {
	var ids []uint64
	for id := range ps.running {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (ps *processes) start(ids ...uint64) {
	ps.t.Helper()
	for _, id := range ids {
		text, err := json.Marshal(ps.roles[id])
		require.NoError(ps.t, err)
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), roleVar+"="+string(text))
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		require.NoError(ps.t, err)
		out, err := cmd.StdoutPipe()
		require.NoError(ps.t, err)
		require.NoError(ps.t, cmd.Start())
		p := &replicaProcess{id: id, cmd: cmd, in: in, gone: make(chan struct{}), last: make(chan answer, 1), answers: make(map[int]chan answer)}
		p.answers[0] = p.last
		ps.running[id] = p
		go p.listen(out)
	}
}

func (p *replicaProcess) listen(out io.Reader) {
	defer close(p.gone)
	dec := json.NewDecoder(out)
	for {
		var a answer
		if dec.Decode(&a) != nil {
			_ = p.cmd.Wait() // it was killed, or ended with its input
			return
		}
		p.mu.Lock()
		c := p.answers[a.Number]
		p.mu.Unlock()
		c <- a
	}
}

// give gives an order. The answer comes over the channel.
func (ps *processes) give(id uint64, do, name string) <-chan answer {
	ps.t.Helper()
	p := ps.running[id]
	p.mu.Lock()
	p.orders++
	o := order{Number: p.orders, Do: do, Name: name, Timeout: patience}
	c := make(chan answer, 1)
	p.answers[o.Number] = c
	p.mu.Unlock()
	require.NoError(ps.t, json.NewEncoder(p.in).Encode(o))
	return c
}

// get waits for an answer that has no error.
func (ps *processes) get(c <-chan answer) answer {
	ps.t.Helper()
	select {
	case a := <-c:
		require.Empty(ps.t, a.Err)
		return a
	case <-time.After(patience + time.Second):
		ps.t.Fatal("no answer")
		return answer{}
	}
}

func (ps *processes) ask(id uint64, do, name string) answer {
	ps.t.Helper()
	return ps.get(ps.give(id, do, name))
}

func (ps *processes) ready(ids ...uint64) {
	ps.t.Helper()
	for _, id := range ids {
		ps.ask(id, "ready", "")
	}
}

// kill kills processes and waits for their end. It returns the moment before.
func (ps *processes) kill(ids ...uint64) time.Duration {
	ps.t.Helper()
	before := bootTime()
	for _, id := range ids {
		_ = ps.running[id].cmd.Process.Kill() // it may have ended by itself
	}
	for _, id := range ids {
		<-ps.running[id].gone
		delete(ps.running, id)
	}
	return before
}

func (ps *processes) signal(id uint64, s syscall.Signal) {
	ps.t.Helper()
	require.NoError(ps.t, ps.running[id].cmd.Process.Signal(s))
}

// leader waits until all running processes believe in the same one that runs.
func (ps *processes) leader() uint64 {
	ps.t.Helper()
	var leader uint64
	eventually(ps.t, "one leader for all", func() bool {
		seen := make(map[uint64]bool)
		for id := range ps.running {
			leader = ps.ask(id, "status", "").Leader
			seen[leader] = true
		}
		return len(seen) == 1 && ps.running[leader] != nil
	})
	return leader
}

// other is a running process that is none of these.
func (ps *processes) other(but ...uint64) uint64 {
	for _, id := range ps.ids() {
		if !slices.Contains(but, id) {
			return id
		}
	}
	ps.t.Fatal("no other")
	return 0
}

// hold lets a process take a lock, and another one stand in line for it. It
// returns the hold's token and how to learn of the waiter's grant.
func (ps *processes) hold(holder, waiter uint64, name string) (fencing.Token, <-chan answer) {
	ps.t.Helper()
	token := ps.ask(holder, "acquire", name).Token
	waits := ps.give(waiter, "acquire", name)
	// The waiter's call has come before the answer to this one, which is one
	// batch later.
	ps.ask(waiter, "acquire", name+"/waiter is in line")
	return token, waits
}

// spans are measured times, logged together.
type spans []time.Duration

func (s spans) String() string {
	s = slices.Sorted(slices.Values(s))
	return fmt.Sprintf("%d times: min %v, median %v, max %v", len(s), s[0].Round(time.Millisecond),
		s[len(s)/2].Round(time.Millisecond), s[len(s)-1].Round(time.Millisecond))
}

// At default options, after a SIGKILL of the leader the next grant elsewhere comes
// within 1.5 s.
func TestProcessesLeaderKilled(t *testing.T) {
	ps := newProcesses(t, 0, 0)
	var first, last spans
	for round := range 4 {
		leader := ps.leader()
		// Calls on every other replica, begun just after the kill.
		at := ps.kill(leader)
		var calls []<-chan answer
		for _, id := range ps.ids() {
			calls = append(calls, ps.give(id, "acquire", fmt.Sprintf("round %d/%d", round, id)))
		}
		var took spans
		for _, c := range calls {
			took = append(took, ps.get(c).At-at)
		}
		slices.Sort(took)
		t.Logf("leader %d killed: granted elsewhere after %v", leader, took)
		require.Less(t, took[0], 1500*time.Millisecond)
		first, last = append(first, took[0]), append(last, took[len(took)-1])
		ps.start(leader)
		ps.ready(leader)
	}
	t.Logf("first grant elsewhere, %v", first)
	t.Logf("a grant on each of the four others, %v", last)
}

// At default options a process that is killed and started again within its TTL
// gives back what it held at once, and a Shutdown within 100 ms.
func TestProcessesRestartedAndShutDown(t *testing.T) {
	ps := newProcesses(t, 0, 0)
	for _, leads := range []bool{false, true} {
		name := fmt.Sprintf("restarted, leads: %v", leads)
		holder := ps.leader()
		if !leads {
			holder = ps.other(holder)
		}
		waiter := ps.other(holder, ps.leader())
		token, waits := ps.hold(holder, waiter, name)
		killed := ps.kill(holder)
		started := bootTime()
		ps.start(holder)
		got := ps.get(waits)
		t.Logf("%s: granted %v after the start, %v after the kill", name, got.At-started, got.At-killed)
		require.Less(t, got.At-killed, DefaultSessionTTL/3)
		require.Greater(t, got.Token, token)
		ps.ready(holder)
	}
	var took spans
	for _, leads := range []bool{false, true, false, true} {
		holder := ps.leader()
		if !leads {
			holder = ps.other(holder)
		}
		waiter := ps.other(holder, ps.leader())
		name := fmt.Sprint("shut down ", len(took))
		_, waits := ps.hold(holder, waiter, name)
		ended := ps.give(holder, "shutdown", "")
		got, end := ps.get(waits), ps.get(ended)
		span := got.At - end.Called
		t.Logf("%s, leads: %v: granted after %v, Shutdown took %v", name, leads, span, end.At-end.Called)
		require.Less(t, span, 100*time.Millisecond)
		took = append(took, span)
		ps.kill(holder)
		ps.start(holder)
		ps.ready(holder)
	}
	t.Logf("granted after the call of Shutdown, %v", took)
}

// When a holder's process is killed, the next waiter is granted within the TTL and
// half a second, also when that process led. A holder that is stopped for longer
// than its lease finds that out at its first look, and its write is refused.
func TestProcessesHolderKilledOrStopped(t *testing.T) {
	ttl := 5 * time.Second // the shortest at the default election timeout
	if os.Getenv(longVar) != "" {
		ttl = DefaultSessionTTL
	}
	ps := newProcesses(t, ttl, 0)
	for _, leads := range []bool{false, true} {
		name := fmt.Sprintf("holder killed, leads: %v", leads)
		holder := ps.leader()
		if !leads {
			holder = ps.other(holder)
		}
		_, waits := ps.hold(holder, ps.other(holder, ps.leader()), name)
		killed := ps.kill(holder)
		got := ps.get(waits)
		t.Logf("%s: the next was granted after %v of a TTL of %v", name, got.At-killed, ttl)
		require.Less(t, got.At-killed, ttl+500*time.Millisecond)
		ps.start(holder)
		ps.ready(holder)
	}

	leader := ps.leader()
	holder := ps.other(leader)
	token, waits := ps.hold(holder, ps.other(holder, leader), "stopped")
	watch := ps.give(holder, "watch", "stopped")
	ps.ask(holder, "status", "") // watch has begun
	ps.signal(holder, syscall.SIGSTOP)
	got := ps.get(waits)
	ps.signal(holder, syscall.SIGCONT)
	woken := ps.get(watch)
	t.Logf("stopped for %v; at the first look Hold.Err is %q and ctx.Err is %q", woken.Pause, woken.HoldErr, woken.CtxErr)
	require.Contains(t, woken.HoldErr, "lost")
	require.Equal(t, context.Canceled.Error(), woken.CtxErr)
	require.Equal(t, token, woken.Token)

	var store fencing.MemGuard
	require.NoError(t, store.Admit(t.Context(), "stopped", got.Token))
	require.ErrorIs(t, store.Admit(t.Context(), "stopped", woken.Token), fencing.ErrStale)
}

// After all five were killed and started again, tokens go on growing, and what the
// dead held is free at once. And ten restarts of each in turn need no manual step.
func TestProcessesAllRestarted(t *testing.T) {
	t.Parallel()
	const ttl, election = 10 * time.Second, 300 * time.Millisecond
	ps := newProcesses(t, ttl, election)
	token := ps.ask(1, "acquire", "kept").Token
	for range 3 {
		ps.kill(1, 2, 3, 4, 5)
		started := bootTime()
		ps.start(1, 2, 3, 4, 5)
		ps.ready(1, 2, 3, 4, 5)
		ready := bootTime()
		got := ps.ask(2, "acquire", "kept")
		t.Logf("all five ready after %v, the lock of a dead one granted %v later", ready-started, got.At-ready)
		require.Less(t, got.At-started, ttl/2)
		require.Greater(t, got.Token, token)
		token = got.Token
	}

	begun := bootTime()
	var took spans
	for round := range 10 {
		for id := uint64(1); id <= 5; id++ {
			held := ps.ask(id, "acquire", fmt.Sprint("of ", id))
			require.Greater(t, held.Token, token)
			ps.kill(id)
			started := bootTime()
			ps.start(id)
			ps.ready(id)
			token = ps.ask(ps.other(id), "acquire", fmt.Sprintf("round %d, restarted %d", round, id)).Token
			took = append(took, bootTime()-started)
		}
	}
	t.Logf("50 restarts in %v; from a start to the next grant, %v", bootTime()-begun, took)
}
