package quorumlock

import (
	"context"
	"fmt"
	"slices"

	"github.com/quorumlock/quorumlock/internal/peer"
)

// probe asks the other founders, before this one first takes part, whether they
// know better. Who does not answer is not waited for.
func (r *replica) probe(members map[uint64]string) error {
	ctx, cancel := context.WithTimeout(context.Background(), probeTime)
	defer cancel()
	welcome, refusals := r.peers.Probe(ctx, members)
	var disagree, replaced []*peer.Refusal
	for _, refusal := range refusals {
		switch {
		case refusal.Code == peer.CodeRemoved:
			return fmt.Errorf("%w (%w)", r.dir.removedError(), refusal)
		case refusal.Code == peer.CodeWiped && refusal.By != r.id:
			return r.wipedError(refusal)
		case refusal.Code == peer.CodeMembers, refusal.Code == peer.CodeGroups:
			disagree = append(disagree, refusal)
		case refusal.Code == peer.CodeReplica && refusal.By != r.id:
			replaced = append(replaced, refusal)
		}
	}
	if n := len(disagree); n > 0 && n >= len(welcome) {
		return r.foundedError(disagree[0])
	}
	if len(replaced) > 0 && (len(welcome) == 0 || !r.mournsFounder()) {
		return r.replacedError(replaced[0])
	}
	return nil
}

// mournsFounder reports whether this replica was told that a founder was removed. Who
// welcomes it and has told it that is of the cluster and knows it for a member, though one
// that never started: another replica may well be where that founder was.
func (r *replica) mournsFounder() bool {
	return slices.ContainsFunc(ids(r.dir.marker.Founders), r.where.book.Removed)
}

// replacedError is for a founder at its first start who finds another replica of the cluster
// at the address of a founder: the cluster was founded long ago. To found it once more, with
// founders that are all gone from it, would make a second one of the same name.
func (r *replica) replacedError(refusal *peer.Refusal) error {
	if r.dir.marker.Founders[refusal.By] != "" {
		return fmt.Errorf("%w: %w. At the address of a founder is another founder of cluster %q: Members %v has wrong addresses",
			ErrMembers, refusal, r.dir.marker.Cluster, r.dir.marker.Founders)
	}
	return fmt.Errorf("%w: %w. At the address of a founder is a replica that is none: cluster %q was founded already, and Members %v "+
		"is out of date. To take part in it, start a replica under an id that was never used with Join and an empty directory, "+
		"after AddReplica on a member", ErrMembers, refusal, r.dir.marker.Cluster, ids(r.dir.marker.Founders))
}

func (r *replica) wipedError(refusal *peer.Refusal) error {
	return fmt.Errorf("%w: %w. Restore %s as replica %d last had it, or leave that id for good: call "+
		"ReplaceReplica(ctx, %d, id, address) on a replica that works (or RemoveReplica and AddReplica), with a new id "+
		"that was never used, and start that replica with Join and an empty directory", ErrWiped, refusal, r.dir.path, r.id, r.id)
}

// foundedError is for a replica that was founded in another way than others.
func (r *replica) foundedError(refusal *peer.Refusal) error {
	if refusal.Code == peer.CodeGroups {
		return fmt.Errorf("%w: %w. All replicas need the same Options.Groups from their first start on; "+
			"empty the directories of those that had it wrong and never took part", ErrGroups, refusal)
	}
	return fmt.Errorf("%w: %w. This one was founded with %v: all founders need the same Members "+
		"(and the same Restore, or none) from their first start on; empty the directories of those that had it wrong and never took part",
		ErrMembers, refusal, ids(r.dir.marker.Founders))
}

// refused hears that a peer will not talk to this replica, and reports it when
// that leaves the replica without use.
func (r *replica) refused(refusal *peer.Refusal) {
	r.mu.Lock()
	of := r.running && !r.closed
	if of && refusal.Code == peer.CodeRemoved {
		r.following.Go(func() { r.expelled(refusal) })
	}
	r.mu.Unlock()
	if !of || refusal.Code == peer.CodeRemoved {
		return
	}
	tell, err := r.judge(refusal)
	if err == nil {
		return
	}
	r.logger.Error("this replica is of no use", "err", err)
	if tell != nil {
		tell(err)
	}
}

// judge returns what is to be reported, once, and to whom. One peer that knows another
// storage of this replica is enough. Of those founded in another way it takes most
// founders that were not removed, else mistaken replicas would stop all the others: of
// those that were added later there may be any number, so they do not count, and who
// joined is stopped by nobody. (Who is a member by the log is not asked: just after a
// start that is what once was.)
func (r *replica) judge(refusal *peer.Refusal) (tell func(error), err error) {
	others := make(map[uint64]bool)
	for id := range r.dir.marker.Founders {
		if id != r.id && !r.where.book.Removed(id) {
			others[id] = true
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.running || r.closed {
		return nil, nil
	}
	if text := refusal.Error(); !r.heard[text] && len(r.heard) < maxHeard {
		r.heard[text] = true
		r.logger.Warn("a peer refuses this replica", "peer", refusal.By, "why", refusal.Text)
	}
	switch refusal.Code {
	case peer.CodeWiped:
		r.carrier.barred.Store(true)
		if !r.wiped {
			r.wiped = true
			return r.events.refused, r.wipedError(refusal)
		}
	case peer.CodeMembers, peer.CodeGroups:
		before := len(r.refusers)
		if others[refusal.By] {
			r.refusers[refusal.By] = true
		}
		if after := len(r.refusers); 2*before <= len(others) && 2*after > len(others) {
			return r.events.refused, r.foundedError(refusal)
		}
	}
	return nil, nil
}

// maxHeard bounds how many different refusals are logged.
const maxHeard = 100
