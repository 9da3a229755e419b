//go:build unix

package quorumlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The tests of this file take the file descriptors of a process away.

func init() {
	childRoles["few-descriptors"] = childFewDescriptors
	childRoles["few-to-open"] = childFewToOpen
	childRoles["few-for-snapshot"] = childFewForSnapshot
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
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 256, Max: 256}); err != nil {
		return nil, err
	}
	var files []*os.File
	for {
		f, err := os.Open(os.DevNull)
		if err != nil {
			break
		}
		files = append(files, f)
	}
	for range n {
		_ = files[0].Close()
		files = files[1:]
	}
	return func() {
		for _, f := range files {
			_ = f.Close()
		}
	}, nil
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
