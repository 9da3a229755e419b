package quorumlock

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quorumlock/quorumlock/internal/peer"
)

// enough is how long a test waits for what has to happen.
const enough = 20 * time.Second

// listMachine is a stateMachine that remembers the commands it was given.
type listMachine struct {
	mu       sync.Mutex
	list     []string
	index    uint64
	restored int           // snapshots taken over
	saved    int           // snapshots written
	marks    int           // snapshots begun and neither written nor given back
	changed  chan struct{} // closed at each change
	apply1   func(cmd []byte)
	failSave error
}

func newListMachine() *listMachine { return &listMachine{changed: make(chan struct{})} }

func (m *listMachine) apply(entries []logEntry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range entries {
		if e.index <= m.index {
			panic(fmt.Sprintf("entry %d after %d", e.index, m.index))
		}
		if m.apply1 != nil {
			m.apply1(e.cmd)
		}
		m.index = e.index
		m.list = append(m.list, string(e.cmd))
	}
	m.tell()
}

// tell wants m.mu held.
func (m *listMachine) tell() {
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *listMachine) snapshot() func(io.Writer, <-chan struct{}) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	list, index := slices.Clone(m.list), m.index
	m.marks++
	return func(w io.Writer, stop <-chan struct{}) error {
		m.mu.Lock()
		m.marks--
		m.mu.Unlock()
		if w == nil {
			return nil
		}
		b := binary.AppendUvarint(nil, index)
		b = binary.AppendUvarint(b, uint64(len(list)))
		for _, s := range list {
			b = append(binary.AppendUvarint(b, uint64(len(s))), s...)
		}
		_, err := w.Write(b)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.saved++
		m.tell()
		if m.failSave != nil {
			return m.failSave
		}
		return err
	}
}

func (m *listMachine) restore(r io.Reader, _ <-chan struct{}) error {
	in := bufio.NewReader(r)
	index, err := binary.ReadUvarint(in)
	if err != nil {
		return err
	}
	n, err := binary.ReadUvarint(in)
	if err != nil {
		return err
	}
	var list []string
	for range n {
		size, err := binary.ReadUvarint(in)
		if err != nil {
			return err
		}
		b := make([]byte, size)
		if _, err := io.ReadFull(in, b); err != nil {
			return err
		}
		list = append(list, string(b))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.list, m.index = list, index
	m.restored++
	m.tell()
	return nil
}

func (m *listMachine) snapshotOfList() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.list)
}

// await waits until ok, which is called with m.mu held.
func (m *listMachine) await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	late := time.After(enough)
	for {
		m.mu.Lock()
		done, changed := ok(), m.changed
		m.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-late:
			t.Fatalf("%s: waited %v", what, enough)
		}
	}
}

func (m *listMachine) awaitLen(t testing.TB, n int) {
	t.Helper()
	m.await(t, fmt.Sprintf("%d entries", n), func() bool { return len(m.list) >= n })
}

// testReplica is a replica on its own, over a listMachine.
type testReplica struct {
	engine
	identity
	*listMachine
	leads   chan leadership
	refused chan error
}

// replicas is a cluster of them, on loopback.
type replicas struct {
	t       testing.TB
	options map[uint64]Options
	running map[uint64]*testReplica
	machine func() *listMachine
	once    bool
}

func freeAddresses(t testing.TB, n int) []string {
	t.Helper()
	var addrs []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer func() { _ = l.Close() }()
		addrs = append(addrs, l.Addr().String())
	}
	return addrs
}

// newReplicas prepares n replicas with ids from 1, none of them started. After
// the test all are closed and no goroutine may be left.
func newReplicas(t testing.TB, n int) *replicas {
	t.Helper()
	leaks := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, leaks) })
	c := &replicas{t: t, options: make(map[uint64]Options), running: make(map[uint64]*testReplica), machine: newListMachine}
	members := make(map[uint64]string)
	for i, addr := range freeAddresses(t, n) {
		members[uint64(i+1)] = addr
	}
	for id, addr := range members {
		c.options[id] = Options{
			ReplicaID:       id,
			Address:         addr,
			Members:         members,
			Dir:             t.TempDir(),
			ElectionTimeout: 500 * time.Millisecond,
			Logger:          testLogger(t),
		}
	}
	t.Cleanup(func() {
		for id := range maps.Clone(c.running) {
			c.close(id)
		}
	})
	return c
}

// testLogger shows warnings when the tests run with -v and
// QUORUMLOCK_TEST_LOG is set.
func testLogger(testing.TB) *slog.Logger {
	if os.Getenv("QUORUMLOCK_TEST_LOG") == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func (c *replicas) tryOpen(id uint64) (*testReplica, error) {
	c.t.Helper()
	o, err := c.options[id].complete()
	require.NoError(c.t, err)
	r := &testReplica{listMachine: c.machine(), leads: make(chan leadership, 1000), refused: make(chan error, 10)}
	r.engine, r.identity, err = openReplica(o, r.listMachine, engineEvents{
		leader: func(replica, term uint64) {
			select {
			case r.leads <- leadership{replica, term}:
			default:
			}
		},
		refused: func(err error) { r.refused <- err },
	})
	if err != nil {
		require.Nil(c.t, r.engine)
		return nil, err
	}
	c.running[id] = r
	return r, nil
}

func (c *replicas) open(ids ...uint64) {
	c.t.Helper()
	for _, id := range ids {
		_, err := c.tryOpen(id)
		require.NoError(c.t, err, "replica %d", id)
	}
}

func (c *replicas) openAll() {
	c.t.Helper()
	c.open(slices.Sorted(maps.Keys(c.options))...)
}

func (c *replicas) close(id uint64) {
	c.t.Helper()
	r := c.running[id]
	delete(c.running, id)
	require.NoError(c.t, r.close())
	r.mu.Lock()
	defer r.mu.Unlock()
	require.Zero(c.t, r.marks, "snapshots that were begun and not given back")
}

// leader waits until a majority of the running replicas agrees on one that
// runs.
func (c *replicas) leader() uint64 {
	c.t.Helper()
	late := time.After(enough)
	for {
		votes := make(map[leadership]int)
		for _, r := range c.running {
			replica, term := r.leader()
			votes[leadership{replica, term}]++
		}
		for l, n := range votes {
			if c.running[l.replica] != nil && n > len(c.options)/2 {
				return l.replica
			}
		}
		select {
		case <-c.anyLead():
		case <-late:
			c.t.Fatal("no leader")
		}
	}
}

// anyLead waits for the next leadership event on any running replica, or a
// moment: an event may have been counted already.
func (c *replicas) anyLead() <-chan time.Time { return time.After(5 * time.Millisecond) }

// propose tries until cmd is in the log for sure.
func (c *replicas) propose(id uint64, cmd string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), enough)
	defer cancel()
	require.NoError(c.t, proposeAgain(ctx, c.running[id], cmd))
}

func proposeAgain(ctx context.Context, e engine, cmd string) error {
	for {
		try, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
		err := e.propose(try, []byte(cmd))
		cancel()
		if err == nil || errors.Is(err, ErrClosed) || ctx.Err() != nil {
			return err
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// converge waits until all running replicas hold the same n or more entries.
func (c *replicas) converge(n int) []string {
	c.t.Helper()
	longest := n
	for _, r := range c.running {
		longest = max(longest, len(r.snapshotOfList()))
	}
	var first []string
	for id, r := range c.running {
		r.awaitLen(c.t, longest)
		list := r.snapshotOfList()
		if first == nil {
			first = list
		}
		require.Equal(c.t, first[:longest], list[:longest], "replica %d", id)
	}
	return first
}

func TestReplicaFive(t *testing.T) {
	c := newReplicas(t, 5)
	c.openAll()
	c.leader()
	for id := range c.running {
		require.EqualValues(t, 1, c.running[id].epoch)
		c.propose(id, fmt.Sprint("from ", id))
	}
	list := c.converge(5)
	require.GreaterOrEqual(t, len(list), 5)

	// The leader goes; the others go on.
	old := c.leader()
	c.close(old)
	begun := time.Now()
	now := c.leader()
	t.Logf("new leader after %v", time.Since(begun))
	require.NotEqual(t, old, now)
	c.propose(now, "without it")
	n := len(c.converge(6))

	// It comes back with the same directory and catches up.
	c.open(old)
	require.EqualValues(t, 2, c.running[old].epoch)
	c.running[old].awaitLen(t, n)
	c.propose(old, "back again")
	c.converge(n + 1)

	ctx, cancel := context.WithTimeout(t.Context(), enough)
	defer cancel()
	require.NoError(t, c.running[c.leader()].transfer(ctx, old))
	require.Equal(t, old, c.leader())
	for _, r := range c.running {
		require.Equal(t, c.options[1].Members, r.members())
	}
}

var _ = peer.NewFaults
