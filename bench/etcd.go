//go:build !lean

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"runtime"
	"strings"

	"go.etcd.io/etcd/api/v3/version"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	recipe "go.etcd.io/etcd/client/v3/experimental/recipes"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc/grpclog"
)

// callersPerSession is how many callers of a replica share one etcd session, which
// is one lease: as the goroutines of one process of its users do.
const callersPerSession = 32

// An etcdSystem is five embedded members with default settings in this process,
// each with its data on the disk, and one client to each.
type etcdSystem struct {
	members  []*embed.Etcd
	clients  []*clientv3.Client
	sessions [][]*concurrency.Session // by member
}

func startEtcd(ctx context.Context, _, dir string) (system, error) {
	runtime.GOMAXPROCS(procs())
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
	s := &etcdSystem{sessions: make([][]*concurrency.Session, replicas)}
	return s, s.start(ctx, dir)
}

func (s *etcdSystem) start(ctx context.Context, dir string) error {
	addresses, err := freeAddresses(2 * replicas)
	if err != nil {
		return err
	}
	peers, clients := addresses[:replicas], addresses[replicas:]
	var cluster []string
	for i, p := range peers {
		cluster = append(cluster, fmt.Sprintf("m%d=http://%s", i, p))
	}
	for i := range replicas {
		cfg := embed.NewConfig()
		cfg.Name = fmt.Sprintf("m%d", i)
		cfg.Dir = filepath.Join(dir, cfg.Name)
		cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
		cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = urls(peers[i]), urls(peers[i])
		cfg.ListenClientUrls, cfg.AdvertiseClientUrls = urls(clients[i]), urls(clients[i])
		cfg.InitialCluster = strings.Join(cluster, ",")
		m, err := embed.StartEtcd(cfg)
		if err != nil {
			return err
		}
		s.members = append(s.members, m)
	}
	for i, m := range s.members {
		select {
		case <-m.Server.ReadyNotify():
		case err := <-m.Err():
			return err
		case <-ctx.Done():
			return fmt.Errorf("member %d is not ready: %w", i, ctx.Err())
		}
		c, err := clientv3.New(clientv3.Config{Endpoints: []string{clients[i]}, Logger: zap.NewNop()})
		if err != nil {
			return err
		}
		s.clients = append(s.clients, c)
	}
	return nil
}

func urls(address string) []url.URL { return []url.URL{{Scheme: "http", Host: address}} }

func (s *etcdSystem) about() string {
	return fmt.Sprintf("etcd %s embedded, five members, default settings, fsync; one client a member, a session for %d callers; GOMAXPROCS=%d for all five",
		version.Version, callersPerSession, procs())
}

func (s *etcdSystem) stop() {}

// at returns the numbers of the members that callers are to use.
func (s *etcdSystem) at(where string) ([]int, error) {
	var leader, followers []int
	for i, m := range s.members {
		if m.Server.Leader() == m.Server.MemberID() {
			leader = append(leader, i)
		} else {
			followers = append(followers, i)
		}
	}
	if len(leader) != 1 {
		return nil, errors.New("nobody leads")
	}
	switch where {
	case atLeader:
		return leader, nil
	case atFollower:
		return followers[:1], nil
	}
	return append(leader, followers...), nil
}

func (s *etcdSystem) lockers(ctx context.Context, n int, where string, apart bool) ([]locker, error) {
	members, err := s.at(where)
	if err != nil {
		return nil, err
	}
	share := callersPerSession
	if apart {
		share = 1 // a mutex belongs to its session: two callers on one would both have it
	}
	ls := make([]locker, n)
	for i := range ls {
		m := members[i%len(members)]
		session, err := s.session(ctx, m, i/len(members)/share)
		if err != nil {
			return nil, err
		}
		ls[i] = &etcdLocker{session: session}
	}
	return ls, nil
}

// session returns the k-th session on a member.
func (s *etcdSystem) session(ctx context.Context, m, k int) (*concurrency.Session, error) {
	for len(s.sessions[m]) <= k {
		lease, err := s.clients[m].Grant(ctx, 60)
		if err != nil {
			return nil, err
		}
		session, err := concurrency.NewSession(s.clients[m], concurrency.WithLease(lease.ID))
		if err != nil {
			return nil, err
		}
		s.sessions[m] = append(s.sessions[m], session)
	}
	return s.sessions[m][k], nil
}

// An etcdLocker keeps its mutex, since it asks for one name again and again.
type etcdLocker struct {
	session *concurrency.Session
	name    string
	mutex   *concurrency.Mutex
}

func (l *etcdLocker) lock(ctx context.Context, name string) (func(context.Context) error, error) {
	if l.mutex == nil || l.name != name {
		l.name, l.mutex = name, concurrency.NewMutex(l.session, name)
	}
	if err := l.mutex.Lock(ctx); err != nil {
		return nil, err
	}
	return l.mutex.Unlock, nil
}

// kindLockers gives ways to etcd's lock for readers, which is one of its recipes and
// not of its package concurrency.
func (s *etcdSystem) kindLockers(ctx context.Context, _ string, n int) ([]locker, error) {
	ls, err := s.lockers(ctx, n, everywhere, false)
	for i := range ls {
		ls[i] = etcdReader{ls[i].(*etcdLocker).session}
	}
	return ls, err
}

type etcdReader struct{ session *concurrency.Session }

// lock takes no ctx along, since the recipe has none.
func (l etcdReader) lock(_ context.Context, name string) (func(context.Context) error, error) {
	m := recipe.NewRWMutex(l.session, name)
	if err := m.RLock(); err != nil {
		return nil, err
	}
	return func(context.Context) error { return m.RUnlock() }, nil
}
