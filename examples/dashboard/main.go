// Command dashboard shows the page of a cluster that is at work: three replicas in this
// one process, some hundred locks, sessions that wait for each other, and now and then
// a hold that is lost.
//
//	go run ./examples/dashboard      then open http://127.0.0.1:7680/quorumlock/
//	go run ./examples/dashboard -groups 3
//
// Everything happens on loopback and in a temporary directory, and ends with Ctrl-C.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"time"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/dashboard"
	"github.com/quorumlock/quorumlock/examples/internal/crew"
)

func main() {
	address := flag.String("http", "127.0.0.1:7680", "where the page is to be seen")
	duration := flag.Duration("for", 0, "end after this time (default: with Ctrl-C)")
	groups := flag.Int("groups", 1, "of Raft, over which the names are spread")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if *duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, *duration)
		defer cancel()
	}
	if err := run(ctx, *address, *groups, func(url string) { fmt.Println("open", url) }); err != nil {
		log.Fatal(err)
	}
}

// run serves the page until ctx ends. It tells the page's address once there is
// something to see.
func run(ctx context.Context, address string, groups int, ready func(url string)) error {
	dir, err := os.MkdirTemp("", "dashboard-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	nodes, err := openThree(ctx, dir, groups)
	defer closeAll(nodes)
	if err != nil {
		return err
	}
	if err := fill(ctx, nodes); err != nil {
		return err
	}

	mux := http.NewServeMux()
	mux.Handle("/quorumlock/", http.StripPrefix("/quorumlock", dashboard.New(nodes[0], dashboard.Options{
		Title: "payments · locks",
		// An application asks its own rights here: who is signed in, and may they?
		Authorize: func(r *http.Request, a dashboard.Action) error {
			host, _, err := net.SplitHostPort(r.RemoteAddr)
			if err != nil || !net.ParseIP(host).IsLoopback() {
				return errors.New("only from this machine")
			}
			return nil
		},
		MaxHolds: 16, // by quorumlock run
	})))
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	ready("http://" + l.Addr().String() + "/quorumlock/")
	work(ctx, nodes)
	// Close and not Shutdown, which would wait for the pages of live changes.
	if err := server.Close(); err != nil {
		return err
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// openThree opens three replicas in this process. An application has one in each of
// its processes.
func openThree(ctx context.Context, dir string, groups int) (nodes []*quorumlock.Node, err error) {
	members, err := crew.FreeAddresses(3)
	if err != nil {
		return nil, err
	}
	for id := uint64(1); id <= 3; id++ {
		n, err := quorumlock.Open(quorumlock.Options{
			ReplicaID: id, Address: members[id], Members: members,
			Dir: fmt.Sprintf("%s/%d", dir, id), Owner: fmt.Sprintf("payments-%d", id),
			Groups: groups,
		})
		if err != nil {
			return nodes, err
		}
		nodes = append(nodes, n)
	}
	for _, n := range nodes {
		if err := n.Ready(ctx); err != nil {
			return nodes, err
		}
	}
	return nodes, nil
}

func closeAll(nodes []*quorumlock.Node) {
	for _, n := range nodes {
		if err := n.Close(); err != nil {
			log.Print(err)
		}
	}
}
