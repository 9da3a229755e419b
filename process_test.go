//go:build linux

package quorumlock

import (
	"context"
	"encoding/json"
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
// on its standard input and ends with it: see process_child_test.go. Times are those
// of one clock, bootTime, which all processes of a machine share.

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

// When a holder's process is killed, the next waiter is granted within the TTL (and two
// seconds, on a slow machine), also when that process led. A holder that is stopped for longer
// than its lease finds that out at its first look, and its write is refused.
func TestProcessesHolderKilledOrStopped(t *testing.T) {
	t.Parallel()
	ttl := 5 * time.Second // the shortest at the default election timeout
	if os.Getenv(longVar) != "" {
		ttl = DefaultSessionTTL
	}
	ps := newProcesses(t, ttl, 0)
	waiter := ps.leader() // it lives on, while of two others one is killed and one stopped
	victim := ps.other(waiter)
	stopped := ps.other(waiter, victim)
	_, afterKill := ps.hold(victim, waiter, "killed")
	token, afterStop := ps.hold(stopped, waiter, "stopped")
	watch := ps.give(stopped, "watch", "stopped")
	ps.ask(stopped, "status", "") // watch has begun
	ps.signal(stopped, syscall.SIGSTOP)
	killed := ps.kill(victim)
	ps.followed("a follower", afterKill, killed, ttl)
	got := ps.get(afterStop)
	ps.signal(stopped, syscall.SIGCONT)
	woken := ps.get(watch)
	t.Logf("stopped for %v; at the first look Hold.Err is %q and ctx.Err is %q", woken.Pause, woken.HoldErr, woken.CtxErr)
	require.Contains(t, woken.HoldErr, "lost")
	require.Equal(t, context.Canceled.Error(), woken.CtxErr)
	require.Equal(t, token, woken.Token)
	var store fencing.MemGuard
	require.NoError(t, store.Admit(t.Context(), "stopped", got.Token))
	require.ErrorIs(t, store.Admit(t.Context(), "stopped", woken.Token), fencing.ErrStale)
	ps.start(victim)
	ps.ready(victim)

	leader := ps.leader()
	_, waits := ps.hold(leader, ps.other(leader), "leader killed")
	ps.followed("the leader", waits, ps.kill(leader), ttl)
}

// followed waits for the grant to who comes after a process that was killed.
func (ps *processes) followed(who string, waits <-chan answer, killed, ttl time.Duration) {
	ps.t.Helper()
	took := ps.get(waits).At - killed
	ps.t.Logf("%s killed: the next was granted after %v of a TTL of %v", who, took, ttl)
	require.Less(ps.t, took, ttl+2*time.Second, "also on a slow machine")
}

// A leader that holds a lock, and whose processor is kept so busy that it neither renews
// nor hears of anything in time, trusts its hold no more when the next is granted.
//
// openshift/origin#7845
func TestProcessesBusyHolder(t *testing.T) {
	t.Parallel()
	ps := newProcesses(t, 1500*time.Millisecond, 300*time.Millisecond)
	leader := ps.leader()
	token, waits := ps.hold(leader, ps.other(leader), "busy")
	busy := ps.give(leader, "busy", "busy")
	got, last := ps.get(waits), ps.get(busy)
	t.Logf("last trusted %v before the next was granted", got.At-last.At)
	require.Less(t, last.At, got.At, "two holders")
	require.Greater(t, got.Token, token)
}

// After all five were killed and started again, tokens go on growing, and what the
// dead held is free at once. And ten restarts of each in turn need no manual step, or
// fifty if longVar is set.
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
	rounds := 10
	if os.Getenv(longVar) != "" {
		rounds = 50
	}
	for round := range rounds {
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
	t.Logf("%d restarts in %v; from a start to the next grant, %v", len(took), bootTime()-begun, took)
}
