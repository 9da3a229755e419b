package quorumlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"sync"
	"time"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/fencing"
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

func ExampleNode_Do() {
	node, done := openOne()
	defer done()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()

	err := node.Do(ctx, "invoice/4711", func(ctx context.Context, token fencing.Token) error {
		// ctx ends when the lock is lost. The token goes with every write.
		fmt.Println("paying with token", token)
		return nil
	})
	fmt.Println(err)
	// Output:
	// paying with token 1
	// <nil>
}

func ExampleNode_TryAcquire() {
	node, done := openOne()
	defer done()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()

	hold, err := node.TryAcquire(ctx, "report")
	if err != nil {
		log.Fatal(err)
	}
	_, err = node.TryAcquire(ctx, "report")
	var held *quorumlock.HeldError
	if errors.As(err, &held) {
		fmt.Println("held by", held.Holders[0].Owner)
	}
	fmt.Println(hold.Release(ctx))
	// Output:
	// held by worker-1
	// <nil>
}

func ExampleNode_Acquire() {
	node, done := openOne()
	defer done()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()

	first, err := node.Acquire(ctx, "report")
	if err != nil {
		log.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	_, err = node.Acquire(short, "report")
	fmt.Println(errors.Is(err, quorumlock.ErrHeld), errors.Is(err, context.DeadlineExceeded))

	first.Release(ctx)
	second, err := node.Acquire(ctx, "report")
	fmt.Println(second.Token() > first.Token(), err)
	// Output:
	// true true
	// true <nil>
}

// A second session of one process is another holder, whose locks come free
// together.
func ExampleNode_OpenSession() {
	node, done := openOne()
	defer done()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()

	session, err := node.OpenSession(ctx, quorumlock.WithOwner("importer"), quorumlock.WithTTL(5*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	hold, err := session.Acquire(ctx, "warehouse/7")
	if err != nil {
		log.Fatal(err)
	}
	session.Close(ctx)
	fmt.Println(errors.Is(hold.Err(), quorumlock.ErrLost))
	_, err = node.TryAcquire(ctx, "warehouse/7")
	fmt.Println(err)
	// Output:
	// true
	// <nil>
}

func ExampleNode_Describe() {
	node, done := openOne()
	defer done()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()

	if _, err := node.Acquire(ctx, "report"); err != nil {
		log.Fatal(err)
	}
	info, err := node.Describe(ctx, "report")
	if err != nil {
		log.Fatal(err)
	}
	for _, h := range info.Holders {
		fmt.Printf("%s is held by %s, token %s, %d wait\n", info.Name, h.Owner, h.Token, len(info.Waiters))
	}
	// Output:
	// report is held by worker-1, token 1, 0 wait
}

func ExampleNode_List() {
	node, done := openOne()
	defer done()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()

	for _, name := range []string{"invoice/3", "invoice/1", "invoice/2", "report"} {
		if _, err := node.Acquire(ctx, name); err != nil {
			log.Fatal(err)
		}
	}
	after := ""
	for {
		page, err := node.List(ctx, "invoice/", quorumlock.After(after), quorumlock.Limit(2))
		if err != nil || len(page) == 0 {
			break
		}
		for _, lock := range page {
			fmt.Println(lock.Name)
			after = lock.Name
		}
	}
	// Output:
	// invoice/1
	// invoice/2
	// invoice/3
}

// The context of a hold ends when the hold does, and says why.
func ExampleHold_Context() {
	node, done := openOne()
	defer done()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()

	hold, err := node.Acquire(ctx, "report")
	if err != nil {
		log.Fatal(err)
	}
	held, stop := hold.Context(ctx)
	defer stop()
	node.Close() // as if this process went
	<-held.Done()
	fmt.Println(errors.Is(context.Cause(held), quorumlock.ErrLost))
	// Output:
	// true
}

// A sync.Locker is for code that takes no other kind of lock. It has no words for a
// loss; the function is called at Unlock, once it is too late.
func ExampleNode_Locker() {
	node, done := openOne()
	defer done()

	var mu sync.Locker = node.Locker("report", func(err error) { fmt.Println("it may have run beside another:", err) })
	mu.Lock()
	fmt.Println("mine alone")
	mu.Unlock()
	// Output:
	// mine alone
}

// A second replica joins while the first one runs, and leaves again.
func ExampleNode_AddReplica() {
	node, done := openOne()
	defer done()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	dir, err := os.MkdirTemp("", "quorumlock-example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	fmt.Println(node.AddReplica(ctx, 2, addr))
	second, err := quorumlock.Open(quorumlock.Options{ // on another machine
		ReplicaID:       2,
		Address:         addr,
		Join:            true,
		Dir:             dir,
		ElectionTimeout: 200 * time.Millisecond,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer second.Close()
	fmt.Println(second.Ready(ctx))

	fmt.Println(node.RemoveReplica(ctx, 2))
	_, err = second.Acquire(ctx, "invoice/4711")
	for err == nil { // it does not know yet
		_, err = second.Acquire(ctx, "invoice/4712")
	}
	fmt.Println(errors.Is(err, quorumlock.ErrRemoved))
	// Output:
	// <nil>
	// <nil>
	// <nil>
	// true
}
