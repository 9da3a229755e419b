package quorumlock

import (
	"context"
	"fmt"

	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/sessions"
)

// calls are what was asked of the cluster beside locks and sessions, and has had no
// answer yet. n.mu guards them.
type calls struct {
	last  uint64
	under map[uint64]*call // by number
}

type call struct {
	command wire.Command
	batch   uint64     // the batch that carries it; 0 until it is sent
	answer  chan cause // has room for the one answer
}

func (c *calls) begin(command wire.Command) *call {
	if c.under == nil {
		c.under = make(map[uint64]*call)
	}
	c.last++
	command.More.Call = c.last
	x := &call{command: command, answer: make(chan cause, 1)}
	c.under[c.last] = x
	return x
}

// sent notes which batch carries a call.
func (c *calls) sent(number, batch uint64) {
	if x := c.under[number]; x != nil {
		x.batch = batch
	}
}

func (c *calls) answer(number uint64, why cause) {
	if x := c.under[number]; x != nil {
		delete(c.under, number)
		x.answer <- why
	}
}

// settle answers what was applied without its answer being seen: a snapshot took the
// place of the entry. Nothing is asked a second time, since what others did in
// between would be undone.
func (c *calls) settle(applied uint64, outcome func(wire.Command) cause) {
	for number, x := range c.under {
		if x.batch != 0 && x.batch <= applied {
			c.answer(number, outcome(x.command))
		}
	}
}

// outcome tells what came of a command of this process that was applied, as far as
// the state still shows it. What was asked for and is no more there to be seen was
// done, or there was nothing to do.
func (f *lockFSM) outcome(self sessions.ID, c wire.Command) cause {
	switch c.Op {
	case wire.Claim:
		if j := f.jobs[c.Name]; j == nil || j.By != self || j.Call != c.More.Call {
			return causeClaimed // if it was ours, nobody runs it: at most one does
		}
	case wire.Downgrade, wire.Publish:
		self.Seq = c.Session
		if own, r := f.own(self, &c); own == nil && r == 0 {
			return causeGone
		}
	}
	return 0
}

// call asks the cluster for something about a name and waits for the answer.
func (g *group) call(ctx context.Context, name string, c wire.Command) error {
	why, err := g.ask(ctx, name, c)
	if err != nil {
		return err
	}
	return g.outcome(name, c, why)
}

// ask is call for an answer that may be no error.
func (g *group) ask(ctx context.Context, name string, c wire.Command) (cause, error) {
	g.n.mu.Lock()
	if g.n.failed != nil {
		defer g.n.mu.Unlock()
		return 0, g.n.failed
	}
	x := g.calls.begin(c)
	g.stream.say(c)
	g.n.mu.Unlock()
	select {
	case why := <-x.answer:
		return why, nil
	case <-g.n.ctx.Done():
		return 0, g.n.err()
	case <-ctx.Done():
		g.n.mu.Lock()
		defer g.n.mu.Unlock()
		delete(g.calls.under, c.More.Call)
		return 0, fmt.Errorf("%s %q: %w", c.Op, name, &ctxError{ErrNoQuorum, ctx.Err()})
	}
}

// outcome returns the error that stands for the answer to a call.
func (g *group) outcome(name string, c wire.Command, why cause) error {
	if why == 0 {
		return nil
	}
	switch c.Op {
	case wire.Evict:
		return fmt.Errorf("session %s: %w", c.More.Who, why.err())
	case wire.Revoke:
		return fmt.Errorf("%s %q, token %s: %w", c.Op, name, c.More.Token, why.err())
	}
	return fmt.Errorf("%s %q: %w", c.Op, name, why.err())
}
