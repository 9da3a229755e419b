package gocronlock

import (
	"context"

	"github.com/go-co-op/gocron/v2"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/adapters/internal/once"
)

var _ gocron.Elector = (*Elector)(nil)

// An Elector has one replica lead, the one that holds a lock, and another take over
// when that one dies.
//
// By itself, as gocron.WithDistributedElector takes it, it promises one leader and not
// one run: when the leader changes at the planned time, the old one may have run by its
// clock what the new one comes to by its own, and what is planned while nobody leads is
// not run. For one run per planned time give it to Options.Elector, or better use none:
// NewScheduler needs no leader.
type Elector struct {
	leader *once.Leader
}

// NewElector takes part, in the background, in who holds the lock of a name. Stop it
// before the node is closed, so that another replica leads at once.
func NewElector(node *quorumlock.Node, name string) *Elector {
	return &Elector{leader: once.Lead(node, name, nil)}
}

// IsLeader returns nil if this replica leads at this moment, by its own clock too:
// in a process that was stopped for long it returns an error before anybody else
// can lead.
func (e *Elector) IsLeader(context.Context) error { return e.leader.Err() }

// Stop gives up the leadership and takes no more part.
func (e *Elector) Stop() { e.leader.Stop() }
