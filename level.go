package quorumlock

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/quorumlock/quorumlock/internal/wire"
)

// levelLoop raises the feature level of the groups that this replica leads, once every
// replica speaks a higher one. It ends when this process speaks no higher one than is in
// force.
func (n *Node) levelLoop() {
	for n.later(n.opts.ElectionTimeout) {
		if !slices.ContainsFunc(n.groups, (*group).mayRise) {
			return
		}
		for _, g := range n.leading() {
			if g.mayRise() {
				g.raise()
			}
		}
	}
}

// level returns the feature level in force, as this replica has applied it.
func (g *group) level() (level byte) {
	g.machine.read(func(f *lockFSM) { level = f.level })
	return level
}

func (g *group) mayRise() bool { return g.level() < g.n.opts.level }

// raise raises the group's level, or says who holds it back.
func (g *group) raise() {
	next, behind, err := g.nextLevel()
	switch {
	case err != nil:
		g.n.log.Debug("members not known", "err", err)
	case len(behind) == 0:
		g.propose(g.termNow(), g.n.encodeOf(next, wire.Entry{}))
	case !slices.Equal(behind, g.behind):
		g.behind = behind
		g.n.log.Info("the feature level waits for replicas that are down or of an older version",
			"level", g.level(), "replicas", behind)
	}
}

// nextLevel returns the highest level that every replica speaks, those that do not
// vote too, or which of them speak no more than what is in force. Of one that is not
// connected nothing is known: it may come back as what it was.
func (g *group) nextLevel() (next byte, behind []uint64, err error) {
	ctx, cancel := g.n.clk.WithTimeout(g.n.ctx, g.n.opts.ElectionTimeout)
	defer cancel()
	m, err := g.engine.membership(ctx)
	if err != nil {
		return 0, nil, err
	}
	now := g.level()
	speak := maps.Clone(g.n.host.levels())
	next, speak[g.n.opts.ReplicaID] = g.n.opts.level, g.n.opts.level
	for _, member := range m.members {
		if speak[member.ID] <= now {
			behind = append(behind, member.ID)
		}
		next = min(next, speak[member.ID])
	}
	slices.Sort(behind)
	return next, behind, nil
}

// resignLoop sees to it that this replica does not lead once it has stopped at a level
// that it does not know: it would end nobody's session. It goes on voting and keeping the
// log, until it is closed.
func (n *Node) resignLoop() {
	<-n.ctx.Done()
	for errors.Is(n.err(), ErrFormat) && n.open.Err() == nil {
		for _, g := range n.leading() {
			g.resign()
		}
		again := n.clk.Timer(n.opts.ElectionTimeout / 2)
		select {
		case <-again.C:
		case <-n.open.Done():
		}
		again.Stop()
	}
}

// resign asks the other replicas in turn to lead.
func (g *group) resign() {
	for id := range g.engine.members() {
		if leader, _ := g.engine.leader(); leader != g.n.opts.ReplicaID {
			return
		}
		if id != g.n.opts.ReplicaID {
			ctx, cancel := context.WithTimeout(g.n.open, g.n.opts.ElectionTimeout/2)
			_ = g.engine.transfer(ctx, id) // or the next one
			cancel()
		}
	}
}
