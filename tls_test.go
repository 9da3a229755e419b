package quorumlock

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/testca"
)

func newCA(t testing.TB, name string) *testca.Authority {
	t.Helper()
	ca, err := testca.New(name)
	require.NoError(t, err)
	return ca
}

// putTLS has ca sign a certificate for hosts, and writes it into dir beside the
// authorities that are trusted.
func putTLS(t testing.TB, dir string, hosts []string, ca *testca.Authority, trusted ...*testca.Authority) *TLSFiles {
	t.Helper()
	cert, key, err := ca.Sign(testca.Hosts(hosts...))
	require.NoError(t, err)
	var roots []byte
	for _, a := range trusted {
		roots = append(roots, a.PEM...)
	}
	require.NoError(t, testca.Write(dir, cert, key, roots))
	return &TLSFiles{Cert: filepath.Join(dir, testca.Cert), Key: filepath.Join(dir, testca.Key), CA: filepath.Join(dir, testca.CA)}
}

// newTLSCluster has five nodes, each at a host of its own with a certificate for it.
func newTLSCluster(t testing.TB, ca *testca.Authority, change ...func(*Options)) *cluster {
	t.Helper()
	var addrs []string
	for i := range 5 {
		at := fmt.Sprintf("127.0.0.%d:0", i+1)
		if l, err := net.Listen("tcp", at); err != nil {
			t.Skipf("needs several loopback addresses: %v", err)
		} else {
			_ = l.Close()
		}
		addrs = append(addrs, freeAddressesOn(t, at, 1)...)
	}
	secure := func(o *Options) { o.TLS = putTLS(t, t.TempDir(), []string{hostOf(o.Address)}, ca, ca) }
	return newClusterAt(t, addrs, append([]func(*Options){brisk, secure}, change...)...)
}

func hostOf(address string) string {
	host, _, _ := net.SplitHostPort(address)
	return host
}

// lines is a log that can be searched while it grows.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *lines) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// has reports whether one line has all of parts.
func (l *lines) has(parts ...string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
search:
	for line := range strings.Lines(l.buf.String()) {
		for _, part := range parts {
			if !strings.Contains(line, part) {
				continue search
			}
		}
		return true
	}
	return false
}

// restoring tells when a snapshot was taken over.
type restoring struct {
	stateMachine
	done chan<- struct{}
}

func (r restoring) restore(in io.Reader, stop <-chan struct{}) error {
	r.done <- struct{}{}
	return r.stateMachine.restore(in, stop)
}

// Over TLS, five replicas elect, lock, lose their leader, and bring up one that
// missed so much that it gets a snapshot.
func TestTLSCluster(t *testing.T) {
	before := tuning
	tuning.snapshotEntries, tuning.compactionOverhead = 100, 10
	t.Cleanup(func() { tuning = before })
	c := newTLSCluster(t, newCA(t, "ca"))
	goesOn(t, c.nodes)
	behind := c.followers()[0]
	c.closeNodes(behind)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	leader := c.node(c.leader())
	for i := range 150 { // two entries each
		hold, err := leader.Acquire(ctx, fmt.Sprint(i))
		require.NoError(t, err)
		require.NoError(t, hold.Release(ctx))
	}
	o, err := c.options[behind].complete()
	require.NoError(t, err)
	restored := make(chan struct{}, 10)
	c.nodes[behind], err = open(o, func(o Options, m []stateMachine, ev engineEvents) (engineHost, identity, error) {
		m[0] = restoring{m[0], restored}
		return openReplica(o, m, ev)
	})
	require.NoError(t, err)
	require.NoError(t, c.nodes[behind].Ready(ctx))
	require.NotEmpty(t, restored, "no snapshot travelled")
	c.closeNodes(c.leader())
	goesOn(t, c.nodes)
	settled(t, c.nodes)
	for id, n := range c.nodes {
		for peer, err := range n.Status().Unreachable {
			require.NotContains(t, err.Error(), "TLS", "replica %d to %d", id, peer)
		}
	}
}

// A replica without a certificate that the others accept is kept out, both sides say
// why, and the others go on. It is never taken for a wiped one: with the right
// certificate it is back.
func TestTLSKeepsOut(t *testing.T) {
	ca, other := newCA(t, "ca"), newCA(t, "other ca")
	logs := make(map[uint64]*lines)
	c := newTLSCluster(t, ca, func(o *Options) {
		logs[o.ReplicaID] = &lines{}
		o.Logger = logs[o.ReplicaID].logger()
	})
	out := c.followers()[0]
	right := c.options[out]
	for _, tt := range []struct {
		name                  string
		tls                   *TLSFiles
		othersSay, statusSays string
	}{
		{"of another authority", putTLS(t, t.TempDir(), []string{hostOf(right.Address)}, other, other),
			"does not accept this replica's certificate", "unknown authority"},
		{"of another authority, but it trusts ours", putTLS(t, t.TempDir(), []string{hostOf(right.Address)}, other, other, ca),
			"unknown authority", "does not accept this replica's certificate"},
		{"without TLS", nil, "does not use TLS, and this replica does", "this replica uses TLS, and the other one does not"},
	} {
		c.closeNodes(out)
		o := right
		o.TLS = tt.tls
		kept, err := Open(o)
		require.NoError(t, err, tt.name)
		// The leader dials it, and it dials all of them.
		eventually(t, tt.name+": its own status says why", func() bool {
			said := 0
			for _, err := range kept.Status().Unreachable {
				if strings.Contains(err.Error(), tt.statusSays) {
					said++
				}
			}
			return said == 4
		})
		for _, id := range c.ids() {
			eventually(t, tt.name+": a log line of the others says why", func() bool {
				return logs[id].has("level=WARN", "remote=127.0.0.1", tt.othersSay)
			})
		}
		goesOn(t, c.nodes)
		require.NoError(t, kept.Status().Err, tt.name)
		require.Zero(t, kept.Status().Leader, tt.name)
		require.NoError(t, kept.Close())
		c.openNodes(out)
		goesOn(t, c.nodes)
	}
}

// A certificate of the right authority that is another replica's does not make its
// owner another one, although that is not there.
func TestTLSImpostor(t *testing.T) {
	ca := newCA(t, "ca")
	logs := make(map[uint64]*lines)
	c := newTLSCluster(t, ca, func(o *Options) {
		logs[o.ReplicaID] = &lines{}
		o.Logger = logs[o.ReplicaID].logger()
	})
	victim := c.followers()[0]
	thief := c.followers()[1] // whose certificate was stolen
	c.closeNodes(victim)
	stolen := c.options[thief]

	impostor := c.options[victim]
	impostor.Members = maps.Clone(impostor.Members)
	impostor.Address = freeAddressesOn(t, hostOf(stolen.Address)+":0", 1)[0]
	impostor.Members[victim] = impostor.Address // the others were told otherwise
	impostor.TLS, impostor.Dir = stolen.TLS, t.TempDir()
	node, err := Open(impostor)
	require.NoError(t, err)
	needs := fmt.Sprintf("replica %d needs one for %s", victim, hostOf(c.options[victim].Address))
	for _, id := range c.ids() {
		eventually(t, "the others say why", func() bool { return logs[id].has("level=WARN", needs) })
	}
	require.NoError(t, node.Status().Err)
	require.Zero(t, node.Status().Leader)
	require.NoError(t, node.Close())
	goesOn(t, c.nodes)
	// Nothing of it was noted: the real one is not refused for its sake.
	c.openNodes(victim)
	goesOn(t, c.nodes)
	require.Equal(t, c.options[victim].Address, c.node(c.leader()).Status().Members[victim])
}

// A replica that moves keeps the name that the others were told. That it said itself
// where it is now makes nobody with a certificate for that place its like.
func TestTLSMoved(t *testing.T) {
	ca := newCA(t, "ca")
	logs := make(map[uint64]*lines)
	c := newTLSCluster(t, ca, func(o *Options) {
		logs[o.ReplicaID] = &lines{}
		o.Logger = logs[o.ReplicaID].logger()
	})
	mover := c.followers()[0]
	was := c.options[mover]
	c.closeNodes(mover)
	moved := was
	moved.Members = maps.Clone(was.Members) // the others keep theirs
	moved.Address = freeAddressesOn(t, "127.0.0.6:0", 1)[0]
	moved.Members[mover] = moved.Address
	moved.TLS = putTLS(t, t.TempDir(), []string{"127.0.0.6", hostOf(was.Address)}, ca, ca)
	c.options[mover] = moved
	c.openNodes(mover)
	goesOn(t, c.nodes)
	for _, id := range c.ids() {
		if id != mover {
			eventually(t, "its new address is known", func() bool { return c.node(id).Status().Members[mover] == moved.Address })
		}
	}
	c.closeNodes(mover)
	squatter := moved
	squatter.TLS, squatter.Dir = putTLS(t, t.TempDir(), []string{"127.0.0.6"}, ca, ca), t.TempDir()
	node, err := Open(squatter)
	require.NoError(t, err)
	needs := fmt.Sprintf("replica %d needs one for %s or", mover, hostOf(was.Address))
	for _, id := range c.ids() {
		eventually(t, "the others say why", func() bool { return logs[id].has("level=WARN", needs) })
	}
	require.NoError(t, node.Status().Err)
	require.NoError(t, node.Close())
	c.openNodes(mover)
	goesOn(t, c.nodes)
}

// The authority is changed while the cluster works, and no session ends.
func TestTLSRotation(t *testing.T) {
	old, young := newCA(t, "old"), newCA(t, "young")
	c := newTLSCluster(t, old)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	restarted := c.followers()[0]
	var holds []*Hold
	for _, id := range c.ids() {
		if id == restarted {
			continue
		}
		hold, err := c.node(id).Acquire(ctx, fmt.Sprint("held by ", id))
		require.NoError(t, err)
		holds = append(holds, hold)
	}
	for _, step := range []struct {
		signer  *testca.Authority
		trusted []*testca.Authority
	}{
		{old, []*testca.Authority{old, young}},
		{young, []*testca.Authority{old, young}},
		{young, []*testca.Authority{young}},
	} {
		for _, o := range c.options {
			putTLS(t, filepath.Dir(o.TLS.Cert), []string{hostOf(o.Address)}, step.signer, step.trusted...)
		}
		for _, id := range c.ids() {
			n := c.node(id)
			want, err := os.ReadFile(n.opts.TLS.Cert)
			require.NoError(t, err)
			eventually(t, "the new files are in use", func() bool { return n.opts.certificates.Holds(want) })
		}
		c.closeNodes(restarted) // so that connections are made
		c.openNodes(restarted)
		goesOn(t, c.nodes)
	}
	for _, hold := range holds {
		require.NoError(t, hold.Validate(ctx), hold.Name())
		require.NoError(t, hold.Release(ctx))
	}
}

func TestTLSIPv6(t *testing.T) {
	if l, err := net.Listen("tcp", "[::1]:0"); err != nil {
		t.Skip("no IPv6 loopback here")
	} else {
		_ = l.Close()
	}
	ca := newCA(t, "ca")
	c := newClusterAt(t, freeAddressesOn(t, "[::1]:0", 3), brisk, func(o *Options) {
		o.TLS = putTLS(t, t.TempDir(), []string{"::1"}, ca, ca)
	})
	goesOn(t, c.nodes)
}

func TestTLSOptions(t *testing.T) {
	ca, other := newCA(t, "ca"), newCA(t, "other")
	_, strange, err := ca.Sign(testca.Hosts("b"))
	require.NoError(t, err)
	dir := t.TempDir()
	for name, tt := range map[string]struct {
		spoil func(*TLSFiles) error
		want  string
	}{
		"no file":           {func(f *TLSFiles) error { return os.Remove(f.CA) }, "TLS.CA: open "},
		"no name":           {func(f *TLSFiles) error { f.Key = ""; return nil }, "TLS.Key is empty"},
		"another key":       {func(f *TLSFiles) error { return os.WriteFile(f.Key, strange, 0o600) }, "private key does not match public key"},
		"no authority":      {func(f *TLSFiles) error { return os.WriteFile(f.CA, nil, 0o600) }, "it holds no certificate in PEM"},
		"another authority": {func(f *TLSFiles) error { return os.WriteFile(f.CA, other.PEM, 0o600) }, "signed by an authority in TLS.CA"},
		"another host": {func(f *TLSFiles) error {
			putTLS(t, filepath.Dir(f.CA), []string{"c"}, ca, ca)
			return nil
		}, "the certificate is for c, but replica 2 needs one for b or quorumlock://quorumlock/2"},
		"joins": {nil, "the certificate is for b, but replica 2 needs one for quorumlock://quorumlock/2"},
	} {
		t.Run(name, func(t *testing.T) {
			o := good()
			o.Dir = filepath.Join(dir, "untouched")
			o.TLS = putTLS(t, t.TempDir(), []string{"b"}, ca, ca)
			_, err := o.complete()
			require.NoError(t, err)
			if tt.spoil == nil {
				o.Join, o.Members = true, nil
			} else {
				require.NoError(t, tt.spoil(o.TLS))
			}
			_, err = Open(o)
			require.ErrorIs(t, err, ErrOptions)
			require.ErrorContains(t, err, tt.want)
			_, err = os.Stat(o.Dir)
			require.ErrorIs(t, err, os.ErrNotExist, "nothing is touched")
		})
	}
	// The other faults are told with it.
	o := good()
	o.TLS, o.Dir = &TLSFiles{}, ""
	_, err = Open(o)
	require.ErrorContains(t, err, "TLS.Cert is empty")
	require.ErrorContains(t, err, "Dir is empty")
}

// namedBy gives a replica a certificate that names it.
func namedBy(t testing.TB, ca *testca.Authority) func(*Options) {
	return func(o *Options) {
		dir := t.TempDir()
		cert, key, err := ca.Sign(testca.URI(testca.Hosts("any"), fmt.Sprintf("quorumlock://quorumlock/%d", o.ReplicaID)))
		require.NoError(t, err)
		require.NoError(t, testca.Write(dir, cert, key, ca.PEM))
		o.TLS = &TLSFiles{Cert: filepath.Join(dir, testca.Cert), Key: filepath.Join(dir, testca.Key), CA: filepath.Join(dir, testca.CA)}
	}
}

// Over TLS, replicas come and go if their certificates name them.
func TestTLSMembers(t *testing.T) {
	named := namedBy(t, newCA(t, "ca"))
	c := newCluster(t, brisk, named)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	addr := c.joiner(6)
	o := c.options[6]
	named(&o)
	c.options[6] = o
	require.NoError(t, c.node(1).AddReplica(ctx, 6, addr))
	c.openNodes(6)
	require.NoError(t, c.node(6).RemoveReplica(ctx, 1))
	<-c.node(1).ctx.Done()
	require.ErrorIs(t, c.node(1).err(), ErrRemoved)
	c.closeNodes(1)
	c.awaitMember(6, 6, "it takes the vote", func(m *Member) bool { return m.Voting })
	goesOn(t, c.nodes)
}
