package locktest_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/locktest"
)

// In a test, New does what Open and Close do here.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := locktest.Open(ctx, locktest.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = c.Close() }()

	first, err := c.Node(1).Acquire(ctx, "invoice/4711")
	if err != nil {
		log.Fatal(err)
	}
	_, err = c.Node(2).TryAcquire(ctx, "invoice/4711")
	fmt.Println("held by another:", errors.Is(err, quorumlock.ErrHeld))

	// The holder's machine loses its power. Its next life frees what the last one held.
	if err := c.Crash(1); err != nil {
		log.Fatal(err)
	}
	fmt.Println("the holder knows:", errors.Is(first.Err(), quorumlock.ErrLost))
	if err := c.Restart(1); err != nil {
		log.Fatal(err)
	}
	second, err := c.Node(2).Acquire(ctx, "invoice/4711")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("the token has grown:", second.Token() > first.Token())
	// Output:
	// held by another: true
	// the holder knows: true
	// the token has grown: true
}

func ExampleCluster_KillLeader() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := locktest.Open(ctx, locktest.Config{Replicas: 3})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = c.Close() }()

	if _, err := c.KillLeader(ctx); err != nil {
		log.Fatal(err)
	}
	others, err := c.Followers(ctx) // waits for the next leader
	if err != nil {
		log.Fatal(err)
	}
	hold, err := c.Node(others[0]).Acquire(ctx, "invoice/4711")
	fmt.Println(hold.Name(), err)
	// Output: invoice/4711 <nil>
}

func ExampleCluster_Partition() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := locktest.Open(ctx, locktest.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = c.Close() }()

	c.Partition([]uint64{1, 2}, []uint64{3, 4, 5})
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err = c.Node(1).Acquire(short, "invoice/4711")
	fmt.Println("the minority refuses:", errors.Is(err, quorumlock.ErrNoQuorum))
	_, err = c.Node(3).Acquire(ctx, "invoice/4711")
	fmt.Println("the majority goes on:", err)
	// Output:
	// the minority refuses: true
	// the majority goes on: <nil>
}
