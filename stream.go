package quorumlock

import (
	"context"
	"slices"
	"time"

	"github.com/quorumlock/quorumlock/internal/wire"
)

const (
	// window is how many batches of this process may be under way at once.
	window = 2
	// maxBatchCommands and maxBatchBytes bound one batch, and so how long an
	// entry holds up the ones behind it.
	maxBatchCommands = 4096
	maxBatchBytes    = 512 << 10
	// maxPending is how many acquires wait here to be sent before more are
	// refused with ErrBusy. Releases are never refused.
	maxPending = 1 << 17

	minBackoff = 5 * time.Millisecond
	maxBackoff = 100 * time.Millisecond
)

// A stream is what this process says to the cluster, in numbered batches. Calls
// that are under way at one moment share a batch, which is one log entry. A batch
// is sent until it is known to have been applied, and the state machine applies
// each number once and in order, so a command is never lost, repeated or
// overtaken.
type stream struct {
	urgent   []wire.Command // sessions, releases and cancels: they go first
	acquires []*Hold
	last     uint64            // number of the last batch made
	sent     map[uint64]*outgo // batches under way
	nudge    func()            // is called when there is something to send
}

// An outgo is a batch under way.
type outgo struct {
	number   uint64
	commands []wire.Command
	urgent   int // how many of them are no acquires: the first ones
	tried    bool
	made     time.Duration // when, if it is counted
	settled  chan struct{} // closed once it is known to have been applied
}

func (s *stream) init(nudge func()) {
	s.sent = make(map[uint64]*outgo)
	s.nudge = nudge
}

// say queues a command that goes before all acquires.
func (s *stream) say(c wire.Command) {
	s.urgent = append(s.urgent, c)
	s.nudge()
}

func (s *stream) empty() bool { return len(s.urgent) == 0 && len(s.acquires) == 0 }

// next makes the next batch, or nil if there is nothing to say.
func (s *stream) next() *outgo {
	b := &outgo{number: s.last + 1, settled: make(chan struct{})}
	b.commands = make([]wire.Command, 0, min(len(s.urgent)+len(s.acquires), maxBatchCommands))
	bytes := 0
	for b.urgent < min(len(s.urgent), maxBatchCommands) && bytes < maxBatchBytes {
		if m := s.urgent[b.urgent].More; m != nil {
			bytes += len(m.Value) + len(m.Reason)
		}
		b.urgent++
	}
	b.commands = append(b.commands, s.urgent[:b.urgent]...)
	s.urgent = behind(s.urgent, b.urgent)

	taken := 0
	for _, h := range s.acquires {
		if len(b.commands) >= maxBatchCommands || bytes >= maxBatchBytes {
			break
		}
		taken++
		if h.abandoned {
			continue // given up before it was ever sent
		}
		h.batch = b.number
		b.commands = append(b.commands, h.command())
		bytes += h.size()
	}
	s.acquires = behind(s.acquires, taken)
	if len(b.commands) == 0 {
		return nil
	}
	s.last = b.number
	s.sent[b.number] = b
	return b
}

// behind returns what of a queue comes behind its first n. It keeps nothing of these,
// and of an emptied queue the room, if that is no more than a batch needs: so the last of
// a long one go into a room of their own first.
func behind[E any](queue []E, n int) []E {
	clear(queue[:n])
	switch left := queue[n:]; {
	case len(left) > maxBatchCommands:
		return left
	case len(left) > 0:
		return slices.Clone(left)
	case cap(queue) > maxBatchCommands:
		return nil
	}
	return queue[:0]
}

// settle ends a batch's sending.
func (s *stream) settle(number uint64) {
	if b := s.sent[number]; b != nil {
		delete(s.sent, number)
		close(b.settled)
	}
}

// dispatch has another sender look after the group, unless as many as may be do. The
// node keeps window of them that wait for work, for all groups; more come when they are
// needed, and go when they are not. n.mu is held.
func (g *group) dispatch() {
	n := g.n
	if g.senders == window || !isClosed(g.ready) || n.failed != nil {
		return
	}
	g.senders++
	if n.resting > 0 {
		n.resting--
		n.work <- g // there is room for each that is idle
		return
	}
	n.loops.Go(func() { n.sendLoop(g) })
}

// sendLoop sends the batches of the groups that it is given, one at a time.
func (n *Node) sendLoop(g *group) {
	for {
		if g == nil {
			select {
			case g = <-n.work:
			case <-n.ctx.Done():
				return
			}
		}
		b, stay := g.nextBatch()
		switch {
		case b != nil:
			if g.deliver(b.settled, func() []byte { return g.encodeBatch(b) }) != nil {
				return
			}
		case stay:
			g = nil
		default:
			return
		}
	}
}

// nextBatch takes the next batch, and wakes another sender if something is left. If
// there is none, the sender is done with the group, and is told whether to stay.
func (g *group) nextBatch() (b *outgo, stay bool) {
	n := g.n
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.failed == nil {
		b = g.stream.next()
	}
	if b == nil {
		g.senders--
		if n.resting < window {
			n.resting++
			stay = true
		}
		return nil, stay
	}
	g.n.stats.made(b)
	for i := range b.urgent {
		switch c := &b.commands[i]; {
		case c.Op == wire.Open && g.parts[c.Session] != nil:
			g.parts[c.Session].batch = b.number
		case c.More != nil:
			g.calls.sent(c.More.Call, b.number)
		}
	}
	if !g.stream.empty() {
		g.dispatch()
	}
	return b, true
}

func (g *group) encodeBatch(b *outgo) []byte {
	if b.tried {
		g.prune(b)
	}
	b.tried = true
	return g.n.encode(wire.Entry{Renewal: g.beat(), Batch: b.number, Commands: b.commands})
}

// prune takes those acquires out of a batch that is to be sent again whose callers
// have gone meanwhile: what nobody wants is not to be granted when the cluster can
// be reached again. Should the batch have been applied as it was, the cancels that
// follow in a later one take them back.
func (g *group) prune(b *outgo) {
	g.n.mu.Lock()
	defer g.n.mu.Unlock()
	b.commands = slices.DeleteFunc(b.commands, func(c wire.Command) bool {
		if c.Op != wire.Acquire && c.Op != wire.Take || g.parts[c.Session] == nil {
			return false
		}
		h := g.parts[c.Session].claims[c.Hold]
		return h != nil && h.abandoned
	})
}

// deliver proposes what build makes, again and again, until settled is closed: the
// effects of the entry, seen on this replica, are what closes it. It returns an
// error only when the node closes.
func (g *group) deliver(settled <-chan struct{}, build func() []byte) error {
	backoff := minBackoff
	for !isClosed(settled) {
		term := g.termNow()
		g.propose(term, build())
		if isClosed(settled) {
			break
		}
		if !g.n.later(backoff, settled, term.Done()) {
			return g.n.ctx.Err()
		}
		backoff = min(2*backoff, maxBackoff)
	}
	return nil
}

// termNow returns the context that ends when another leader is known.
func (g *group) termNow() context.Context {
	g.n.mu.Lock()
	defer g.n.mu.Unlock()
	return g.termCtx
}

// propose makes one try. A forwarded proposal that its leader dropped is never
// heard of again, so a try is short; and when another leader is known, waiting for
// the former one is idle.
func (g *group) propose(ctx context.Context, entry []byte) {
	ctx, cancel := g.n.clk.WithTimeout(ctx, g.n.opts.ElectionTimeout/2)
	defer cancel()
	if err := g.engine.propose(ctx, entry); err != nil {
		g.n.log.Debug("proposal to be repeated", "err", err)
	}
}
