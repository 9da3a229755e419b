package peer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	greetTimeout = 3 * time.Second
	writeTimeout = 5 * time.Second

	// maxStrangers bounds the connections that have not said who they are, and
	// maxInbound those of one replica. The oldest makes way.
	maxStrangers = 64
	maxInbound   = 16

	minAcceptPause = 5 * time.Millisecond
	maxAcceptPause = time.Second

	readBuffer = 64 << 10
)

// ErrClosed is returned once the Transport or the Conn is closed.
var ErrClosed = errors.New("peer: closed")

// Config is what a Transport needs.
type Config struct {
	Self     Identity
	Book     *Book
	Listener net.Listener
	// Dial, when set, is used in place of TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)

	// Receive takes a message. It runs once at a time for each connection, and
	// an error closes that connection. It does not keep payload.
	Receive func(from uint64, kind Kind, payload []byte) error
	// Refused is told of each refusal of this replica by another. It must not
	// block.
	Refused func(*Refusal)
	// TLS, when set, has every connection encrypted and both sides proven.
	TLS *Certificates
	// Told returns at which addresses this replica was told that another is
	// dialled, by its configuration and not by the other. Needed with TLS only.
	Told func(replica uint64) []string

	Logger *slog.Logger
	Faults *Faults
}

// A Transport is one replica's end of all its connections. It answers greetings
// from the start; messages wait until Open.
type Transport struct {
	cfg     Config
	gate    chan struct{} // closed by Open
	stop    chan struct{} // closed by Close
	ctx     context.Context
	cancel  context.CancelFunc
	workers sync.WaitGroup
	seats   chan struct{} // one for each stranger; who had to make way keeps it until it has noticed
	trouble *troubles

	mu        sync.Mutex
	open      bool
	closed    bool
	strangers []net.Conn
	inbound   map[uint64][]net.Conn
	outbound  map[*Conn]struct{}
	met       map[uint64]met           // who was greeted, or has greeted
	heard     map[uint64]*atomic.Int64 // when a replica was last heard, here or by another
	start     time.Time                // an hour before New, since others heard them before that
	levels    map[uint64]byte          // in the last greeting of each replica with an inbound connection
}

// met is what a replica said in its latest life.
type met struct {
	epoch uint64
	level byte
}

// New starts to answer at the listener, which it owns from now on.
func New(cfg Config) *Transport {
	t := &Transport{
		cfg:      cfg,
		gate:     make(chan struct{}),
		stop:     make(chan struct{}),
		seats:    make(chan struct{}, 2*maxStrangers),
		inbound:  make(map[uint64][]net.Conn),
		outbound: make(map[*Conn]struct{}),
		met:      make(map[uint64]met),
		heard:    make(map[uint64]*atomic.Int64),
		start:    time.Now().Add(-time.Hour),
		levels:   make(map[uint64]byte),
		trouble:  newTroubles(),
	}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.workers.Go(t.accept)
	if cfg.TLS != nil {
		t.workers.Go(func() { cfg.TLS.watch(t.stop, cfg.Logger) })
	}
	return t
}

// Open lets messages pass, in both directions.
func (t *Transport) Open() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.open {
		t.open = true
		close(t.gate)
	}
}

// Close ends every connection and returns when Receive runs no more. It is
// idempotent.
func (t *Transport) Close() error {
	t.mu.Lock()
	if !t.closed {
		t.closed = true
		t.cancel()
		close(t.stop)
		_ = t.cfg.Listener.Close()
		for _, c := range t.strangers {
			_ = c.Close()
		}
		for _, conns := range t.inbound {
			for _, c := range conns {
				_ = c.Close()
			}
		}
		for c := range t.outbound {
			_ = c.raw.Close()
		}
	}
	t.mu.Unlock()
	t.workers.Wait()
	return nil
}

// passing waits for Open and tells whether it came before Close.
func (t *Transport) passing() bool {
	select {
	case <-t.gate:
		return true
	case <-t.stop:
		return false
	}
}

// accept goes on after every error: a process that runs out of descriptors for
// a moment must not lose its port, let alone its life.
func (t *Transport) accept() {
	pause := minAcceptPause
	for {
		conn, err := t.cfg.Listener.Accept()
		if err == nil {
			pause = minAcceptPause
			t.seats <- struct{}{} // soon: half of those at least had to make way
			t.welcome(conn)
			continue
		}
		select {
		case <-t.stop:
			return
		case <-time.After(pause):
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
		t.cfg.Logger.Warn("cannot accept a connection", "err", err, "pause", pause)
		pause = min(2*pause, maxAcceptPause)
	}
}

// welcome serves a connection in a goroutine of its own.
func (t *Transport) welcome(conn net.Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		_ = conn.Close()
		<-t.seats
		return
	}
	if len(t.strangers) >= maxStrangers {
		_ = t.strangers[0].Close()
		t.strangers = t.strangers[1:]
	}
	t.strangers = append(t.strangers, conn)
	t.workers.Go(func() { t.serve(conn) })
}

// serve does the acceptor's half of the handshake and then delivers messages.
func (t *Transport) serve(raw net.Conn) {
	defer func() { _ = raw.Close() }()
	h, conn, err := t.greet(raw)
	from := h.Replica
	if err != nil {
		t.turnedAway(raw.RemoteAddr(), err)
		linger(raw)
	}
	t.forget(raw)
	<-t.seats
	if err != nil {
		return
	}
	if !t.enlist(&h, raw) {
		return
	}
	defer t.discharge(from, raw)
	if t.cfg.Book.Removed(from) {
		return // since it was greeted; see cutLocked
	}
	if err := t.deliver(from, conn); err != nil {
		t.cfg.Logger.Debug("connection ended", "replica", from, "err", err)
	}
}

// turnedAway says so, aloud if somebody has to do something about it.
func (t *Transport) turnedAway(remote net.Addr, err error) {
	host := hostOf(remote.String()) // each try comes from another port
	if reproach(err) && t.trouble.first(host+err.Error()) {
		t.cfg.Logger.Warn("connection turned away", "remote", remote.String(), "err", err)
		return
	}
	t.cfg.Logger.Debug("connection turned away", "remote", remote.String(), "err", err)
}

func (t *Transport) greet(raw net.Conn) (hello, net.Conn, error) {
	ctx, cancel := context.WithTimeout(t.ctx, greetTimeout)
	defer cancel()
	_ = raw.SetDeadline(time.Now().Add(greetTimeout))
	tune(raw)
	conn, err := t.secure(ctx, raw, 0)
	if err != nil {
		if errors.Is(err, errNoTLS) {
			t.refuse(raw, &Refusal{Code: CodeCertificate, By: t.cfg.Self.Replica, Text: "this replica uses TLS, and the other one does not"})
		}
		return hello{}, nil, err
	}
	h, err := t.answer(conn)
	if err != nil {
		return hello{}, nil, err
	}
	_ = raw.SetDeadline(time.Time{})
	return h, conn, nil
}

// answer reads the greeting and says welcome, or refuses.
func (t *Transport) answer(conn net.Conn) (hello, error) {
	var buf []byte
	kind, payload, err := readFrame(conn, maxGreeting, &buf)
	if err != nil {
		return hello{}, err
	}
	if kind != kindHello {
		return hello{}, errForeign
	}
	h, err := t.examine(conn, payload, 0)
	if err != nil {
		t.refuse(conn, err)
		return hello{}, err
	}
	return h, writeFrame(conn, kindWelcome, t.hello(h.Replica), &buf)
}

// examine decides about a greeting that came over conn. dialled is the replica that was dialled, 0
// when it is the other that dialled.
func (t *Transport) examine(conn net.Conn, payload []byte, dialled uint64) (hello, error) {
	self := t.cfg.Self
	refuse := func(code Code, format string, args ...any) error {
		return &Refusal{Code: code, By: self.Replica, Text: fmt.Sprintf(format, args...)}
	}
	h, version, err := decodeHello(payload)
	switch {
	case version != protocol:
		return h, refuse(CodeProtocol, "protocol version %d, not %d", version, protocol)
	case err != nil:
		return h, err
	case h.Cluster != self.Cluster:
		return h, refuse(CodeCluster, "this is cluster %q, not %q", self.Cluster, h.Cluster)
	case h.to != self.Replica:
		return h, refuse(CodeReplica, "this is replica %d, not %d", self.Replica, h.to)
	case h.Replica == self.Replica:
		return h, refuse(CodeReplica, "replica %d is here", self.Replica)
	case dialled != 0 && h.Replica != dialled:
		return h, refuse(CodeReplica, "replica %d answered in place of %d", h.Replica, dialled)
	case h.Founders != 0 && self.Founders != 0 && h.Founders != self.Founders:
		return h, refuse(CodeMembers, "it was founded with other members than replica %d, or from another backup", h.Replica)
	case h.groups() != self.groups():
		return h, refuse(CodeGroups, "it was founded with %d groups, and replica %d with %d", self.groups(), h.Replica, h.groups())
	}
	// Before anything is noted under the id that the other claims.
	if err := t.vouch(conn, h.Replica); err != nil {
		return h, refuse(CodeCertificate, "%v", err)
	}
	removed, err := t.cfg.Book.admit(self.Replica, &h)
	if err != nil {
		// This replica's disk, and nothing that the other could mend.
		if !errors.As(err, new(*Refusal)) && t.trouble.first(fmt.Sprint("record of ", h.Replica)) {
			t.cfg.Logger.Warn("no connection with a peer: the record of it cannot be written", "peer", h.Replica, "err", err)
		}
		return h, err
	}
	t.trouble.note(h.Replica, nil)
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, id := range removed { // who tells them has done so, and this one will when they dial
		t.cutLocked(id)
	}
	if h.Epoch >= t.met[h.Replica].epoch { // two lives of it may greet at a time
		t.met[h.Replica] = met{h.Epoch, h.Level}
	}
	t.hearLocked(h.Replica, 0)
	for _, n := range h.news {
		if n.heard >= 0 && n.replica != self.Replica {
			t.hearLocked(n.replica, n.heard)
		}
	}
	return h, nil
}

// hello is this replica's greeting to another.
func (t *Transport) hello(to uint64) []byte {
	h := hello{Identity: t.cfg.Self, to: to}
	t.cfg.Book.tell(&h, t.Heard)
	return h.encode()
}

// hearLocked notes that a replica was heard some time ago and returns where to note
// what else is heard of it: nanoseconds since t.start. t.mu is held.
func (t *Transport) hearLocked(replica uint64, ago time.Duration) *atomic.Int64 {
	last := t.heard[replica]
	if last == nil {
		last = new(atomic.Int64)
		t.heard[replica] = last
	}
	if at := int64(time.Since(t.start) - ago); at > last.Load() {
		last.Store(at)
	}
	return last
}

// Heard returns how long ago replica was last heard, by this one or by another that
// told this one of it when they greeted; negative for never.
func (t *Transport) Heard(replica uint64) time.Duration {
	t.mu.Lock()
	last := t.heard[replica]
	t.mu.Unlock()
	if last == nil {
		return -1
	}
	return time.Since(t.start) - time.Duration(last.Load())
}

// Dismiss ends all talk with replicas that the Book has as removed, and tells them.
func (t *Transport) Dismiss(addresses map[uint64]string) {
	t.mu.Lock()
	for id := range addresses {
		t.cutLocked(id)
	}
	t.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.ctx, greetTimeout)
	defer cancel()
	t.Probe(ctx, addresses) // they welcome this one, and are refused
}

// cutLocked ends the connections with a replica that the Book has as removed: those that
// begin see that by themselves. t.mu is held.
func (t *Transport) cutLocked(replica uint64) {
	for _, c := range t.inbound[replica] {
		_ = c.Close()
	}
	for c := range t.outbound {
		if c.replica == replica {
			_ = c.raw.Close()
		}
	}
}

// refuse tells the other side why, if the error is a refusal.
func (t *Transport) refuse(conn net.Conn, err error) {
	var r *Refusal
	if !errors.As(err, &r) {
		return
	}
	if werr := writeFrame(conn, kindRefuse, r.encode(), new([]byte)); werr != nil {
		t.cfg.Logger.Debug("refusal not sent", "err", werr)
	}
}

// deliver hands over what arrives, until the connection ends.
func (t *Transport) deliver(from uint64, conn net.Conn) error {
	t.mu.Lock()
	heard := t.hearLocked(from, 0)
	t.mu.Unlock()
	r := bufio.NewReaderSize(conn, readBuffer)
	var buf []byte
	for {
		kind, payload, err := readFrame(r, MaxPayload, &buf)
		if err != nil {
			return err
		}
		heard.Store(int64(time.Since(t.start)))
		if kind == kindRefuse {
			return t.refused(from, payload)
		}
		if kind < KindUser {
			return errForeign
		}
		if !t.passing() {
			return ErrClosed
		}
		if err := t.cfg.Receive(from, kind, payload); err != nil {
			return err
		}
	}
}

// refused reports that replica by will not talk to this one. What another says
// in its place, such as who it is itself, is only an error.
func (t *Transport) refused(by uint64, payload []byte) error {
	r, err := decodeRefusal(payload)
	if err != nil {
		return err
	}
	if r.By == by || r.Code == CodeReplica || r.Code == CodeCluster || r.Code == CodeProtocol {
		t.cfg.Refused(r)
	}
	return r
}

// forget takes conn off the strangers.
func (t *Transport) forget(conn net.Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.strangers = remove(t.strangers, conn)
}

// enlist makes conn one of the greeter's, if there is still somebody to serve it.
func (t *Transport) enlist(h *hello, conn net.Conn) bool {
	from := h.Replica
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	conns := t.inbound[from]
	if len(conns) >= maxInbound {
		_ = conns[0].Close()
		conns = conns[1:]
	}
	t.inbound[from] = append(conns, conn)
	t.levels[from] = h.Level
	return true
}

func (t *Transport) discharge(from uint64, conn net.Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.inbound[from] = remove(t.inbound[from], conn)
	if len(t.inbound[from]) == 0 {
		delete(t.levels, from)
	}
}

// Levels returns which feature level each replica that is connected to this one
// speaks, as its last greeting said.
func (t *Transport) Levels() map[uint64]byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.levels)
}

// Speaks returns which feature level replica said that it speaks when it was last met, be
// it connected or not; 0 if it never was, or does not say.
func (t *Transport) Speaks(replica uint64) byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.met[replica].level
}

func remove(conns []net.Conn, conn net.Conn) []net.Conn {
	for i, c := range conns {
		if c == conn {
			return append(conns[:i:i], conns[i+1:]...)
		}
	}
	return conns
}
