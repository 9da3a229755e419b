package election_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"time"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/election"
)

// openOne opens a cluster of one replica, which is what an example needs. A real
// one has five, each in a process of its own.
func openOne() (*quorumlock.Node, func()) {
	dir, err := os.MkdirTemp("", "quorumlock-example")
	if err != nil {
		log.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	node, err := quorumlock.Open(quorumlock.Options{
		ReplicaID:       1,
		Address:         addr,
		Members:         map[uint64]string{1: addr},
		Dir:             dir,
		Owner:           "worker-1",
		ElectionTimeout: 200 * time.Millisecond,
	})
	if err != nil {
		log.Fatal(err)
	}
	return node, func() {
		node.Close()
		os.RemoveAll(dir)
	}
}

// Every replica calls Run; the function runs on one of them. Here it stops by itself;
// a service would go on until ctx ends, and shut its node down after Run has returned.
func ExampleRun() {
	node, done := openOne()
	defer done()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()

	err := election.Run(ctx, node, "exporter", func(ctx context.Context, term *election.Term) error {
		// ctx ends when this replica leads no more. The token goes with every write.
		fmt.Println("exporting with token", term.Token())
		return election.ErrStop
	}, election.WithValue("10.0.0.7:8080"))
	fmt.Println(err)
	// Output:
	// exporting with token 1
	// <nil>
}

func ExampleCampaign() {
	node, done := openOne()
	defer done()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()

	term, err := election.Campaign(ctx, node, "exporter", election.WithValue("10.0.0.7:8080"))
	if err != nil {
		log.Fatal(err)
	}
	leader, err := election.LeaderOf(ctx, node, "exporter")
	fmt.Println(leader.Owner, "leads at", leader.Value, err)

	fmt.Println(term.Err())
	fmt.Println(term.Resign(ctx))
	fmt.Println(errors.Is(term.Err(), election.ErrResigned))
	_, err = election.LeaderOf(ctx, node, "exporter")
	fmt.Println(errors.Is(err, election.ErrNoLeader))
	// Output:
	// worker-1 leads at 10.0.0.7:8080 <nil>
	// <nil>
	// <nil>
	// true
	// true
}

func ExampleObserve() {
	node, done := openOne()
	defer done()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()

	term, err := election.Campaign(ctx, node, "exporter", election.WithValue("10.0.0.7:8080"))
	if err != nil {
		log.Fatal(err)
	}
	for leader, err := range election.Observe(ctx, node, "exporter") {
		if err != nil {
			log.Fatal(err)
		}
		if leader.None() {
			fmt.Println("nobody leads")
			break
		}
		fmt.Println(leader.Owner, "leads at", leader.Value)
		if err := term.Resign(ctx); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// worker-1 leads at 10.0.0.7:8080
	// nobody leads
}
