package election_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/election"
	"github.com/quorumlock/quorumlock/fencing"
)

// This test runs five replicas as five processes that run for one election, kills and
// stops them, and compares the times at which their terms lived, by one clock that all
// processes of a machine share. The test binary starts itself; roleVar carries what
// the child is to be.

const (
	patience     = 30 * time.Second
	maxChildLife = 2 * time.Minute // ends a child that its parent forgot

	ttl             = 2500 * time.Millisecond
	electionTimeout = 500 * time.Millisecond
)

// A role is the options of a child's replica.
type role struct {
	ID           uint64
	Address, Dir string
	Members      map[uint64]string
}

// A line is what a child says of itself, and its parent adds who said it.
type line struct {
	What  string // ready, begun, live, ended, returned, stopped
	Token fencing.Token
	At    time.Duration
	Cause string // ended: why
	Live  time.Duration

	id   uint64
	life int
}

// clock is the time since the machine started.
func clock() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(err)
	}
	return time.Duration(ts.Nano())
}

// playRole is the child. It stops cleanly when its input ends.
func playRole(text string) int {
	time.AfterFunc(maxChildLife, func() { os.Exit(3) })
	var r role
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	node, err := quorumlock.Open(quorumlock.Options{
		ReplicaID: r.ID, Address: r.Address, Dir: r.Dir, Members: r.Members,
		SessionTTL: ttl, ElectionTimeout: electionTimeout,
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	defer func() {
		bounded, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = node.Shutdown(bounded)
	}()
	out := json.NewEncoder(os.Stdout)
	var mu sync.Mutex
	say := func(l line) {
		mu.Lock()
		defer mu.Unlock()
		_ = out.Encode(l) // a parent that is gone reads nothing
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	if err := node.Ready(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	say(line{What: "ready"})
	err = election.Run(ctx, node, "lead", func(ctx context.Context, term *election.Term) error {
		lead(ctx, term, say)
		return ctx.Err()
	})
	say(line{What: "stopped", At: clock(), Cause: err.Error()})
	return 0
}

// lead tells of each moment at which it knows that its term was live. Each time is read
// before the look at ctx that confirms it: the process may be stopped in between, and
// was live then at the time that was read.
func lead(ctx context.Context, term *election.Term, say func(line)) {
	begun := clock()
	if ctx.Err() != nil {
		return
	}
	say(line{What: "begun", Token: term.Token(), At: begun})
	live, told := begun, begun
	for {
		now := clock()
		if ctx.Err() != nil {
			break
		}
		live = now
		if live-told > 20*time.Millisecond {
			say(line{What: "live", Token: term.Token(), At: live})
			told = live
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Millisecond):
		}
	}
	say(line{What: "ended", Token: term.Token(), At: clock(), Live: live, Cause: context.Cause(ctx).Error()})
}

// A company is five children.
type company struct {
	t     *testing.T
	roles map[uint64]role
	said  chan line

	running map[uint64]*child
	lives   map[uint64]int
	stopped int // children whose Run has returned
	terms   map[fencing.Token]*span
}

type child struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	gone chan struct{}
}

// A span is the time for which a term was certainly live, as its holder saw it.
type span struct {
	id       uint64
	life     int
	from, to time.Duration
	ended    bool
}

func newCompany(t *testing.T) *company {
	t.Helper()
	c := &company{t: t, roles: make(map[uint64]role), said: make(chan line, 10_000),
		running: make(map[uint64]*child), lives: make(map[uint64]int), terms: make(map[fencing.Token]*span)}
	members := make(map[uint64]string)
	for i, addr := range freeAddresses(t, 5) {
		members[uint64(i+1)] = addr
	}
	for id, addr := range members {
		c.roles[id] = role{ID: id, Address: addr, Dir: t.TempDir(), Members: members}
	}
	t.Cleanup(func() {
		for id := range c.running {
			c.kill(id)
		}
	})
	return c
}

func freeAddresses(t testing.TB, n int) (addrs []string) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer l.Close()
		addrs = append(addrs, l.Addr().String())
	}
	return addrs
}

func (c *company) start(id uint64) {
	c.t.Helper()
	text, err := json.Marshal(c.roles[id])
	require.NoError(c.t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVar+"="+string(text))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(c.t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(c.t, err)
	require.NoError(c.t, cmd.Start())
	c.lives[id]++
	life := c.lives[id]
	p := &child{cmd: cmd, in: in, gone: make(chan struct{})}
	c.running[id] = p
	go func() {
		defer close(p.gone)
		dec := json.NewDecoder(bufio.NewReader(out))
		for {
			l := line{id: id, life: life}
			if dec.Decode(&l) != nil {
				_ = cmd.Wait() // it was killed, or has stopped
				return
			}
			c.said <- l
		}
	}()
}

func (c *company) kill(id uint64) {
	p := c.running[id]
	delete(c.running, id)
	_ = p.cmd.Process.Kill() // it may have ended by itself
	for {
		select {
		case <-p.gone:
			return
		case l := <-c.said:
			c.note(l)
		}
	}
}

// note keeps the books. Lines of one child come in order, those of several do not.
func (c *company) note(l line) {
	s := c.terms[l.Token]
	switch l.What {
	case "begun":
		require.Nil(c.t, s, "two terms with token %s", l.Token)
		c.terms[l.Token] = &span{id: l.id, life: l.life, from: l.At, to: l.At}
	case "live":
		s.to = l.At
	case "ended":
		require.False(c.t, s.ended, "every start has one stop")
		s.to, s.ended = l.Live, true
	case "stopped":
		require.Contains(c.t, l.Cause, context.Canceled.Error())
		c.stopped++
		for token, s := range c.terms {
			require.True(c.t, s.ended || s.id != l.id || s.life != l.life, "term %s of %d has no stop", token, s.id)
		}
	}
}

// await waits for a line.
func (c *company) await(what string, match func(line) bool) line {
	c.t.Helper()
	late := time.After(patience)
	for {
		select {
		case l := <-c.said:
			c.note(l)
			if l.What == what && match(l) {
				return l
			}
		case <-late:
			c.t.Fatalf("no %q", what)
		}
	}
}

func whoever(line) bool { return true }

func of(id uint64) func(line) bool { return func(l line) bool { return l.id == id } }

// check compares the terms, in the order of their tokens.
func (c *company) check() {
	c.t.Helper()
	var tokens []fencing.Token
	for token := range c.terms {
		tokens = append(tokens, token)
	}
	slices.Sort(tokens)
	for i, token := range tokens[1:] {
		before, s := c.terms[tokens[i]], c.terms[token]
		require.LessOrEqual(c.t, before.to, s.from, "term %s of %d was live at %v, and term %s of %d from %v",
			tokens[i], before.id, before.to, token, s.id, s.from)
	}
}

func TestProcessesTermsNeverOverlap(t *testing.T) {
	begun := clock()
	c := newCompany(t)
	for id := uint64(1); id <= 5; id++ {
		c.start(id)
	}
	for range 5 {
		c.await("ready", whoever)
	}
	leader := c.led()
	t.Logf("five processes ready after %v", clock()-begun)

	// Killed: the next leads within the TTL. It starts again and stands in line.
	for range 2 {
		killed := clock()
		c.kill(leader)
		next := c.await("begun", whoever)
		t.Logf("leader %d killed: %d leads after %v of a TTL of %v", leader, next.id, next.At-killed, ttl)
		require.Less(t, next.At-killed, ttl+5*time.Second, "on a machine however slow")
		c.start(leader)
		c.await("ready", of(leader))
		leader = next.id
	}

	// Stopped for longer than its lease: it finds out at its first look.
	stopped := clock()
	require.NoError(t, c.running[leader].cmd.Process.Signal(syscall.SIGSTOP))
	next := c.await("begun", whoever)
	t.Logf("leader %d stopped: %d leads after %v", leader, next.id, next.At-stopped)
	require.NoError(t, c.running[leader].cmd.Process.Signal(syscall.SIGCONT))
	woken := c.await("ended", of(leader))
	require.Contains(t, woken.Cause, "lost")
	leader = next.id

	// Stopped for a blink: it goes on.
	for _, s := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGCONT} {
		require.NoError(t, c.running[leader].cmd.Process.Signal(s))
	}

	// Asked to end: the next leads at once.
	for round := range 2 {
		asked := clock()
		require.NoError(t, c.running[leader].in.Close())
		next = c.await("begun", func(l line) bool { return l.id != leader })
		t.Logf("leader %d asked to end: %d leads after %v", leader, next.id, next.At-asked)
		require.Less(t, next.At-asked, ttl/2, "far less than any lease, on a machine however slow")
		leader = next.id
		for c.stopped <= round {
			select {
			case l := <-c.said:
				c.note(l)
			case <-time.After(patience):
				t.Fatal("Run has not returned")
			}
		}
	}
	for _, id := range slices.Collect(maps.Keys(c.running)) {
		c.kill(id)
	}
	for len(c.said) > 0 {
		c.note(<-c.said)
	}
	require.Equal(t, 2, c.stopped)
	c.check()
	require.GreaterOrEqual(t, len(c.terms), 6)
	t.Logf("%d terms in %v", len(c.terms), clock()-begun)
}

// led waits for the first leader.
func (c *company) led() uint64 {
	for {
		for _, s := range c.terms {
			return s.id
		}
		c.note(<-c.said)
	}
}
