package quorumlock

import (
	"time"

	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/sessions"
)

// A pulse is how this process shows that it lives: numbered renewals, each with
// the moment before it was sent. All sessions of the process live by it.
type pulse struct {
	last   uint64        // number of the last renewal made
	sent   [256]renewal  // the last ones made; one that is older than these is not counted when it comes
	acked  uint64        // number of the last renewal acknowledged
	since  time.Duration // when that one was sent
	wanted chan struct{} // has a token when a session was opened
	news   chan struct{} // closed, and made anew, at each acknowledgement
}

type renewal struct {
	number uint64
	at     time.Duration // by the trust clock, before it was sent
}

func (p *pulse) init() {
	p.wanted = make(chan struct{}, 1)
	p.news = make(chan struct{})
}

// beat makes a renewal that is about to be sent. The moment counts from before it
// is sent: however long it takes to be applied, the leader counts from later.
func (n *Node) beat() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pulse.last++
	k := n.pulse.last
	n.pulse.sent[k%uint64(len(n.pulse.sent))] = renewal{k, n.trust()}
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

// renewLoop renews when nothing else that was sent has done so for a while.
// Renewals stand outside the stream of batches: nothing delays them.
func (n *Node) renewLoop() {
	for {
		wait, due := n.nextRenewal()
		switch {
		case wait < 0: // no session: nothing to renew
			select {
			case <-n.pulse.wanted:
			case <-n.ctx.Done():
				return
			}
		case due == nil:
			if !n.later(wait, n.pulse.wanted) {
				return
			}
		default:
			if n.deliver(due, func() []byte { return n.encode(wire.Entry{Renewal: n.beat()}) }) != nil {
				return
			}
		}
	}
}

// nextRenewal tells how long it is until a renewal is due: negative for never. If
// it is due now, acked is closed by the next acknowledgement.
func (n *Node) nextRenewal() (wait time.Duration, acked <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var shortest time.Duration
	for _, s := range n.sessions {
		if s.state == sessionOpen && (shortest == 0 || s.ttl < shortest) {
			shortest = s.ttl
		}
	}
	if shortest == 0 {
		return -1, nil
	}
	wait = n.pulse.since + sessions.RenewEvery(shortest) - n.trust()
	if wait > 0 {
		return wait, nil
	}
	return 0, n.pulse.news
}

// expiryLoop lets the judge look, and proposes what it finds. Only the leader's
// judge finds anything.
func (n *Node) expiryLoop() {
	next := lookEvery(n.opts.ElectionTimeout, 0)
	var under <-chan struct{} // closed when the last proposal has had its answer
	for n.whileLeading(next) {
		var due verdict
		due, next = n.look()
		if len(due.sessions)+len(due.times) == 0 || under != nil && !isClosed(under) {
			continue
		}
		done := make(chan struct{})
		under = done
		// Not in this goroutine: a judge that does not look counts as stalled.
		n.loops.Go(func() {
			defer close(done)
			n.expire(due)
		})
	}
}

// whileLeading waits for d if this replica leads, and otherwise until it does; it
// reports whether the node goes on.
func (n *Node) whileLeading(d time.Duration) bool {
	n.mu.Lock()
	leads, term := n.leader == n.opts.ReplicaID, n.termCtx
	n.mu.Unlock()
	if leads {
		return n.later(d)
	}
	<-term.Done() // the next leader is known, or the node closes
	return n.ctx.Err() == nil
}

// A verdict is what the leader finds to be over.
type verdict struct {
	sessions []sessions.Judgement
	times    []timeID
}

// look lets the judge look, and tells how soon it is to look again.
func (n *Node) look() (due verdict, next time.Duration) {
	n.machine.read(func(f *lockFSM) {
		n.mu.Lock()
		defer n.mu.Unlock()
		now := n.clk.Now()
		due.sessions = n.judge.Look(now, f.roll)
		due.times = n.agenda.due(now, maxBatchCommands)
		next = lookEvery(n.opts.ElectionTimeout, f.roll.ShortestTTL())
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
func (n *Node) expire(due verdict) {
	var e wire.Entry
	for _, j := range due.sessions[:min(len(due.sessions), maxBatchCommands)] {
		n.log.Info("session lease ran out", "replica", j.Replica, "epoch", j.Epoch, "ttl", j.TTL)
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
	n.propose(n.termNow(), n.encode(e))
}
