package quorumlock

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// membershipSoon asks until there is an answer.
func (c *replicas) membershipSoon(id uint64) membership {
	c.t.Helper()
	var m membership
	eventually(c.t, "the membership", func() (ok bool) {
		ctx, cancel := context.WithTimeout(context.Background(), enough)
		defer cancel()
		var err error
		m, err = c.running[id].membership(ctx)
		return err == nil
	})
	return m
}

// changeSoon has id make a change, as often as it takes.
func (c *replicas) changeSoon(id uint64, next memberChange, done func(membership) bool) {
	c.t.Helper()
	eventually(c.t, fmt.Sprintf("change %+v", next), func() bool {
		m := c.membershipSoon(id)
		if done(m) {
			return true
		}
		ctx, cancel := context.WithTimeout(context.Background(), enough)
		defer cancel()
		_ = c.running[id].change(ctx, m.last, next)
		return false
	})
}

// A replica that joins is brought up by the leader's snapshot, is given a vote, and
// restarts as any other, from entries and from snapshots, of before and after it had
// the vote.
func TestReplicaJoins(t *testing.T) {
	before := tuning
	tuning.snapshotEntries, tuning.compactionOverhead = 50, 5
	defer func() { tuning = before }()
	c := newReplicas(t, 3)
	c.openAll()
	leader := c.running[c.leader()]
	n := 0
	fill := func(proposer uint64) {
		for range 120 {
			c.propose(proposer, "x")
			n++
		}
		n = len(c.converge(n))
	}
	fill(c.leader())
	leader.await(t, "snapshots", func() bool { return leader.saved >= 2 })

	ctx, cancel := context.WithTimeout(t.Context(), enough)
	defer cancel()
	addr := freeAddresses(t, 1)[0]
	require.NoError(t, leader.host.introduce(ctx, 4, addr))
	isMember := func(m membership) bool { return m.member(4) != nil }
	votes := func(m membership) bool { return slices.Contains(m.voters(), 4) }
	old := c.membershipSoon(1)
	c.changeSoon(1, memberChange{addMember, 4}, isMember)
	require.ErrorIs(t, leader.change(ctx, old.last, memberChange{removeMember, 3}), errDropped, "there was a change since")
	require.ElementsMatch(t, []uint64{1, 2, 3}, c.membershipSoon(1).voters())

	o := c.options[1]
	o.ReplicaID, o.Address, o.Members, o.Join, o.Dir = 4, addr, nil, true, t.TempDir()
	c.options[4] = o
	c.open(4)
	joined := c.running[4]
	joined.await(t, "the leader's snapshot", func() bool { return joined.restored > 0 })
	restart := func() {
		c.close(4)
		c.change(4, func(o *Options) { o.Join = false })
		c.open(4)
	}
	fill(4)
	restart()
	require.False(t, c.membershipSoon(4).member(4).Voting)
	c.close(4)
	fill(c.leader())
	c.open(4)
	lagged := c.running[4]
	lagged.await(t, "a snapshot in which it has no vote", func() bool { return lagged.restored > 0 })
	fill(4)
	m := c.membershipSoon(1)
	require.ErrorIs(t, leader.change(ctx, m.last, memberChange{promoteMember, 4}), errDropped, "only itself knows whether it is up to date")
	c.changeSoon(4, memberChange{promoteMember, 4}, votes)
	restart()
	c.propose(4, "restarted before a snapshot that has its vote")
	n++
	fill(4)
	restart()
	fill(4)
	require.Len(t, c.running[4].members(), 4)

	// Its vote counts: with one founder down, three of four are a majority.
	for _, id := range []uint64{1, 2, 3} {
		if c.leader() != id {
			c.close(id)
			break
		}
	}
	c.propose(4, "three of four")
	n++
	c.converge(n)
}
