package quorumlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/fencing"
)

// example opens a node for an example, and a ctx that bounds it.
func example() (context.Context, *quorumlock.Node, func()) {
	node, done := openOne()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	return ctx, node, func() { cancel(); done() }
}

// must returns a hold that can be had for sure.
func must(hold *quorumlock.Hold, err error) *quorumlock.Hold {
	if err != nil {
		log.Fatal(err)
	}
	return hold
}

// Readers hold a lock together, a writer alone.
func ExampleShare() {
	ctx, node, done := example()
	defer done()

	one := must(node.Acquire(ctx, "prices", quorumlock.Share()))
	two := must(node.Acquire(ctx, "prices", quorumlock.Share()))
	fmt.Println("together:", one.Token() == two.Token())

	_, err := node.TryAcquire(ctx, "prices") // to write
	fmt.Println("a writer is refused:", errors.Is(err, quorumlock.ErrHeld))

	one.Release(ctx)
	two.Release(ctx)
	writer := must(node.Acquire(ctx, "prices"))
	fmt.Println("then", writer.Mode(), "with a larger token:", writer.Token() > one.Token())
	// Output:
	// together: true
	// a writer is refused: true
	// then exclusive with a larger token: true
}

// Three workers at a time, each of which owns the shard that has its slot's number.
func ExamplePermits() {
	ctx, node, done := example()
	defer done()

	work := func() *quorumlock.Hold {
		return must(node.Acquire(ctx, "import", quorumlock.Permits(1, 3)))
	}
	first, second, third := work(), work(), work()
	fmt.Println("shards", first.Slots(), second.Slots(), third.Slots())

	_, err := node.TryAcquire(ctx, "import", quorumlock.Permits(1, 3))
	fmt.Println("a fourth is refused:", errors.Is(err, quorumlock.ErrHeld))

	second.Release(ctx)
	next := work()
	fmt.Println("shard", next.Slots(), "has a new owner, with a larger token:", next.Token() > second.Token())
	// Output:
	// shards [0] [1] [2]
	// a fourth is refused: true
	// shard [1] has a new owner, with a larger token: true
}

// Two accounts are locked in one step: a transfer the other way round, at the same
// time, cannot deadlock with this one.
func ExampleNode_AcquireAll() {
	ctx, node, done := example()
	defer done()

	transfer := must(node.AcquireAll(ctx, "account/7", "account/3"))
	fmt.Println(transfer.Names())
	fmt.Println("a token for each:", transfer.TokenFor("account/3"), transfer.TokenFor("account/7"))

	_, err := node.TryAcquireAll(ctx, "account/1", "account/3")
	fmt.Println("all or nothing:", errors.Is(err, quorumlock.ErrHeld))

	fmt.Println(transfer.Release(ctx))
	// Output:
	// [account/3 account/7]
	// a token for each: 1 2
	// all or nothing: true
	// <nil>
}

// However long it may hang, nobody holds the lock for longer than a second.
func ExampleMaxHold() {
	ctx, node, done := example()
	defer done()

	err := node.Do(ctx, "report", func(ctx context.Context, _ fencing.Token) error {
		<-ctx.Done() // this is where it hangs
		return context.Cause(ctx)
	}, quorumlock.MaxHold(time.Second))
	fmt.Println("stopped:", errors.Is(err, quorumlock.ErrMaxHold))

	_, err = node.Acquire(ctx, "report")
	fmt.Println("free again:", err == nil)
	// Output:
	// stopped: true
	// free again: true
}

// Every replica's timer fires at about the same time, and one of them does the job.
// It is shorter than the difference of their clocks, so the lock is kept for longer.
func ExampleMinHold() {
	ctx, node, done := example()
	defer done()

	err := node.Do(ctx, "tick 12:00", func(context.Context, fencing.Token) error {
		fmt.Println("done once")
		return nil
	}, quorumlock.MinHold(time.Minute))
	fmt.Println(err)

	_, err = node.TryAcquire(ctx, "tick 12:00") // a replica whose clock is late
	fmt.Println("not again:", errors.Is(err, quorumlock.ErrHeld))
	// Output:
	// done once
	// <nil>
	// not again: true
}

// For a store that cannot check tokens: after an unclean end the lock rests for as
// long as a write may still be on its way.
func ExampleLockDelay() {
	ctx, node, done := example()
	defer done()

	hold := must(node.Acquire(ctx, "printer", quorumlock.LockDelay(time.Minute)))
	if err := node.ForceRelease(ctx, "printer", hold.Token(), "admin", "hangs"); err != nil {
		log.Fatal(err)
	}
	_, err := node.TryAcquire(ctx, "printer")
	var held *quorumlock.HeldError
	if errors.As(err, &held) {
		fmt.Println("held by nobody:", len(held.Holders) == 0)
		fmt.Println("delayed:", held.Delayed)
	}
	// Output:
	// held by nobody: true
	// delayed: true
}

// Who would have to wait for too long is told at once.
func ExampleMaxWaiters() {
	ctx, node, done := example()
	defer done()

	must(node.Acquire(ctx, "hot"))
	_, err := node.Acquire(ctx, "hot", quorumlock.MaxWaiters(0))
	fmt.Println(errors.Is(err, quorumlock.ErrQueueFull))

	// The same for all waits of a session together.
	session, err := node.OpenSession(ctx, quorumlock.MaxWaits(0))
	if err != nil {
		log.Fatal(err)
	}
	_, err = session.Acquire(ctx, "hot")
	fmt.Println(errors.Is(err, quorumlock.ErrQueueFull))
	// Output:
	// true
	// true
}

// A refusal says who has the lock, how, and how many stand in line.
func ExampleHeldError() {
	ctx, node, done := example()
	defer done()

	must(node.Acquire(ctx, "import", quorumlock.Permits(2, 3)))
	_, err := node.TryAcquire(ctx, "import", quorumlock.Permits(2, 3))
	var held *quorumlock.HeldError
	if errors.As(err, &held) {
		fmt.Printf("%q is %s: %d of %d permits are taken, %d wait\n", held.Name, held.Mode, held.Taken, held.Limit, held.Ahead)
		for _, h := range held.Holders {
			fmt.Println("by", h.Owner, "with token", h.Token, "slots", h.Slots)
		}
	}
	// Output:
	// "import" is counted: 2 of 3 permits are taken, 0 wait
	// by worker-1 with token 1 slots [0 1]
}

func ExampleNode_Sessions() {
	ctx, node, done := example()
	defer done()

	session, err := node.OpenSession(ctx, quorumlock.WithOwner("importer"))
	if err != nil {
		log.Fatal(err)
	}
	must(session.Acquire(ctx, "warehouse/7"))
	must(session.Acquire(ctx, "warehouse/8", quorumlock.Share()))
	sessions, err := node.Sessions(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, s := range sessions {
		fmt.Println(s.Owner, "on replica", s.Replica, "has", s.Holds, "holds and", s.Waits, "waits")
	}
	// Output:
	// importer on replica 1 has 2 holds and 0 waits
}

// A watch begins with a picture and goes on with every change.
func ExampleNode_Watch() {
	ctx, node, done := example()
	defer done()

	hold := must(node.Acquire(ctx, "jobs/mail"))
	for event, err := range node.Watch(ctx, "jobs/") {
		if err != nil {
			log.Fatal(err)
		}
		switch event.Kind {
		case quorumlock.EventPicture:
			for _, lock := range event.Locks {
				fmt.Println(lock.Name, "is held by", lock.Holders[0].Owner)
			}
		case quorumlock.EventSynced: // all were shown: now something changes
			hold.Release(ctx)
			must(node.Acquire(ctx, "jobs/backup"))
		case quorumlock.EventMissed: // forget all of it, a new picture follows
		default:
			fmt.Println(event.Kind, event.Name, "token", event.Token)
		}
		if event.Kind == quorumlock.EventGranted {
			break
		}
	}
	// Output:
	// jobs/mail is held by worker-1
	// released jobs/mail token 1
	// granted jobs/backup token 2
}

// A holder that is stuck is forced out, and learns by whom and why.
func ExampleNode_ForceRelease() {
	ctx, node, done := example()
	defer done()

	stuck := must(node.Acquire(ctx, "report"))
	if err := node.ForceRelease(ctx, "report", stuck.Token(), "ops", "INC-42: hangs since noon"); err != nil {
		log.Fatal(err)
	}
	<-stuck.Done()
	var revoked *quorumlock.RevokedError
	if errors.As(stuck.Err(), &revoked) {
		fmt.Printf("revoked by %s: %s\n", revoked.By, revoked.Reason)
	}
	next := must(node.Acquire(ctx, "report"))
	fmt.Println("a store refuses what it still writes:", next.Token() > stuck.Token())
	// Output:
	// revoked by ops: INC-42: hangs since noon
	// a store refuses what it still writes: true
}

// A session that is forced to end takes all its holds along.
func ExampleNode_ForceClose() {
	ctx, node, done := example()
	defer done()

	hold := must(node.Acquire(ctx, "report"))
	if err := node.ForceClose(ctx, hold.Session().ID(), "ops", "replica 1 is sick"); err != nil {
		log.Fatal(err)
	}
	<-hold.Done()
	fmt.Println(hold.Err())
	// Output:
	// quorumlock: lost "report" (token 1): revoked by ops: replica 1 is sick
}

// A holder can be asked politely; what comes of it is up to the holder.
func ExampleNode_RequestYield() {
	ctx, node, done := example()
	defer done()

	hold := must(node.Acquire(ctx, "leader"))
	if err := node.RequestYield(ctx, "leader", "deploy", "this replica is to go"); err != nil {
		log.Fatal(err)
	}
	request := <-hold.YieldRequests()
	fmt.Printf("%s asks: %s\n", request.By, request.Reason)
	fmt.Println(hold.Release(ctx))
	// Output:
	// deploy asks: this replica is to go
	// <nil>
}

// A writer that is done writing lets readers in without letting the lock go.
func ExampleHold_Downgrade() {
	ctx, node, done := example()
	defer done()

	hold := must(node.Acquire(ctx, "prices"))
	if err := hold.Downgrade(ctx); err != nil {
		log.Fatal(err)
	}
	reader := must(node.TryAcquire(ctx, "prices", quorumlock.Share()))
	fmt.Println(hold.Mode(), reader.Token() == hold.Token())
	fmt.Println("and back:", errors.Is(hold.Upgrade(ctx), quorumlock.ErrUpgrade))
	// Output:
	// shared true
	// and back: true
}

// More workers are let in at once; fewer, as they finish.
func ExampleNode_Resize() {
	ctx, node, done := example()
	defer done()

	must(node.Acquire(ctx, "import", quorumlock.Permits(1, 1)))
	_, err := node.TryAcquire(ctx, "import", quorumlock.Permits(1, 2))
	fmt.Println(err)

	if err := node.Resize(ctx, "import", 2); err != nil {
		log.Fatal(err)
	}
	second := must(node.TryAcquire(ctx, "import", quorumlock.Permits(1, 2)))
	fmt.Println("slot", second.Slots())
	// Output:
	// acquire "import": quorumlock: "import" is in use as counted with a limit of 1, and was asked for as counted with a limit of 2
	// slot [1]
}
