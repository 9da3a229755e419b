package quorumlock

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/sessions"
)

// A group is one Raft group of the cluster, as this process has it: a log with the
// state that it makes, and what is under way to it from here. Each name belongs to
// one group, for ever, and so its tokens grow.
type group struct {
	n       *Node
	index   int
	machine *machine
	engine  engine
	changes changes       // for those who watch
	booted  chan struct{} // closed once this life has begun in the log
	ready   chan struct{} // closed once it may ask for anything

	// n.mu guards all below, and is taken after the state machine's lock.
	leader   uint64
	term     uint64
	termCtx  context.Context // ends when another leader is known
	termStop context.CancelFunc
	judge    sessions.Judge
	agenda   agenda
	calls    calls
	stream   stream
	parts    map[uint64]*part // of this process's sessions, by number
	senders  int              // that are at work
	pulse    pulse
	renewing <-chan struct{} // closed by what acknowledges the renewal under way; nil if none is

	behind   []uint64      // who was told to hold the feature level back; of levelLoop alone
	expiring chan struct{} // closed when the last expiry proposed has had its answer; of expiryLoop alone
}

func newGroup(n *Node, index int) *group {
	g := &group{
		n:       n,
		index:   index,
		machine: newMachine(),
		booted:  make(chan struct{}),
		ready:   make(chan struct{}),
		parts:   make(map[uint64]*part),
		judge:   sessions.Judge{Stall: n.opts.ElectionTimeout / 2},
	}
	g.stream.init(g.dispatch)
	g.pulse.init()
	g.changes.bell, g.changes.kept = &n.bell, keeps(n.opts.Groups)
	g.machine.perform, g.machine.restored = g.perform, g.reconcile
	g.machine.fsm.speaks = n.opts.level
	g.termCtx, g.termStop = context.WithCancel(n.ctx)
	return g
}

// groupOf returns the group of a name.
func (n *Node) groupOf(name string) *group {
	if len(n.groups) == 1 {
		return n.groups[0]
	}
	return n.groups[groupOf(name, len(n.groups))]
}

// groupOf returns to which of so many groups a name belongs, which may never be another
// one. The hash is mixed once more, since its lower bits tell the page of the group's
// table, and the upper ones the place in that page's index: within a group they are to
// be any.
func groupOf(name string, groups int) int {
	mixed := hashOf(name) * 0x9e3779b1 // 2^32 divided by the golden ratio
	return int(uint64(mixed) * uint64(groups) >> 32)
}

// atOnce does something for several groups, and returns the first error.
func atOnce(groups []*group, do func(*group) error) error {
	var all errgroup.Group
	for _, g := range groups {
		all.Go(func() error { return do(g) })
	}
	return all.Wait()
}

// onLeader notes who leads. Calls that wait for an answer of the former leader try
// again at once.
func (g *group) onLeader(replica, term uint64) {
	g.n.mu.Lock()
	defer g.n.mu.Unlock()
	if replica == g.leader && term == g.term {
		return
	}
	g.n.stats.led(g.leader, replica)
	g.leader, g.term = replica, term
	if g.leads() {
		g.judge.Lead(g.n.clk.Now())
		nudge(g.n.led)
	} else {
		g.judge.Follow()
	}
	if replica != 0 {
		g.termStop()
		g.termCtx, g.termStop = context.WithCancel(g.n.ctx)
	}
}

// leads reports whether this replica leads the group. n.mu is held.
func (g *group) leads() bool { return g.leader == g.n.opts.ReplicaID }

// boot begins this life in the log.
func (g *group) boot() {
	_ = g.deliver(g.booted, func() []byte {
		return g.n.encode(wire.Entry{Commands: []wire.Command{{Op: wire.Boot}}})
	})
}

// nudge puts a token in a channel that has room for one.
func nudge(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
