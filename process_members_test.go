//go:build linux

package quorumlock

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/fencing"
)

// load has this process hold a lock of its own for good, and take another again and
// again. It returns once both were had; what goes wrong later is tallied.
func (c *child) load(ctx context.Context, name string) error {
	h, err := c.n.Acquire(ctx, name)
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.holds[name] = h
	c.mu.Unlock()
	go func() {
		<-h.Done()
		c.lose("the hold: %v", h.Err())
	}()
	nothing := func(context.Context, fencing.Token) error { return nil }
	busy := func() error { return c.n.Do(context.Background(), name+", busy", nothing) }
	if err := busy(); err != nil {
		return err
	}
	go func() {
		for {
			if err := busy(); err != nil {
				c.lose("a call: %v", err)
				return
			}
			c.mu.Lock()
			c.grants++
			c.mu.Unlock()
		}
	}()
	return nil
}

func (c *child) lose(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.losses = append(c.losses, fmt.Sprintf(format, args...))
}

// undisturbed checks that of what processes hold nothing was lost, that no call of
// theirs failed, and that each has got a lock since the tally before.
func (ps *processes) undisturbed(before map[uint64]int, ids ...uint64) {
	ps.t.Helper()
	for _, id := range ids {
		eventually(ps.t, "it gets locks", func() bool {
			a := ps.ask(id, "tally", "")
			require.Empty(ps.t, a.Losses, "replica %d", id)
			return a.Grants > before[id]
		})
		before[id] = ps.ask(id, "tally", "").Grants
	}
}

// Under load, each of five processes is killed or shut down and started again, in turn,
// as often as it takes. Nobody else loses anything, or has a call that fails; who was
// restarted has its locks again at once; nobody has to see to anything. Then one dies
// for good and is replaced by a sixth; when it comes back it says that it was removed.
func TestProcessesRollingRestart(t *testing.T) {
	t.Parallel()
	rounds := 3
	if os.Getenv(longVar) != "" {
		rounds = 50
	}
	const ttl, election = 10 * time.Second, 500 * time.Millisecond
	ps := newProcesses(t, ttl, election)
	kept := func(id uint64) string { return fmt.Sprint("kept by ", id) }
	for _, id := range ps.ids() {
		ps.ask(id, "load", kept(id))
	}
	grants := make(map[uint64]int)
	var down spans
	for round := range rounds {
		for id := uint64(1); id <= 5; id++ {
			if round%2 == 1 {
				ps.ask(id, "shutdown", "")
			}
			killed := ps.kill(id)
			started := bootTime()
			ps.start(id)
			ps.ready(id)
			back := ps.ask(id, "load", kept(id))
			require.Less(t, back.At-started, ttl/2, "what its former life held is free before its lease is over")
			down = append(down, back.At-killed)
			grants[id] = 0
			ps.undisturbed(grants, ps.ids()...)
		}
	}
	t.Logf("from the end of a process to its locks' being held again, %v", down)

	dead := ps.leader()
	old := ps.roles[dead]
	ps.kill(dead)
	ps.roles[6] = role{ID: 6, Address: freeAddresses(t, 1)[0], Dir: t.TempDir(), Join: true, TTL: ttl, Election: election}
	ps.start(6)
	began := bootTime()
	asked := ps.other(6)
	var a answer
	eventually(t, "it is replaced once it is taken for dead", func() bool {
		c := ps.order(asked, order{Do: "replace", Dead: dead, Replica: 6, Address: ps.roles[6].Address})
		a = ps.await(c)
		return a.Err == ""
	})
	t.Logf("replaced %v after the kill; the last call took %v", a.At-began, a.At-a.Called)
	ps.ready(6)
	ps.ask(6, "load", kept(6))
	ps.undisturbed(grants, ps.ids()...)

	ps.roles[dead] = old
	ps.start(dead)
	require.Contains(t, ps.await(ps.give(dead, "ready", "")).Err, ErrRemoved.Error())
	ps.undisturbed(grants, ps.other(dead))
}
