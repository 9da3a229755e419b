package quorumlock

import (
	"context"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/peer"
)

// welcomed is a cluster of four founders of which some others are members without a
// vote, over a network that can be cut.
func welcomed(t *testing.T, others ...uint64) (*replicas, *peer.Faults) {
	t.Helper()
	c, network := newReplicas(t, 4), peer.NewFaults(1)
	for id := range c.options {
		c.change(id, func(o *Options) { o.faults = network })
	}
	c.openAll()
	leader := c.leader()
	ctx, cancel := context.WithTimeout(t.Context(), enough)
	defer cancel()
	for i, addr := range freeAddresses(t, len(others)) {
		id := others[i]
		require.NoError(t, c.running[leader].host.introduce(ctx, id, addr))
		c.changeSoon(leader, memberChange{addMember, id}, func(m membership) bool { return m.member(id) != nil })
		o := c.options[1]
		o.ReplicaID, o.Address, o.Members, o.Join, o.Dir = id, addr, nil, true, t.TempDir()
		c.options[id] = o
		c.open(id)
		require.False(t, c.membershipSoon(id).member(id).Voting)
	}
	return c, network
}

// A replica takes a vote only with the welcome, now, of more than half of those who vote: of
// two copies of it, which no voter knows both, at most one can have that. Half of them do not
// do, nor those who have no vote, nor itself, nor who welcomed it before.
func TestReplicaVotesByMostVoters(t *testing.T) {
	c, network := welcomed(t, 5, 6, 7)
	leader := c.leader()
	founders := slices.DeleteFunc([]uint64{1, 2, 3, 4}, func(id uint64) bool { return id == leader })
	for _, id := range []uint64{1, 2, 3, 4, 6, 7} { // so each has welcomed it once
		ctx, cancel := context.WithTimeout(t.Context(), enough)
		defer cancel()
		eventually(t, "a welcome", func() bool {
			_, err := c.running[5].host.(*replica).peers.Dial(ctx, id, c.options[id].Address)
			return err == nil
		})
	}
	network.Cut(5, founders[0])
	network.Cut(5, founders[1])
	ask := func() error { // the leader hears it, and most voters would confirm what it asks for
		ctx, cancel := context.WithTimeout(t.Context(), enough)
		defer cancel()
		return c.running[5].change(ctx, c.membershipSoon(5).last, memberChange{promoteMember, 5})
	}
	for range 3 {
		err := ask()
		require.ErrorIs(t, err, errDropped)
		require.ErrorContains(t, err, "of 4 voters answered")
	}
	require.False(t, c.membershipSoon(leader).member(5).Voting)
	network.Join()
	network.Cut(5, founders[0])
	c.changeSoon(5, memberChange{promoteMember, 5}, func(m membership) bool { return m.member(5).Voting })
}

// A replica of which one voter knows a copy takes no vote, though all others welcome it.
func TestReplicaCopiedTakesNoVote(t *testing.T) {
	c, network := welcomed(t, 5)
	c.close(5)
	original, leader := c.options[5], c.leader()
	knows := uint64(1)
	if leader == knows {
		knows = 2
	}
	for id := range uint64(5) {
		if id != 0 && id != knows {
			network.Cut(5, id)
		}
	}
	c.change(5, func(o *Options) { o.Dir, o.Address = t.TempDir(), freeAddresses(t, 1)[0] })
	require.NoError(t, os.CopyFS(c.options[5].Dir, os.DirFS(original.Dir)))
	c.open(5)
	eventually(t, "one voter knows the copy", func() bool {
		return c.running[knows].host.(*replica).where.book.Address(5) == c.options[5].Address
	})
	c.close(5)

	network.Join()
	network.Cut(5, knows)
	c.options[5] = original
	c.open(5)
	at := c.membershipSoon(5).last
	network.Join()
	ctx, cancel := context.WithTimeout(t.Context(), enough)
	defer cancel()
	err := c.running[5].change(ctx, at, memberChange{promoteMember, 5})
	var refusal *peer.Refusal
	require.ErrorAs(t, err, &refusal)
	require.Equal(t, peer.CodeWiped, refusal.Code)
	require.Equal(t, knows, refusal.By)
	require.ErrorIs(t, <-c.running[5].refused, ErrWiped)
	require.False(t, c.membershipSoon(leader).member(5).Voting)
}
