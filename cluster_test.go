package quorumlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/internal/peer"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// patience bounds what a test waits for.
const patience = 30 * time.Second

// A cluster is five real nodes in this process, with the real engine, on loopback.
type cluster struct {
	t       testing.TB
	options map[uint64]Options
	faults  *peer.Faults

	mu    sync.Mutex
	nodes map[uint64]*Node
}

// brisk are options with which little time passes: for tests that are not about
// the defaults.
func brisk(o *Options) {
	o.ElectionTimeout = 300 * time.Millisecond
	o.SessionTTL = 1500 * time.Millisecond
}

// newCluster opens five nodes and waits until all are ready. They are closed after
// the test.
func newCluster(t testing.TB, change ...func(*Options)) *cluster {
	t.Helper()
	return newClusterAt(t, freeAddresses(t, 5), change...)
}

func newClusterAt(t testing.TB, addrs []string, change ...func(*Options)) *cluster {
	t.Helper()
	c := &cluster{
		t: t, options: make(map[uint64]Options), nodes: make(map[uint64]*Node), faults: peer.NewFaults(1),
	}
	members := make(map[uint64]string)
	for i, addr := range addrs {
		members[uint64(i+1)] = addr
	}
	for id, addr := range members {
		o := Options{
			ReplicaID: id, Address: addr, Members: members, Dir: t.TempDir(),
			Logger: testLogger(t), faults: c.faults,
		}
		for _, f := range change {
			f(&o)
		}
		c.options[id] = o
	}
	t.Cleanup(func() { c.closeNodes(c.ids()...) })
	c.openNodes(slices.Sorted(maps.Keys(members))...)
	return c
}

// ids are those of the nodes that are open.
func (c *cluster) ids() []uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.nodes))
}

func (c *cluster) node(id uint64) *Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[id]
}

// openNodes opens nodes at the same time and waits until they are ready.
func (c *cluster) openNodes(ids ...uint64) {
	c.t.Helper()
	var wg sync.WaitGroup
	for _, id := range ids {
		wg.Go(func() {
			n, err := Open(c.options[id])
			if err != nil {
				c.t.Errorf("open %d: %v", id, err)
				return
			}
			c.mu.Lock()
			c.nodes[id] = n
			c.mu.Unlock()
		})
	}
	wg.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, id := range ids {
		n := c.node(id)
		require.NotNil(c.t, n)
		require.NoError(c.t, n.Ready(ctx), "replica %d", id)
	}
}

// closeNodes closes nodes at the same time, as a crash would: the others are not
// told.
func (c *cluster) closeNodes(ids ...uint64) {
	c.t.Helper()
	var wg sync.WaitGroup
	for _, id := range ids {
		c.mu.Lock()
		n := c.nodes[id]
		delete(c.nodes, id)
		c.mu.Unlock()
		wg.Go(func() {
			if err := n.Close(); err != nil {
				c.t.Errorf("close %d: %v", id, err)
			}
		})
	}
	wg.Wait()
}

// leader waits until every open node believes in the same open leader.
func (c *cluster) leader() uint64 {
	c.t.Helper()
	var leader uint64
	eventually(c.t, "one leader for all", func() bool {
		seen := make(map[uint64]bool)
		for _, id := range c.ids() {
			leader, _ = c.node(id).groups[0].engine.leader()
			seen[leader] = true
		}
		return len(seen) == 1 && c.node(leader) != nil
	})
	return leader
}

// followers are the open nodes but for the leader.
func (c *cluster) followers() []uint64 {
	leader := c.leader()
	return slices.DeleteFunc(c.ids(), func(id uint64) bool { return id == leader })
}

// eventually waits for something that announces itself by no event.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	late := time.After(patience)
	for pause := time.Millisecond; !ok(); pause = min(2*pause, 50*time.Millisecond) {
		select {
		case <-time.After(pause):
		case <-late:
			t.Fatalf("%s: waited for %v", what, patience)
		}
	}
}

// lead has replica to lead, as asked of another. One that lags on a busy machine declines.
func (c *cluster) lead(ctx context.Context, asked, to uint64) {
	c.t.Helper()
	err := c.node(asked).TransferLeadership(ctx, to)
	for errors.Is(err, ErrTransfer) && ctx.Err() == nil {
		err = c.node(asked).TransferLeadership(ctx, to)
	}
	require.NoError(c.t, err)
}

// idle reports whether nothing is left of any call that was made on the node.
func (n *Node) idle() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.claimCount() == 0 && !slices.ContainsFunc(n.groups, func(g *group) bool { return !g.stream.empty() || len(g.stream.sent) > 0 })
}

// remains describes the state as this node has it.
type remains struct {
	applied       uint64
	locks, claims int
	token         uint64
	bytes         string
}

// remains looks at the state without a mark: the engine may have one.
func (g *group) remains() (r remains) {
	g.machine.read(func(f *lockFSM) {
		r.applied, r.locks, r.token = g.machine.applied, f.table.n, uint64(f.token)
		for _, own := range f.table.members {
			r.claims += len(own.claims)
			for x := own.first; x != 0; x = f.table.at(x).next {
				r.claims++
			}
		}
		b := wire.AppendHead(nil, wire.Head{Token: f.token, Roll: f.roll, Lines: f.table.n})
		for i := range pages {
			b = f.table.encode(b, i)
		}
		r.bytes = string(b)
	})
	return r
}

// goesOn takes and frees a lock on every node. A node whose session was lost in what
// went before may say so once.
func goesOn(t testing.TB, nodes map[uint64]*Node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for id, n := range nodes {
		nothing := func(context.Context, fencing.Token) error { return nil }
		err := n.Do(ctx, "goes on", nothing)
		if errors.Is(err, ErrSessionExpired) {
			err = n.Do(ctx, "goes on", nothing)
		}
		require.NoError(t, err, "replica %d", id)
	}
}

// settled waits until nothing is left of any call, here or in the state, and all
// replicas have the same state at the same index.
func settled(t testing.TB, nodes map[uint64]*Node) {
	t.Helper()
	var left string
	defer func() {
		if left != "" {
			t.Error(left)
		}
	}()
	eventually(t, "no claim on any node, one state on all", func() bool {
		left = leftOver(nodes)
		return left == ""
	})
}

// leftOver tells what of any call is left, or in what the replicas differ.
func leftOver(nodes map[uint64]*Node) (left string) {
	for id, n := range nodes {
		if wrong := n.miscounted(); wrong != "" {
			return fmt.Sprintf("node %d: %s", id, wrong)
		}
		if !n.idle() {
			n.mu.Lock()
			defer n.mu.Unlock()
			return fmt.Sprintf("node %d: %d claims, stream %+v", id, n.claimCount(), n.groups[0].stream)
		}
		for i := range n.groups {
			left = cmp.Or(left, leftIn(i, nodes))
		}
	}
	return left
}

// leftIn is leftOver for the state of one group.
func leftIn(group int, nodes map[uint64]*Node) string {
	var first *remains
	for id, n := range nodes {
		r := n.groups[group].remains()
		if r.locks != 0 || r.claims != 0 {
			return fmt.Sprintf("replica %d at index %d: %d locks, %d claims", id, r.applied, r.locks, r.claims)
		}
		switch {
		case first == nil:
			first = &r
		case r.applied != first.applied:
			return fmt.Sprintf("one is at index %d, another at %d", first.applied, r.applied)
		case r.bytes != first.bytes:
			return fmt.Sprintf("states differ at index %d", r.applied)
		}
	}
	return ""
}
