package quorumlock

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/sessions"
)

// holdMore is what a hold has beside an exclusive lock on one name. What the first
// part says is not changed once the hold was handed out; the rest is guarded by
// n.mu.
type holdMore struct {
	asked  bool     // it was asked for with more than a plain acquire can say
	names  []string // all of them, in order
	tokens []fencing.Token
	slots  []int
	terms
	until time.Duration // by the trust clock, when MaxHold ends for the holder; 0 for never

	missing   int // names that were not granted yet
	timer     *clock.Timer
	givenBack bool // a release was sent
	yield     chan YieldRequest

	parts []*Hold // of a set: see hold_set.go
	whole *Hold   // the set that this hold is a part of
}

func newHoldMore(r request) *holdMore {
	m := &holdMore{asked: true, names: r.names, terms: r.terms}
	if len(m.names) == 0 {
		m.names = []string{r.name}
	}
	m.tokens, m.missing = make([]fencing.Token, len(m.names)), len(m.names)
	return m
}

// moreOf returns what a hold has more, made if need be. n.mu is held.
func (h *Hold) moreOf() *holdMore {
	m := h.more.Load()
	if m == nil {
		m = &holdMore{names: []string{h.name}, tokens: []fencing.Token{h.token}, terms: termsOf(nil)}
		h.more.Store(m)
	}
	return m
}

// A YieldRequest is what Node.RequestYield sends to the holders of a lock.
type YieldRequest struct {
	By     string // who asks
	Reason string // and why
}

// Names returns the names of the locks, in order.
func (h *Hold) Names() []string {
	if m := h.more.Load(); m != nil {
		return slices.Clone(m.names)
	}
	return []string{h.name}
}

// TokenFor returns the fencing token for one of the hold's names, and zero for any
// other.
func (h *Hold) TokenFor(name string) fencing.Token {
	if m := h.more.Load(); m != nil {
		if i, ok := slices.BinarySearch(m.names, name); ok {
			return m.tokens[i]
		}
		return 0
	}
	if name == h.name {
		return h.token
	}
	return 0
}

// Mode returns how the lock is held.
func (h *Hold) Mode() Mode {
	n := h.part.n
	n.mu.Lock()
	defer n.mu.Unlock()
	if m := h.more.Load(); m != nil {
		return m.mode
	}
	return Exclusive
}

// Slots returns which permits of a counted lock are held, in ascending order. No
// other holder has one of them, so each of N workers can own the shard that has its
// slot's number; a slot's tokens only grow, as a name's do.
func (h *Hold) Slots() []int {
	if m := h.more.Load(); m != nil {
		return slices.Clone(m.slots)
	}
	return nil
}

// YieldRequests returns a channel on which the holder learns that somebody would
// like the lock; see Node.RequestYield. It holds the latest request, and it is up to
// the holder what comes of it. A request can get lost when this replica falls so
// far behind that it is sent a snapshot.
func (h *Hold) YieldRequests() <-chan YieldRequest {
	n := h.part.n
	n.mu.Lock()
	defer n.mu.Unlock()
	return h.moreOf().requests()
}

func (m *holdMore) requests() chan YieldRequest {
	if m.yield == nil {
		m.yield = make(chan YieldRequest, 1)
	}
	return m.yield
}

// ask passes a request on to the holder. n.mu is held.
func (h *Hold) ask(r YieldRequest) {
	m := h.moreOf()
	if m.whole != nil {
		m = m.whole.moreOf()
	}
	c := m.requests()
	select {
	case <-c:
	default:
	}
	c <- r
}

// Downgrade makes an exclusive hold a shared one, without a moment at which nobody
// holds the lock; it keeps its token, and those who wait to share it are granted.
// Downgrade of a shared hold does nothing. It returns the *LostError if the hold
// was lost, ErrNotHeld after Release, an error matching ErrMode for counted locks
// and for several names, and one matching ErrNoQuorum and ctx's error when ctx
// ended first: it may then be done or not.
func (h *Hold) Downgrade(ctx context.Context) error {
	return h.change(ctx, wire.Command{Op: wire.Downgrade, More: &wire.More{}})
}

// Upgrade is always refused, with ErrUpgrade, or with what Err returns if the hold
// is over. It exists to say so: two readers that both wait to write would wait for
// each other for ever. Release, and acquire the lock exclusively; the token tells
// whether somebody wrote in between.
func (h *Hold) Upgrade(ctx context.Context) error {
	if err := checkCtx(ctx); err != nil {
		return err
	}
	if err := h.Err(); err != nil {
		return err
	}
	return ErrUpgrade
}

// SetValue changes what the hold publishes: others see it in Describe and Watch. See
// Value; errors are those of Downgrade, and ErrValue.
func (h *Hold) SetValue(ctx context.Context, value string) error {
	if !wire.ValidText(value, MaxValueLen) {
		return fmt.Errorf("%w: %.32q...: must be UTF-8 of at most %d bytes", ErrValue, value, MaxValueLen)
	}
	return h.change(ctx, wire.Command{Op: wire.Publish, More: &wire.More{Value: value}})
}

// HandOver gives an exclusive lock to a session that waits for it, past those who
// have waited longer. It returns ErrNoWaiter, and the hold goes on, if the session
// does not wait for the lock. Otherwise the hold is over for this process at once,
// as by Release; should the session stop waiting at the very moment, the lock goes
// to whoever is next, and HandOver returns ErrNoWaiter with the hold over. Errors
// are those of Release, and ErrMode for a hold that is not exclusive, on one name.
func (h *Hold) HandOver(ctx context.Context, to sessions.ID) error {
	if err := checkCtx(ctx); err != nil {
		return err
	}
	if err := h.Err(); err != nil {
		return err // also where the cluster cannot be asked
	}
	n := h.part.n
	info, err := n.Describe(ctx, h.name)
	if lost := h.Err(); lost != nil {
		return lost
	}
	if err != nil {
		return err
	}
	if len(h.Names()) > 1 || h.Mode() != Exclusive {
		return fmt.Errorf("hand over %q: %w", h.name, ErrMode)
	}
	if !slices.ContainsFunc(info.Waiters, func(w Waiter) bool { return w.Session == to }) {
		return fmt.Errorf("hand over %q to %s: %w", h.name, to, ErrNoWaiter)
	}
	n.mu.Lock()
	n.distrust(h.part.Session)
	if h.err != nil {
		defer n.mu.Unlock()
		return h.err
	}
	// Over for us before anybody else can be granted it.
	h.finish(ErrNotHeld)
	n.mu.Unlock()
	return h.part.g.call(ctx, h.name, h.about(wire.Command{Op: wire.HandOver, More: &wire.More{Who: to}}))
}

// about makes a command one about the hold.
func (h *Hold) about(c wire.Command) wire.Command {
	c.Session, c.Hold, c.Lock = h.part.id.Seq, h.seq, hashOf(h.name)
	return c
}

// change asks for a change of the hold.
func (h *Hold) change(ctx context.Context, c wire.Command) error {
	if err := checkCtx(ctx); err != nil {
		return err
	}
	if err := h.Err(); err != nil {
		return err
	}
	if h.parts() != nil {
		return h.changeParts(ctx, c)
	}
	err := h.part.g.call(ctx, h.name, h.about(c))
	if lost := h.Err(); lost != nil {
		return lost
	}
	return err
}

// overdue reports whether MaxHold has ended for the holder.
func (h *Hold) overdue() bool {
	m := h.more.Load()
	return m != nil && m.until != 0 && h.part.n.trust() >= m.until
}

// obtain notes what a grant brought, and reports whether it was all that was asked
// for. The effects of one entry bring all names. n.mu and the state machine's lock
// are held.
func (h *Hold) obtain(m *holdMore, name string, token fencing.Token) (all bool) {
	n := h.part.n
	if i, ok := slices.BinarySearch(m.names, name); ok && m.tokens[i].IsZero() {
		m.tokens[i] = token
		m.missing--
	}
	h.token = max(h.token, token)
	if m.missing > 0 {
		return false
	}
	if m.mode == Counted {
		m.slots, _ = h.part.g.machine.fsm.publicOf(h.part.id, h.name, h.seq)
	}
	if m.maxHold > 0 {
		// The leader counts from when it applied the start, which is later.
		m.until = n.trust() + trusted(m.maxHold)
		h.part.g.stream.say(wire.Command{Op: wire.Start, Session: h.part.id.Seq, Hold: h.seq, Lock: hashOf(h.name), More: &wire.More{}})
		m.timer = n.clk.AfterFunc(trusted(m.maxHold), func() { h.checkMaxHold(m) })
	}
	return true
}

// checkMaxHold is called when MaxHold may have ended for the holder.
func (h *Hold) checkMaxHold(m *holdMore) {
	n := h.part.n
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case h.err != nil:
	case h.overdue():
		h.lose(ErrMaxHold)
	default:
		m.timer.Reset(max(m.until-n.trust(), time.Millisecond))
	}
}
