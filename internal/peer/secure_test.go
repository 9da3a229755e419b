package peer

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/testca"
)

// warnings are the lines of a log from Warn on.
type warnings struct {
	mu    sync.Mutex
	lines []string
	added chan struct{}
}

func newWarnings() (*warnings, *slog.Logger) {
	w := &warnings{added: make(chan struct{}, 1000)}
	return w, slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

func (w *warnings) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines = append(w.lines, string(b))
	w.added <- struct{}{}
	return len(b), nil
}

func (w *warnings) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.lines, "")
}

// await waits for a line with all of parts.
func (w *warnings) await(t *testing.T, parts ...string) {
	t.Helper()
	late := time.After(enough)
	for {
		for line := range strings.Lines(w.String()) {
			missing := false
			for _, part := range parts {
				missing = missing || !strings.Contains(line, part)
			}
			if !missing {
				return
			}
		}
		select {
		case <-w.added:
		case <-late:
			t.Fatalf("no warning with %q, but:\n%s", parts, w)
		}
	}
}

func newCA(t testing.TB, name string) *testca.Authority {
	t.Helper()
	ca, err := testca.New(name)
	require.NoError(t, err)
	return ca
}

// filesIn is where testca.Write puts them.
func filesIn(dir string) TLSFiles {
	return TLSFiles{Cert: filepath.Join(dir, testca.Cert), Key: filepath.Join(dir, testca.Key), CA: filepath.Join(dir, testca.CA)}
}

// put has ca sign a certificate, and writes the files of a replica that trusts
// whom it is told to.
func put(t testing.TB, dir string, ca *testca.Authority, template *x509.Certificate, trusted ...*testca.Authority) {
	t.Helper()
	cert, key, err := ca.Sign(template)
	require.NoError(t, err)
	var roots []byte
	for _, a := range trusted {
		roots = append(roots, a.PEM...)
	}
	require.NoError(t, testca.Write(dir, cert, key, roots))
}

// holding returns certificates without the checks of LoadCertificates: an attacker
// makes none.
func holding(t testing.TB, ca *testca.Authority, template *x509.Certificate, trusted ...*testca.Authority) *Certificates {
	t.Helper()
	dir := t.TempDir()
	put(t, dir, ca, template, trusted...)
	files := filesIn(dir)
	from, err := files.read()
	require.NoError(t, err)
	own, err := tls.X509KeyPair([]byte(from.cert), []byte(from.key))
	require.NoError(t, err)
	roots, err := authorities([]byte(from.ca))
	require.NoError(t, err)
	c := &Certificates{files: files}
	c.now.Store(&credentials{from: from, own: own, roots: roots})
	return c
}

// hosts are where the replicas of these tests are, as each was told.
var hosts = map[uint64]string{1: "one.test:7000", 2: "two.test:7000", 3: "three.test:7000"}

func TestTLSMessages(t *testing.T) {
	for _, listen := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(listen, func(t *testing.T) {
			if l, err := net.Listen("tcp", listen); err != nil {
				t.Skip("cannot listen there")
			} else {
				_ = l.Close()
			}
			ca := newCA(t, "ca")
			told := map[uint64]string{1: listen, 2: listen} // by IP
			host := hostOf(listen)
			a := setup{id: Identity{Replica: 1}, listen: listen, told: told, tls: holding(t, ca, testca.Hosts(host), ca)}.start(t)
			b := setup{id: Identity{Replica: 2}, listen: listen, told: told, tls: holding(t, ca, testca.Hosts(host), ca)}.start(t)
			c, err := a.dial(t, 2, b)
			require.NoError(t, err)
			require.EqualValues(t, tls.VersionTLS13, c.conn.(*tls.Conn).ConnectionState().Version)
			for _, size := range []int{0, 1, copyLen, copyLen + 1, growth, 5 << 20} {
				payload := bytes.Repeat([]byte{'x'}, size)
				require.NoError(t, c.Send(kindTest, payload))
				require.True(t, receive(t, b.got) == "1:"+string(payload), "payload of %d bytes", size)
			}
			require.Empty(t, a.Unreachable())
		})
	}
}

// Replica 1 dials replica 2. Whoever cannot prove to be who it says it is gets no
// connection, leaves nothing on record, is never taken for a wiped replica, and
// both logs say why.
func TestTLSRefusals(t *testing.T) {
	ca, other := newCA(t, "ca"), newCA(t, "other ca")
	good := func(host string) *Certificates { return holding(t, ca, testca.Hosts(host), ca) }
	with := func(host string, change func(*x509.Certificate)) *Certificates {
		c := testca.Hosts(host)
		change(c)
		return holding(t, ca, c, ca)
	}
	expire := func(c *x509.Certificate) {
		c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(-time.Minute)
	}
	only := func(use x509.ExtKeyUsage) func(*x509.Certificate) {
		return func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{use} }
	}
	for _, tt := range []struct {
		name             string
		one, two         *Certificates
		oneSays, twoSays string
		refusals         int
		quietOne         bool
	}{
		{name: "dialler of another authority", one: holding(t, other, testca.Hosts("one.test"), ca, other), two: good("two.test"),
			oneSays: "bad certificate", twoSays: "certificate signed by unknown authority"},
		{name: "dialled one of another authority", one: good("one.test"), two: holding(t, other, testca.Hosts("two.test"), ca, other),
			oneSays: "certificate signed by unknown authority", twoSays: "bad certificate"},
		{name: "dialler with another's certificate", one: good("three.test"), two: good("two.test"), refusals: 1,
			oneSays: "the certificate is for three.test, but replica 1 needs one for one.test or quorumlock://test/1",
			twoSays: "the certificate is for three.test, but replica 1 needs one for one.test or quorumlock://test/1"},
		{name: "dialled one with another's certificate", one: good("one.test"), two: good("three.test"),
			oneSays: "the certificate is for three.test, but replica 2 needs one for two.test or quorumlock://test/2",
			twoSays: "bad certificate"},
		{name: "dialler that names another replica", one: with("one.test", func(c *x509.Certificate) { testca.URI(c, "quorumlock://test/3") }), two: good("two.test"),
			refusals: 1, oneSays: "needs one for quorumlock://test/1", twoSays: "quorumlock://test/3, one.test"},
		{name: "expired dialler", one: with("one.test", expire), two: good("two.test"),
			oneSays: "bad certificate", twoSays: "is valid from"},
		{name: "expired dialled one", one: good("one.test"), two: with("two.test", expire),
			oneSays: "is valid from", twoSays: "bad certificate"},
		{name: "dialler that may only serve", one: with("one.test", only(x509.ExtKeyUsageServerAuth)), two: good("two.test"),
			oneSays: "bad certificate", twoSays: "incompatible key usage"},
		{name: "dialled one that may only dial", one: good("one.test"), two: with("two.test", only(x509.ExtKeyUsageClientAuth)),
			oneSays: "incompatible key usage", twoSays: "bad certificate"},
		{name: "plain dialler", one: nil, two: good("two.test"), refusals: 1,
			oneSays: "this replica uses TLS, and the other one does not", twoSays: "does not look like a TLS handshake"},
		{name: "plain dialled one", one: good("one.test"), two: nil,
			quietOne: true, oneSays: "which the other side may not know", twoSays: "the other side uses TLS, and this replica does not"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			oneLog, oneLogger := newWarnings()
			twoLog, twoLogger := newWarnings()
			one := setup{id: Identity{Replica: 1}, told: hosts, tls: tt.one, logger: oneLogger}.start(t)
			two := setup{id: Identity{Replica: 2}, told: hosts, tls: tt.two, logger: twoLogger}.start(t)
			for range 3 { // a reset must never overtake the reason
				_, err := one.dial(t, 2, two)
				require.ErrorContains(t, err, tt.oneSays)
				require.ErrorContains(t, one.Unreachable()[2], tt.oneSays)
			}
			if !tt.quietOne {
				oneLog.await(t, "replica=2", tt.oneSays)
			}
			twoLog.await(t, "remote=127.0.0.1", tt.twoSays)
			for range 3 * tt.refusals {
				require.Equal(t, CodeCertificate, receive(t, one.refused).Code)
			}
			require.NoError(t, one.Close())
			require.NoError(t, two.Close())
			require.Empty(t, one.refused)
			require.Empty(t, two.refused)
			require.Empty(t, one.book.records, "something was noted")
			require.Empty(t, two.book.records, "something was noted")
			require.LessOrEqual(t, strings.Count(oneLog.String(), "\n"), 1, "said again and again:\n%s", oneLog)
			require.Equal(t, 1, strings.Count(twoLog.String(), "\n"), "said again and again:\n%s", twoLog)
		})
	}
}

// At the address of one replica is another of the cluster: that is found, with TLS as without,
// and taken neither for the one nor for nobody. A replica of another cluster is nobody.
func TestProbeFindsAnotherReplica(t *testing.T) {
	ca := newCA(t, "ca")
	of := func(uri string) *Certificates {
		return holding(t, ca, testca.URI(testca.Hosts("any.test"), uri), ca)
	}
	for name, tt := range map[string]struct{ one, six *Certificates }{
		"plain": {},
		"TLS":   {of("quorumlock://test/1"), of("quorumlock://test/6")},
		"hosts": {holding(t, ca, testca.Hosts("one.test"), ca), holding(t, ca, testca.Hosts("three.test"), ca)},
		"other": {of("quorumlock://test/1"), of("quorumlock://other/6")},
	} {
		t.Run(name, func(t *testing.T) {
			one := setup{id: Identity{Replica: 1}, told: hosts, tls: tt.one}.start(t)
			six := setup{id: Identity{Replica: 6}, told: hosts, tls: tt.six}.start(t)
			welcome, refused := one.Probe(t.Context(), map[uint64]string{3: six.addr})
			require.Empty(t, welcome)
			if name == "other" {
				require.Empty(t, refused)
				return
			}
			require.Len(t, refused, 1)
			require.Equal(t, CodeReplica, refused[0].Code)
			require.EqualValues(t, 6, refused[0].By)
		})
	}
}

// Clients that are no replicas, but speak TLS.
func TestTLSStrangers(t *testing.T) {
	ca := newCA(t, "ca")
	log, logger := newWarnings()
	b := setup{id: Identity{Replica: 2}, told: hosts, tls: holding(t, ca, testca.Hosts("two.test"), ca), logger: logger}.start(t)
	mine := holding(t, ca, testca.Hosts("one.test"), ca).now.Load().own
	good := func() *tls.Config {
		return &tls.Config{InsecureSkipVerify: true, NextProtos: []string{application}, Certificates: []tls.Certificate{mine}}
	}
	for _, tt := range []struct {
		name   string
		change func(*tls.Config)
		say    []byte
		why    string // logged as a warning
	}{
		{"no certificate", func(c *tls.Config) { c.Certificates = nil }, nil, "didn't provide a certificate"},
		{"TLS 1.2", func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 }, nil, "unsupported versions"},
		{"no protocol", func(c *tls.Config) { c.NextProtos = nil }, nil, "it is for "},
		{"another protocol", func(c *tls.Config) { c.NextProtos = []string{"h2"} }, nil, "unsupported application protocols"},
		{"a long greeting", func(*tls.Config) {}, frameWith(kindHello, maxGreeting+1, 0, make([]byte, 100)), ""},
		{"no greeting", func(*tls.Config) {}, []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			conf := good()
			tt.change(conf)
			raw, err := net.Dial("tcp", b.addr)
			require.NoError(t, err)
			defer func() { _ = raw.Close() }()
			require.NoError(t, raw.SetDeadline(time.Now().Add(enough)))
			conn := tls.Client(raw, conf)
			if err := conn.Handshake(); err == nil {
				_, _ = conn.Write(tt.say)
				_, err = io.Copy(io.Discard, conn)
				require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the connection stays open")
			}
			if tt.why != "" {
				log.await(t, tt.why)
			}
		})
	}
	require.Empty(t, b.book.records)
	a := setup{id: Identity{Replica: 1}, told: hosts, tls: holding(t, ca, testca.Hosts("one.test"), ca)}.start(t)
	_, err := a.dial(t, 2, b)
	require.NoError(t, err, "the port goes on")
}

// Handshakes go on beside each other: who says nothing holds up nobody.
func TestTLSHandshakesAreConcurrent(t *testing.T) {
	ca := newCA(t, "ca")
	b := setup{id: Identity{Replica: 2}, told: hosts, tls: holding(t, ca, testca.Hosts("two.test"), ca)}.start(t)
	a := setup{id: Identity{Replica: 1}, told: hosts, tls: holding(t, ca, testca.Hosts("one.test"), ca)}.start(t)
	for range maxStrangers - 1 {
		conn, err := net.Dial("tcp", b.addr)
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
	}
	// One after the other they would take a greetTimeout each.
	_, err := a.dial(t, 2, b)
	require.NoError(t, err)
}

// What a replica says of its own address has no say in what its certificate must be.
func TestCertificateIsJudgedByTheToldAddress(t *testing.T) {
	ca := newCA(t, "ca")
	b := setup{id: Identity{Replica: 2}, told: hosts, tls: holding(t, ca, testca.Hosts("two.test"), ca)}.start(t)
	// It listens at 127.0.0.1, says so in its greeting, and has a certificate for it.
	a := setup{id: Identity{Replica: 1}, told: hosts, tls: holding(t, ca, testca.Hosts("127.0.0.1"), ca)}.start(t)
	for range 2 {
		_, err := a.dial(t, 2, b)
		require.ErrorContains(t, err, "the certificate is for 127.0.0.1, but replica 1 needs one for one.test")
	}
	// A replica that moved has the old one's name.
	moved := setup{id: Identity{Replica: 1}, told: hosts, tls: holding(t, ca, testca.Hosts("one.test"), ca)}.start(t)
	_, err := moved.dial(t, 2, b)
	require.NoError(t, err)
	require.Equal(t, moved.addr, b.book.Address(1))
	_, err = b.dial(t, 1, moved)
	require.NoError(t, err)
}

func TestSpeaksFor(t *testing.T) {
	ca := newCA(t, "ca")
	for _, tt := range []struct {
		name  string
		cert  *x509.Certificate
		told  []string
		speak bool
	}{
		{"its host", testca.Hosts("a.test"), []string{"a.test:1"}, true},
		{"another host", testca.Hosts("b.test"), []string{"a.test:1"}, false},
		{"one of its hosts", testca.Hosts("b.test"), []string{"a.test:1", "b.test:1"}, true},
		{"a wildcard", testca.Hosts("*.test"), []string{"a.test:1"}, true},
		{"a wildcard of another depth", testca.Hosts("*.test"), []string{"a.b.test:1"}, false},
		{"an IP", testca.Hosts("10.0.0.1"), []string{"10.0.0.1:1"}, true},
		{"another IP", testca.Hosts("10.0.0.2"), []string{"10.0.0.1:1"}, false},
		{"an IPv6 address", testca.Hosts("fd00::1"), []string{"[fd00:0::1]:1"}, true},
		{"an IPv6 address with a zone", testca.Hosts("fe80::1"), []string{"[fe80::1%eth0]:1"}, true},
		{"another IPv6 address", testca.Hosts("fd00::2"), []string{"[fd00::1]:1"}, false},
		{"no name", testca.Hosts(), []string{"a.test:1"}, false},
		{"nothing told", testca.Hosts("a.test"), nil, false},
		{"an empty address", testca.Hosts("a.test"), []string{""}, false},
		{"its URI, wherever it is", testca.URI(testca.Hosts(), "quorumlock://c/3"), nil, true},
		{"one of several URIs", testca.URI(testca.URI(testca.Hosts(), "quorumlock://c/4"), "quorumlock://c/3"), nil, true},
		{"another replica's URI beside its host", testca.URI(testca.Hosts("a.test"), "quorumlock://c/4"), []string{"a.test:1"}, false},
		{"another cluster's URI", testca.URI(testca.Hosts(), "quorumlock://d/3"), []string{"a.test:1"}, false},
		{"a longer id", testca.URI(testca.Hosts(), "quorumlock://c/33"), nil, false},
		{"an id of another form", testca.URI(testca.Hosts(), "quorumlock://c/03"), nil, false},
		{"a URI of something else", testca.URI(testca.Hosts("a.test"), "spiffe://c/3"), []string{"a.test:1"}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			leaf := holding(t, ca, tt.cert, ca).now.Load().own.Leaf
			err := speaksFor(leaf, "c", 3, tt.told)
			require.Equal(t, tt.speak, err == nil, "%v", err)
		})
	}
}

// What can be complained of is bounded: strangers cause it.
func TestComplaintsAreBounded(t *testing.T) {
	var said int
	troubles := newTroubles()
	for i := range 10 * maxSaid {
		if troubles.first(fmt.Sprint(i)) {
			said++
		}
	}
	require.Equal(t, maxSaid, said)
}

func TestTLSLinkComesBackWithAnotherCertificate(t *testing.T) {
	old, young := newCA(t, "old"), newCA(t, "young")
	log, logger := newWarnings()
	dirs := map[uint64]string{1: t.TempDir(), 2: t.TempDir()}
	nodes := map[uint64]*node{}
	write := func(signer *testca.Authority, trusted ...*testca.Authority) {
		for id := range dirs {
			put(t, dirs[id], signer, testca.Hosts(hostOf(hosts[id])), trusted...)
		}
	}
	write(old, old)
	for id := range dirs {
		who := Identity{Cluster: "test", Replica: id, Address: hosts[id]}
		certs, err := LoadCertificates(filesIn(dirs[id]), who)
		require.NoError(t, err)
		nodes[id] = setup{id: Identity{Replica: id}, told: hosts, tls: certs, logger: logger}.start(t)
	}
	// using waits until both have what is in the files.
	using := func() {
		t.Helper()
		late := time.After(enough)
		for id, n := range nodes {
			want, err := os.ReadFile(filesIn(dirs[id]).Cert)
			require.NoError(t, err)
			roots, err := os.ReadFile(filesIn(dirs[id]).CA)
			require.NoError(t, err)
			for now := n.cfg.TLS.now.Load(); now.from.cert != string(want) || now.from.ca != string(roots); now = n.cfg.TLS.now.Load() {
				select {
				case <-time.After(10 * time.Millisecond):
				case <-late:
					t.Fatal("the new files are not used")
				}
			}
		}
	}
	first, err := nodes[1].dial(t, 2, nodes[2])
	require.NoError(t, err)
	for _, step := range []func(){
		func() { write(old, old, young) },
		func() { write(young, old, young) },
		func() { write(young, young) },
	} {
		step()
		using()
		c, err := nodes[1].dial(t, 2, nodes[2])
		require.NoError(t, err)
		require.NoError(t, c.Send(kindTest, []byte("new")))
		require.Equal(t, "1:new", receive(t, nodes[2].got))
		require.NoError(t, first.Send(kindTest, []byte("old")), "what is connected goes on")
		require.Equal(t, "1:old", receive(t, nodes[2].got))
	}
	// Who has only a certificate of the old authority comes no more.
	late := setup{id: Identity{Replica: 1}, told: hosts, tls: holding(t, old, testca.Hosts("one.test"), old, young)}.start(t)
	_, err = late.dial(t, 2, nodes[2])
	require.ErrorContains(t, err, "bad certificate")
	log.await(t, "unknown authority")
}

func TestFilesThatCannotBeUsed(t *testing.T) {
	ca, other := newCA(t, "ca"), newCA(t, "other")
	who := Identity{Cluster: "c", Replica: 3, Address: "a.test:1"}
	dir := t.TempDir()
	files := filesIn(dir)
	put(t, dir, ca, testca.Hosts("a.test"), ca)
	certs, err := LoadCertificates(files, who)
	require.NoError(t, err)
	log, logger := newWarnings()
	was := certs.now.Load()
	for name, broken := range brokenFiles(t, ca, other) {
		put(t, dir, ca, testca.Hosts("a.test"), ca)
		certs.look(logger)
		require.NotSame(t, was, certs.now.Load(), "what is mended is used")
		was = certs.now.Load()
		broken.spoil(dir)
		before := len(log.lines)
		certs.look(logger)
		require.Len(t, log.lines, before, "%s: it may be half way through", name)
		certs.look(logger)
		certs.look(logger)
		require.Len(t, log.lines, before+1, name)
		require.Contains(t, strings.ReplaceAll(log.lines[before], `\"`, `"`), broken.want, name)
		require.Same(t, was, certs.now.Load(), name)

		_, err := LoadCertificates(files, who)
		require.ErrorContains(t, err, broken.want, name)
	}
}

type broken struct {
	spoil func(dir string)
	want  string
}

func brokenFiles(t *testing.T, ca, other *testca.Authority) map[string]broken {
	write := func(name, content string) func(string) {
		return func(dir string) { require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600)) }
	}
	cert := func(change func(*x509.Certificate)) func(string) {
		return func(dir string) {
			c := testca.Hosts("a.test")
			change(c)
			put(t, dir, ca, c, ca)
		}
	}
	_, strange, err := ca.Sign(testca.Hosts("a.test"))
	require.NoError(t, err)
	return map[string]broken{
		"no certificate":       {func(dir string) { require.NoError(t, os.Remove(filepath.Join(dir, testca.Cert))) }, "TLS.Cert: open "},
		"an empty certificate": {write(testca.Cert, ""), "TLS.Cert "},
		"another's key":        {write(testca.Key, string(strange)), "private key does not match public key"},
		"no key in it":         {write(testca.Key, "key"), "failed to find any PEM data in key input"},
		"no authority":         {write(testca.CA, "ca"), `ca.crt": it holds no certificate in PEM`},
		"a broken authority":   {write(testca.CA, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), "certificate 1: x509"},
		"another's authority":  {write(testca.CA, string(other.PEM)), "signed by an authority in TLS.CA"},
		"for a client only":    {cert(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }), "must be for server and client"},
		"for a server only":    {cert(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }), "must be for server and client"},
		"ended":                {cert(func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }), "is valid from"},
		"begins later":         {cert(func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) }), "is valid from"},
		"for another host":     {cert(func(c *x509.Certificate) { c.DNSNames = []string{"b.test"} }), "the certificate is for b.test, but replica 3 needs one for a.test or quorumlock://c/3"},
		"for another replica":  {cert(func(c *x509.Certificate) { testca.URI(c, "quorumlock://c/4") }), "replica 3 needs one for quorumlock://c/3"},
	}
}

// All that is wrong is told at once.
func TestLoadCertificatesListsEveryFault(t *testing.T) {
	_, err := LoadCertificates(TLSFiles{Key: "nowhere"}, Identity{})
	for _, want := range []string{"TLS.Cert is empty", "TLS.Key: open nowhere", "TLS.CA is empty"} {
		require.ErrorContains(t, err, want)
	}
}

// A secret of Kubernetes is replaced by one rename, of a link.
func TestFilesBehindALink(t *testing.T) {
	ca := newCA(t, "ca")
	dir := t.TempDir()
	for _, name := range []string{"first", "second"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		put(t, filepath.Join(dir, name), ca, testca.Hosts("a.test"), ca)
	}
	link := filepath.Join(dir, "data")
	require.NoError(t, os.Symlink("first", link))
	certs, err := LoadCertificates(filesIn(link), Identity{Cluster: "c", Replica: 3, Address: "a.test:1"})
	require.NoError(t, err)
	require.NoError(t, os.Symlink("second", link+".new"))
	require.NoError(t, os.Rename(link+".new", link))
	certs.look(slog.New(slog.DiscardHandler))
	want, err := os.ReadFile(filepath.Join(dir, "second", testca.Cert))
	require.NoError(t, err)
	require.Equal(t, string(want), certs.now.Load().from.cert)
}

func TestCertificateThatEndsSoon(t *testing.T) {
	ca := newCA(t, "ca")
	soon := testca.Hosts("a.test")
	soon.NotAfter = time.Now().Add(time.Minute) // of an hour and a minute
	certs := holding(t, ca, soon, ca)
	log, logger := newWarnings()
	certs.look(logger)
	certs.look(logger)
	require.Len(t, log.lines, 1)
	require.Contains(t, log.lines[0], "ends soon")
}

// An authority may have others below it: the chain comes with the certificate.
func TestTLSIntermediate(t *testing.T) {
	ca := newCA(t, "ca")
	below, err := ca.Below("below")
	require.NoError(t, err)
	dir := t.TempDir()
	cert, key, err := below.Sign(testca.Hosts("one.test"))
	require.NoError(t, err)
	who := Identity{Cluster: "test", Replica: 1, Address: hosts[1]}
	require.NoError(t, testca.Write(dir, cert, key, ca.PEM))
	_, err = LoadCertificates(filesIn(dir), who)
	require.ErrorContains(t, err, "unknown authority")
	require.NoError(t, testca.Write(dir, append(cert, below.PEM...), key, ca.PEM))
	certs, err := LoadCertificates(filesIn(dir), who)
	require.NoError(t, err)
	a := setup{id: Identity{Replica: 1}, told: hosts, tls: certs}.start(t)
	b := setup{id: Identity{Replica: 2}, told: hosts, tls: holding(t, ca, testca.Hosts("two.test"), ca)}.start(t)
	for range 2 {
		_, err = a.dial(t, 2, b)
		require.NoError(t, err)
	}
	_, err = b.dial(t, 1, a)
	require.NoError(t, err)
}

func TestUnreachableIsForgotten(t *testing.T) {
	a := setup{id: Identity{Replica: 1}}.start(t)
	b := setup{id: Identity{Replica: 2}}.start(t)
	_, err := a.Dial(context.Background(), 2, "")
	require.ErrorContains(t, err, "not known here yet")
	_, err = a.Dial(context.Background(), 2, "127.0.0.1:1")
	require.Error(t, err)
	require.Error(t, a.Unreachable()[2])
	_, err = b.dial(t, 1, a) // it is there after all
	require.NoError(t, err)
	require.Empty(t, a.Unreachable())
}
