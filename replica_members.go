package quorumlock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/lni/dragonboat/v4"

	"github.com/quorumlock/quorumlock/internal/peer"
)

// membership asks as barrier does: what it reads next is this replica's own.
func (s *shard) membership(ctx context.Context) (membership, error) {
	r := s.r
	if !r.enter() {
		return membership{}, ErrClosed
	}
	defer r.leave()
	if r.where.hasLeft(s.id) {
		return membership{}, errLeft
	}
	ctx, cancel := context.WithTimeout(ctx, r.try) // the engine insists on a deadline
	defer cancel()
	answered := make(chan struct{})
	defer close(answered)
	go func() { // the engine is closed only when nobody calls it any more
		select {
		case <-r.closing:
			cancel()
		case <-answered:
		}
	}()
	all, err := r.host.SyncGetShardMembership(ctx, s.id)
	if err != nil {
		return membership{}, r.closedOr(fmt.Errorf("%w: %w", errUnknown, err))
	}
	m := membership{removed: make(map[uint64]bool), heard: make(map[uint64]bool), last: all.ConfigChangeID}
	for id := range all.Removed {
		m.removed[id] = true
	}
	for voting, some := range map[bool]map[uint64]string{true: all.Nodes, false: all.NonVotings} {
		for id := range some {
			m.members = append(m.members, Member{ID: id, Address: r.where.shown(id), Zone: r.zone(id),
				Voting: voting, NoVote: !r.wantsVote(id), MaxLevel: r.speaks(id)})
			m.heard[id] = id == r.id || r.where.book.Heard(id)
		}
	}
	return m, nil
}

// change asks the engine for one change. A vote is given only to a replica that most
// voters have on record by now, so that no two copies of it can each have one.
func (s *shard) change(ctx context.Context, at uint64, c memberChange) error {
	r := s.r
	if !r.enter() {
		return ErrClosed
	}
	defer r.leave()
	var (
		state  *dragonboat.RequestState
		err    error
		target = hostID(r.dir.marker.Cluster, c.replica)
	)
	switch c.op {
	case addMember:
		state, err = r.host.RequestAddNonVoting(s.id, c.replica, target, at, r.patience(ctx))
	case promoteMember: // the engine insists on the target that it was added with
		if err := r.known(ctx, c.replica, s.members()); err != nil {
			return err
		}
		state, err = r.host.RequestAddReplica(s.id, c.replica, target, at, r.patience(ctx))
	case removeMember:
		state, err = r.host.RequestDeleteReplica(s.id, c.replica, at, r.patience(ctx))
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errDropped, err)
	}
	return r.outcome(ctx, state)
}

// known is for this replica's own promotion: it greets all voters and wants the welcome
// of most. A copy of it that another majority knows cannot have that.
func (r *replica) known(ctx context.Context, replica uint64, voters map[uint64]string) error {
	if replica != r.id {
		return fmt.Errorf("%w: only replica %d itself knows whether it is up to date", errDropped, replica)
	}
	welcome, refusals := r.greet(ctx, voters)
	for _, refusal := range refusals {
		if refusal.Code == peer.CodeWiped {
			return refusal
		}
	}
	if 2*len(welcome) <= len(voters) {
		return fmt.Errorf("%w: %d of %d voters answered", errDropped, len(welcome), len(voters))
	}
	return nil
}

// greet greets replicas, this one left out, and waits for probeTime at most.
func (r *replica) greet(ctx context.Context, replicas map[uint64]string) (welcome []uint64, refused []*peer.Refusal) {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	at := make(map[uint64]string, len(replicas))
	for id := range replicas {
		if id != r.id {
			at[id] = r.where.Address(id)
		}
	}
	welcome, refused = r.peers.Probe(ctx, at)
	for _, id := range welcome {
		delete(at, id)
	}
	for id, addr := range at {
		r.where.Failed(id, addr)
	}
	return welcome, refused
}

func (r *replica) introduce(ctx context.Context, replica uint64, address string) error {
	if !r.enter() {
		return ErrClosed
	}
	defer r.leave()
	everybody := r.shards[0].members()
	r.greet(ctx, everybody) // to hear what they know of it
	at, heard := r.where.book.Address(replica), r.where.book.Heard(replica)
	if replica == r.id {
		at, heard = r.self.Address, true
	}
	if heard && at != address {
		return fmt.Errorf("%w: replica %d is at %q, as it said itself, not at %q: to move it, restart it with another Address",
			ErrMember, replica, at, address)
	}
	if replica == r.id {
		return nil
	}
	switch err := r.where.book.Introduce(replica, address, time.Now()); {
	case errors.Is(err, peer.ErrFull):
		return fmt.Errorf("%w: %w: remove others first", ErrMember, err)
	case err != nil:
		return fmt.Errorf("%w: %w", ErrDirectory, err)
	}
	// Every greeting carries the address. Who is missed by this one hears of it in a
	// later one, or from the new replica itself.
	everybody[replica] = address
	r.greet(ctx, everybody)
	return nil
}

func (r *replica) alive(ctx context.Context, m membership) map[uint64]bool {
	alive := map[uint64]bool{r.id: true}
	if !r.enter() {
		return alive
	}
	defer r.leave()
	all := make(map[uint64]string)
	for _, member := range m.members {
		all[member.ID] = member.Address
	}
	welcome, _ := r.greet(ctx, all)
	for _, id := range welcome {
		alive[id] = true
	}
	for id := range all {
		if ago := r.peers.Heard(id); ago >= 0 && ago < 2*r.try {
			alive[id] = true
		}
	}
	return alive
}

func (r *replica) zone(replica uint64) string {
	if replica == r.id {
		return r.self.Zone
	}
	return r.where.book.Zone(replica)
}

func (r *replica) speaks(replica uint64) int {
	if replica == r.id {
		return int(r.self.Level)
	}
	return int(r.peers.Speaks(replica))
}

func (r *replica) wantsVote(replica uint64) bool {
	if replica == r.id {
		return !r.self.NoVote
	}
	return r.where.book.WantsVote(replica)
}

// follow learns of each change of the members, and does what it means for this one's
// peers. It ends when the replica is closed, or was removed.
func (r *replica) follow() {
	for {
		select {
		case <-r.where.moved:
		case <-r.closing:
			return
		}
		for pause := r.tick; ; pause = min(2*pause, r.try) {
			if r.where.leaves() == len(r.shards) {
				r.expelled(nil)
				return
			}
			if removed, err := r.removedOfAll(); err == nil {
				r.settle(removed)
				break
			}
			select {
			case <-time.After(pause):
			case <-r.closing:
				return
			}
		}
	}
}

// removedOfAll returns who was removed from every shard. One by one they are told to
// leave: until the last one is done, a replica is still needed in it.
func (r *replica) removedOfAll() (map[uint64]bool, error) {
	var removed map[uint64]bool
	for i, s := range r.shards {
		m, err := s.membership(context.Background())
		if err != nil {
			return nil, err
		}
		if i == 0 {
			removed = m.removed
		}
		maps.DeleteFunc(removed, func(id uint64, _ bool) bool { return !m.removed[id] })
	}
	return removed, nil
}

// settle refuses who was removed, for good, and tells them.
func (r *replica) settle(removed map[uint64]bool) {
	gone := make(map[uint64]string)
	for id := range removed {
		if id != r.id && !r.where.book.Removed(id) {
			gone[id] = r.where.Address(id)
		}
	}
	if len(gone) > 0 {
		if err := r.where.book.Remove(ids(gone)...); err != nil {
			r.logger.Error("cannot note who was removed", "err", err)
		}
		r.following.Go(func() { r.peers.Dismiss(gone) })
	}
	r.mu.Lock()
	tell := r.events.members
	r.mu.Unlock()
	if tell != nil {
		tell()
	}
}

// expelled is called when this replica knows that it was removed: by its own log, or
// by a peer's refusal.
func (r *replica) expelled(refusal *peer.Refusal) {
	r.carrier.barred.Store(true)
	r.mu.Lock()
	tell := r.events.refused
	if r.removed || r.closed {
		tell = nil
	}
	r.removed = true
	r.mu.Unlock()
	if tell == nil {
		return
	}
	err := r.dir.removedError()
	if refusal != nil {
		err = fmt.Errorf("%w (%w)", err, refusal)
	}
	r.logger.Error("this replica is of no use", "err", err)
	tell(err)
	if err := r.dir.noteRemoved(); err != nil {
		r.logger.Error("cannot note that this replica was removed", "err", err)
	}
}
