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
	if nodes, err = open(dir, 3); err == nil {
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

// open opens a cluster of so many replicas.
func open(dir string, replicas uint64) ([]*quorumlock.Node, error) {
	return openWith(dir, replicas, func(*quorumlock.Options) {})
}

func openWith(dir string, replicas uint64, change func(*quorumlock.Options)) (nodes []*quorumlock.Node, err error) {
	members := make(map[uint64]string)
	var bound []net.Listener
	for id := uint64(1); id <= replicas; id++ {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		bound = append(bound, l) // kept until all are found, so that none is found twice
		members[id] = l.Addr().String()
	}
	for _, l := range bound {
		if err := l.Close(); err != nil {
			return nil, err
		}
	}
	for id := uint64(1); id <= replicas; id++ {
		o := quorumlock.Options{
			ReplicaID: id, Address: members[id], Members: members, Dir: fmt.Sprintf("%s/%d", dir, id),
			Owner: fmt.Sprintf("owner-%d", id),
		}
		change(&o)
		n, err := quorumlock.Open(o)
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
