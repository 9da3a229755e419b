package dashboard

import (
	"context"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/quorumlock/quorumlock"
)

// patience bounds what a test waits for.
const patience = 30 * time.Second

// nodes are one real cluster of three, for all tests of this package: each uses names
// of its own.
var nodes []*quorumlock.Node

func TestMain(m *testing.M) { os.Exit(runAll(m)) }

func runAll(m *testing.M) (code int) {
	dir, err := os.MkdirTemp("", "dashboard-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if nodes, err = open(dir); err == nil {
		code = m.Run()
	}
	for _, n := range nodes {
		if e := n.Close(); e != nil && err == nil {
			err = e
		}
	}
	if err == nil && code == 0 {
		err = goleak.Find()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

func open(dir string) (nodes []*quorumlock.Node, err error) {
	members := make(map[uint64]string)
	for id := uint64(1); id <= 3; id++ {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		members[id] = l.Addr().String()
		if err := l.Close(); err != nil {
			return nil, err
		}
	}
	for id := uint64(1); id <= 3; id++ {
		n, err := quorumlock.Open(quorumlock.Options{
			ReplicaID: id, Address: members[id], Members: members, Dir: fmt.Sprintf("%s/%d", dir, id),
			Owner: fmt.Sprintf("owner-%d", id),
		})
		if err != nil {
			return nodes, err
		}
		nodes = append(nodes, n)
	}
	return nodes, ready(nodes)
}

func ready(nodes []*quorumlock.Node) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, n := range nodes {
		if err := n.Ready(ctx); err != nil {
			return err
		}
	}
	return nil
}

// openLone opens a cluster of one.
func openLone(dir string) (*quorumlock.Node, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		return nil, err
	}
	n, err := quorumlock.Open(quorumlock.Options{
		ReplicaID: 1, Address: address, Members: map[uint64]string{1: address}, Dir: dir,
	})
	if err != nil {
		return nil, err
	}
	return n, ready([]*quorumlock.Node{n})
}
