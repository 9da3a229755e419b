package quorumlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/clock"
	"golang.org/x/sync/singleflight"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/sessions"
)

// A Node is this process's replica of the cluster, and the way to its locks. It is
// safe for concurrent use. Open makes one; Shutdown or Close ends it.
type Node struct {
	opts   Options
	clk    clock.Clock
	trust  trustClock
	log    *slog.Logger
	host   engineHost
	groups []*group
	self   sessions.ID // replica and epoch of this life; Seq 0

	// Every call reads these, and none takes mu for it. They lie far from mu, which comes from
	// another processor's cache each time.
	own      atomic.Pointer[Session] // the node's own
	counting atomic.Bool             // stats is there
	start    time.Time               // just before it was opened
	quotas   *quotas                 // nil if there are none; mu guards what is in them
	answers  sync.Pool               // see newAnswer; of this node, since a test's bubble has its own channels

	ctx     context.Context // ends when the node closes
	stop    context.CancelFunc
	open    context.Context // ends when Close begins
	leave   context.CancelFunc
	loops   sync.WaitGroup
	closing sync.Once
	closed  chan struct{} // closed when Close has done all it does
	opening singleflight.Group
	bell    bell          // for those who watch
	work    chan *group   // for senders that are idle
	wanted  chan struct{} // has a token when renewals are to be looked at again
	led     chan struct{} // has a token when this replica came to lead
	moved   chan struct{} // has a token when the members may have changed

	// mu guards all below. A state machine's lock is taken before it, never after,
	// and the engine is never called with it held.
	mu                    sync.Mutex
	failed                error  // why this node can do nothing any more
	draining              bool   // Shutdown has begun: no new sessions
	resting               int    // senders that have nothing to do
	founding              string // sum of the backup from which the cluster was founded
	sessions              map[uint64]*Session
	lastSession, lastHold uint64 // the last numbers given out
	stats                 *stats // nil while nobody has asked for them
}

// Open starts this replica and returns at once: the node is there, and its calls
// wait until the cluster has a majority. Ready tells when it has.
//
// It returns an error matching ErrOptions, listing every fault, before it touches
// anything; ErrDirectory, ErrMembers, ErrGroups, ErrWiped or ErrRemoved when Dir is not this
// replica's; ErrBackup, ErrFormat or the file system's error when Restore cannot be read; or
// the network's error when Listen cannot be bound.
func Open(opts Options) (*Node, error) {
	opts, err := opts.complete()
	if err != nil {
		return nil, err
	}
	return open(opts, openReplica)
}

// An opener makes the engine for the state machines of so many groups: openReplica,
// or a simulated one in tests.
type opener func(o Options, m []stateMachine, ev engineEvents) (engineHost, identity, error)

func open(opts Options, openEngine opener) (*Node, error) {
	if opts.Restore != "" {
		opts.backup, opts.backupErr = readRestoration(opts.Restore, opts.Groups)
	}
	n := &Node{
		opts:     opts,
		clk:      opts.clock,
		trust:    opts.trust,
		log:      opts.Logger,
		closed:   make(chan struct{}),
		moved:    make(chan struct{}, 1),
		sessions: make(map[uint64]*Session),
		work:     make(chan *group, window),
		wanted:   make(chan struct{}, 1),
		led:      make(chan struct{}, 1),
		resting:  window,
		start:    opts.clock.Now().Add(-1),
	}
	n.quotas = newQuotas(n, opts.Quotas)
	n.ctx, n.stop = context.WithCancel(context.Background())
	n.open, n.leave = context.WithCancel(context.Background())
	for i := range opts.Groups {
		n.groups = append(n.groups, newGroup(n, i))
	}
	machines := make([]stateMachine, len(n.groups))
	for i, g := range n.groups {
		machines[i] = g.machine
	}

	// The engine may apply entries before it has told us which life this is. They
	// are of former lives, and no effect of theirs matches a zero self.
	onLeader := func(i int, replica, term uint64) { n.groups[i].onLeader(replica, term) }
	onMembers := func() { nudge(n.moved) }
	host, id, err := openEngine(opts, machines, engineEvents{leader: onLeader, refused: n.fail, members: onMembers})
	if err != nil {
		n.stop()
		return nil, err
	}
	n.mu.Lock()
	n.host = host
	for i, g := range n.groups {
		g.engine = host.group(i)
	}
	n.self = sessions.ID{Replica: opts.ReplicaID, Epoch: id.epoch}
	n.founding = id.backup
	n.opts.backup = nil // it is large, and needed once
	n.mu.Unlock()

	for _, g := range n.groups {
		n.loops.Go(g.boot)
	}
	n.loops.Go(n.renewLoop)
	n.loops.Go(n.expiryLoop)
	n.loops.Go(n.memberLoop)
	n.loops.Go(n.levelLoop)
	n.loops.Go(n.resignLoop)
	if id.backup != "" && opts.backup != nil {
		n.loops.Go(func() { n.restoreLoop(opts.backup) })
	}
	for range window {
		n.loops.Go(func() { n.sendLoop(nil) })
	}
	return n, nil
}

// Ready waits until this replica's life has begun in the log: a majority is there,
// what the process held in a former life is free, and what Options.Restore asks for is
// restored. It returns an error matching
// ErrNoQuorum and ctx's error if ctx ends first, or the reason for which this node
// never will be ready: ErrWiped, ErrMembers, ErrGroups, ErrRemoved, ErrFormat, ErrBackup or
// ErrClosed.
func (n *Node) Ready(ctx context.Context) error {
	if err := checkCtx(ctx); err != nil {
		return err
	}
	for _, g := range n.groups {
		select {
		case <-g.ready:
		case <-n.ctx.Done():
			return n.err()
		case <-ctx.Done():
			return &ctxError{ErrNoQuorum, ctx.Err()}
		}
	}
	return n.err()
}

// ready reports whether this node may ask for something in every group.
func (n *Node) ready() bool {
	return !slices.ContainsFunc(n.groups, func(g *group) bool { return !isClosed(g.ready) })
}

// err returns why the node can do nothing any more, or nil.
func (n *Node) err() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.failed
}

// fail makes every call return err from now on, and every hold be lost. The first
// error stays. It must not block: the engine calls it.
func (n *Node) fail(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.failLocked(err)
}

func (n *Node) failLocked(err error) {
	if n.failed != nil {
		return
	}
	n.failed = err
	n.stop()
	for _, s := range n.sessions {
		n.endSession(s, err)
		for _, p := range s.parts {
			if p == nil {
				continue
			}
			for _, h := range p.claims {
				h.wake() // no answer comes any more
			}
		}
	}
}

// Acquire takes the lock of a name, waiting in strict arrival order until it is
// free. The hold belongs to the node's own session.
//
// When ctx ends first, nothing is left behind, and the error matches ctx's error
// and either ErrHeld (a *HeldError that tells who has it) or, when no majority
// answered, ErrNoQuorum. A lock that was granted at the very moment is returned.
// Other errors match ErrName, ErrMode, ErrPermits, ErrDuration, ErrQueueFull,
// ErrBusy, ErrQuota, ErrSessionExpired or ErrClosed.
func (n *Node) Acquire(ctx context.Context, name string, opts ...AcquireOption) (*Hold, error) {
	return n.onOwnSession(ctx, []string{name}, true, opts)
}

// TryAcquire takes the lock of a name if nobody has it and nobody waits for it. If
// it is held, it returns a *HeldError, which matches ErrHeld. It waits only for the
// cluster's answer. For ctx and other errors see Acquire.
func (n *Node) TryAcquire(ctx context.Context, name string, opts ...AcquireOption) (*Hold, error) {
	return n.onOwnSession(ctx, []string{name}, false, opts)
}

// ownSession returns the node's own session, opened at its first use and again
// after it was lost.
func (n *Node) ownSession(ctx context.Context) (*Session, error) {
	if s := n.own.Load(); s != nil && s.Err() == nil {
		return s, nil
	}
	// Opened for all who ask at once, and on no one caller's ctx.
	opened := n.opening.DoChan("own", func() (any, error) { return n.openOwn() })
	select {
	case r := <-opened:
		if r.Err != nil {
			if failed := n.err(); failed != nil {
				return nil, failed
			}
			return nil, r.Err
		}
		return r.Val.(*Session), nil
	case <-ctx.Done():
		return nil, &ctxError{ErrNoQuorum, ctx.Err()}
	}
}

// openOwn opens the node's own session, unless that was done since its caller looked: one
// that nobody knows of would be renewed for ever.
func (n *Node) openOwn() (*Session, error) {
	if s := n.own.Load(); s != nil && s.Err() == nil {
		return s, nil
	}
	s, err := n.openSession(n.ctx, n.sessionDefaults())
	if err == nil {
		n.own.Store(s)
	}
	return s, err
}

// Do runs fn while holding the lock of a name, and releases it when fn returns or
// panics. It waits for the lock as Acquire does, with the same errors. The context
// given to fn ends when the lock is lost; the token is for the stores that fn
// writes to.
//
// Do returns fn's error. If the lock was lost before fn returned, the error matches
// ErrLost too, even when fn returned nil: what fn did last may have been done
// without the lock. That the release could not be confirmed is no error of Do: it
// goes on in the background.
func (n *Node) Do(ctx context.Context, name string, fn func(ctx context.Context, token fencing.Token) error, opts ...AcquireOption) (err error) {
	h, err := n.Acquire(ctx, name, opts...)
	if err != nil {
		return err
	}
	held, cancel := h.Context(ctx)
	defer func() {
		lost := h.Err()
		cancel()
		_ = h.Release(ctx)
		if lost != nil {
			err = errors.Join(err, lost)
		}
	}()
	return fn(held, h.Token())
}

// Shutdown ends the node cleanly: every session is closed, so that all its locks
// go to the next in line at once; leadership is handed over; then Close. If ctx
// ends before the cluster has confirmed it, the node is closed all the same, and
// the error matches ctx's error.
func (n *Node) Shutdown(ctx context.Context) error {
	if ctx == nil {
		return ErrNilContext
	}
	err := n.closeSessions(ctx)
	if err == nil {
		n.handOver(ctx)
	}
	return errors.Join(err, n.Close())
}

// handOver asks the other replicas in turn to lead what this one leads, for at most an
// election timeout: a cluster whose leader just goes elects a new one in that time.
func (n *Node) handOver(ctx context.Context) {
	ctx, cancel := n.clk.WithTimeout(ctx, n.opts.ElectionTimeout)
	defer cancel()
	var all sync.WaitGroup
	for _, g := range n.groups {
		all.Go(func() { g.handOver(ctx) })
	}
	all.Wait()
}

func (g *group) handOver(ctx context.Context) {
	for id := range g.engine.members() {
		if leader, _ := g.engine.leader(); leader != g.n.opts.ReplicaID || ctx.Err() != nil {
			return
		}
		if id == g.n.opts.ReplicaID {
			continue
		}
		if err := g.offer(ctx, id); err != nil {
			return
		}
	}
}

// offer asks a replica to lead in the place of the one that does. That it declines, or is
// not heard of within an election timeout, is no error.
func (g *group) offer(ctx context.Context, to uint64) error {
	// A round of heartbeats tells the others what is committed. A replica that
	// has still to apply something declines to lead, and while a leader waits
	// for one to take over it tells nobody anything.
	if err := g.barrier(ctx); err != nil {
		return err
	}
	try, cancel := g.n.clk.WithTimeout(ctx, g.n.opts.ElectionTimeout)
	defer cancel()
	if err := g.engine.transfer(try, to); err != nil {
		g.n.log.Info("could not hand over leadership", "to", to, "err", err)
	}
	return nil
}

// Close stops the node at once. Its holds are lost, its calls return ErrClosed, and
// when Close returns nothing of it runs any more. The cluster learns nothing of it:
// the locks come free within the TTL, or when this replica opens again; Shutdown
// frees them at once. Close is idempotent, and every call waits for the end.
func (n *Node) Close() error {
	var err error
	n.closing.Do(func() {
		defer close(n.closed)
		n.fail(ErrClosed)
		n.leave()
		n.loops.Wait()
		err = n.host.close()
	})
	<-n.closed
	return err
}

// encode encodes an entry that this process speaks.
func (n *Node) encode(e wire.Entry) []byte { return n.encodeOf(1, e) }

// encodeOf encodes it in a version that is at least the one given.
func (n *Node) encodeOf(version byte, e wire.Entry) []byte {
	e.Replica, e.Epoch, e.At = n.self.Replica, n.self.Epoch, n.clk.Now().UnixMilli()
	return wire.AppendEntryOf(version, nil, &e)
}

func checkCtx(ctx context.Context) error {
	if ctx == nil {
		return ErrNilContext
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("quorumlock: ctx had ended before the call: %w", err)
	}
	return nil
}

// later waits for d, or until one of the channels closes; it reports whether the
// node goes on.
func (n *Node) later(d time.Duration, or ...<-chan struct{}) bool {
	t := n.clk.Timer(d)
	defer t.Stop()
	var a, b <-chan struct{}
	if len(or) > 0 {
		a = or[0]
	}
	if len(or) > 1 {
		b = or[1]
	}
	select {
	case <-t.C:
	case <-a:
	case <-b:
	case <-n.ctx.Done():
	}
	return n.ctx.Err() == nil
}
