package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/fencing"
)

// callsPerName bounds how often a client asks for one name, and so the length of its
// history.
const callsPerName = 12

// namesAtOnce is how many names of a kind there are in a round: so several workers hold
// one, or are between a reading and its write, at any moment.
const namesAtOnce = 3

// ballast makes the log long enough to fill a disk, by a value that goes with each hold.
var ballast = strings.Repeat("ballast ", quorumlock.MaxValueLen/len("ballast "))

// A client makes one call after the other and tells what it saw.
type client struct {
	w     *worker
	rng   *rand.Rand
	calls map[string]int // of this round
	round int64
}

// tell reports an event of an acquisition.
func (c *client) tell(e event) { c.w.tell(report{What: reportEvent, Event: &e}) }

func (c *client) span(least, most time.Duration) time.Duration {
	return least + time.Duration(c.rng.Int64N(int64(most-least)))
}

// name picks a name of a kind that is in use at a time of the machine's clock.
func (c *client) name(kind lockKind, at int64) string {
	return fmt.Sprintf("%s-%d", nameOf(kind, at), c.rng.IntN(namesAtOnce))
}

// locks takes locks of all kinds at random, under the names of the round.
func (c *client) locks(ctx context.Context) {
	for ctx.Err() == nil {
		at := c.w.now()
		if round := at / int64(roundLength); round != c.round {
			c.round = round
			clear(c.calls)
		}
		kind := modelled[c.rng.IntN(len(modelled))]
		name := c.name(kind, at)
		if c.calls[name]++; c.calls[name] > callsPerName {
			pause(ctx, 20*time.Millisecond)
			continue
		}
		shared, opts := false, []quorumlock.AcquireOption{quorumlock.Value(ballast)}
		switch kind {
		case sharedKind:
			if shared = c.rng.IntN(3) > 0; shared {
				opts = append(opts, quorumlock.Share())
			}
		case permitsKind:
			opts = append(opts, quorumlock.Permits(1+c.rng.IntN(3), permitLimit))
		}
		op, hold := c.take(ctx, name, shared, kind == mutexKind || kind == fencedKind, opts)
		if hold == nil {
			pause(ctx, 10*time.Millisecond)
			continue
		}
		c.keep(ctx, op, hold)
		c.giveBack(op, hold)
	}
}

// take asks for a lock. Only of a name that has one holder does a refusal say anything,
// so others are waited for.
func (c *client) take(ctx context.Context, name string, shared, mayTry bool, opts []quorumlock.AcquireOption) (op uint64, hold *quorumlock.Hold) {
	op = c.w.ops.Add(1)
	try := mayTry && c.rng.IntN(3) == 0
	ctx, cancel := context.WithTimeout(ctx, c.span(50*time.Millisecond, 1500*time.Millisecond))
	defer cancel()
	c.tell(event{Kind: eventAsk, Op: op, At: c.w.now(), Name: name, Shared: shared})
	acquire := c.w.node.Acquire
	if try {
		acquire = c.w.node.TryAcquire
	}
	hold, err := acquire(ctx, name, opts...)
	at := c.w.now()
	var held *quorumlock.HeldError
	switch {
	case err == nil:
		var slots uint8
		for _, slot := range hold.Slots() {
			slots |= 1 << slot
		}
		c.tell(event{Kind: eventGrant, Op: op, At: at, Token: hold.Token(), Slots: slots})
		return op, hold
	case try && errors.As(err, &held) && ctx.Err() == nil:
		c.tell(event{Kind: eventRefused, Op: op, At: at})
	default:
		c.tell(event{Kind: eventUnknown, Op: op, At: at})
	}
	return op, nil
}

// keep looks at the hold's context for a while; now and then until it is lost, or for
// longer than a lease.
func (c *client) keep(ctx context.Context, op uint64, hold *quorumlock.Hold) {
	const every = 10 * time.Millisecond
	alive, cancel := hold.Context(ctx)
	defer cancel()
	looks := 1 + c.rng.IntN(8)
	if c.rng.IntN(15) == 0 || c.w.keeps.Load() {
		looks = int(2 * sessionTTL / every)
	}
	for range looks {
		if !c.look(op, alive) {
			return
		}
		pause(alive, every)
	}
}

func (c *client) look(op uint64, alive context.Context) bool {
	before := c.w.now()
	if alive.Err() != nil {
		return false
	}
	c.tell(event{Kind: eventLook, Op: op, At: before, Till: c.w.now()})
	return true
}

func (c *client) giveBack(op uint64, hold *quorumlock.Hold) {
	ctx, cancel := context.WithTimeout(context.Background(), c.span(50*time.Millisecond, time.Second))
	defer cancel()
	c.tell(event{Kind: eventFree, Op: op, At: c.w.now()})
	if err := hold.Release(ctx); err != nil {
		c.tell(event{Kind: eventLost, Op: op, At: c.w.now()})
		return
	}
	c.tell(event{Kind: eventFreed, Op: op, At: c.w.now()})
}

// sets adds elements to the sets of the round, each under its lock: read, pause, write.
// A worker that is stopped in the pause does not look at its lock before it writes, as
// no program can that is stopped after its last look.
func (c *client) sets(ctx context.Context, kind lockKind) {
	for n := 0; ctx.Err() == nil; n++ {
		name := c.name(kind, c.w.now())
		op, hold := c.take(ctx, name, false, true, nil)
		if hold == nil {
			pause(ctx, 20*time.Millisecond)
			continue
		}
		token := hold.Token()
		if kind == lockSetKind {
			token = 0
		}
		if alive, cancel := hold.Context(ctx); c.look(op, alive) {
			c.addTo(ctx, name, token, fmt.Sprintf("%d.%d/%d", c.w.cfg.ID, c.w.cfg.Life, op))
			c.look(op, alive)
			cancel()
		} else {
			cancel()
		}
		c.giveBack(op, hold)
		pause(ctx, c.span(time.Millisecond, 60*time.Millisecond))
	}
}

// addTo adds an element to a set. What fails is not added, and the store says so or
// knows better.
func (c *client) addTo(ctx context.Context, name string, token fencing.Token, element string) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	elements, err := c.w.store.ask(ctx, name, token, nil)
	if err != nil {
		return
	}
	pause(ctx, c.span(10*time.Millisecond, 60*time.Millisecond))
	_, _ = c.w.store.ask(ctx, name, token, append(elements, element))
}
