package peer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"
)

// A Conn carries messages one way, to one replica.
type Conn struct {
	t       *Transport
	raw     net.Conn
	conn    net.Conn
	replica uint64

	mu      sync.Mutex // one frame at a time
	scratch []byte
}

// Dial connects to replica at addr. The error is a *Refusal when the other will
// not talk to this replica, or this one not to the other.
func (t *Transport) Dial(ctx context.Context, replica uint64, addr string) (*Conn, error) {
	c, err := t.dial(ctx, replica, addr)
	t.trouble.note(replica, err)
	if err != nil && reproach(err) && t.trouble.first(err.Error()) {
		t.cfg.Logger.Warn("cannot connect", "replica", replica, "err", err)
	}
	return c, err
}

// Unreachable returns why replicas could not be reached of late: those to whom a
// connection failed and of whom nothing was heard since.
func (t *Transport) Unreachable() map[uint64]error { return t.trouble.recent() }

func (t *Transport) dial(ctx context.Context, replica uint64, addr string) (*Conn, error) {
	if !t.cfg.Faults.dialable(t.cfg.Self.Replica, replica) {
		return nil, errCut
	}
	if addr == "" {
		return nil, fmt.Errorf("peer: dial replica %d: its address is not known here yet", replica)
	}
	ctx, cancel := context.WithTimeout(ctx, greetTimeout)
	defer cancel()
	defer context.AfterFunc(t.ctx, cancel)()
	raw, err := t.connect(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("peer: dial replica %d: %w", replica, err)
	}
	c := &Conn{t: t, raw: raw, conn: raw, replica: replica}
	if !t.adopt(c) {
		_ = raw.Close()
		return nil, ErrClosed
	}
	// A deadline alone would not notice that ctx was cancelled.
	unhook := context.AfterFunc(ctx, func() { _ = raw.SetDeadline(time.Unix(1, 0)) })
	err = c.introduce(ctx)
	if !unhook() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("peer: replica %d at %s: %w", replica, addr, err)
	}
	_ = raw.SetDeadline(time.Time{})
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, ErrClosed
	}
	t.workers.Go(c.heed)
	return c, nil
}

// heed ends the connection as soon as the other side has. Nothing else comes after the
// welcome, but often that is the only sign there is: where an address goes with its
// process, as a pod's does, nobody is left to refuse what is written later, and the first
// messages after a silence, such as a new leader's, would be lost for unackedTimeout.
func (c *Conn) heed() {
	_, _ = io.Copy(io.Discard, c.conn)
	c.Close()
}

func (t *Transport) connect(ctx context.Context, addr string) (net.Conn, error) {
	if t.cfg.Dial != nil {
		return t.cfg.Dial(ctx, addr)
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp", addr)
}

// introduce does the dialler's half of the handshake.
func (c *Conn) introduce(ctx context.Context) error {
	t := c.t
	tune(c.raw)
	conn, err := t.secure(ctx, c.raw, c.replica)
	if err != nil {
		return err
	}
	c.conn = conn
	// In TLS 1.3 it is only now that the other side judges our certificate. What
	// it says of that can be read although it takes no greeting any more.
	sent := writeFrame(conn, kindHello, t.hello(c.replica), &c.scratch)
	var buf []byte
	kind, payload, err := readFrame(conn, maxGreeting, &buf)
	switch {
	case cmp.Or(err, sent) != nil:
		return declined(cmp.Or(err, sent))
	case kind == kindRefuse:
		return t.refused(c.replica, payload)
	case kind != kindWelcome:
		return errForeign
	}
	if _, err := t.examine(conn, payload, c.replica); err != nil {
		t.refuse(conn, err)
		return err
	}
	return nil
}

func (t *Transport) adopt(c *Conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	t.outbound[c] = struct{}{}
	return true
}

// Close ends the connection. It is idempotent.
func (c *Conn) Close() {
	c.t.mu.Lock()
	delete(c.t.outbound, c)
	c.t.mu.Unlock()
	_ = c.raw.Close()
}

// Send writes one message, which may be lost. It does not keep payload.
func (c *Conn) Send(kind Kind, payload []byte) error {
	if c.t.cfg.Faults == nil {
		return c.write(kind, payload)
	}
	if c.t.cfg.Faults.hold(c.t.cfg.Self.Replica, c.replica, func() func() {
		late := slices.Clone(payload)
		return func() { _ = c.Send(kind, late) }
	}) {
		return nil
	}
	for _, delay := range c.t.cfg.Faults.judge(c.t.cfg.Self.Replica, c.replica) {
		if delay == 0 {
			if err := c.write(kind, payload); err != nil {
				return err
			}
			continue
		}
		late := slices.Clone(payload)
		time.AfterFunc(delay, func() { _ = c.write(kind, late) })
	}
	return nil
}

// SendAll writes one part of a stream of which all parts must arrive: what a
// test takes from it ends the connection.
func (c *Conn) SendAll(kind Kind, payload []byte) error {
	f := c.t.cfg.Faults
	if f != nil && (f.stopped(c.t.cfg.Self.Replica, c.replica) || len(f.judge(c.t.cfg.Self.Replica, c.replica)) == 0) {
		return errCut
	}
	return c.write(kind, payload)
}

func (c *Conn) write(kind Kind, payload []byte) error {
	if !c.t.passing() {
		return ErrClosed
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return writeFrame(patient{c}, kind, payload, &c.scratch)
}

// patient gives each piece of a long message its own deadline, so that a slow
// path is not taken for a dead one.
type patient struct{ c *Conn }

func (p patient) Write(b []byte) (int, error) {
	sent := 0
	for {
		piece := b[sent:min(len(b), sent+pieceLen)]
		_ = p.c.raw.SetWriteDeadline(time.Now().Add(writeTimeout))
		n, err := p.c.conn.Write(piece)
		sent += n
		if err != nil || sent == len(b) {
			return sent, err
		}
	}
}

const (
	linkDial     = 500 * time.Millisecond // and as long again for TLS, which is a round trip more
	minLinkPause = 20 * time.Millisecond
	maxLinkPause = 250 * time.Millisecond
	refusedPause = 3 * time.Second
)

// A Link is a lasting way to one replica: it connects again by itself, with
// pauses so short that a replica that comes back hears from the others before
// it could start an election. What it cannot send is lost. One goroutine may
// use it at a time.
type Link struct {
	t       *Transport
	replica uint64
	route   Route
	conn    *Conn
	pause   time.Duration
	next    time.Time
}

// A Route knows where replicas may be dialled.
type Route interface {
	// Address returns where to dial replica, or "".
	Address(replica uint64) string
	// Failed says that replica was not found at addr, so that another of its
	// addresses is tried next.
	Failed(replica uint64, addr string)
}

// Link returns a way to replica.
func (t *Transport) Link(replica uint64, route Route) *Link {
	return &Link{t: t, replica: replica, route: route}
}

// Send sends one message or loses it, and reports whether it was handed to the
// network. It does not keep payload.
func (l *Link) Send(ctx context.Context, kind Kind, payload []byte) bool {
	for range 2 { // the peer may have restarted since the last message
		if l.conn == nil && !l.connect(ctx) {
			return false
		}
		if l.conn.Send(kind, payload) == nil {
			return true
		}
		l.Close()
	}
	return false
}

func (l *Link) connect(ctx context.Context) bool {
	if time.Now().Before(l.next) {
		return false
	}
	patience := linkDial
	if l.t.cfg.TLS != nil {
		patience *= 2
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	addr := l.route.Address(l.replica)
	conn, err := l.t.Dial(ctx, l.replica, addr)
	if err == nil {
		l.conn, l.pause = conn, 0
		l.next = time.Now().Add(minLinkPause) // it may end at once, again and again
		return true
	}
	l.route.Failed(l.replica, addr)
	l.pause = min(max(2*l.pause, minLinkPause), maxLinkPause)
	wait := l.pause
	if refusal := (*Refusal)(nil); errors.As(err, &refusal) {
		wait = refusedPause
	}
	l.next = time.Now().Add(wait)
	l.t.cfg.Logger.Debug("cannot connect", "replica", l.replica, "err", err, "pause", wait)
	return false
}

// Close ends the present connection; the next Send makes another.
func (l *Link) Close() {
	if l.conn != nil {
		l.conn.Close()
		l.conn = nil
	}
}
