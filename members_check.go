package quorumlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// What speaks against a change in any group is looked for in all of them, before it is
// made in the first: a call that is refused leaves no replica in some groups only. Each
// group is looked at once more when it is its turn (change.run).

// look returns the membership of every group. Of a group that this replica has left it
// knows that alone, which is enough for who leaves.
func (c *change) look(ctx context.Context, leaves uint64) (all []membership, err error) {
	for _, g := range c.n.groups {
		m, err := c.membership(ctx, g)
		switch {
		case leaves == c.n.opts.ReplicaID && errors.Is(err, errLeft):
			m = membership{removed: map[uint64]bool{leaves: true}}
		case err != nil:
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}

// membership is that of a group. Once something waits to be done, an error says for what.
func (c *change) membership(ctx context.Context, g *group) (membership, error) {
	m, err := g.membership(ctx)
	if err != nil && c.waiting != "" && ctx.Err() != nil {
		err = fmt.Errorf("%w: waiting for %s: %w", ErrUnfinished, c.waiting, err)
	}
	return m, err
}

// alive asks all who are in any group at once.
func (c *change) alive(ctx context.Context, all []membership) map[uint64]bool {
	var everybody membership
	for _, m := range all {
		for _, member := range m.members {
			if everybody.member(member.ID) == nil {
				everybody.members = append(everybody.members, member)
			}
		}
	}
	return c.n.host.alive(ctx, everybody)
}

// addable tells why a replica cannot be added, if it cannot.
func (c *change) addable(ctx context.Context, id uint64, address string) error {
	all, err := c.look(ctx, 0)
	if err != nil {
		return err
	}
	for _, m := range all {
		if err := m.addable(id, address); err != nil {
			return err
		}
	}
	return nil
}

// replaceable tells why a dead replica cannot be replaced by a new one, if it cannot.
func (c *change) replaceable(ctx context.Context, dead, id uint64, address string) error {
	all, err := c.look(ctx, 0)
	if err != nil {
		return err
	}
	member := false
	for _, m := range all {
		if err := m.addable(id, address, dead); err != nil {
			return err
		}
		if m.member(dead) != nil && m.votes(id) {
			return fmt.Errorf("%w: %d is a member that votes already: the new one needs an id that was never used", ErrMember, id)
		}
		member = member || m.member(dead) != nil
	}
	if member && c.alive(ctx, all)[dead] {
		return fmt.Errorf("%w: %d was heard within the last %v: if it has just ended, call again then; "+
			"if it works, add %d first and remove %d when that is ready", ErrReplicaAlive, dead, 2*c.n.opts.ElectionTimeout, id, dead)
	}
	return nil // the rest is for remove to say
}

// removable tells why a replica cannot be removed, if it cannot.
func (c *change) removable(ctx context.Context, id uint64) error {
	all, err := c.look(ctx, id)
	if err != nil {
		return err
	}
	known := func(m membership) bool { return m.removed[id] || m.member(id) != nil }
	if !slices.ContainsFunc(all, known) {
		return fmt.Errorf("%w: %d, of %v", ErrNotMember, id, all[0].ids())
	}
	if !slices.ContainsFunc(all, func(m membership) bool { return m.votes(id) }) {
		return nil
	}
	alive := c.alive(ctx, all)
	for _, m := range all {
		if err := m.removable(id, alive); err != nil {
			return err
		}
	}
	return nil
}

// addable tells why a replica cannot be added once those that leave are gone, if it
// cannot.
func (m membership) addable(id uint64, address string, leave ...uint64) error {
	if m.removed[id] {
		return fmt.Errorf("%w: %d was removed, and an id is never used twice", ErrUsedReplica, id)
	}
	for _, other := range m.members {
		if other.ID != id && other.Address == address && !slices.Contains(leave, other.ID) {
			return fmt.Errorf("%w: %q is the address of replica %d", ErrMember, address, other.ID)
		}
	}
	return nil
}

// removable tells why a replica cannot be removed, if it cannot, given who is alive.
func (m membership) removable(id uint64, alive map[uint64]bool) error {
	rest, up := m.without(id, alive)
	switch {
	case !m.votes(id):
		return nil
	case len(rest) == 0:
		return fmt.Errorf("%w: %d; of the members %v nobody else votes: add others first, and wait until they do", ErrLastVoter, id, m.ids())
	case 2*len(up) <= len(rest):
		return fmt.Errorf("%w: without replica %d, of the voters %v only %v could be reached", ErrMajority, id, rest, up)
	}
	return nil
}

// without are the voters but for one, and which of them are alive.
func (m membership) without(id uint64, alive map[uint64]bool) (rest, up []uint64) {
	rest = slices.DeleteFunc(m.voters(), func(v uint64) bool { return v == id })
	up = slices.DeleteFunc(slices.Clone(rest), func(v uint64) bool { return !alive[v] })
	return rest, up
}
