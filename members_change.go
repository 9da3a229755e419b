package quorumlock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// MaxVoters is how many replicas take a vote by themselves. Who is added beyond them
// has none: more would make each grant wait for more disks, and gain little.
const MaxVoters = 5

// A Step is what has been reached of a change of the members.
type Step string

// The steps of ReplaceReplica. AddReplica and RemoveReplica have one each.
const (
	StepRemoved Step = "removed"  // no majority counts it any more
	StepAdded   Step = "added"    // it is a member without a vote: start it now, with Options.Join
	StepStarted Step = "started"  // it was heard, and is catching up
	StepVotes   Step = "has vote" // it has caught up, and is counted
)

// A ChangeOption changes one thing about a change of the members.
type ChangeOption func(*changeOptions)

type changeOptions struct {
	progress func(replica uint64, step Step)
}

// OnProgress has f called at each step, in the goroutine of the call. A step that was
// reached before the call is told too.
func OnProgress(f func(replica uint64, step Step)) ChangeOption {
	return func(o *changeOptions) { o.progress = f }
}

// AddReplica makes a new replica a member, and returns once it is one; the replica may
// be started, with Options.Join and an empty Dir, before or after. id must never have
// been used; address is where the others dial it. It has no vote at first. When it has
// caught up it takes one, if fewer than MaxVoters replicas have one and its
// Options.NonVoting is not set: nobody has to see to that.
//
// It waits until this node is ready (Ready), so nobody joins before a backup is restored.
// Called again it does no harm: that id is a member already is success. If the replica
// was never heard, the address may be another one then.
//
// Errors match ErrMember if it cannot be added, and ErrUsedReplica too if the id was
// removed; nothing was changed then. If ctx ends first they match ErrNoQuorum or
// ErrUnfinished, and ctx's error: the change may still be made a moment later.
func (n *Node) AddReplica(ctx context.Context, id uint64, address string, opts ...ChangeOption) error {
	if err := checkCtx(ctx); err != nil {
		return err
	}
	if err := checkMember(id, address); err != nil {
		return err
	}
	c := n.newChange(opts)
	return c.add(ctx, id, address)
}

// RemoveReplica takes a replica out of the cluster for good, dead or alive, and returns
// once it is out. Its id can never be used again. The replica, if it runs or when it
// comes back, is refused by the others: its calls return ErrRemoved, and what it held is
// lost. If it leads, another is asked to lead first.
//
// It removes nothing, and returns an error matching ErrLastVoter, if nobody else votes;
// ErrMajority, if too few of the other voters can be reached: what was needed for any
// further change would be lost; or ErrNotMember. That it was removed already is success.
// With several groups, all are looked at before the first is changed. If one of the others
// is lost between the two, the replica may be out of some groups; the same call goes on
// with the rest once it can.
// If ctx ends first the error matches ErrNoQuorum or ErrUnfinished, and ctx's error: the
// change may still be made a moment later.
func (n *Node) RemoveReplica(ctx context.Context, id uint64, opts ...ChangeOption) error {
	if err := checkCtx(ctx); err != nil {
		return err
	}
	c := n.newChange(opts)
	err := c.removable(ctx, id)
	if err == nil {
		err = c.remove(ctx, id)
	}
	if id == n.opts.ReplicaID && errors.Is(err, ErrRemoved) {
		return nil // there is no better way to learn it
	}
	return err
}

// ReplaceReplica puts a new replica in the place of a dead one: it removes the dead one,
// adds the new one, which is to be started with Options.Join and an empty Dir, waits
// until that has caught up, and returns once it has the vote that the dead one had.
// OnProgress tells how far it is. Called again after an error or a crash, it goes on
// where it was.
//
// It changes nothing, and returns an error matching ErrReplicaAlive, if any replica that
// can be asked heard dead within the last two election timeouts: to move a replica that
// works, add the new one first and remove the other then. Other errors are those of
// RemoveReplica and AddReplica.
func (n *Node) ReplaceReplica(ctx context.Context, dead, id uint64, address string, opts ...ChangeOption) error {
	if err := checkCtx(ctx); err != nil {
		return err
	}
	if err := checkMember(id, address); err != nil {
		return err
	}
	if id == dead {
		return fmt.Errorf("%w: %d is the one to be replaced: the new one needs an id that was never used", ErrUsedReplica, id)
	}
	c := n.newChange(opts)
	if err := c.replaceable(ctx, dead, id, address); err != nil {
		return err
	}
	if err := c.removable(ctx, dead); err != nil {
		return err
	}
	if err := c.introduce(ctx, id, address); err != nil { // before anything is changed, as it may refuse
		return err
	}
	if err := c.remove(ctx, dead); err != nil {
		return err
	}
	if err := c.add(ctx, id, address); err != nil {
		return err
	}
	return c.awaitVote(ctx, id)
}

func checkMember(id uint64, address string) error {
	var faults []error
	if id == 0 {
		faults = append(faults, errors.New("id 0: must be a positive number that was never used"))
	}
	checkAddress(func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }, "address", address)
	if len(faults) > 0 {
		return fmt.Errorf("%w: %w", ErrMember, errors.Join(faults...))
	}
	return nil
}

// A change is one call that changes the members.
type change struct {
	n          *Node
	opts       changeOptions
	told       map[uint64]Step // the last step of each
	introduced bool            // who is added
	waiting    string          // for what
}

func (n *Node) newChange(opts []ChangeOption) *change {
	c := &change{n: n, told: make(map[uint64]Step)}
	for _, opt := range opts {
		opt(&c.opts)
	}
	return c
}

// A plan says what is to be changed next in a group, or that nothing is, or that what is
// wanted cannot be. With neither a change nor an end it is asked again a little later.
type plan func(g *group, m membership) (next *memberChange, done bool, err error)

// each has a plan carried out in every group, one after the other.
func (c *change) each(ctx context.Context, p plan) error {
	for _, g := range c.n.groups {
		if err := c.run(ctx, g, p); err != nil {
			return err
		}
	}
	return nil
}

// run looks at the membership of a group, has the plan say what is to be changed next,
// tries that, and looks again, until the plan is done. Each change is conditional on
// what the plan saw.
func (c *change) run(ctx context.Context, g *group, p plan) error {
	n := c.n
	for backoff := minBackoff; ; backoff = min(2*backoff, maxBackoff) {
		m, err := c.membership(ctx, g)
		if err != nil {
			return err
		}
		next, done, err := p(g, m)
		if err != nil || done {
			return err
		}
		if next != nil {
			try, cancel := n.clk.WithTimeout(ctx, n.opts.ElectionTimeout)
			err = g.engine.change(try, m.last, *next)
			cancel()
			if err == nil {
				backoff = minBackoff
				continue
			}
			n.log.Debug("change of members tried", "replica", next.replica, "err", err)
		}
		n.later(backoff, ctx.Done())
		if ctx.Err() != nil {
			return &ctxError{fmt.Errorf("%w: waiting for %s", ErrUnfinished, c.waiting), ctx.Err()}
		}
	}
}

// membership is a look at the membership of a group that is linearizable.
func (g *group) membership(ctx context.Context) (m membership, err error) {
	left := false
	err = g.n.inquire(ctx, func(try context.Context) (err error) {
		m, err = g.engine.membership(try)
		if left = errors.Is(err, errLeft); left {
			return nil
		}
		return err
	})
	if left {
		return m, errLeft
	}
	return m, err
}

// reached tells of a step, once.
func (c *change) reached(replica uint64, step Step) {
	if c.told[replica] == step {
		return
	}
	c.told[replica] = step
	c.n.log.Info("members change", "replica", replica, "step", string(step))
	if c.opts.progress != nil {
		c.opts.progress(replica, step)
	}
}

// add makes a replica a member of every group.
func (c *change) add(ctx context.Context, id uint64, address string) error {
	// Who joins does not know of a backup that is still to be restored (group.awaits), and
	// would be granted what it keeps from others.
	if err := c.n.Ready(ctx); err != nil {
		return err
	}
	if err := c.addable(ctx, id, address); err != nil {
		return err
	}
	err := c.each(ctx, func(_ *group, m membership) (*memberChange, bool, error) {
		if err := m.addable(id, address); err != nil {
			return nil, false, err
		}
		if err := c.introduce(ctx, id, address); err != nil {
			return nil, false, err
		}
		c.waiting = fmt.Sprintf("replica %d to be added", id)
		return &memberChange{op: addMember, replica: id}, m.member(id) != nil, nil
	})
	if err == nil {
		c.reached(id, StepAdded)
	}
	return err
}

// introduce tells everybody where a replica is that is added, once, unless it has said
// itself that it is elsewhere.
func (c *change) introduce(ctx context.Context, id uint64, address string) error {
	if c.introduced {
		return nil
	}
	err := c.n.host.introduce(ctx, id, address)
	c.introduced = err == nil
	return err
}

// remove takes a replica out of every group. One that an addition which was cut short has
// not reached is told all the same that the id is used.
func (c *change) remove(ctx context.Context, id uint64) error {
	out := func(g *group, m membership) (*memberChange, bool, error) {
		if m.removed[id] {
			return nil, true, nil
		}
		if m.votes(id) {
			if err := c.spare(ctx, g, m, id); err != nil {
				return nil, false, err
			}
		}
		c.waiting = fmt.Sprintf("replica %d to be removed", id)
		return &memberChange{op: removeMember, replica: id}, false, nil
	}
	for _, g := range c.n.groups {
		switch err := c.run(ctx, g, out); {
		case id == c.n.opts.ReplicaID && errors.Is(err, errLeft):
			continue // with the groups that it is still in
		case err != nil:
			return err
		}
	}
	c.reached(id, StepRemoved)
	return nil
}

// spare checks that the others go on without a voter, and has another lead than it.
func (c *change) spare(ctx context.Context, g *group, m membership, id uint64) error {
	alive := c.n.host.alive(ctx, m)
	if err := m.removable(id, alive); err != nil {
		return err
	}
	_, up := m.without(id, alive)
	for _, to := range up[:min(len(up), 2)] { // each try is a time without entries
		if leader, _ := g.engine.leader(); leader != id {
			return nil
		}
		if err := g.offer(ctx, to); err != nil { // who declines: an election does it otherwise
			return err
		}
	}
	return nil
}

// awaitVote waits until a new replica has taken the vote that is free.
func (c *change) awaitVote(ctx context.Context, id uint64) error {
	c.waiting = fmt.Sprintf("replica %d to be started", id)
	return c.each(ctx, func(g *group, m membership) (*memberChange, bool, error) {
		member, last := m.member(id), g.index == len(c.n.groups)-1
		switch {
		case member == nil:
			return nil, false, fmt.Errorf("%w: %d, which somebody removed meanwhile", ErrNotMember, id)
		case member.Voting:
			if last {
				c.reached(id, StepVotes)
			}
			return nil, true, nil
		case len(m.voters()) >= MaxVoters:
			return nil, true, nil
		case member.NoVote:
			return nil, false, fmt.Errorf("%w: replica %d is a member, and takes no vote: its Options.NonVoting is set", ErrMember, id)
		case m.heard[id]:
			c.reached(id, StepStarted)
			c.waiting = fmt.Sprintf("replica %d to catch up", id)
		default:
			c.waiting = fmt.Sprintf("replica %d to be started at %s with Options.Join", id, member.Address)
		}
		return nil, false, nil
	})
}

func (m membership) member(id uint64) *Member {
	for i := range m.members {
		if m.members[i].ID == id {
			return &m.members[i]
		}
	}
	return nil
}

func (m membership) votes(id uint64) bool {
	member := m.member(id)
	return member != nil && member.Voting
}

// voters are the ids of those who vote, in order.
func (m membership) voters() []uint64 {
	var voters []uint64
	for _, member := range m.members {
		if member.Voting {
			voters = append(voters, member.ID)
		}
	}
	slices.Sort(voters)
	return voters
}

func (m membership) ids() []uint64 {
	var all []uint64
	for _, member := range m.members {
		all = append(all, member.ID)
	}
	slices.Sort(all)
	return all
}

// memberPause is how often the members are looked at though nothing happened: what a
// replica says of itself makes no event.
const memberPause = 10 * time.Second

// memberLoop takes a vote for this replica, if it has none and there is one to take, and
// warns of zones that would take the majority with them.
func (n *Node) memberLoop() {
	if n.Ready(n.ctx) != nil {
		return
	}
	votes := len(n.opts.Members) > 0 || n.opts.NonVoting
	warned := ""
	for pause := time.Duration(0); n.later(pause, n.moved); {
		pause = memberPause
		if risk := n.zoneRisk(n.groups[0].engine.members()); risk != warned {
			if warned = risk; risk != "" {
				n.log.Warn("zones", "risk", risk)
			}
		}
		if !votes {
			done, err := n.takeVotes()
			if err != nil {
				n.log.Debug("no vote yet", "err", err)
				pause = n.opts.ElectionTimeout
			}
			votes = done
		}
	}
}

// takeVotes reports whether this replica votes in all groups. Who votes in the first one
// is who votes in the others.
func (n *Node) takeVotes() (done bool, err error) {
	for _, g := range n.groups {
		if done, err := g.takeVote(); err != nil || !done {
			return false, err
		}
	}
	return true, nil
}

// takeVote reports whether this replica has a vote in the group, and tries to get one if
// there is one to be had. It is up to date: it has just read the membership through its
// own log. Two that try at once cannot both have the last vote, as each change is
// conditional.
func (g *group) takeVote() (done bool, err error) {
	n, id := g.n, g.n.opts.ReplicaID
	try, cancel := n.clk.WithTimeout(n.ctx, n.opts.ElectionTimeout)
	defer cancel()
	m, err := g.engine.membership(try)
	if err != nil {
		return false, err
	}
	self := m.member(id)
	switch {
	case self == nil:
		return false, fmt.Errorf("%w: %d", ErrNotMember, id)
	case self.Voting:
		return true, nil
	case len(m.voters()) >= MaxVoters:
		return false, nil
	}
	if err := g.engine.change(try, m.last, memberChange{op: promoteMember, replica: id}); err != nil {
		return false, err
	}
	if g.index == 0 {
		n.log.Info("members change", "replica", id, "step", string(StepVotes))
	}
	return true, nil
}

// zoneRisk says which zone's loss would take the majority of the voters, or "". Who says
// no zone is in one of its own.
func (n *Node) zoneRisk(voters map[uint64]string) string {
	if len(voters) < 3 {
		return "" // any arrangement of so few has that
	}
	zones := make(map[string]int)
	for id := range voters {
		if zone := n.host.zone(id); zone != "" {
			zones[zone]++
		}
	}
	for _, zone := range slices.Sorted(maps.Keys(zones)) {
		votes := zones[zone]
		if 2*(len(voters)-votes) <= len(voters) {
			return fmt.Sprintf("zone %q has %d of %d votes: its loss would take the majority", zone, votes, len(voters))
		}
	}
	return ""
}
