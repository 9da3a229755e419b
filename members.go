package quorumlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
)

// A Member is a replica of the cluster, as the log has it.
type Member struct {
	ID       uint64
	Address  string // where it is dialled; empty if this replica was never told
	Zone     string // what it said that it fails together with: Options.Zone
	Voting   bool   // its word counts for a majority
	NoVote   bool   // it has said that it takes no vote: Options.NonVoting
	Leader   bool   // it leads, as this replica believes; of several groups, the first
	MaxLevel int    // the highest feature level that it spoke when this replica last met it; 0 if unknown: see Status.Level
}

// Members returns the replicas of the cluster by id. It is linearizable: it shows
// every change that was complete anywhere before Members was called; who leads, what each
// has said of itself and the addresses are what this replica knows. Errors match ErrClosed, or ErrNoQuorum
// and ctx's error when ctx ended first.
func (n *Node) Members(ctx context.Context) ([]Member, error) {
	if err := checkCtx(ctx); err != nil {
		return nil, err
	}
	m, err := n.groups[0].membership(ctx)
	if err != nil {
		return nil, err
	}
	all := m.members
	leader, _ := n.groups[0].engine.leader()
	for i := range all {
		all[i].Leader = all[i].ID == leader
	}
	slices.SortFunc(all, func(a, b Member) int { return cmp.Compare(a.ID, b.ID) })
	return all, nil
}

// TransferLeadership has replica to lead the groups that are named, or else every group,
// and returns when this replica has heard that it does. Groups are numbered from 0, as in
// Status.Groups. It can be called on any node; if to leads already, nothing happens.
// No session and no hold ends by it.
//
// Once a majority has answered it takes an election timeout at most, whatever ctx
// allows: until to has answered, or half of that time has passed, the leader takes
// no entries, and that must be too short to cost a session. Errors match
// ErrNotMember if to has no vote; ErrGroups if there is no such group; ErrTransfer if to did not lead in time, since it
// is down or behind, and ctx's error too if ctx ended first (leadership may still
// move a moment later); ErrNoQuorum and ctx's error; or ErrClosed.
func (n *Node) TransferLeadership(ctx context.Context, to uint64, groups ...int) error {
	if err := checkCtx(ctx); err != nil {
		return err
	}
	chosen, err := n.chosen(groups)
	if err != nil {
		return err
	}
	// The read is also a round of heartbeats, which tells the others what is
	// committed: a replica that has still to apply something declines to lead.
	if err := atOnce(chosen, func(g *group) error {
		m, err := g.membership(ctx)
		if err == nil && !m.votes(to) {
			err = fmt.Errorf("%w with a vote: %d", ErrNotMember, to)
		}
		return err
	}); err != nil {
		return err
	}
	try, cancel := n.clk.WithTimeout(ctx, n.opts.ElectionTimeout)
	defer cancel()
	err = atOnce(chosen, func(g *group) error { return g.engine.transfer(try, to) })
	switch {
	case err == nil || errors.Is(err, ErrClosed):
		return err
	case n.err() != nil:
		return n.err()
	case ctx.Err() != nil:
		return &ctxError{fmt.Errorf("%w to replica %d", ErrTransfer, to), ctx.Err()}
	}
	return fmt.Errorf("%w to replica %d", ErrTransfer, to)
}

// chosen returns the groups with these numbers, or all for none.
func (n *Node) chosen(numbers []int) (groups []*group, err error) {
	for _, i := range numbers {
		if i < 0 || i >= len(n.groups) {
			return nil, fmt.Errorf("%w: no group %d of %d", ErrGroups, i, len(n.groups))
		}
		groups = append(groups, n.groups[i])
	}
	if groups == nil {
		groups = n.groups
	}
	return groups, nil
}
