package quorumlock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/sessions"
)

// A Session is a holder of locks that lives in this process. When it ends, by
// Close, by the process's end or because it could not be renewed, all its locks
// come free at once. It is safe for concurrent use.
//
// The node renews its sessions by itself. Most programs need no session of their
// own: the node has one.
type Session struct {
	n     *Node
	id    sessions.ID
	ttl   time.Duration
	owner string

	maxWaits uint64 // places in lines that it may have
	remote   bool   // its holder is not in this process

	done    chan struct{}
	settled chan struct{} // closed once the cluster has opened or refused it
	ended   chan struct{} // closed once the cluster has ended it too

	// trusted is until when the session can be relied on, by the trust clock.
	trusted atomic.Int64

	// guarded by n.mu
	state    sessionState
	parts    []*part      // by group; nil where it was never needed
	left     int          // parts that the cluster has not ended
	cause    error        // why it is over
	timer    *clock.Timer // wakes at the next moment at which trust may be in doubt
	troubled bool         // OnJeopardy was called since the last renewal
	quota    []usage      // of the quotas that are per session
}

// A part is what there is of a session in one group. All of it is guarded by n.mu.
type part struct {
	*Session
	g      *group
	opened bool             // the group has opened it
	gone   bool             // the group has ended it
	batch  uint64           // the batch that carries its opening; 0 until it is sent
	until  time.Duration    // until when it can be relied on, by the trust clock
	claims map[uint64]*Hold // every acquisition of which something may be left
}

type sessionState uint8

const (
	sessionOpening sessionState = iota
	sessionOpen
	sessionOver
)

// A SessionOption changes one thing about a new session.
type SessionOption func(*sessionOptions)

type sessionOptions struct {
	ttl      time.Duration
	owner    string
	maxWaits int // negative for any number
	remote   bool
}

// sessionDefaults are the options of a session for which nothing was asked.
func (n *Node) sessionDefaults() sessionOptions {
	return sessionOptions{ttl: n.opts.SessionTTL, owner: n.opts.Owner, maxWaits: -1}
}

// anyNumber is a limit that is none.
const anyNumber = math.MaxUint64

// WithTTL sets within what time after a crash the session's locks come free.
// Default: Options.SessionTTL, whose limits hold here too. Fractions of a
// millisecond are cut off.
func WithTTL(ttl time.Duration) SessionOption {
	return func(o *sessionOptions) { o.ttl = ttl }
}

// WithOwner sets the name that others are shown: at most MaxOwnerLen bytes of
// UTF-8. Default: Options.Owner.
func WithOwner(name string) SessionOption {
	return func(o *sessionOptions) { o.owner = name }
}

// MaxWaits sets how many places in lines the session may have at once: with more,
// Acquire returns ErrQueueFull at once. A wait for several names has a place in
// the line of each, and is refused if they would be too many. With several groups
// (Options.Groups) it counts in each of them. Default, and for a negative number: any
// number.
func MaxWaits(places int) SessionOption {
	return func(o *sessionOptions) { o.maxWaits = places }
}

// Remote is for a session that holds locks for a client outside of this process, which
// learns of their loss later than this process does: however the session ends, its holds
// are lost and not released. So their LockDelay applies also after Close and after
// Node.Shutdown; after Hold.Release it does not. See docs/ARCHITECTURE.md.
func Remote() SessionOption { return func(o *sessionOptions) { o.remote = true } }

// OpenSession opens a session. It returns an error matching ErrNoQuorum and ctx's
// error when ctx ends before a majority answered, and leaves nothing behind then;
// ErrOptions for a TTL or owner outside their limits; ErrClosed.
func (n *Node) OpenSession(ctx context.Context, opts ...SessionOption) (*Session, error) {
	if err := checkCtx(ctx); err != nil {
		return nil, err
	}
	o := n.sessionDefaults()
	for _, opt := range opts {
		opt(&o)
	}
	if err := checkTTL(o.ttl, n.opts.ElectionTimeout); err != nil {
		return nil, fmt.Errorf("%w: TTL is %w", ErrOptions, err)
	}
	if !wire.ValidText(o.owner, MaxOwnerLen) {
		return nil, fmt.Errorf("%w: owner %q: must be UTF-8 of at most %d bytes", ErrOptions, o.owner, MaxOwnerLen)
	}
	return n.openSession(ctx, o)
}

func (n *Node) openSession(ctx context.Context, o sessionOptions) (*Session, error) {
	s, err := n.beginSession(o)
	if err != nil {
		return nil, err
	}
	select {
	case <-s.settled:
	case <-s.done:
	case <-ctx.Done():
		if n.abandonSession(s) {
			return nil, &ctxError{ErrNoQuorum, ctx.Err()}
		}
	}
	if err := s.Err(); err != nil {
		return nil, err
	}
	return s, nil
}

// abandonSession ends a session that is still being opened, and reports whether it
// was.
func (n *Node) abandonSession(s *Session) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if s.state != sessionOpening {
		return false
	}
	n.endSession(s, ErrSessionClosed)
	return true
}

func (n *Node) beginSession(o sessionOptions) (*Session, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.failed != nil:
		return nil, n.failed
	case n.draining:
		return nil, ErrClosed
	}
	n.lastSession++
	s := &Session{
		n: n, ttl: o.ttl.Truncate(time.Millisecond), owner: o.owner,
		id:      sessions.ID{Replica: n.self.Replica, Epoch: n.self.Epoch, Seq: n.lastSession},
		done:    make(chan struct{}),
		settled: make(chan struct{}),
		ended:   make(chan struct{}),
		parts:   make([]*part, len(n.groups)),

		maxWaits: anyNumber, remote: o.remote,
		quota: n.quotas.ofSession(),
	}
	if o.maxWaits >= 0 {
		s.maxWaits = uint64(o.maxWaits)
	}
	n.sessions[s.id.Seq] = s
	// In one group now, to be sure of a majority, and not in the same one as all others.
	s.in(n.groups[(s.id.Replica+s.id.Seq)%uint64(len(n.groups))])
	return s, nil
}

// in returns the session's part in a group. Where there is none yet it is opened, in
// the batch that carries what it is needed for. n.mu is held.
func (s *Session) in(g *group) *part {
	if p := s.parts[g.index]; p != nil {
		return p
	}
	p := &part{Session: s, g: g, claims: make(map[uint64]*Hold)}
	s.parts[g.index] = p
	s.left++
	g.parts[s.id.Seq] = p
	g.stream.say(wire.Command{Op: wire.Open, Session: s.id.Seq, TTL: uint64(s.ttl / time.Millisecond), Owner: s.owner})
	return p
}

// each calls f with every part that the cluster has not ended. n.mu is held.
func (s *Session) each(f func(p *part)) {
	for _, p := range s.parts {
		if p != nil && !p.gone {
			f(p)
		}
	}
}

// ID returns the session's id, by which Describe and errors name it.
func (s *Session) ID() sessions.ID { return s.id }

// Owner returns the name that others are shown.
func (s *Session) Owner() string { return s.owner }

// Done returns a channel that is closed when the session is over.
func (s *Session) Done() <-chan struct{} { return s.done }

// Err returns nil while the session lives, and then why it is over: an error
// matching ErrSessionClosed, ErrSessionExpired or ErrClosed. It looks at the clock
// itself, so it is right even in a process that was stopped for long and has just
// woken, before any timer has run.
func (s *Session) Err() error {
	if !isClosed(s.done) && s.alive() {
		return nil
	}
	s.n.mu.Lock()
	defer s.n.mu.Unlock()
	s.n.distrust(s)
	return s.cause
}

// alive reports whether the session can be trusted by the clock. One that is still
// being opened has nothing to lose.
func (s *Session) alive() bool {
	until := s.trusted.Load()
	return until == 0 || s.n.trust() < time.Duration(until)
}

// remaining is how long the session can be trusted without another renewal.
func (s *Session) remaining() time.Duration {
	return time.Duration(s.trusted.Load()) - s.n.trust()
}

// Acquire is Node.Acquire on this session.
func (s *Session) Acquire(ctx context.Context, name string, opts ...AcquireOption) (*Hold, error) {
	return s.ask(ctx, []string{name}, true, opts)
}

// TryAcquire is Node.TryAcquire on this session.
func (s *Session) TryAcquire(ctx context.Context, name string, opts ...AcquireOption) (*Hold, error) {
	return s.ask(ctx, []string{name}, false, opts)
}

// Close ends the session. It is over for this process at once, its holds are lost,
// and Close returns when the cluster has given its locks to the next in line. If
// ctx ends first, or had ended before, Close goes on in the background and returns
// an error matching ErrNoQuorum and ctx's error. Close is idempotent.
func (s *Session) Close(ctx context.Context) error {
	if ctx == nil {
		return ErrNilContext
	}
	s.n.mu.Lock()
	s.n.endSession(s, ErrSessionClosed)
	s.n.mu.Unlock()
	return s.n.await(ctx, s.ended)
}

// endSession ends a session for this process, in all groups: whatever arrives later, it
// is over. The cluster is told, so that nobody waits for its locks. n.mu is held.
func (n *Node) endSession(s *Session, cause error) {
	if s.state == sessionOver {
		return
	}
	s.state = sessionOver
	s.cause = cause
	if s.timer != nil {
		s.timer.Stop()
	}
	for _, p := range s.parts {
		if p != nil {
			for _, h := range p.claims {
				n.endClaim(h, cause)
			}
		}
	}
	close(s.done)
	s.each(func(p *part) { p.g.stream.say(p.farewell(cause)) })
}

// farewell is how a group is told that a session is over. One that was lost, here or in
// another group, is not closed: its holders had no chance to be done, and LockDelay is
// for that. Nor had those of a remote one.
func (p *part) farewell(cause error) wire.Command {
	if r := (*RevokedError)(nil); errors.As(cause, &r) {
		return wire.Command{Op: wire.Evict, More: &wire.More{Who: p.id, By: r.By, Reason: r.Reason}}
	}
	if p.remote || errors.Is(cause, ErrSessionExpired) {
		for _, h := range p.claims {
			if m := h.more.Load(); m != nil && m.delay+m.minHold > 0 {
				return wire.Command{Op: wire.Evict, More: &wire.More{Who: p.id}}
			}
		}
	}
	return wire.Command{Op: wire.Close, Session: p.id.Seq}
}

// forgetPart is called once the cluster has ended a session in one group: it is then
// over in all. n.mu is held.
func (n *Node) forgetPart(p *part, cause error) {
	p.gone = true
	n.endSession(p.Session, cause)
	delete(p.g.parts, p.id.Seq)
	for _, h := range p.claims {
		n.forgetClaim(h)
	}
	if p.left--; p.left == 0 {
		delete(n.sessions, p.id.Seq)
		close(p.ended)
	}
}

// distrust ends a session that can no longer be trusted by the clock. n.mu is held.
func (n *Node) distrust(s *Session) {
	if s.state != sessionOpen || s.alive() {
		return
	}
	n.log.Warn("session lost: it could not be renewed in time", "session", s.id.String())
	n.endSession(s, fmt.Errorf("%w: not renewed in time: %w", ErrSessionExpired, ErrNoQuorum))
}

// extend counts the trust in a session's part from the last renewal that its group has
// acknowledged. n.mu is held.
func (n *Node) extend(p *part) {
	until := p.g.pulse.since + sessions.Trust(p.ttl)
	if !p.opened || p.state != sessionOpen || until <= p.until {
		return
	}
	if !p.alive() {
		n.distrust(p.Session) // what was once given up stays so
		return
	}
	p.until = until
	n.rely(p.Session)
}

// rely counts the trust in a session: that in the part which can be trusted least. The
// session is one, so it is lost in all groups when it is in one. n.mu is held.
func (n *Node) rely(s *Session) {
	until := time.Duration(math.MaxInt64)
	s.each(func(p *part) {
		if p.opened {
			until = min(until, p.until)
		}
	})
	before := time.Duration(s.trusted.Load())
	s.trusted.Store(int64(until))
	if until > before {
		s.troubled = false
	}
	if s.timer == nil {
		s.timer = n.clk.AfterFunc(n.doubtIn(s), func() { n.doubt(s) })
	} else if until < before { // a group that was slow to open it
		s.timer.Reset(max(n.doubtIn(s), time.Millisecond))
	}
}

// doubtIn tells how long it is until trust in a session may be in doubt: half of
// its trust is gone, or, when that was noticed, all of it.
func (n *Node) doubtIn(s *Session) time.Duration {
	if s.troubled {
		return s.remaining()
	}
	return s.remaining() - sessions.Trust(s.ttl)/2
}

// doubt is called when trust in a session may be in doubt.
func (n *Node) doubt(s *Session) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.distrust(s)
	if s.state != sessionOpen {
		return
	}
	if n.doubtIn(s) <= 0 && !s.troubled {
		s.troubled = true
		n.stats.lateRenewal()
		until := n.clk.Now().Add(s.remaining())
		n.log.Warn("session in jeopardy: no renewal succeeds", "session", s.id.String(), "until", until)
		if f := n.opts.OnJeopardy; f != nil {
			go f(s, until)
		}
	}
	s.timer.Reset(max(n.doubtIn(s), time.Millisecond))
}

// closeSessions closes every session and waits until the cluster has ended them.
func (n *Node) closeSessions(ctx context.Context) error {
	n.mu.Lock()
	n.draining = true
	var open []*Session
	for _, s := range n.sessions {
		n.endSession(s, ErrClosed)
		open = append(open, s)
	}
	n.mu.Unlock()
	for _, s := range open {
		if err := n.await(ctx, s.ended); err != nil {
			return err
		}
	}
	return nil
}

// await waits until the cluster has confirmed something.
func (n *Node) await(ctx context.Context, confirmed <-chan struct{}) error {
	select {
	case <-confirmed:
		return nil
	default:
	}
	select {
	case <-confirmed:
		return nil
	case <-n.ctx.Done():
		if isClosed(confirmed) {
			return nil
		}
		return n.err()
	case <-ctx.Done():
		return &ctxError{ErrNoQuorum, ctx.Err()}
	}
}
