//go:build linux

package quorumlock

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorumlock/quorumlock/fencing"
)

// maxChildLife ends a child that its parent forgot.
const maxChildLife = 3 * time.Minute

// A role is the options of a child's replica.
type role struct {
	ID            uint64
	Address, Dir  string
	Cluster       string // "" for the default
	Members       map[uint64]string
	Join          bool
	TTL, Election time.Duration
	Snapshots     uint64 // entries between two; 0 for the default
	Level         byte   // that its version speaks; 0 for the newest
}

// An order is a call that a child is to make.
type order struct {
	Number  int
	Do      string
	Name    string
	Timeout time.Duration

	Dead, Replica uint64 // replace
	Address       string // replace
}

// An answer is what became of it.
type answer struct {
	Number int
	Err    string        `json:",omitempty"`
	Token  fencing.Token // acquire, watch
	Called time.Duration // before the call
	At     time.Duration // when it returned; busy: when the hold was last trusted

	Leader uint64 // status
	Level  int    // status: the feature level in force
	Levels []int  // members: what each replica speaks at most, by id

	Grants int      // tally: how often a lock was had
	Losses []string // tally: what was lost, or refused

	Trusted time.Duration // last words: until when this process relies on what it holds

	HoldErr, CtxErr string        // watch: at the first look after the pause
	Pause           time.Duration // watch: how long this process stood still
}

// playRole is the child.
func playRole(text string) int {
	life := maxChildLife
	if os.Getenv(longVar) != "" {
		life = time.Hour
	}
	time.AfterFunc(life, func() { os.Exit(3) })
	var r role
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	if r.Snapshots > 0 {
		tuning.snapshotEntries, tuning.compactionOverhead = r.Snapshots, r.Snapshots/4
	}
	c := &child{holds: make(map[string]*Hold), out: json.NewEncoder(os.Stdout)}
	n, err := Open(Options{
		ReplicaID: r.ID, Address: r.Address, Dir: r.Dir, Members: r.Members, Join: r.Join, Cluster: r.Cluster,
		SessionTTL: r.TTL, ElectionTimeout: r.Election, Logger: testLogger(nil), OnFatal: c.lastWords, level: r.Level,
	})
	if err != nil {
		c.say(answer{Err: err.Error()})
		return 2
	}
	c.n = n
	in := json.NewDecoder(bufio.NewReader(os.Stdin))
	for {
		var o order
		if err := in.Decode(&o); err != nil {
			if err != io.EOF {
				fmt.Fprintln(os.Stderr, err)
			}
			return 0 // as a crash would: nothing is closed
		}
		go c.obey(o)
	}
}

type child struct {
	n     *Node
	mu    sync.Mutex // guards the rest
	holds map[string]*Hold
	out   *json.Encoder

	grants int
	losses []string
}

func (c *child) obey(o order) {
	ctx, cancel := context.WithTimeout(context.Background(), o.Timeout)
	defer cancel()
	a := answer{Number: o.Number, Called: bootTime()}
	err := c.do(ctx, o, &a)
	if a.At == 0 {
		a.At = bootTime()
	}
	if err != nil {
		a.Err = err.Error()
	}
	c.say(a)
}

func (c *child) say(a answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.out.Encode(a) // a parent that is gone reads nothing
}

// lastWords are an answer that nobody asked for.
func (c *child) lastWords(err error) {
	a := answer{Err: err.Error(), At: bootTime()}
	c.mu.Lock()
	for _, h := range c.holds {
		a.Trusted = max(a.Trusted, bootTime()+h.Remaining())
	}
	c.mu.Unlock()
	c.say(a)
}

// harms are orders that hurt the process itself.
var harms = map[string]func(o order) error{}

func (c *child) do(ctx context.Context, o order, a *answer) error {
	switch o.Do {
	case "ready":
		return c.n.Ready(ctx)
	case "acquire":
		h, err := c.n.Acquire(ctx, o.Name)
		a.At = bootTime()
		if err != nil {
			return err
		}
		a.Token = h.Token()
		c.mu.Lock()
		c.holds[o.Name] = h
		c.mu.Unlock()
		return nil
	case "release":
		return c.hold(o.Name).Release(ctx)
	case "validate":
		h := c.hold(o.Name)
		return errors.Join(h.Err(), h.Validate(ctx))
	case "watch":
		return c.watch(ctx, c.hold(o.Name), a)
	case "busy":
		return c.busy(ctx, c.hold(o.Name), a)
	case "shutdown":
		return c.n.Shutdown(ctx)
	case "status":
		s := c.n.Status()
		a.Leader, a.Level = s.Leader, s.Level
		return nil
	case "members":
		all, err := c.n.Members(ctx)
		for _, m := range all {
			a.Levels = append(a.Levels, m.MaxLevel)
		}
		return err
	case "replace":
		return c.n.ReplaceReplica(ctx, o.Dead, o.Replica, o.Address)
	case "load":
		return c.load(ctx, o.Name)
	case "tally":
		c.mu.Lock()
		defer c.mu.Unlock()
		a.Grants, a.Losses = c.grants, c.losses
		return nil
	}
	if harm := harms[o.Do]; harm != nil {
		return harm(o)
	}
	return errors.New("no such order")
}

func (c *child) hold(name string) *Hold {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.holds[name]
}

// watch looks at the hold all the time until the process has stood still for a
// second, and tells what the first look after that shows.
func (c *child) watch(ctx context.Context, h *Hold, a *answer) error {
	held, cancel := h.Context(ctx)
	defer cancel()
	a.Token = h.Token()
	for last := bootTime(); ; {
		// The process may be stopped at any place here, so the clock is read last.
		looked := errors.Join(h.Err(), held.Err())
		now := bootTime()
		if pause := now - last; pause > time.Second {
			hold, ended := h.Err(), held.Err()
			a.Pause, a.HoldErr, a.CtxErr = pause, fmt.Sprint(hold), fmt.Sprint(ended)
			return nil
		}
		if looked != nil {
			return fmt.Errorf("lost without a pause: %w", looked)
		}
		last = now
		time.Sleep(time.Millisecond)
	}
}

// busy keeps this process at work on a single processor, so that whatever else it has to
// do is done late, until the hold is lost. The answer tells when it was last trusted.
func (c *child) busy(ctx context.Context, h *Hold, a *answer) error {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var over atomic.Bool
	defer over.Store(true)
	for range 30 { // each runs for 10 ms
		go func() {
			for !over.Load() {
			}
		}()
	}
	for ctx.Err() == nil {
		now := bootTime() // if it is trusted at the look, so it was a moment before
		if h.Err() != nil {
			return nil
		}
		a.At = now
		runtime.Gosched()
	}
	return errors.New("the hold was not lost")
}
