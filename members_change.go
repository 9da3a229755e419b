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
	return c.run(ctx, func(m membership) (*memberChange, bool, error) {
		next, err := c.add(ctx, m, id, address)
		return next, next == nil, err
	})
}

// RemoveReplica takes a replica out of the cluster for good, dead or alive, and returns
// once it is out. Its id can never be used again. The replica, if it runs or when it
// comes back, is refused by the others: its calls return ErrRemoved, and what it held is
// lost. If it leads, another is asked to lead first.
//
// It removes nothing, and returns an error matching ErrLastVoter, if nobody else votes;
// ErrMajority, if too few of the other voters can be reached: what was needed for any
// further change would be lost; or ErrNotMember. That it was removed already is success.
// If ctx ends first the error matches ErrNoQuorum or ErrUnfinished, and ctx's error: the
// change may still be made a moment later.
func (n *Node) RemoveReplica(ctx context.Context, id uint64, opts ...ChangeOption) error {
	if err := checkCtx(ctx); err != nil {
		return err
	}
	c := n.newChange(opts)
	err := c.run(ctx, func(m membership) (*memberChange, bool, error) {
		next, err := c.remove(ctx, m, id)
		return next, next == nil, err
	})
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
		return fmt.Errorf("%w: %w: %d is the one to be replaced", ErrMember, ErrUsedReplica, id)
	}
	c := n.newChange(opts)
	return c.run(ctx, func(m membership) (*memberChange, bool, error) {
		return c.replace(ctx, m, dead, id, address)
	})
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
	n       *Node
	opts    changeOptions
	told    map[uint64]Step // the last step of each
	met     bool            // the others were told where the new replica is
	waiting string          // for what
}

func (n *Node) newChange(opts []ChangeOption) *change {
	c := &change{n: n, told: make(map[uint64]Step)}
	for _, opt := range opts {
		opt(&c.opts)
	}
	return c
}

// run looks at the membership, has plan say what is to be changed next, tries that, and
// looks again, until plan is done. Each change is conditional on what plan saw.
func (c *change) run(ctx context.Context, plan func(membership) (next *memberChange, done bool, err error)) error {
	n := c.n
	for backoff := minBackoff; ; backoff = min(2*backoff, maxBackoff) {
		m, err := n.membership(ctx)
		if err != nil && c.waiting != "" && ctx.Err() != nil {
			return fmt.Errorf("%w: waiting for %s: %w", ErrUnfinished, c.waiting, err)
		}
		if err != nil {
			return err
		}
		next, done, err := plan(m)
		if err != nil || done {
			return err
		}
		if next != nil {
			try, cancel := n.clk.WithTimeout(ctx, n.opts.ElectionTimeout)
			err = n.engine.change(try, m.last, *next)
			cancel()
			if err == nil {
				backoff = minBackoff
				continue
			}
			n.log.Debug("change of members tried", "replica", next.replica, "err", err)
		}
		t := n.clk.Timer(backoff)
		select {
		case <-t.C:
		case <-n.ctx.Done():
		case <-ctx.Done():
			t.Stop()
			return &ctxError{fmt.Errorf("%w: waiting for %s", ErrUnfinished, c.waiting), ctx.Err()}
		}
		t.Stop()
	}
}

// membership is a look at the membership that is linearizable.
func (n *Node) membership(ctx context.Context) (m membership, err error) {
	err = n.inquire(ctx, func(try context.Context) (err error) {
		m, err = n.engine.membership(try)
		return err
	})
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

// add returns the change that adds a replica, or nil when it is a member.
func (c *change) add(ctx context.Context, m membership, id uint64, address string) (*memberChange, error) {
	if err := m.addable(id, address); err != nil {
		return nil, err
	}
	if !c.met {
		if err := c.n.engine.introduce(ctx, id, address); err != nil {
			return nil, err
		}
		c.met = true
	}
	if m.member(id) != nil {
		c.reached(id, StepAdded)
		return nil, nil
	}
	c.waiting = fmt.Sprintf("replica %d to be added", id)
	return &memberChange{op: addMember, replica: id}, nil
}

// remove returns the change that removes a replica, or nil when it is out.
func (c *change) remove(ctx context.Context, m membership, id uint64) (*memberChange, error) {
	member := m.member(id)
	switch {
	case m.removed[id]:
		c.reached(id, StepRemoved)
		return nil, nil
	case member == nil:
		return nil, fmt.Errorf("%w: %d, of %v", ErrNotMember, id, m.ids())
	}
	if member.Voting {
		if err := c.spare(ctx, m, id); err != nil {
			return nil, err
		}
	}
	c.waiting = fmt.Sprintf("replica %d to be removed", id)
	return &memberChange{op: removeMember, replica: id}, nil
}

// spare checks that the others go on without a voter, and has another lead than it.
func (c *change) spare(ctx context.Context, m membership, id uint64) error {
	n := c.n
	rest := slices.DeleteFunc(m.voters(), func(v uint64) bool { return v == id })
	if len(rest) == 0 {
		return fmt.Errorf("%w: %d", ErrLastVoter, id)
	}
	alive := n.engine.alive(ctx, m)
	var up []uint64
	for _, v := range rest {
		if alive[v] {
			up = append(up, v)
		}
	}
	if 2*len(up) <= len(rest) {
		return fmt.Errorf("%w: without replica %d, of the voters %v only %v could be reached", ErrMajority, id, rest, up)
	}
	for _, to := range up {
		if leader, _ := n.engine.leader(); leader != id {
			return nil
		}
		try, cancel := n.clk.WithTimeout(ctx, n.opts.ElectionTimeout)
		if err := n.engine.transfer(try, to); err != nil { // an election does it otherwise
			n.log.Info("could not hand over leadership", "to", to, "err", err)
		}
		cancel()
	}
	return nil
}

// replace returns the next change on the way from dead to id.
func (c *change) replace(ctx context.Context, m membership, dead, id uint64, address string) (next *memberChange, done bool, err error) {
	if err := m.addable(id, address, dead); err != nil {
		return nil, false, err
	}
	if m.member(dead) != nil && c.n.engine.alive(ctx, m)[dead] {
		return nil, false, fmt.Errorf("%w: %d was heard a moment ago: add %d first and remove the other then", ErrReplicaAlive, dead, id)
	}
	if next, err = c.remove(ctx, m, dead); next != nil || err != nil {
		return next, false, err
	}
	if next, err = c.add(ctx, m, id, address); next != nil || err != nil {
		return next, false, err
	}
	member := m.member(id)
	switch {
	case member.Voting:
		c.reached(id, StepVotes)
		return nil, true, nil
	case member.NoVote && len(m.voters()) < MaxVoters:
		return nil, false, fmt.Errorf("%w: replica %d is a member, and takes no vote: its Options.NonVoting is set", ErrMember, id)
	case len(m.voters()) >= MaxVoters:
		return nil, true, nil
	case m.heard[id]:
		c.reached(id, StepStarted)
		c.waiting = fmt.Sprintf("replica %d to catch up", id)
	default:
		c.waiting = fmt.Sprintf("replica %d to be started at %s with Options.Join", id, member.Address)
	}
	return nil, false, nil
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

func (m membership) member(id uint64) *Member {
	for i := range m.members {
		if m.members[i].ID == id {
			return &m.members[i]
		}
	}
	return nil
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
	select {
	case <-n.booted: // this replica has applied all that was before its own life
	case <-n.ctx.Done():
		return
	}
	votes := len(n.opts.Members) > 0 || n.opts.NonVoting
	warned := ""
	for pause := time.Duration(0); n.later(pause, n.moved); {
		pause = memberPause
		if risk := n.zoneRisk(n.engine.members()); risk != warned {
			if warned = risk; risk != "" {
				n.log.Warn("zones", "risk", risk)
			}
		}
		if !votes {
			done, err := n.takeVote()
			if err != nil {
				n.log.Debug("no vote yet", "err", err)
				pause = n.opts.ElectionTimeout
			}
			votes = done
		}
	}
}

// takeVote reports whether this replica has a vote, and tries to get one if there is one
// to be had. It is up to date: it has just read the membership through its own log. Two
// that try at once cannot both have the last vote, as each change is conditional.
func (n *Node) takeVote() (done bool, err error) {
	try, cancel := n.clk.WithTimeout(n.ctx, n.opts.ElectionTimeout)
	defer cancel()
	m, err := n.engine.membership(try)
	if err != nil {
		return false, err
	}
	self := m.member(n.opts.ReplicaID)
	switch {
	case self == nil:
		return false, fmt.Errorf("%w: %d", ErrNotMember, n.opts.ReplicaID)
	case self.Voting:
		return true, nil
	case len(m.voters()) >= MaxVoters:
		return false, nil
	}
	if err := n.engine.change(try, m.last, memberChange{op: promoteMember, replica: n.opts.ReplicaID}); err != nil {
		return false, err
	}
	n.log.Info("members change", "replica", n.opts.ReplicaID, "step", string(StepVotes))
	return true, nil
}

// onMembers is called by the engine when the membership may have changed.
func (n *Node) onMembers() {
	select {
	case n.moved <- struct{}{}:
	default:
	}
}

// zoneRisk says which zone's loss would take the majority of the voters, or "". Who says
// no zone is in one of its own.
func (n *Node) zoneRisk(voters map[uint64]string) string {
	if len(voters) < 3 {
		return "" // any arrangement of so few has that
	}
	zones := make(map[string]int)
	for id := range voters {
		if zone := n.engine.zone(id); zone != "" {
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
