// Package five opens five replicas in one process, over loopback, for the tests of
// the adapters.
package five

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"sync"
	"time"

	"github.com/quorumlock/quorumlock"
)

// Replicas is how many there are; the first is number 0.
const Replicas = 5

// Nodes are five replicas of one cluster.
type Nodes struct {
	options [Replicas]quorumlock.Options
	nodes   [Replicas]*quorumlock.Node
}

// Open opens them below dir and waits until all are ready. Locks of a replica that
// died are free within a second.
func Open(ctx context.Context, dir string) (*Nodes, error) {
	members, err := addresses()
	if err != nil {
		return nil, err
	}
	f := &Nodes{}
	for i := range Replicas {
		id := uint64(i + 1)
		f.options[i] = quorumlock.Options{
			ReplicaID: id, Address: members[id], Members: members, Dir: filepath.Join(dir, fmt.Sprint(id)),
			ElectionTimeout: 150 * time.Millisecond, SessionTTL: time.Second,
		}
	}
	errs := make([]error, Replicas)
	var wg sync.WaitGroup
	for i := range Replicas {
		wg.Go(func() { errs[i] = f.Reopen(ctx, i) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Node returns one of them.
func (f *Nodes) Node(i int) *quorumlock.Node { return f.nodes[i] }

// Reopen opens one that is closed, and waits until it is ready.
func (f *Nodes) Reopen(ctx context.Context, i int) (err error) {
	if f.nodes[i], err = quorumlock.Open(f.options[i]); err != nil {
		return err
	}
	return f.nodes[i].Ready(ctx)
}

// Leader returns who leads the log, as most of the replicas believe, and -1 for
// nobody. Those that are closed have no say.
func (f *Nodes) Leader() int {
	votes := map[uint64]int{}
	for _, n := range f.nodes {
		if s := n.Status(); s.Err == nil && s.Leader != 0 {
			if votes[s.Leader]++; votes[s.Leader] > Replicas/2 {
				return int(s.Leader - 1)
			}
		}
	}
	return -1
}

// Close closes those that are open.
func (f *Nodes) Close() error {
	var wg sync.WaitGroup
	errs := make([]error, Replicas)
	for i, n := range f.nodes {
		if n != nil {
			wg.Go(func() { errs[i] = n.Close() })
		}
	}
	wg.Wait()
	return errors.Join(errs...)
}

// addresses finds free ports below those that systems give to outgoing connections:
// a replica that is opened again wants its own back.
func addresses() (map[uint64]string, error) {
	const lowest, span, tries = 20000, 12000, 1000
	members := make(map[uint64]string, Replicas)
	for range tries {
		address := fmt.Sprintf("127.0.0.1:%d", lowest+rand.IntN(span))
		l, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		defer l.Close() // kept until all are found, so that none is found twice
		members[uint64(len(members)+1)] = address
		if len(members) == Replicas {
			return members, nil
		}
	}
	return nil, fmt.Errorf("no %d free ports on 127.0.0.1", Replicas)
}
