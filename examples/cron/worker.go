package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/quorumlock/quorumlock"
)

// A config is all that a worker needs to know.
type config struct {
	ID      uint64
	Members map[uint64]string
	Dir     string
	Skew    time.Duration // by which its clock is wrong
	Claim   bool
}

// A report is what a worker tells the director, one a line.
type report struct {
	Ready  bool      `json:",omitempty"`
	Asked  bool      `json:",omitempty"` // it is about to claim Tick
	Denied bool      `json:",omitempty"` // another has Tick
	Ran    bool      `json:",omitempty"` // it has written the report for Tick
	Tick   int64     `json:",omitempty"` // the planned time, as Unix time
	Shown  time.Time `json:",omitzero"`  // what its clock shows
	Leader int       `json:",omitempty"` // of the cluster, as it believes
	Failed string    `json:",omitempty"`
	Worker int       `json:"-"` // filled in by the director
}

// A worker is a process with a report to write every second.
type worker struct {
	config
	node *quorumlock.Node
	out  *json.Encoder
}

func workerMain() int {
	w := &worker{out: json.NewEncoder(os.Stdout)}
	if err := w.work(); err != nil {
		fmt.Fprintln(os.Stderr, "worker", w.ID, err)
		return exitFailed
	}
	return exitOK
}

func (w *worker) work() error {
	if err := json.Unmarshal([]byte(os.Getenv(workerEnv)), &w.config); err != nil {
		return err
	}
	var err error
	w.node, err = quorumlock.Open(quorumlock.Options{
		ReplicaID: w.ID, Address: w.Members[w.ID], Members: w.Members, Dir: w.Dir, Cluster: "cron",
		ElectionTimeout: 400 * time.Millisecond, SessionTTL: 2 * time.Second,
	})
	if err != nil {
		return err
	}
	defer w.node.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := w.node.Ready(ctx); err != nil {
		return err
	}
	w.tell(report{Ready: true})
	orders := bufio.NewScanner(os.Stdin)
	if !orders.Scan() { // "go"
		return orders.Err()
	}
	var schedule sync.WaitGroup
	defer schedule.Wait()
	defer cancel()
	schedule.Go(func() { w.follow(ctx) })
	orders.Scan() // returns when the director is gone
	return nil
}

// now is this worker's clock.
func (w *worker) now() time.Time { return time.Now().Add(w.Skew) }

// follow comes to each planned time in turn, by this worker's own clock.
func (w *worker) follow(ctx context.Context) {
	for tick := w.now().Unix() + 1; ; tick++ {
		select {
		case <-time.After(time.Unix(tick, 0).Sub(w.now())):
		case <-ctx.Done():
			return
		}
		if err := w.nightly(ctx, tick); err != nil && ctx.Err() == nil {
			w.tell(report{Failed: err.Error()})
		}
	}
}

// nightly writes the report for a planned time, unless another worker does. That is
// all: no lock, no lease, and no look at the clock. The job takes a millisecond, and
// the others come to the same time up to four seconds later.
func (w *worker) nightly(ctx context.Context, tick int64) error {
	w.tell(report{Asked: true, Tick: tick})
	if w.Claim {
		call, cancel := context.WithTimeout(ctx, 15*time.Second)
		defer cancel()
		mine, err := w.node.ClaimTick(call, "nightly report", tick)
		if err != nil {
			return err // it may have been claimed for nobody: do not run
		}
		if !mine {
			w.tell(report{Denied: true, Tick: tick})
			return nil
		}
	}
	time.Sleep(time.Millisecond) // the report
	w.tell(report{Ran: true, Tick: tick, Shown: w.now(), Leader: int(w.node.Status().Leader)})
	return nil
}

// tell tells the director; should that one be gone, this process soon is too.
func (w *worker) tell(r report) { _ = w.out.Encode(r) }
