// Command quickstart is the smallest program with a lock: Open, Do, Close.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/fencing"
)

func main() {
	if err := run("127.0.0.1:7601"); err != nil {
		log.Fatal(err)
	}
}

func run(address string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	dir, err := os.MkdirTemp("", "quickstart-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)

	// One member, to try it out. In production five processes on five machines
	// call Open, each with its own ReplicaID, Address and Dir, and all with the
	// same five Members: any two of them may then fail. Dir is kept there.
	node, err := quorumlock.Open(quorumlock.Options{
		ReplicaID: 1,
		Address:   address,
		Members:   map[uint64]string{1: address},
		Dir:       dir,
	})
	if err != nil {
		return err
	}
	defer node.Close()

	// Do waits for the lock, runs the function under it, and releases it.
	return node.Do(ctx, "invoice/4711", func(ctx context.Context, token fencing.Token) error {
		// Nobody else in the cluster is in here for invoice 4711, and ctx ends if
		// the lock is lost. Send the token along with every write, so that the
		// store can refuse one that is older than it has seen: fencing/sqlfence.
		fmt.Println("paying invoice 4711 with fencing token", token)
		return nil
	})
}
