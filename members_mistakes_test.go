package quorumlock

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// Replicas that were added and then started in a wrong way refuse all others. However many
// they are, those that work go on, founders and those who joined.
func TestMembersMistakenJoiners(t *testing.T) {
	c := newClusterAt(t, freeAddresses(t, 3), brisk)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, c.node(1).AddReplica(ctx, 4, c.joiner(4)))
	c.openNodes(4)
	for id, mistake := range map[uint64]func(*Options){
		5: func(o *Options) { o.Groups = 3 },
		6: func(o *Options) { o.Groups = 4 },
		7: func(o *Options) { o.Join, o.Members = false, map[uint64]string{7: o.Address} },
	} {
		require.NoError(t, c.node(1).AddReplica(ctx, id, c.joiner(id)))
		o := c.options[id]
		mistake(&o)
		n, err := Open(o)
		require.NoError(t, err)
		defer func() { require.NoError(t, n.Close()) }()
	}
	for _, id := range c.ids() {
		eventually(t, "all are refused", func() bool {
			r := c.node(id).host.(*replica)
			r.mu.Lock()
			defer r.mu.Unlock()
			refused := len(r.heard)
			return refused == 3 || id == 4 && refused == 2 // who joined was founded with nobody
		})
	}
	goesOn(t, c.nodes)
	for _, id := range c.ids() {
		require.NoError(t, c.node(id).err())
	}
}

// A replica takes itself out of several groups, one after the other.
func TestMembersRemovesItself(t *testing.T) {
	c := newClusterAt(t, freeAddresses(t, 3), brisk, func(o *Options) { o.Groups = 3 })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	leader := c.leader()
	require.NoError(t, c.node(leader).RemoveReplica(ctx, leader))
	<-c.node(leader).ctx.Done()
	require.ErrorIs(t, c.node(leader).err(), ErrRemoved)
	c.closeNodes(leader)
	for _, id := range c.ids() {
		eventually(t, "it is out of all groups", func() bool {
			removed, err := c.node(id).host.(*replica).removedOfAll()
			return err == nil && removed[leader]
		})
	}
	goesOn(t, c.nodes)
}

// The address of a replica that says it itself is not another's to say.
func TestMembersOwnAddress(t *testing.T) {
	c := newClusterAt(t, freeAddresses(t, 3), brisk)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, c.node(1).AddReplica(ctx, 1, c.options[1].Address), "it is a member already")
	require.ErrorIs(t, c.node(1).AddReplica(ctx, 1, c.joiner(9)), ErrMember)
	members, err := c.node(1).Members(ctx)
	require.NoError(t, err)
	require.Equal(t, c.options[1].Address, members[0].Address)
}
