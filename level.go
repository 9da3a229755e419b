package quorumlock

import (
	"maps"
	"slices"

	"github.com/quorumlock/quorumlock/internal/wire"
)

// levelLoop raises the cluster's feature level once every replica speaks a higher one.
// It ends when this process speaks no higher one than is in force.
func (n *Node) levelLoop() {
	var told []uint64
	for n.level() < n.opts.level && n.whileLeading(n.opts.ElectionTimeout) {
		next, behind, err := n.nextLevel()
		switch {
		case err != nil:
			n.log.Debug("members not known", "err", err)
		case len(behind) == 0:
			n.log.Info("raising the feature level", "level", next)
			n.propose(n.termNow(), n.encodeOf(next, wire.Entry{}))
		case !slices.Equal(behind, told):
			told = behind
			n.log.Info("the feature level waits for replicas that are down or of an older version",
				"level", n.level(), "replicas", behind)
		}
	}
}

// level returns the feature level in force, as this replica has applied it.
func (n *Node) level() (level byte) {
	n.machine.read(func(f *lockFSM) { level = f.level })
	return level
}

// nextLevel returns the highest level that every replica speaks, those that do not
// vote too, or which of them speak no more than what is in force. Of one that is not
// connected nothing is known: it may come back as what it was.
func (n *Node) nextLevel() (next byte, behind []uint64, err error) {
	ctx, cancel := n.clk.WithTimeout(n.ctx, n.opts.ElectionTimeout)
	defer cancel()
	members, err := n.engine.membership(ctx)
	if err != nil {
		return 0, nil, err
	}
	now := n.level()
	speak := maps.Clone(n.engine.levels())
	next, speak[n.opts.ReplicaID] = n.opts.level, n.opts.level
	for _, m := range members {
		if speak[m.ID] <= now {
			behind = append(behind, m.ID)
		}
		next = min(next, speak[m.ID])
	}
	slices.Sort(behind)
	return next, behind, nil
}
