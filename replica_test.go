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
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lni/dragonboat/v4/raftpb"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quorumlock/quorumlock/internal/peer"
)

// enough is how long a test waits for what has to happen.
const enough = time.Minute

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

// saves is how many snapshots were written.
func (m *listMachine) saves() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.saved
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
	host engineHost
	identity
	*listMachine
	leads   chan leadership
	refused chan error
}

func (r *testReplica) close() error { return r.host.close() }

// replicas is a cluster of them, on loopback.
type replicas struct {
	t       testing.TB
	options map[uint64]Options
	running map[uint64]*testReplica
	machine func() *listMachine
}

func freeAddresses(t testing.TB, n int) []string {
	t.Helper()
	return freeAddressesOn(t, "127.0.0.1:0", n)
}

func freeAddressesOn(t testing.TB, host string, n int) []string {
	t.Helper()
	var addrs []string
	for range n {
		l, err := net.Listen("tcp", host)
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
	r.host, r.identity, err = openReplica(o, []stateMachine{r.listMachine}, engineEvents{
		leader: func(_ int, replica, term uint64) {
			select {
			case r.leads <- leadership{replica, term}:
			default:
			}
		},
		refused: func(err error) { r.refused <- err },
	})
	if err != nil {
		require.Nil(c.t, r.host)
		return nil, err
	}
	r.engine = r.host.group(0)
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
		case <-time.After(5 * time.Millisecond):
		case <-late:
			c.t.Fatal("no leader")
		}
	}
}

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

// A replica that lags by more than the log keeps gets a snapshot, and so does
// one that restarts.
func TestReplicaSnapshot(t *testing.T) {
	before := tuning
	tuning.snapshotEntries, tuning.compactionOverhead = 100, 10
	defer func() { tuning = before }()
	c := newReplicas(t, 3)
	c.openAll()
	// Together long enough for a snapshot of several blocks and parts; each short
	// enough that a slow disk writes it well within an election timeout.
	for range 64 {
		c.propose(c.leader(), strings.Repeat("long", 1<<14))
	}
	c.converge(64)
	var lagging uint64
	for id := range c.running {
		if id != c.leader() {
			lagging = id
		}
	}
	c.close(lagging)
	ctx, cancel := context.WithTimeout(t.Context(), enough)
	defer cancel()
	leader := c.running[c.leader()]
	for i := range 500 {
		require.NoError(t, proposeAgain(ctx, leader, fmt.Sprint(i)))
	}
	leader.await(t, "snapshots", func() bool { return leader.saved >= 3 })
	n := len(c.converge(564))

	c.open(lagging)
	r := c.running[lagging]
	r.awaitLen(t, n)
	r.await(t, "a snapshot of the leader's", func() bool { return r.restored > 0 })
	c.propose(lagging, "caught up")
	n = len(c.converge(n + 1))

	for id := range c.options {
		c.close(id)
	}
	c.openAll()
	require.Equal(t, n, len(c.converge(n)))
	for id, r := range c.running {
		r.mu.Lock()
		require.Equal(t, 1, r.restored, "replica %d starts from its own snapshot", id)
		r.mu.Unlock()
	}
}

// Close with a thousand proposals under way: they fail or are in the log, and
// the machine is not called afterwards.
func TestReplicaCloseUnderLoad(t *testing.T) {
	c := newReplicas(t, 3)
	c.openAll()
	leader := c.leader()
	for _, id := range []uint64{leader, leader%3 + 1} {
		r := c.running[id]
		var calls sync.WaitGroup
		started := make(chan struct{}, 1000)
		for i := range 1000 {
			calls.Go(func() {
				started <- struct{}{}
				for n := 0; ; n++ {
					err := r.propose(context.Background(), []byte(fmt.Sprint(i, "/", n)))
					if errors.Is(err, ErrClosed) {
						return
					}
					if err != nil && !errors.Is(err, errDropped) && !errors.Is(err, errUnknown) {
						t.Errorf("unexpected error: %v", err)
					}
					if err != nil {
						time.Sleep(10 * time.Millisecond) // as a caller does, who would else keep an election from its processor
					}
				}
			})
		}
		for range 1000 {
			<-started
		}
		before := len(r.snapshotOfList())
		r.awaitLen(t, before+1000)
		for range 3 { // idempotent, also at the same time
			calls.Go(func() { require.NoError(t, r.close()) })
		}
		require.NoError(t, r.close())
		after := len(r.snapshotOfList())
		calls.Wait()
		require.Equal(t, after, len(r.snapshotOfList()), "applied after close")
		require.ErrorIs(t, r.propose(t.Context(), []byte("x")), ErrClosed)
		require.ErrorIs(t, r.barrier(t.Context()), ErrClosed)
		require.ErrorIs(t, r.transfer(t.Context(), 1), ErrClosed)
		require.NotEmpty(t, r.members())
		delete(c.running, id)
	}
}

func TestReplicaBarrier(t *testing.T) {
	c := newReplicas(t, 3)
	c.openAll()
	c.leader()
	for i := range 20 {
		at, from := uint64(i%3+1), uint64((i+1)%3+1)
		c.propose(at, fmt.Sprint(i))
		before := len(c.running[at].snapshotOfList())
		late := time.After(enough)
		for c.running[from].barrier(t.Context()) != nil {
			select {
			case <-late:
				t.Fatal("no barrier")
			default:
			}
		}
		require.GreaterOrEqual(t, len(c.running[from].snapshotOfList()), before)
	}
}

func TestReplicaProposeRefuses(t *testing.T) {
	c := newReplicas(t, 1)
	c.openAll()
	c.leader()
	r := c.running[1]
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := r.propose(ctx, []byte("x"))
	require.ErrorIs(t, err, errDropped)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, r.propose(t.Context(), nil), errDropped)
	require.ErrorIs(t, r.propose(t.Context(), make([]byte, maxEntry+1)), errDropped)
	require.NoError(t, r.propose(t.Context(), make([]byte, maxEntry)), "without a deadline, as long as can be")
	require.Error(t, r.barrier(ctx))
}

// Without a majority nothing is decided, and each call ends with its ctx.
func TestReplicaMinority(t *testing.T) {
	c := newReplicas(t, 3)
	c.faults(peer.NewFaults(1))
	c.openAll()
	leader := c.leader()
	c.propose(leader, "before")
	n := len(c.converge(1))
	c.options[1].faults.Isolate(leader)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	err := c.running[leader].propose(ctx, []byte("alone"))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Error(t, c.running[leader].barrier(t.Context()))
	other := leader%3 + 1
	c.propose(other, "majority")
	c.running[other].awaitLen(t, n+1)
	require.Len(t, c.running[leader].snapshotOfList(), n)
	c.options[1].faults.Heal()
	c.converge(n + 1)
}

// Messages lost, doubled and late: whatever was acknowledged is in all logs.
func TestReplicaChaos(t *testing.T) {
	c := newReplicas(t, 5)
	f := peer.NewFaults(7)
	c.faults(f)
	c.openAll()
	c.leader()
	f.Chaos(0.05, 0.2, 10*time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), enough)
	defer cancel()
	var calls sync.WaitGroup
	for id, r := range c.running {
		calls.Go(func() {
			for i := range 20 {
				if err := proposeAgain(ctx, r, fmt.Sprint(id, "/", i)); err != nil {
					t.Errorf("replica %d: %v", id, err)
				}
			}
		})
	}
	calls.Wait()
	f.Heal()
	c.propose(1, "end")
	list := c.converge(101)
	for id := range c.running {
		for i := range 20 {
			require.Contains(t, list, fmt.Sprint(id, "/", i))
		}
	}
}

func (c *replicas) faults(f *peer.Faults) {
	for id, o := range c.options {
		o.faults = f
		c.options[id] = o
	}
}

func (c *replicas) change(id uint64, change func(o *Options)) {
	o := c.options[id]
	o.Members = maps.Clone(o.Members)
	change(&o)
	c.options[id] = o
}

// A wiped directory under a used id is refused by each peer that lives when it
// starts, and by those that come up later.
func TestReplicaWiped(t *testing.T) {
	c := newReplicas(t, 3)
	c.openAll()
	c.leader()
	c.propose(3, "seen by all")
	c.converge(1)
	c.close(3)
	c.change(3, func(o *Options) { o.Dir = t.TempDir() })
	_, err := c.tryOpen(3)
	require.ErrorIs(t, err, ErrWiped)
	require.ErrorContains(t, err, "replica 1 refuses")
	require.ErrorContains(t, err, "new id")

	c.close(1)
	c.close(2)
	c.open(3) // nobody there who knows better
	c.open(1)
	select {
	case err := <-c.running[3].refused:
		require.ErrorIs(t, err, ErrWiped)
		require.ErrorContains(t, err, "replica 1 refuses")
	case <-time.After(enough):
		t.Fatal("the wiped replica was not told")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	require.Error(t, proposeAgain(ctx, c.running[1], "with the help of one that forgot"))
	c.open(2)
	c.propose(1, "without it")
	require.Empty(t, c.running[3].snapshotOfList())
	require.Empty(t, c.running[1].refused)
	require.Empty(t, c.running[2].refused)
}

// A directory that was put back to an older state is as dangerous: the engine
// alone would stop the process over it, at best.
func TestReplicaRolledBack(t *testing.T) {
	c := newReplicas(t, 3)
	c.openAll()
	c.leader()
	c.propose(3, "one")
	c.close(3)
	backup := t.TempDir()
	require.NoError(t, os.CopyFS(backup, os.DirFS(c.options[3].Dir)))
	c.open(3)
	c.propose(3, "two")
	c.converge(2)
	c.close(3)
	c.change(3, func(o *Options) { o.Dir = backup })
	c.open(3)
	select {
	case err := <-c.running[3].refused:
		require.ErrorIs(t, err, ErrWiped)
		require.ErrorContains(t, err, "old copy")
	case <-time.After(enough):
		t.Fatal("the replica that was put back was not told")
	}
	c.propose(1, "without it")
}

func TestReplicaFoundersDiffer(t *testing.T) {
	c := newReplicas(t, 3)
	c.open(1, 2)
	c.leader()
	c.change(3, func(o *Options) { o.Members[4] = "127.0.0.1:1" })
	_, err := c.tryOpen(3)
	require.ErrorIs(t, err, ErrMembers)
	require.ErrorContains(t, err, "[1 2 3 4]")
	c.propose(1, "undisturbed")

	c.toldLater(ErrMembers)
}

// toldLater has replica 3 open alone, when nobody can refuse it yet: it is told why once
// the others are there, and they are not disturbed by it.
func (c *replicas) toldLater(why error) {
	c.t.Helper()
	c.close(1)
	c.close(2)
	c.open(3)
	c.open(1, 2)
	select {
	case err := <-c.running[3].refused:
		require.ErrorIs(c.t, err, why)
	case <-time.After(enough):
		c.t.Fatal("it was not told")
	}
	c.propose(2, "undisturbed")
	require.Empty(c.t, c.running[1].refused)
	require.Empty(c.t, c.running[2].refused)
}

// Replicas may move: to the engine they are known by their ids.
func TestReplicaMoves(t *testing.T) {
	c := newReplicas(t, 3)
	c.openAll()
	c.leader()
	c.propose(3, "before")
	c.close(3)
	addr := freeAddresses(t, 1)[0]
	c.change(3, func(o *Options) { o.Address, o.Members = addr, nil })
	c.open(3)
	c.propose(3, "it reaches the others")
	// Those who kept the old address in Members need it told; those who were
	// not given any learn it.
	c.close(1)
	c.change(1, func(o *Options) { o.Members = nil })
	c.open(1)
	c.propose(1, "and they reach it")
	c.converge(3)
	late := time.After(enough)
	for c.running[1].members()[3] != addr {
		select {
		case <-late:
			t.Fatalf("members: %v", c.running[1].members())
		case <-time.After(time.Millisecond):
		}
	}
}

func TestReplicaIPv6(t *testing.T) {
	if l, err := net.Listen("tcp", "[::1]:0"); err != nil {
		t.Skip("no IPv6 loopback here")
	} else {
		_ = l.Close()
	}
	c := newReplicas(t, 3)
	members := make(map[uint64]string)
	for i, addr := range freeAddressesOn(t, "[::1]:0", 3) {
		members[uint64(i+1)] = addr
	}
	for id, addr := range members {
		c.change(id, func(o *Options) { o.Address, o.Members = addr, members })
	}
	c.openAll()
	c.propose(2, "six")
	c.converge(1)
}

// A peer's message that is malformed, or not its own, ends its connection.
func FuzzDecodeBatch(f *testing.F) {
	batch := raftpb.MessageBatch{Requests: []raftpb.Message{{
		Type: raftpb.Replicate, From: 2, To: 1, ShardID: shardOf(0),
		Entries: []raftpb.Entry{{Term: 1, Index: 7, Cmd: []byte("cmd")}},
	}}}
	raw, err := batch.Marshal()
	require.NoError(f, err)
	f.Add(raw)
	w := &carrier{self: 1, shards: 1}
	got, err := w.decodeBatch(2, raw)
	require.NoError(f, err)
	require.Equal(f, []byte("cmd"), got.Requests[0].Entries[0].Cmd)
	_, err = w.decodeBatch(3, raw)
	require.ErrorIs(f, err, errForged)
	for _, t := range []raftpb.MessageType{raftpb.LocalTick, raftpb.Unreachable, raftpb.InstallSnapshot} {
		batch.Requests[0].Type = t
		raw, err := batch.Marshal()
		require.NoError(f, err)
		_, err = w.decodeBatch(2, raw)
		require.ErrorIs(f, err, errForged)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := w.decodeBatch(2, b)
		for _, m := range got.Requests {
			require.True(t, err != nil || m.From == 2 && m.To == 1)
		}
	})
}

func TestReplicaClusters(t *testing.T) {
	c := newReplicas(t, 2)
	c.change(2, func(o *Options) { o.Cluster = "another" })
	c.open(1, 2)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	require.Error(t, proposeAgain(ctx, c.running[1], "x"), "two clusters made one majority")
	require.Empty(t, c.running[1].refused)
}

func TestReplicaPortInUse(t *testing.T) {
	c := newReplicas(t, 1)
	l, err := net.Listen("tcp", c.options[1].Address)
	require.NoError(t, err)
	_, err = c.tryOpen(1)
	require.ErrorContains(t, err, c.options[1].Address)
	require.NoFileExists(t, c.options[1].Dir+"/"+markerName)
	require.NoError(t, l.Close())
	c.open(1)
	_, err = c.tryOpen(1)
	require.ErrorIs(t, err, ErrDirectory)
	c.close(1)
	c.open(1)
	c.propose(1, "fine")
}

// Strangers at the port do no harm.
func TestReplicaGarbage(t *testing.T) {
	c := newReplicas(t, 3)
	c.openAll()
	c.leader()
	for _, o := range c.options {
		for _, b := range [][]byte{[]byte("GET / HTTP/1.0\r\n\r\n"), make([]byte, 1<<16), {'q', 'L', 1, 1, 255, 255, 255, 255, 0, 0, 0, 0}} {
			conn, err := net.Dial("tcp", o.Address)
			require.NoError(t, err)
			_, _ = conn.Write(b)
			_ = conn.Close()
		}
	}
	c.propose(2, "fine")
	c.converge(1)
}
