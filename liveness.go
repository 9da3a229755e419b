package quorumlock

import (
	"time"

	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/sessions"
)

// A pulse is how this process shows that it lives: numbered renewals, each with
// the moment before it was sent. All sessions of the process live by it.
type pulse struct {
	last  uint64        // number of the last renewal made
	sent  [256]renewal  // the last ones made; one that is older than these is not counted when it comes
	acked uint64        // number of the last renewal acknowledged
	since time.Duration // when that one was sent
	news  chan struct{} // closed, and made anew, at each acknowledgement
}

type renewal struct {
	number uint64
	at     time.Duration // by the trust clock, before it was sent
}

func (p *pulse) init() { p.news = make(chan struct{}) }

// beat makes a renewal that is about to be sent. The moment counts from before it
// is sent: however long it takes to be applied, the leader counts from later.
func (g *group) beat() uint64 {
	g.n.mu.Lock()
	defer g.n.mu.Unlock()
	g.pulse.last++
	k := g.pulse.last
	g.pulse.sent[k%uint64(len(g.pulse.sent))] = renewal{k, g.n.trust()}
	return k
}

// ack notes that renewal k was applied and reports whether that is news.
func (p *pulse) ack(k uint64) bool {
	r := p.sent[k%uint64(len(p.sent))]
	if r.number != k || k <= p.acked {
		return false
	}
	p.acked, p.since = k, r.at
	close(p.news)
	p.news = make(chan struct{})
	return true
}

// renewLoop renews in each group when nothing else that was sent to it has done so for
// a while. Renewals stand outside the stream of batches: nothing delays them.
func (n *Node) renewLoop() {
	for {
		wait, due := n.nextRenewals()
		for _, g := range due {
			n.loops.Go(g.renew)
		}
		if wait < 0 { // no session: nothing to renew
			select {
			case <-n.wanted:
			case <-n.ctx.Done():
				return
			}
		} else if !n.later(wait, n.wanted) {
			return
		}
	}
}

// nextRenewals returns the groups in which a renewal is due, and how long it is until
// the next one is: negative for never.
func (n *Node) nextRenewals() (wait time.Duration, due []*group) {
	n.mu.Lock()
	defer n.mu.Unlock()
	wait = -1
	for _, g := range n.groups {
		if g.renewing != nil {
			continue // it says when it is done
		}
		shortest := g.shortestTTL()
		if shortest == 0 {
			continue
		}
		left := g.pulse.since + sessions.RenewEvery(shortest) - n.trust()
		switch {
		case left <= 0:
			g.renewing = g.pulse.news
			due = append(due, g)
		case wait < 0 || left < wait:
			wait = left
		}
	}
	return wait, due
}

// shortestTTL is that of the sessions that this process has in the group. n.mu is held.
func (g *group) shortestTTL() (shortest time.Duration) {
	for _, p := range g.parts {
		if p.opened && p.state == sessionOpen && (shortest == 0 || p.ttl < shortest) {
			shortest = p.ttl
		}
	}
	return shortest
}

// renew renews until the next acknowledgement.
func (g *group) renew() {
	_ = g.deliver(g.renewing, func() []byte { return g.n.encode(wire.Entry{Renewal: g.beat()}) })
	g.n.mu.Lock()
	defer g.n.mu.Unlock()
	g.renewing = nil
	nudge(g.n.wanted)
}

// expiryLoop lets the judges of the groups that this replica leads look, and proposes
// what they find.
func (n *Node) expiryLoop() {
	next := lookEvery(n.opts.ElectionTimeout, 0)
	for n.whileLeading(next) {
		next = lookEvery(n.opts.ElectionTimeout, 0)
		for _, g := range n.leading() {
			due, again := g.look()
			next = min(next, again)
			if len(due.sessions)+len(due.times) > 0 && (g.expiring == nil || isClosed(g.expiring)) {
				done := make(chan struct{})
				g.expiring = done
				// Not in this goroutine: a judge that does not look counts as stalled.
				n.loops.Go(func() {
					defer close(done)
					g.expire(due)
				})
			}
		}
	}
}

// leading returns the groups that this replica leads.
func (n *Node) leading() (groups []*group) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, g := range n.groups {
		if g.leads() {
			groups = append(groups, g)
		}
	}
	return groups
}

// whileLeading waits for d if this replica leads, and otherwise until it does; it
// reports whether the node goes on.
func (n *Node) whileLeading(d time.Duration) bool {
	if len(n.leading()) > 0 {
		return n.later(d)
	}
	select {
	case <-n.led:
	case <-n.ctx.Done():
	}
	return n.ctx.Err() == nil
}

// A verdict is what the leader finds to be over.
type verdict struct {
	sessions []sessions.Judgement
	times    []timeID
}

// look lets the judge look, and tells how soon it is to look again.
func (g *group) look() (due verdict, next time.Duration) {
	g.machine.read(func(f *lockFSM) {
		g.n.mu.Lock()
		defer g.n.mu.Unlock()
		now := g.n.clk.Now()
		due.sessions = g.judge.Look(now, f.roll)
		due.times = g.agenda.due(now, maxBatchCommands)
		next = lookEvery(g.n.opts.ElectionTimeout, f.roll.ShortestTTL())
	})
	return due, next
}

// lookEvery is how often the judge looks if this is the shortest ttl of all sessions,
// 0 for none: each fortieth of its lease, since by so much a lease may be overrun. An
// idle leader wakes for it, so it looks no more often than the shortest ttl that is
// allowed asks for. Nor does it look so seldom that a late look is taken for a stall.
func lookEvery(election, ttl time.Duration) time.Duration {
	if ttl == 0 {
		return election / 5
	}
	return min(max(sessions.Lease(ttl)/40, election/10), election/5)
}

// expire proposes, once, to end what was found. Each command holds only if the
// renewal it was judged by is still the last, or the time still runs, when it is
// applied, so it does no harm when it comes late, or from a leader that is one no
// more.
func (g *group) expire(due verdict) {
	var e wire.Entry
	for _, j := range due.sessions[:min(len(due.sessions), maxBatchCommands)] {
		g.n.log.Info("session lease ran out", "replica", j.Replica, "epoch", j.Epoch, "ttl", j.TTL)
		e.Commands = append(e.Commands, wire.Command{
			Op: wire.Expire, Replica: j.Replica, Epoch: j.Epoch, Renewal: j.Renewal,
			TTL: uint64(j.TTL / time.Millisecond),
		})
	}
	for _, id := range due.times {
		e.Commands = append(e.Commands, wire.Command{
			Op: wire.Due, Hold: id.hold, More: &wire.More{Who: id.who, What: uint8(id.what)},
		})
	}
	g.propose(g.termNow(), g.n.encode(e))
}
