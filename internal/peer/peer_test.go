package peer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

const enough = 30 * time.Second

const kindTest = KindUser + 3

// node is one end of the tests' connections.
type node struct {
	*Transport
	addr    string
	book    *Book
	got     chan string
	refused chan *Refusal
}

type setup struct {
	listen string
	faults *Faults
	id     Identity
	book   *Book
	gated  bool
	tls    *Certificates
	told   map[uint64]string
	logger *slog.Logger
	dial   func(ctx context.Context, addr string) (net.Conn, error)
}

func (s setup) start(t testing.TB) *node {
	t.Helper()
	if s.listen == "" {
		s.listen = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", s.listen)
	require.NoError(t, err)
	if s.book == nil {
		s.book, err = CreateBook(filepath.Join(t.TempDir(), "peers.json"))
		require.NoError(t, err)
	}
	if s.id.Cluster == "" {
		s.id.Cluster = "test"
	}
	if s.id.Storage == (Storage{}) {
		s.id.Storage = Storage{byte(s.id.Replica)}
	}
	s.id.Address = l.Addr().String()
	n := &node{addr: s.id.Address, book: s.book, got: make(chan string, 10_000), refused: make(chan *Refusal, 100)}
	if s.logger == nil {
		s.logger = slog.New(slog.DiscardHandler)
	}
	n.Transport = New(Config{
		TLS:      s.tls,
		Told:     func(id uint64) []string { return []string{s.told[id]} },
		Self:     s.id,
		Book:     s.book,
		Listener: l,
		Receive: func(from uint64, kind Kind, payload []byte) error {
			if kind != kindTest {
				return fmt.Errorf("kind %d", kind)
			}
			n.got <- fmt.Sprintf("%d:%s", from, payload)
			return nil
		},
		Refused: func(r *Refusal) { n.refused <- r },
		Logger:  s.logger,
		Faults:  s.faults,
		Dial:    s.dial,
	})
	if !s.gated {
		n.Open()
	}
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	return n
}

func (n *node) dial(t testing.TB, id uint64, to *node) (*Conn, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), enough)
	defer cancel()
	return n.Dial(ctx, id, to.addr)
}

func receive[T any](t testing.TB, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(enough):
		t.Fatalf("nothing arrived within %v", enough)
		panic("unreachable")
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMessages(t *testing.T) {
	a := setup{id: Identity{Replica: 1}}.start(t)
	b := setup{id: Identity{Replica: 2}}.start(t)
	c, err := a.dial(t, 2, b)
	require.NoError(t, err)
	for _, size := range []int{0, 1, copyLen, copyLen + 1, growth, 5 << 20} {
		payload := bytes.Repeat([]byte{'x'}, size)
		require.NoError(t, c.Send(kindTest, payload))
		require.True(t, receive(t, b.got) == "1:"+string(payload), "payload of %d bytes", size)
	}
	require.Equal(t, a.addr, b.book.Address(1))
	require.Equal(t, b.addr, a.book.Address(2))
}

func TestIPv6(t *testing.T) {
	if l, err := net.Listen("tcp", "[::1]:0"); err != nil {
		t.Skip("no IPv6 loopback here")
	} else {
		_ = l.Close()
	}
	a := setup{id: Identity{Replica: 1}, listen: "[::1]:0"}.start(t)
	b := setup{id: Identity{Replica: 2}, listen: "[::1]:0"}.start(t)
	c, err := a.dial(t, 2, b)
	require.NoError(t, err)
	require.NoError(t, c.Send(kindTest, []byte("hi")))
	require.Equal(t, "1:hi", receive(t, b.got))
}

func TestRefusals(t *testing.T) {
	tests := []struct {
		name string
		id   Identity // of the dialler; the other is replica 2 of founders 7
		dial uint64
		code Code
	}{
		{"another cluster", Identity{Replica: 1, Cluster: "other"}, 2, CodeCluster},
		{"another replica dialled", Identity{Replica: 1}, 3, CodeReplica},
		{"the same replica", Identity{Replica: 2}, 2, CodeReplica},
		{"other founders", Identity{Replica: 1, Founders: 8}, 2, CodeMembers},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := setup{id: tt.id}.start(t)
			b := setup{id: Identity{Replica: 2, Founders: 7}}.start(t)
			_, err := a.dial(t, tt.dial, b)
			var r *Refusal
			require.ErrorAs(t, err, &r)
			require.Equal(t, tt.code, r.Code)
			require.EqualValues(t, 2, r.By)
			require.Equal(t, r, receive(t, a.refused))
			require.Empty(t, b.book.among(nil), "a refused replica must not be put on record")
		})
	}
}

func TestJoinedReplicaHasNoFounders(t *testing.T) {
	a := setup{id: Identity{Replica: 6}}.start(t)
	b := setup{id: Identity{Replica: 2, Founders: 7}}.start(t)
	_, err := a.dial(t, 2, b)
	require.NoError(t, err)
}

// A replica that was seen with one storage is refused with any other, whoever
// dials, and across restarts of those who saw it.
func TestWiped(t *testing.T) {
	seen := setup{id: Identity{Replica: 1, Storage: Storage{1}}}.start(t)
	path := filepath.Join(t.TempDir(), "peers.json")
	book, err := CreateBook(path)
	require.NoError(t, err)
	peer := setup{id: Identity{Replica: 2}, book: book}.start(t)
	_, err = seen.dial(t, 2, peer)
	require.NoError(t, err)
	require.NoError(t, seen.Close())
	require.NoError(t, peer.Close())

	book, err = OpenBook(path)
	require.NoError(t, err)
	peer = setup{id: Identity{Replica: 2}, book: book}.start(t)
	wiped := setup{id: Identity{Replica: 1, Storage: Storage{99}}}.start(t)

	_, err = wiped.dial(t, 2, peer)
	var r *Refusal
	require.ErrorAs(t, err, &r)
	require.Equal(t, CodeWiped, r.Code)
	require.Equal(t, r, receive(t, wiped.refused))

	_, err = peer.dial(t, 1, wiped)
	require.ErrorAs(t, err, &r)
	require.Equal(t, CodeWiped, r.Code)
	require.Equal(t, CodeWiped, receive(t, wiped.refused).Code, "the wiped one learns of it when it is dialled, too")
	require.Empty(t, peer.refused)
}

// An old copy of a directory has forgotten as much as a wiped one. It is told by
// a start that was seen before, or that another life had.
func TestRolledBack(t *testing.T) {
	for name, old := range map[string]Identity{
		"far back":       {Replica: 1, Epoch: 4, Life: 44},
		"the last start": {Replica: 1, Epoch: 5, Life: 56},
	} {
		t.Run(name, func(t *testing.T) {
			peer := setup{id: Identity{Replica: 2}}.start(t)
			now := setup{id: Identity{Replica: 1, Epoch: 5, Life: 55}}.start(t)
			for range 2 {
				_, err := now.dial(t, 2, peer)
				require.NoError(t, err)
			}
			back := setup{id: old}.start(t)
			_, err := back.dial(t, 2, peer)
			var r *Refusal
			require.ErrorAs(t, err, &r)
			require.Equal(t, CodeWiped, r.Code)
			next := setup{id: Identity{Replica: 1, Epoch: 6, Life: 66}}.start(t)
			_, err = next.dial(t, 2, peer)
			require.NoError(t, err)
		})
	}
}

// What one replica has seen, those who greet it know: a wiped replica cannot
// start anew with the others.
func TestHearsay(t *testing.T) {
	first := setup{id: Identity{Replica: 1, Storage: Storage{1}}}.start(t)
	saw := setup{id: Identity{Replica: 2}}.start(t)
	never := setup{id: Identity{Replica: 3}}.start(t)
	_, err := first.dial(t, 2, saw)
	require.NoError(t, err)
	require.NoError(t, first.Close())
	_, err = saw.dial(t, 3, never)
	require.NoError(t, err)

	wiped := setup{id: Identity{Replica: 1, Storage: Storage{99}}}.start(t)
	_, err = wiped.dial(t, 3, never)
	var r *Refusal
	require.ErrorAs(t, err, &r)
	require.Equal(t, CodeWiped, r.Code)
}

// The record is on disk before a connection carries anything.
func TestRecordBeforeMessage(t *testing.T) {
	dir := t.TempDir()
	book, err := CreateBook(filepath.Join(dir, "peers.json"))
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(dir)) // nothing can be written any more
	a := setup{id: Identity{Replica: 1}}.start(t)
	said, logger := newWarnings()
	b := setup{id: Identity{Replica: 2}, book: book, logger: logger}.start(t)
	_, err = a.dial(t, 2, b)
	require.Error(t, err)
	_, err = b.dial(t, 1, a)
	require.Error(t, err)
	require.Equal(t, 1, strings.Count(said.String(), "the record of it cannot be written"), said.String())
}

func TestBookDamaged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "peers.json")
	_, err := OpenBook(path)
	require.ErrorIs(t, err, ErrBook)
	for _, content := range []string{"", "{", `{"format":2}`, `{"format":1,"peers":[{"replica":1,"storage":"zz"}]}`,
		`{"format":1,"peers":[{"replica":0,"storage":"00000000000000000000000000000001"}]}`} {
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		_, err := OpenBook(path)
		require.ErrorIs(t, err, ErrBook, content)
	}
}

func TestGate(t *testing.T) {
	a := setup{id: Identity{Replica: 1}}.start(t)
	b := setup{id: Identity{Replica: 2}, gated: true}.start(t)
	c, err := a.dial(t, 2, b) // greetings are answered
	require.NoError(t, err)
	require.NoError(t, c.Send(kindTest, []byte("early")))
	select {
	case m := <-b.got:
		t.Fatalf("%q passed a closed gate", m)
	case <-time.After(50 * time.Millisecond):
	}
	b.Open()
	require.Equal(t, "1:early", receive(t, b.got))
}

// frameWith builds a frame by hand.
func frameWith(kind Kind, size uint32, sum uint32, payload []byte) []byte {
	b := []byte{magic0, magic1, frameVersion, byte(kind)}
	b = binary.BigEndian.AppendUint32(b, size)
	b = binary.BigEndian.AppendUint32(b, sum)
	return append(b, payload...)
}

// Whatever a stranger sends, it is turned away, and the port goes on.
func TestGarbage(t *testing.T) {
	b := setup{id: Identity{Replica: 2}}.start(t)
	for name, bytes := range map[string][]byte{
		"http":          []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		"zeros":         make([]byte, 4096),
		"huge":          frameWith(kindHello, 0xffffffff, 0, make([]byte, 100)),
		"long greeting": frameWith(kindHello, maxGreeting+1, 0, make([]byte, 100)),
		"bad sum":       frameWith(kindHello, 4, 1, []byte("abcd")),
		"no greeting":   frameWith(kindTest, 0, 0x0, nil),
		"newer framing": {magic0, magic1, 9, byte(kindHello), 0, 0, 0, 0, 0, 0, 0, 0},
		"refuse first":  frameWith(kindRefuse, 0, 0, nil),
		"welcome first": frameWith(kindWelcome, 0, 0, nil),
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", b.addr)
			require.NoError(t, err)
			defer func() { _ = conn.Close() }()
			_, _ = conn.Write(bytes)
			require.NoError(t, conn.SetReadDeadline(time.Now().Add(enough)))
			_, err = io.Copy(io.Discard, conn)
			require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the connection stays open")
		})
	}
	a := setup{id: Identity{Replica: 1}}.start(t)
	_, err := a.dial(t, 2, b)
	require.NoError(t, err)
}

// A header that claims a lot costs nothing until the bytes come.
func TestClaimedLength(t *testing.T) {
	a := setup{id: Identity{Replica: 1}}.start(t)
	b := setup{id: Identity{Replica: 2}}.start(t)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 10 {
		c, err := a.dial(t, 2, b)
		require.NoError(t, err)
		_, err = c.raw.Write(frameWith(kindTest, MaxPayload, 0, make([]byte, 1000)))
		require.NoError(t, err)
		// The answer to a second greeting shows that nothing hangs.
		d, err := a.dial(t, 2, b)
		require.NoError(t, err)
		d.Close()
	}
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(32<<20))
}

func TestStrangersAreBounded(t *testing.T) {
	b := setup{id: Identity{Replica: 2}}.start(t)
	var silent []net.Conn
	for range maxStrangers + 20 {
		conn, err := net.Dial("tcp", b.addr)
		require.NoError(t, err)
		silent = append(silent, conn)
	}
	defer func() {
		for _, c := range silent {
			_ = c.Close()
		}
	}()
	// The first ones had to make way at once, without a greeting's deadline.
	require.NoError(t, silent[0].SetReadDeadline(time.Now().Add(greetTimeout/2)))
	_, err := silent[0].Read(make([]byte, 1))
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	a := setup{id: Identity{Replica: 1}}.start(t)
	_, err = a.dial(t, 2, b)
	require.NoError(t, err, "a replica gets in beside %d silent strangers", maxStrangers)
}

func TestInboundIsBounded(t *testing.T) {
	a := setup{id: Identity{Replica: 1}}.start(t)
	b := setup{id: Identity{Replica: 2}}.start(t)
	first, err := a.dial(t, 2, b)
	require.NoError(t, err)
	for range maxInbound + 1 {
		c, err := a.dial(t, 2, b)
		require.NoError(t, err)
		require.NoError(t, c.Send(kindTest, []byte("x")))
		receive(t, b.got)
	}
	late := time.After(enough)
	for first.Send(kindTest, []byte("x")) == nil {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-late:
			t.Fatal("one too many is still open")
		}
	}
}

// failing fails Accept some times, as a process out of descriptors does.
type failing struct {
	net.Listener
	mu   sync.Mutex
	left int
}

func (f *failing) Accept() (net.Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.left > 0 {
		f.left--
		return nil, errors.New("accept: too many open files")
	}
	return f.Listener.Accept()
}

func TestAcceptGoesOn(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	book, err := CreateBook(filepath.Join(t.TempDir(), "peers.json"))
	require.NoError(t, err)
	b := New(Config{
		Self:     Identity{Cluster: "test", Replica: 2, Storage: Storage{2}},
		Book:     book,
		Listener: &failing{Listener: l, left: 5},
		Receive:  func(uint64, Kind, []byte) error { return nil },
		Refused:  func(*Refusal) {},
		Logger:   slog.New(slog.DiscardHandler),
	})
	defer func() { _ = b.Close() }()
	a := setup{id: Identity{Replica: 1}}.start(t)
	_, err = a.dial(t, 2, &node{addr: l.Addr().String()})
	require.NoError(t, err)
}

func TestDialEnds(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = silent.Close() }()
	a := setup{id: Identity{Replica: 1}}.start(t)

	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	_, err = a.Dial(ctx, 2, silent.Addr().String())
	require.Error(t, err)

	done := make(chan error)
	go func() {
		_, err := a.Dial(context.Background(), 2, silent.Addr().String())
		done <- err
	}()
	conn, err := silent.Accept() // the one that timed out, or the present one
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	require.NoError(t, a.Close())
	require.Error(t, receive(t, done))
	_, err = a.Dial(context.Background(), 2, silent.Addr().String())
	require.Error(t, err)
}

// route has one address for each replica.
type route map[uint64]string

func (r route) Address(id uint64) string { return r[id] }
func (r route) Failed(uint64, string)    {}

func TestLinkMendsItself(t *testing.T) {
	a := setup{id: Identity{Replica: 1}}.start(t)
	b := setup{id: Identity{Replica: 2}}.start(t)
	to := route{2: b.addr}
	link := a.Link(2, to)
	defer link.Close()
	link.Send(t.Context(), kindTest, []byte("one"))
	require.Equal(t, "1:one", receive(t, b.got))
	require.NoError(t, b.Close())
	link.Send(t.Context(), kindTest, []byte("lost"))

	b = setup{id: Identity{Replica: 2}}.start(t)
	to[2] = b.addr // it moved
	late := time.After(enough)
	for {
		link.Send(t.Context(), kindTest, []byte("two"))
		select {
		case m := <-b.got:
			require.Equal(t, "1:two", m)
			return
		case <-time.After(5 * time.Millisecond):
		case <-late:
			t.Fatal("the link did not come back")
		}
	}
}

// A vanishing connection takes what is written to it, also when nobody is there any more:
// the other's address is gone with it, and so nothing comes back.
type vanishing struct {
	net.Conn
	closed chan struct{}
	once   sync.Once
}

func (v *vanishing) Write(b []byte) (int, error) {
	select {
	case <-v.closed:
		return 0, net.ErrClosed
	default:
		_, _ = v.Conn.Write(b)
		return len(b), nil
	}
}

func (v *vanishing) Close() error {
	v.once.Do(func() { close(v.closed) })
	return v.Conn.Close()
}

// Who ends says so, and a link that has nothing to send hears it all the same: its next
// message goes to where the other is now.
func TestLinkHearsTheEnd(t *testing.T) {
	dialled := make(chan *vanishing, 10)
	a := setup{id: Identity{Replica: 1}, dial: func(ctx context.Context, addr string) (net.Conn, error) {
		raw, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		v := &vanishing{Conn: raw, closed: make(chan struct{})}
		dialled <- v
		return v, nil
	}}.start(t)
	b := setup{id: Identity{Replica: 2}}.start(t)
	to := route{2: b.addr}
	link := a.Link(2, to)
	defer link.Close()
	require.True(t, link.Send(t.Context(), kindTest, []byte("one")))
	require.Equal(t, "1:one", receive(t, b.got))
	require.NoError(t, b.Close())
	receive(t, receive(t, dialled).closed)

	b = setup{id: Identity{Replica: 2}}.start(t)
	to[2] = b.addr
	late := time.After(enough)
	for !link.Send(t.Context(), kindTest, []byte("two")) { // it pauses between two connections
		select {
		case <-time.After(5 * time.Millisecond):
		case <-late:
			t.Fatal("the link did not come back")
		}
	}
	require.Equal(t, "1:two", receive(t, b.got))
}

func TestProbe(t *testing.T) {
	a := setup{id: Identity{Replica: 1, Founders: 7}}.start(t)
	b := setup{id: Identity{Replica: 2, Founders: 7}}.start(t)
	c := setup{id: Identity{Replica: 3, Founders: 8}}.start(t)
	gone := setup{id: Identity{Replica: 4}}.start(t)
	require.NoError(t, gone.Close())
	welcome, refused := a.Probe(t.Context(), map[uint64]string{1: a.addr, 2: b.addr, 3: c.addr, 4: gone.addr})
	require.Equal(t, []uint64{2}, welcome)
	require.Len(t, refused, 1)
	require.Equal(t, CodeMembers, refused[0].Code)
}

func TestMeet(t *testing.T) {
	a := setup{id: Identity{Replica: 1}}.start(t)
	b := setup{id: Identity{Replica: 2}}.start(t)
	a.Meet([]uint64{1, 2}, route{1: a.addr, 2: b.addr})
	late := time.After(enough)
	for b.book.Address(1) == "" {
		select {
		case <-late:
			t.Fatal("never met")
		case <-time.After(time.Millisecond):
		}
	}
}

func TestFaults(t *testing.T) {
	f := NewFaults(1)
	a := setup{id: Identity{Replica: 1}, faults: f}.start(t)
	b := setup{id: Identity{Replica: 2}, faults: f}.start(t)
	ab, err := a.dial(t, 2, b)
	require.NoError(t, err)
	ba, err := b.dial(t, 1, a)
	require.NoError(t, err)
	// passes tells what arrives of one message each way; a mark behind it,
	// sent in health, shows that nothing else is on the way.
	passes := func() (atob, btoa int) {
		require.NoError(t, ab.Send(kindTest, []byte("m")))
		require.NoError(t, ba.Send(kindTest, []byte("m")))
		require.NoError(t, ab.write(kindTest, []byte("end")))
		require.NoError(t, ba.write(kindTest, []byte("end")))
		for receive(t, b.got) != "1:end" {
			atob++
		}
		for receive(t, a.got) != "2:end" {
			btoa++
		}
		return atob, btoa
	}
	check := func(wantAB, wantBA int) {
		t.Helper()
		atob, btoa := passes()
		require.Equal(t, []int{wantAB, wantBA}, []int{atob, btoa})
	}
	check(1, 1)
	f.CutOneWay(1, 2)
	check(0, 1)
	_, err = b.dial(t, 1, a)
	require.ErrorIs(t, err, errCut, "a connection takes both directions")
	require.ErrorIs(t, ab.SendAll(kindTest, nil), errCut)
	f.Heal()
	f.Cut(2, 1)
	check(0, 0)
	f.Heal()
	f.Isolate(2)
	check(0, 0)
	f.Heal()
	check(1, 1)
	f.Chaos(0, 1, 0)
	check(2, 2)
	f.Chaos(1, 0, 0)
	check(0, 0)
	f.Chaos(0, 0, 20*time.Millisecond)
	payload := []byte("late")
	require.NoError(t, ab.Send(kindTest, payload))
	copy(payload, "XXXX") // the sender reuses its buffer
	require.Equal(t, "1:late", receive(t, b.got))
}

func TestCloseWhileSending(t *testing.T) {
	a := setup{id: Identity{Replica: 1}}.start(t)
	b := setup{id: Identity{Replica: 2}}.start(t)
	var wg sync.WaitGroup
	for range 10 {
		link := a.Link(2, route{2: b.addr})
		wg.Go(func() {
			defer link.Close()
			for a.ctx.Err() == nil {
				link.Send(a.ctx, kindTest, []byte("x"))
			}
		})
	}
	wg.Go(func() {
		for range b.got {
		}
	})
	receiveSome := time.After(50 * time.Millisecond)
	<-receiveSome
	require.NoError(t, b.Close())
	require.NoError(t, a.Close())
	close(b.got)
	wg.Wait()
}

func FuzzHello(f *testing.F) {
	h := hello{Identity: Identity{Cluster: "c", Replica: 3, Storage: Storage{1}, Address: "a:1"}, to: 4, roster: []sighting{{1, Storage{2}}}}
	f.Add(h.encode())
	f.Add([]byte{})
	h.Zone, h.NoVote, h.gone = "z", true, []uint64{7}
	h.news = []news{{replica: 5, heard: -1, said: said{epoch: 1, at: 2, address: "b:1", zone: "y", noVote: true}}}
	f.Add(h.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		h, _, err := decodeHello(b)
		if err != nil {
			return
		}
		again, _, err := decodeHello(h.encode())
		require.NoError(t, err)
		require.Equal(t, h, again)
	})
}

func FuzzRefusal(f *testing.F) {
	f.Add((&Refusal{Code: CodeWiped, By: 7, Text: "why"}).encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeRefusal(b)
		if err != nil {
			return
		}
		again, err := decodeRefusal(r.encode())
		require.NoError(t, err)
		require.Equal(t, r, again)
	})
}

func FuzzFrame(f *testing.F) {
	var out bytes.Buffer
	require.NoError(f, writeFrame(&out, kindTest, []byte("payload"), new([]byte)))
	f.Add(out.Bytes())
	f.Add(frameWith(kindTest, 1<<31, 0, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		var buf []byte
		kind, payload, err := readFrame(bytes.NewReader(b), MaxPayload, &buf)
		if err != nil {
			return
		}
		var out bytes.Buffer
		require.NoError(t, writeFrame(&out, kind, payload, new([]byte)))
		require.True(t, bytes.HasPrefix(b, out.Bytes()))
	})
}

// Of whoever is connected, a replica knows which level it speaks, and of nobody else: one
// that comes back may speak another.
func TestLevels(t *testing.T) {
	b := setup{id: Identity{Replica: 2, Level: 3}}.start(t)
	require.Empty(t, b.Levels())
	greet := func(id uint64, level byte) *Conn {
		a := setup{id: Identity{Replica: id, Level: level}}.start(t)
		c, err := a.dial(t, 2, b)
		require.NoError(t, err)
		require.NoError(t, c.Send(kindTest, nil))
		receive(t, b.got)
		require.Empty(t, a.Levels(), "it greeted, and was not greeted")
		require.EqualValues(t, 3, a.Speaks(2), "but it has heard")
		return c
	}
	one := greet(1, 7)
	require.Equal(t, map[uint64]byte{1: 7}, b.Levels())
	greet(4, 0)
	require.Equal(t, map[uint64]byte{1: 7, 4: 0}, b.Levels())
	one.Close()
	require.Eventually(t, func() bool { return len(b.Levels()) == 1 }, enough, time.Millisecond)
	require.EqualValues(t, 7, b.Speaks(1), "as it said last")
	require.Zero(t, b.Speaks(5))
}

// A greeting from before there were levels has nothing behind the roster.
func TestGreetingWithoutALevel(t *testing.T) {
	h := hello{Identity: Identity{Cluster: "c", Replica: 3, Storage: Storage{1}, Address: "a:1", Groups: 2, Level: 9}, to: 4}
	b := h.encode()
	got, _, err := decodeHello(b)
	require.NoError(t, err)
	require.Equal(t, h, got)
	// Nor is anything of others, of a zone and of votes.
	bare := b[:len(b)-2-1-2-2]
	got, _, err = decodeHello(bare)
	require.NoError(t, err)
	require.Equal(t, h, got)
	h.Level = 0
	got, _, err = decodeHello(bare[:len(bare)-1])
	require.NoError(t, err)
	require.Equal(t, h, got)
	h.Groups = 0
	got, _, err = decodeHello(bare[:len(bare)-3])
	require.NoError(t, err)
	require.Equal(t, h, got)
	got, _, err = decodeHello(append(b, "of a newer version"...))
	require.NoError(t, err)
	require.EqualValues(t, 9, got.Level)
}
