package quorumlock

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/wire"
)

// Bad calls change nothing, and say what was wrong.
func TestMembersBadCalls(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		leader, term := nodes[1].groups[0].engine.leader()
		for _, to := range []uint64{0, 6} {
			require.ErrorIs(t, nodes[1].TransferLeadership(soon(t), to), ErrNotMember)
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := nodes[1].Members(gone)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, nodes[1].TransferLeadership(gone, 2), context.Canceled)
		//lint:ignore SA1012 that is what is tested
		_, err = nodes[1].Members(nil) //nolint
		require.ErrorIs(t, err, ErrNilContext)
		now, nowTerm := nodes[2].groups[0].engine.leader()
		require.Equal(t, []uint64{leader, term}, []uint64{now, nowTerm})

		s.cut(1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = nodes[1].Members(ctx)
		require.ErrorIs(t, err, ErrNoQuorum)
		require.ErrorIs(t, err, context.DeadlineExceeded)

		require.NoError(t, nodes[3].Close())
		_, err = nodes[3].Members(soon(t))
		require.ErrorIs(t, err, ErrClosed)
		require.ErrorIs(t, nodes[3].TransferLeadership(soon(t), 2), ErrClosed)
	})
}

// Leadership moves on the word of any replica, and takes no lock from anybody. A
// replica that is down is not waited for: while it is, the leader takes no entries.
func TestMembersAndTransfer(t *testing.T) {
	c := newCluster(t, brisk)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	held, err := c.node(1).Acquire(ctx, "job")
	require.NoError(t, err)

	old := c.leader()
	others := c.followers()
	asked, to := others[0], others[1]
	c.lead(ctx, asked, to)
	require.NoError(t, c.node(asked).TransferLeadership(ctx, to), "it leads already")
	require.Equal(t, to, c.leader())
	var all []Member
	eventually(t, "all are met", func() bool {
		all, err = c.node(old).Members(ctx)
		require.NoError(t, err)
		return !slices.ContainsFunc(all, func(m Member) bool { return m.MaxLevel == 0 })
	})
	var want []Member
	for _, id := range c.ids() {
		want = append(want, Member{ID: id, Address: c.options[id].Address, Voting: true, Leader: id == to, MaxLevel: wire.Version})
	}
	require.Equal(t, want, all)
	require.NoError(t, held.Validate(ctx))

	// One that has no vote is shown as such, and cannot lead.
	addr := freeAddresses(t, 1)[0]
	require.NoError(t, c.node(to).AddReplica(ctx, 6, addr))
	all, err = c.node(asked).Members(ctx)
	require.NoError(t, err)
	require.Equal(t, append(want, Member{ID: 6, Address: addr}), all)
	require.ErrorIs(t, c.node(asked).TransferLeadership(ctx, 6), ErrNotMember)
	require.Equal(t, to, c.leader())

	down := others[2] // never 1, whose hold is looked at
	c.closeNodes(down)
	start := time.Now()
	err = c.node(asked).TransferLeadership(ctx, down)
	require.ErrorIs(t, err, ErrTransfer)
	require.NotErrorIs(t, err, context.DeadlineExceeded, "ctx has not ended")
	require.Less(t, time.Since(start), 10*time.Second, "it goes on for as long as ctx allows")
	require.NoError(t, held.Validate(ctx))
}
