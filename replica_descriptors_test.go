//go:build unix

package quorumlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/quorumlock/quorumlock/internal/peer"
)

// The tests of this file take the file descriptors of a process away.

func init() {
	childRoles["few-descriptors"] = childFewDescriptors
	childRoles["few-to-open"] = childFewToOpen
	childRoles["few-for-snapshot"] = childFewForSnapshot
	childRoles["few-to-receive"] = childFewToReceive
}

// waiter is a slog.Handler that waits for one message.
type waiter struct {
	slog.Handler
	message string
	seen    chan struct{}
	once    sync.Once
}

func (w *waiter) Enabled(context.Context, slog.Level) bool { return true }

func (w *waiter) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, w.message) {
		w.once.Do(func() { close(w.seen) })
	}
	return nil
}

// takeDescriptors leaves n to others, until give is called.
func takeDescriptors(n int) (give func(), err error) {
	files, err := takeAll()
	if err != nil {
		return nil, err
	}
	giveBack(&files, n)
	return func() { giveBack(&files, len(files)) }, nil
}

// takeAll leaves no descriptor to others.
func takeAll() (files []*os.File, err error) {
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 256, Max: 256}); err != nil {
		return nil, err
	}
	for {
		f, err := os.Open(os.DevNull)
		if err != nil {
			return files, nil
		}
		files = append(files, f)
	}
}

func giveBack(files *[]*os.File, n int) {
	for range n {
		_ = (*files)[0].Close()
		*files = (*files)[1:]
	}
}

func childFewDescriptors(args []string) error {
	refused := &waiter{Handler: slog.DiscardHandler, message: "cannot accept", seen: make(chan struct{})}
	e, err := childReplica(args[0], args[1], newListMachine(), func(o *Options) { o.Logger = slog.New(refused) })
	if err != nil {
		return err
	}
	if err := childPropose(e, "before"); err != nil {
		return err
	}
	give, err := takeDescriptors(0)
	if err != nil {
		return err
	}
	fmt.Println("> exhausted")
	<-refused.seen
	give()
	if err := childPropose(e, "after"); err != nil {
		return err
	}
	fmt.Println("> survived")
	return e.close()
}

// A process that runs out of descriptors keeps its replica and its port.
func TestReplicaOutOfDescriptors(t *testing.T) {
	addr := freeAddresses(t, 1)[0]
	next, _ := childProcess(t, "few-descriptors", t.TempDir(), addr)
	require.Equal(t, "exhausted", next())
	for range 3 {
		conn, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
	}
	require.Equal(t, "survived", next())
}

// childFewToOpen opens a replica with more descriptors each time.
func childFewToOpen(args []string) error {
	for n, opened := 0, 0; opened < 3; n++ {
		give, err := takeDescriptors(n)
		if err != nil {
			return err
		}
		e, err := childReplica(args[0], args[1], newListMachine(), nil)
		give()
		if err != nil {
			if !errors.Is(err, ErrDirectory) || !strings.Contains(err.Error(), syscall.EMFILE.Error()) {
				return err
			}
			fmt.Println("> refused", n)
			continue
		}
		opened++
		if err := errors.Join(childPropose(e, "x"), e.close()); err != nil {
			return err
		}
		fmt.Println("> opened", n)
	}
	return nil
}

// With too few descriptors Open says so, whichever it is that it lacks, and leaves a
// directory that can be opened when there are enough.
func TestReplicaOpensWithFewDescriptors(t *testing.T) {
	t.Parallel()
	next, _ := childProcess(t, "few-to-open", t.TempDir(), freeAddresses(t, 1)[0])
	var refused, opened int
	for line := next(); line != "ended"; line = next() {
		switch {
		case strings.HasPrefix(line, "refused ") && opened == 0:
			refused++
		case strings.HasPrefix(line, "opened "):
			opened++
		default:
			t.Fatal(line)
		}
	}
	require.Greater(t, refused, 3)
	require.Equal(t, 3, opened)
}

func childFewForSnapshot(args []string) error {
	tuning.snapshotEntries, tuning.compactionOverhead = 20, 5
	waits := &waiter{Handler: slog.DiscardHandler, message: "waits for a file descriptor", seen: make(chan struct{})}
	m := newListMachine()
	e, err := childReplica(args[0], args[1], m, func(o *Options) { o.Logger = slog.New(waits) })
	if err != nil {
		return err
	}
	if err := childPropose(e, "before"); err != nil {
		return err
	}
	give, err := takeDescriptors(0)
	if err != nil {
		return err
	}
	for range 100 {
		if err := childPropose(e, "meanwhile"); err != nil {
			return err
		}
	}
	<-waits.seen
	fmt.Println("> waits, snapshots:", m.saves())
	give()
	for m.saves() == 0 {
		if err := childPropose(e, "after"); err != nil {
			return err
		}
	}
	if err := e.close(); err != nil {
		return err
	}
	fmt.Println("> written")
	return nil
}

// A snapshot that is due while there is no descriptor is written later. The engine alone
// would stop the process.
func TestReplicaSnapshotWaitsForADescriptor(t *testing.T) {
	t.Parallel()
	next, _ := childProcess(t, "few-for-snapshot", t.TempDir(), freeAddresses(t, 1)[0])
	require.Equal(t, "waits, snapshots: 0", next())
	require.Equal(t, "written", next())
}

// lacks is a slog.Handler that tells of each time that a descriptor was missed.
type lacks struct {
	slog.Handler
	what chan string
}

func (l *lacks) Enabled(context.Context, slog.Level) bool { return true }

func (l *lacks) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "cannot accept") || strings.Contains(r.Message, "waits for a file descriptor") {
		select {
		case l.what <- r.Message:
		default:
		}
	}
	return nil
}

// childFewToReceive is replica 3. At each command "exhaust" it takes all descriptors, and gives
// one back whenever one is missed, until it has taken over a snapshot.
func childFewToReceive(args []string) error {
	members := make(map[uint64]string)
	for i, addr := range args[1:] {
		members[uint64(i+1)] = addr
	}
	lacks := &lacks{Handler: slog.DiscardHandler, what: make(chan string, 1)}
	m, orders := newListMachine(), make(chan string, 1000)
	m.apply1 = func(cmd []byte) { orders <- string(cmd) }
	e, err := childReplica(args[0], members[3], m, func(o *Options) {
		o.ReplicaID, o.Members, o.Logger, o.ElectionTimeout = 3, members, slog.New(lacks), 500*time.Millisecond
	})
	if err != nil {
		return err
	}
	for order := <-orders; order != "end"; order = <-orders {
		if order != "exhaust" {
			continue
		}
		files, err := takeAll()
		if err != nil {
			return err
		}
		fmt.Println("> exhausted")
		m.mu.Lock()
		before := m.restored
		m.mu.Unlock()
		for {
			m.mu.Lock()
			now, changed := m.restored, m.changed
			m.mu.Unlock()
			if now > before {
				break
			}
			select {
			case what := <-lacks.what:
				fmt.Println(">", what)
				giveBack(&files, 1)
			case <-changed:
			}
		}
		giveBack(&files, len(files))
		fmt.Println("> received")
	}
	fmt.Println("> has before the end:", slices.Index(m.snapshotOfList(), "end"))
	return e.close()
}

// A replica that is sent a snapshot while it has no descriptors, whichever it is that
// it lacks, takes it over once it has them, and goes on from there.
func TestReplicaReceivesSnapshotWithFewDescriptors(t *testing.T) {
	before := tuning
	tuning.snapshotEntries, tuning.compactionOverhead = 50, 5
	defer func() { tuning = before }()
	c, network := newReplicas(t, 3), peer.NewFaults(1)
	for id := range c.options {
		c.change(id, func(o *Options) { o.faults = network })
	}
	c.open(1, 2)
	next, _ := childProcess(t, "few-to-receive", t.TempDir(), c.options[1].Address, c.options[2].Address, c.options[3].Address)
	missed := make(map[string]int)
	for range 3 {
		c.propose(1, "exhaust")
		require.Equal(t, "exhausted", next())
		network.Isolate(3)
		saves := c.running[1].saves() + c.running[2].saves()
		for range 120 {
			c.propose(1, "x")
		}
		require.GreaterOrEqual(t, c.running[1].saves()+c.running[2].saves(), saves+2)
		network.Join()
		line := next()
		for ; strings.Contains(line, "cannot accept") || strings.Contains(line, "waits for"); line = next() {
			missed[line]++
		}
		require.Equal(t, "received", line)
	}
	require.Greater(t, missed["the engine waits for a file descriptor"], 1)
	c.propose(1, "end")
	require.Equal(t, fmt.Sprint("has before the end: ", slices.Index(c.running[1].snapshotOfList(), "end")), next())
	require.Equal(t, "ended", next())
	t.Log(missed)
}

// A directory that was given back can be had at once, although a process that is being
// started by another part of the program has a copy of what locked it.
func TestDirectoryIsFreeWhileAProcessStarts(t *testing.T) {
	o := used(t)
	d, err := claimDirectory(o)
	require.NoError(t, err)
	inherited, err := unix.Dup(int(d.lock.Fd()))
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Close(inherited)) }()
	d.release()
	d, err = claimDirectory(o)
	require.NoError(t, err)
	d.release()
}
