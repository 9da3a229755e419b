package quorumlock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/quorumlock/quorumlock/fencing"
)

// joiner prepares the options of a replica that is added to the cluster.
func (c *cluster) joiner(id uint64) (address string) {
	c.t.Helper()
	o := c.options[1]
	o.ReplicaID, o.Address, o.Members, o.Join, o.Dir = id, freeAddresses(c.t, 1)[0], nil, true, c.t.TempDir()
	c.options[id] = o
	return o.Address
}

// awaitMember waits until node asked shows a member as want says.
func (c *cluster) awaitMember(asked, id uint64, what string, want func(m *Member) bool) {
	c.t.Helper()
	eventually(c.t, what, func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		m, err := c.node(asked).groups[0].membership(ctx)
		return err == nil && want(m.member(id))
	})
}

// awaitDead waits until no member that node asked can ask has heard another of late.
func (c *cluster) awaitDead(asked, id uint64) {
	c.t.Helper()
	eventually(c.t, "it is taken for dead", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		m, err := c.node(asked).groups[0].membership(ctx)
		return err == nil && !c.node(asked).host.alive(ctx, m)[id]
	})
}

// A sixth replica locks like any other without a vote, and takes the vote of one that
// is removed. The removed one says so, whether it was up or down, and its id is used up.
func TestMembersAddAndRemove(t *testing.T) {
	c := newCluster(t, brisk)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	addr, mistaken := c.joiner(6), freeAddresses(t, 1)[0]
	asked := c.followers()[0]
	require.NoError(t, c.node(c.followers()[1]).AddReplica(ctx, 6, mistaken))
	require.NoError(t, c.node(asked).AddReplica(ctx, 6, addr), "a mistake that can be mended")
	require.NoError(t, c.node(c.leader()).AddReplica(ctx, 6, addr), "it is a member already")
	c.openNodes(6)
	held, err := c.node(6).Acquire(ctx, "of the sixth")
	require.NoError(t, err)
	require.NotContains(t, c.node(6).Status().Members, uint64(6), "five vote already")
	other := c.joiner(7)
	require.ErrorIs(t, c.node(asked).AddReplica(ctx, 6, other), ErrMember, "it has said itself where it is")
	require.ErrorIs(t, c.node(asked).AddReplica(ctx, 7, addr), ErrMember, "that is the address of the sixth")

	// Who leads is removed by its own word.
	leader := c.leader()
	lost, err := c.node(leader).Acquire(ctx, "of the leader")
	require.NoError(t, err)
	require.NoError(t, c.node(leader).RemoveReplica(ctx, leader))
	<-c.node(leader).ctx.Done()
	require.ErrorIs(t, lost.Err(), ErrRemoved)
	require.ErrorIs(t, lost.Err(), ErrLost)
	_, err = c.node(leader).Acquire(ctx, "no more")
	require.ErrorIs(t, err, ErrRemoved)
	require.ErrorIs(t, c.node(leader).Status().Err, ErrRemoved)
	c.closeNodes(leader)
	_, err = Open(c.options[leader])
	require.ErrorIs(t, err, ErrRemoved, "its directory says so")
	c.awaitMember(6, 6, "the sixth takes the vote", func(m *Member) bool { return m.Voting })
	require.NoError(t, held.Validate(ctx))
	require.NoError(t, c.node(6).RemoveReplica(ctx, leader), "it is out already")
	require.ErrorIs(t, c.node(6).AddReplica(ctx, leader, other), ErrUsedReplica)
	require.ErrorIs(t, c.node(6).RemoveReplica(ctx, 9), ErrNotMember)

	// The sixth votes, and goes on to after a restart, though it joined without a vote.
	c.closeNodes(6)
	o := c.options[6]
	o.Join, o.Address = false, other // and it moves
	c.options[6] = o
	c.openNodes(6)
	c.awaitMember(6, 6, "it votes where it is now", func(m *Member) bool { return m.Voting && m.Address == other })
	c.lead(ctx, 6, 6)

	// One that is down learns of it when it comes back, even with its directory.
	down := c.followers()[0]
	c.closeNodes(down)
	require.NoError(t, c.node(6).RemoveReplica(ctx, down))
	n, err := Open(c.options[down])
	require.NoError(t, err)
	defer func() { require.NoError(t, n.Close()) }()
	require.ErrorIs(t, n.Ready(ctx), ErrRemoved)
	goesOn(t, c.nodes)

	// A founder's directory that is made anew is no way back either.
	require.NoError(t, n.Close())
	require.NoError(t, os.RemoveAll(c.options[down].Dir))
	_, err = Open(c.options[down])
	require.ErrorIs(t, err, ErrRemoved)
}

// A dead replica is replaced in one call, which says how far it is.
func TestMembersReplace(t *testing.T) {
	zones := map[uint64]string{1: "a", 2: "a", 3: "b", 4: "b", 5: "c"}
	c := newCluster(t, brisk, func(o *Options) { o.Zone, o.Groups = zones[o.ReplicaID], 3 })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	addr := c.joiner(6)
	dead := c.followers()[0]
	asked := c.followers()[1]
	for id, zone := range zones {
		c.awaitMember(asked, id, "zones are shown", func(m *Member) bool { return m.Zone == zone })
	}
	require.Empty(t, c.node(asked).Status().Warnings, "2-2-1 is right")
	require.ErrorIs(t, c.node(asked).ReplaceReplica(ctx, dead, 6, addr), ErrReplicaAlive)
	require.Len(t, c.node(asked).Status().Members, 5)
	c.closeNodes(dead)
	c.awaitDead(asked, dead)
	require.ErrorIs(t, c.node(asked).ReplaceReplica(ctx, dead, asked, addr), ErrMember, "it is elsewhere, as it says")
	require.ErrorIs(t, c.node(asked).ReplaceReplica(ctx, dead, asked, c.options[asked].Address), ErrMember, "it votes")
	require.Len(t, c.node(asked).Status().Members, 5, "nothing was changed")
	short, stop := context.WithCancel(ctx)
	defer stop()
	var steps []string
	note := OnProgress(func(replica uint64, step Step) {
		steps = append(steps, string(step))
		if step == StepAdded {
			stop()
		}
	})
	err := c.node(asked).ReplaceReplica(short, dead, 6, addr, note)
	require.ErrorIs(t, err, context.Canceled, "the new one does not run")
	require.ErrorIs(t, err, ErrUnfinished)
	require.ErrorContains(t, err, "replica 6 to be started")
	require.Equal(t, []string{"removed", "added"}, steps)
	c.awaitMember(asked, 6, "no majority waits for a disk that is empty", func(m *Member) bool { return !m.Voting })
	require.Len(t, c.node(asked).Status().Members, 4)
	o := c.options[6]
	if o.Zone = "a"; zones[dead] == "a" {
		o.Zone = "b"
	}
	c.options[6] = o
	steps = nil
	replaced := make(chan error, 1)
	replace := func(n *Node, dead, id uint64, addr string, opts ...ChangeOption) {
		err := n.ReplaceReplica(ctx, dead, id, addr, opts...)
		if err != nil {
			t.Errorf("replace %d by %d: %v", dead, id, err) // while the new one is waited for
		}
		replaced <- err
	}
	go replace(c.node(c.ids()[0]), dead, 6, addr, note)
	c.openNodes(6)
	require.NoError(t, <-replaced)
	require.Equal(t, []string{"removed", "added"}, steps[:2])
	require.Equal(t, "has vote", steps[len(steps)-1])
	c.awaitMember(6, 6, "it knows of its vote", func(m *Member) bool { return m.Voting })
	require.Contains(t, c.node(6).Status().Members, uint64(6))
	goesOn(t, c.nodes)
	eventually(t, "a warning of the zone that has three votes now", func() bool {
		return len(c.node(asked).Status().Warnings) == 1
	})
	require.Contains(t, c.node(asked).Status().Warnings[0], fmt.Sprintf("zone %q has 3 of 5 votes", o.Zone))

	// A disk that is wiped makes a dead replica of it, which runs and says what to do.
	c.closeNodes(6)
	o.Dir = t.TempDir()
	wiped, err := Open(o)
	require.NoError(t, err, "it knows nobody who could tell it")
	defer func() { require.NoError(t, wiped.Close()) }()
	err = wiped.Ready(ctx)
	require.ErrorIs(t, err, ErrWiped)
	require.ErrorContains(t, err, "ReplaceReplica(ctx, 6, id, address)")
	c.awaitDead(asked, 6)
	addr = c.joiner(7)
	go replace(c.node(asked), 6, 7, addr)
	c.openNodes(7)
	require.NoError(t, <-replaced)
	goesOn(t, c.nodes)
}

// A removal that was interrupted between two groups leaves the replica at work in those
// that it is in, and is completed by the same call. So is that of one whose addition was
// interrupted.
func TestMembersInterrupted(t *testing.T) {
	c := newCluster(t, brisk, func(o *Options) { o.Groups = 2 })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	first := c.node(1).groups[0]
	eventually(t, "5 is out of the first group", func() bool {
		m, err := first.membership(ctx)
		require.NoError(t, err)
		if !m.removed[5] {
			_ = first.engine.change(ctx, m.last, memberChange{removeMember, 5})
		}
		return m.removed[5]
	})
	removed, err := c.node(1).host.(*replica).removedOfAll()
	require.NoError(t, err)
	require.NotContains(t, removed, uint64(5), "its peers may not refuse it yet")
	s, err := c.node(5).groups[1].membership(ctx)
	require.NoError(t, err)
	require.True(t, s.member(5).Voting)
	require.NoError(t, c.node(5).err())
	require.NoError(t, c.node(1).RemoveReplica(ctx, 5))
	<-c.node(5).ctx.Done()
	require.ErrorIs(t, c.node(5).err(), ErrRemoved)
	c.closeNodes(5)

	eventually(t, "6 is in the first group", func() bool {
		m, err := first.membership(ctx)
		require.NoError(t, err)
		if m.member(6) == nil {
			_ = first.engine.change(ctx, m.last, memberChange{addMember, 6})
		}
		return m.member(6) != nil
	})
	require.NoError(t, c.node(1).RemoveReplica(ctx, 6), "it was to be a member")
	removed, err = c.node(1).host.(*replica).removedOfAll()
	require.NoError(t, err)
	require.Contains(t, removed, uint64(6))
	goesOn(t, c.nodes)
}

// One by one all founders are replaced while a lock is fought over; then those who came
// later are all restarted, with nothing to know each other by but what they were told.
func TestMembersAllReplaced(t *testing.T) {
	c := newCluster(t, brisk, func(o *Options) {
		o.Groups = 2
		o.SessionTTL = 5 * time.Second // nobody is to lose his on a busy machine
	})
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	var fights errgroup.Group
	var guard fencing.MemGuard
	var grants atomic.Int64
	leave := make(map[uint64]func())
	fight := func(id uint64) {
		n := c.node(id)
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan struct{})
		leave[id] = func() { cancel(); <-left }
		fights.Go(func() error {
			defer close(left)
			for {
				err := n.Do(ctx, "fought over", func(held context.Context, token fencing.Token) error {
					if err := guard.Admit(held, "fought over", token); err != nil {
						return fmt.Errorf("two at once: %w", err)
					}
					grants.Add(1)
					return nil
				})
				if errors.Is(err, context.Canceled) {
					return nil
				}
				if err != nil {
					return err
				}
			}
		})
	}
	for _, id := range c.ids() {
		fight(id)
	}
	for old := uint64(1); old <= 5; old++ {
		id := old + 5
		addr := c.joiner(id)
		require.NoError(t, c.node(old).AddReplica(ctx, id, addr))
		c.openNodes(id)
		fight(id)
		leave[old]() // what it held when it is removed would be free only within its TTL
		require.NoError(t, c.node(id).RemoveReplica(ctx, old))
		<-c.node(old).ctx.Done()
		require.ErrorIs(t, c.node(old).err(), ErrRemoved)
		c.closeNodes(old)
		c.awaitMember(id, id, "it takes the vote", func(m *Member) bool { return m.Voting })
	}
	before := grants.Load()
	eventually(t, "grants", func() bool { return grants.Load() > before })
	for _, id := range c.ids() {
		leave[id]()
	}
	require.NoError(t, fights.Wait())
	c.closeNodes(c.ids()...)

	for id := uint64(6); id <= 10; id++ {
		o := c.options[id]
		o.Join = false
		c.options[id] = o
	}
	c.openNodes(6, 7, 8, 9, 10)
	require.Len(t, c.node(6).Status().Members, 5)
	goesOn(t, c.nodes)
	settled(t, c.nodes)
}

// When no founder is left, those who are started with the Members of then and empty
// directories find a member of today at a founder's address, and do not found the cluster a
// second time. A founder that is started again may have Join in place of Members.
func TestMembersOutOfDate(t *testing.T) {
	for name, named := range map[string]func(*Options){"plain": func(*Options) {}, "TLS": namedBy(t, newCA(t, "ca"))} {
		t.Run(name, func(t *testing.T) { testMembersOutOfDate(t, named) })
	}
}

func testMembersOutOfDate(t *testing.T, named func(*Options)) {
	c := newClusterAt(t, freeAddresses(t, 3), brisk, named)
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	c.closeNodes(2)
	founders := []Options{c.options[1], c.options[2]} // a majority of the three
	o := c.options[2]
	o.Members, o.Join = nil, true
	c.options[2] = o
	c.openNodes(2)
	goesOn(t, c.nodes)

	for i, by := range []uint64{2, 3, 4} {
		old, id := uint64(i+1), uint64(i+4)
		c.joiner(id)
		o := c.options[id]
		named(&o)
		if old == 3 {
			o.Address = c.options[old].Address // it takes the place of a founder
		}
		c.options[id] = o
		require.NoError(t, c.node(by).RemoveReplica(ctx, old))
		<-c.node(old).ctx.Done()
		c.closeNodes(old)
		require.NoError(t, c.node(by).AddReplica(ctx, id, o.Address))
		c.openNodes(id)
		c.awaitMember(id, id, "it takes the vote", func(m *Member) bool { return m.Voting })
	}
	goesOn(t, c.nodes)

	var opening errgroup.Group
	for _, o := range founders {
		o.Dir = t.TempDir()
		opening.Go(func() error {
			n, err := Open(o)
			if err == nil {
				ready := n.Ready(ctx)
				return errors.Join(fmt.Errorf("replica %d founds a second cluster: Ready returns %v", o.ReplicaID, ready), n.Close())
			}
			if !errors.Is(err, ErrMembers) {
				return err
			}
			return nil
		})
	}
	require.NoError(t, opening.Wait())
	goesOn(t, c.nodes)
}

// A founder that starts for the first time when another one was replaced at its address is
// a member all the same, as those who know of that tell it. One that is told of nobody's
// removal and finds two founders in each other's place says so.
func TestMembersLateFounder(t *testing.T) {
	addrs := freeAddresses(t, 4)
	members := map[uint64]string{1: addrs[0], 2: addrs[1], 3: addrs[2], 4: addrs[3]}
	c := newClusterAt(t, addrs[:3], brisk, func(o *Options) { o.Members = members })
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()

	late := c.options[1]
	late.ReplicaID, late.Address, late.Dir = 4, addrs[3], t.TempDir()
	late.Members = map[uint64]string{1: addrs[1], 2: addrs[0], 3: freeAddresses(t, 1)[0], 4: addrs[3]}
	_, err := Open(late)
	require.ErrorIs(t, err, ErrMembers)
	require.ErrorContains(t, err, "Members map[1:"+addrs[1]+" 2:"+addrs[0])
	late.Members = members

	require.NoError(t, c.node(1).RemoveReplica(ctx, 2))
	c.closeNodes(2)
	c.joiner(6)
	o := c.options[6]
	o.Address = addrs[1]
	c.options[6] = o
	require.NoError(t, c.node(1).AddReplica(ctx, 6, o.Address))
	c.openNodes(6)
	eventually(t, "it starts", func() bool { // when those who know have answered in time
		n, err := Open(late)
		if err != nil {
			require.ErrorIs(t, err, ErrMembers)
			return false
		}
		c.mu.Lock()
		c.nodes[4] = n
		c.mu.Unlock()
		return true
	})
	require.NoError(t, c.node(4).Ready(ctx))
	goesOn(t, c.nodes)
}
