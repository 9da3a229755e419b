package dashboard

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/dashboard/api"
)

const (
	minLease       = time.Second
	maxLease       = 10 * time.Minute
	requestTimeout = 10 * time.Second // for the first line
)

// hold lets a client outside of this process hold a lock for as long as its request
// lives. What it is told, and why that is safe, is in package api and in
// docs/ARCHITECTURE.md.
func (h *handler) hold(p *reply) {
	p.json = true
	p.w.Header().Set("Connection", "close") // the request may end before its body does
	control := http.NewResponseController(p.w)
	// Both are there in net/http; what wraps its ResponseWriter may hide them.
	if err := errors.Join(control.EnableFullDuplex(), control.SetReadDeadline(time.Now().Add(requestTimeout))); err != nil {
		p.fail(&failure{http.StatusNotImplemented, "The server does not let this page read and write at once: " + err.Error() + "."})
		return
	}
	lines := bufio.NewScanner(p.r.Body)
	lines.Buffer(nil, maxBody) // the longest line
	ctx, cancel := context.WithCancel(p.r.Context())
	c := &client{h: h, w: p.w, control: control, lines: lines, said: make(chan api.HoldMessage, 1)}
	defer c.hangUp(cancel)
	if err := h.mayHold(p, c); err != nil {
		p.fail(err)
		return
	}
	if !h.clients.take(h.opts.MaxHolds) {
		p.fail(&failure{http.StatusServiceUnavailable, fmt.Sprintf("%d locks are held or waited for through this page, and no more are allowed.", h.opts.MaxHolds)})
		return
	}
	defer h.clients.free()
	p.w.Header().Set("Content-Type", api.HoldType)
	p.w.Header().Set("X-Accel-Buffering", "no") // nginx would keep the answers back
	c.serve(ctx)
}

// mayHold reads what a client asks for, if nothing speaks against it: as with any
// action, the application's own word comes last.
func (h *handler) mayHold(p *reply, c *client) error {
	if h.opts.Authorize == nil || h.opts.MaxHolds <= 0 {
		return &failure{http.StatusForbidden, "No lock can be held through this page: the application has not enabled it."}
	}
	if err := h.cross.Check(p.r); err != nil {
		return &failure{http.StatusForbidden, "This request comes from another site."}
	}
	if mediaType(p.r) != api.HoldType {
		return &failure{http.StatusUnsupportedMediaType, "Send " + api.HoldType + "."}
	}
	if !c.lines.Scan() {
		return badRequest("The first line cannot be read: %v.", c.lines.Err())
	}
	if err := json.Unmarshal(c.lines.Bytes(), &c.ask); err != nil {
		return badRequest("The first line is no request: %v.", err)
	}
	a := Action{Kind: TakeLock, Name: c.ask.Name, By: c.ask.By}
	c.owner = c.ask.By
	if h.opts.User != nil {
		a.By = h.opts.User(p.r)
		c.owner = a.By + " (" + c.ask.By + ")"
	}
	c.lease = time.Duration(c.ask.Lease) * time.Millisecond
	switch {
	case a.Name == "":
		return badRequest("Which lock? name is missing.")
	case strings.TrimSpace(a.By) == "":
		return badRequest("Say who you are: others see it as the lock's owner.")
	case c.lease < minLease || c.lease > maxLease:
		return badRequest("leaseMs must be %d to %d, not %d.", minLease.Milliseconds(), maxLease.Milliseconds(), c.ask.Lease)
	case c.ask.Wait < 0:
		return badRequest("waitMs is %d: must be positive, or 0 for any time.", c.ask.Wait)
	case c.ask.Shared && c.ask.Limit != 0:
		return badRequest("shared is set and limit is %d: a lock is shared or counted, not both.", c.ask.Limit)
	case (c.ask.Permits != 0) != (c.ask.Limit != 0):
		return badRequest("permits is %d and limit is %d: a counted lock has both.", c.ask.Permits, c.ask.Limit)
	}
	if err := h.opts.Authorize(p.r, a); err != nil {
		return &failure{http.StatusForbidden, "Not allowed: " + err.Error()}
	}
	return nil
}

// A client is one at the other end of a request that holds a lock.
type client struct {
	h       *handler
	w       http.ResponseWriter
	control *http.ResponseController
	lines   *bufio.Scanner
	ask     api.HoldRequest
	owner   string
	lease   time.Duration

	said    chan api.HoldMessage // the latest; closed when the client is gone
	reading chan struct{}        // closed when nobody reads any more; nil if nobody has begun
	ping    uint64               // the latest that was heard
	hold    *quorumlock.Hold     // once it is granted
	told    bool                 // the client may believe that it holds the lock
}

// hangUp ends the reading, so that the server can end the request.
func (c *client) hangUp(cancel func()) {
	cancel()
	_ = c.control.SetReadDeadline(time.Unix(1, 0))
	if c.reading != nil {
		<-c.reading
	}
}

// listen notes what the client says, the latest only, until it has released the lock,
// or is gone: silent for half a lease, or its request is over.
func (c *client) listen(ctx context.Context) {
	defer close(c.reading)
	defer close(c.said)
	for {
		// In this order: hangUp cancels ctx before it sets a deadline.
		_ = c.control.SetReadDeadline(time.Now().Add(c.lease / 2))
		if ctx.Err() != nil || !c.lines.Scan() {
			return
		}
		var m api.HoldMessage
		if json.Unmarshal(c.lines.Bytes(), &m) != nil {
			return
		}
		select {
		case <-c.said: // nobody has looked at it yet
		default:
		}
		c.said <- m
		if m.Release {
			return
		}
	}
}

// A grant is what became of an acquire.
type grant struct {
	session *quorumlock.Session
	hold    *quorumlock.Hold
	err     error
}

// acquire waits in line. The session is the client's own, so that it is seen by its name
// and can be closed alone. It is remote: whatever ends the hold but a release sets a
// LockDelay of a lease.
func (c *client) acquire(ctx context.Context) (g grant) {
	if c.ask.Wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(c.ask.Wait)*time.Millisecond)
		defer cancel()
	}
	if g.session, g.err = c.h.node.OpenSession(ctx, quorumlock.Remote(), quorumlock.WithOwner(c.owner)); g.err != nil {
		return g
	}
	opts := []quorumlock.AcquireOption{quorumlock.LockDelay(c.lease)}
	if c.ask.Shared {
		opts = append(opts, quorumlock.Share())
	}
	if c.ask.Limit != 0 {
		opts = append(opts, quorumlock.Permits(c.ask.Permits, c.ask.Limit))
	}
	ask := g.session.Acquire
	if c.ask.Try {
		ask = g.session.TryAcquire
	}
	g.hold, g.err = ask(ctx, c.ask.Name, opts...)
	return g
}

// serve acquires the lock for the client and keeps it until the client releases it, is
// gone, or the lock is lost.
func (c *client) serve(ctx context.Context) {
	c.reading = make(chan struct{})
	go c.listen(ctx)
	waiting, cancel := context.WithCancel(ctx)
	granted := make(chan grant, 1)
	go func() { granted <- c.acquire(waiting) }()
	last := c.converse(granted, cancel)
	if last.State != "" {
		c.write(last)
	}
}

// converse returns the last word, which is none if the client is gone.
func (c *client) converse(granted chan grant, cancel func()) (last api.HoldAnswer) {
	var g grant
	pending := granted
	var lost <-chan struct{}
	defer func() {
		cancel()
		if pending != nil {
			g = <-pending
		}
		c.part(g)
	}()
	c.write(api.HoldAnswer{State: api.HoldWaiting})
	for {
		select {
		case m, ok := <-c.said:
			switch {
			case !ok:
				return last
			case m.Release:
				return c.release()
			}
			c.ping = m.Ping
			last = c.answer()
		case g = <-pending:
			pending = nil
			if g.err != nil {
				return refused(g.err)
			}
			c.hold, lost = g.hold, g.hold.Done()
			last = c.answer()
		case <-lost:
			return api.HoldAnswer{State: api.HoldLost, Error: c.hold.Err().Error()}
		}
		if last.State != "" {
			return last
		}
	}
}

func refused(err error) api.HoldAnswer {
	again := false
	for _, passing := range []error{quorumlock.ErrNoQuorum, quorumlock.ErrClosed, quorumlock.ErrSessionExpired, quorumlock.ErrBusy, quorumlock.ErrQuota} {
		again = again || errors.Is(err, passing)
	}
	return api.HoldAnswer{State: api.HoldRefused, Held: errors.Is(err, quorumlock.ErrHeld), Again: again, Error: err.Error()}
}

// answer answers the latest ping. What it says of the hold was true after the ping was
// heard: the cluster is asked, and if no majority answers, neither does this page. The
// last word is returned.
func (c *client) answer() (last api.HoldAnswer) {
	if c.hold == nil {
		c.write(api.HoldAnswer{State: api.HoldWaiting, Ping: c.ping})
		return last
	}
	if c.ping == 0 {
		return last // it has no time to count from yet
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.lease/4)
	defer cancel()
	switch err := c.hold.Validate(ctx); {
	case err == nil:
		c.told = true
		c.write(api.HoldAnswer{State: api.HoldHeld, Ping: c.ping, Token: token(c.hold.Token())})
	case !errors.Is(err, quorumlock.ErrNoQuorum) || c.hold.Err() != nil:
		return api.HoldAnswer{State: api.HoldLost, Error: err.Error()}
	}
	return last
}

// release gives back what the client holds, or its place in line.
func (c *client) release() api.HoldAnswer {
	if c.hold != nil {
		ctx, cancel := context.WithTimeout(context.Background(), actionTimeout)
		defer cancel()
		if err := c.hold.Release(ctx); err != nil {
			return api.HoldAnswer{State: api.HoldLost, Error: err.Error()}
		}
	}
	return api.HoldAnswer{State: api.HoldReleased}
}

// part ends the client's session. A hold that it was told of and has not released is
// lost by that, so that nobody else is granted the lock while the client may believe in
// it. It does not wait for a majority.
func (c *client) part(g grant) {
	if g.session == nil {
		return
	}
	over, cancel := context.WithCancel(context.Background())
	cancel()
	if g.hold != nil && !c.told {
		_ = g.hold.Release(over) // it goes on in the background, as does Close
	}
	_ = g.session.Close(over)
}

func (c *client) write(a api.HoldAnswer) {
	body, err := json.Marshal(a)
	if err != nil {
		panic(err) // strings and numbers: there is nothing that could fail
	}
	// A client that is gone is noticed where it is read from.
	_ = c.control.SetWriteDeadline(time.Now().Add(writeTimeout))
	_, _ = c.w.Write(append(body, '\n'))
	_ = c.control.Flush()
}
