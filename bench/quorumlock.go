package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/quorumlock/quorumlock"
)

// A quorumlockSystem is five replicas in this process, with default options and what
// else they are measured with, each with its log on the disk.
type quorumlockSystem struct {
	nodes []*quorumlock.Node
}

func startQuorumlock(ctx context.Context, dir, with string, groups int) (*quorumlockSystem, error) {
	runtime.GOMAXPROCS(procs())
	members, err := founders(replicas)
	if err != nil {
		return nil, err
	}
	s := &quorumlockSystem{}
	for id := range uint64(replicas) {
		n, err := openNode(dir, with, id+1, members, groups)
		if err != nil {
			return nil, err
		}
		s.nodes = append(s.nodes, n)
	}
	for _, n := range s.nodes {
		if err := n.Ready(ctx); err != nil {
			return nil, err
		}
		if with == withCounts || with == withBoth {
			n.Stats()
		}
	}
	return s, nil
}

func openNode(dir, with string, id uint64, members map[uint64]string, groups int) (*quorumlock.Node, error) {
	o := quorumlock.Options{
		ReplicaID: id,
		Address:   members[id],
		Members:   members,
		Dir:       filepath.Join(dir, fmt.Sprint(id)),
		Cluster:   "bench",
		Groups:    groups,
	}
	provide(with, &o)
	return quorumlock.Open(o)
}

func (s *quorumlockSystem) about() string {
	return fmt.Sprintf("five replicas, default options, fsync; GOMAXPROCS=%d for all five", procs())
}

func (s *quorumlockSystem) stop() {}

// leader returns the replica that leads, or nil between leaders.
func (s *quorumlockSystem) leader() *quorumlock.Node {
	for _, n := range s.nodes {
		if st := n.Status(); st.Leader == st.ReplicaID {
			return n
		}
	}
	return nil
}

// at returns the replicas that callers are to use. The leader is the first, as in
// etcd.go: it is the one that a single caller gets.
func (s *quorumlockSystem) at(where string) ([]*quorumlock.Node, error) {
	leader := s.leader()
	if leader == nil {
		return nil, errors.New("nobody leads")
	}
	others := slices.DeleteFunc(slices.Clone(s.nodes), func(n *quorumlock.Node) bool { return n == leader })
	switch where {
	case atLeader:
		return []*quorumlock.Node{leader}, nil
	case atFollower:
		return others[:1], nil
	}
	return append([]*quorumlock.Node{leader}, others...), nil
}

// lockers needs no session for each caller: two acquires on one session exclude
// each other.
func (s *quorumlockSystem) lockers(_ context.Context, n int, where string, _ bool) ([]locker, error) {
	nodes, err := s.at(where)
	if err != nil {
		return nil, err
	}
	ls := make([]locker, n)
	for i := range ls {
		ls[i] = nodeLocker{nodes[i%len(nodes)]}
	}
	return ls, nil
}

// An acquirer is a node or one of its sessions.
type acquirer interface {
	Acquire(ctx context.Context, name string, opts ...quorumlock.AcquireOption) (*quorumlock.Hold, error)
}

type nodeLocker struct{ a acquirer }

func (l nodeLocker) lock(ctx context.Context, name string) (func(context.Context) error, error) {
	h, err := l.a.Acquire(ctx, name)
	if err != nil {
		return nil, err
	}
	return h.Release, nil
}
