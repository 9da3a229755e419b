package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/harm"
)

const (
	electionTimeout = 400 * time.Millisecond
	sessionTTL      = 2 * time.Second

	// lockClients and setClients are how many of each a worker has.
	lockClients = 2
	setClients  = 2
	// probeTimeout bounds a try of the probe for each group, and so what recovery times are
	// exact to.
	probeTimeout = 300 * time.Millisecond
	probeEvery   = 50 * time.Millisecond
	// probesPerGroup is how many names the probe takes for each of several groups: so many
	// that each group has some.
	probesPerGroup = 7
	// maxGroups is what probesPerGroup allows for: an acquisition has 64 names at most.
	maxGroups = 9
)

// A worker is one process: a replica and its clients.
type worker struct {
	cfg   workerConfig
	node  *quorumlock.Node
	store storeClient
	ops   atomic.Uint64
	keeps atomic.Bool // its clients hold each lock for longer than a lease

	mu  sync.Mutex // guards out
	out *json.Encoder
}

// workerMain is the main function of a worker's process.
func workerMain() int {
	in := json.NewDecoder(os.Stdin)
	w := &worker{out: json.NewEncoder(os.Stdout)}
	if err := in.Decode(&w.cfg); err != nil {
		fmt.Fprintln(os.Stderr, "worker: no configuration:", err)
		return exitUsage
	}
	if w.cfg.Rate != 0 {
		if err := harm.SetClockRate(w.cfg.Rate); err != nil {
			w.tell(report{What: reportBroken, Text: err.Error()})
			return exitFailed
		}
	}
	ctx, end := context.WithCancel(context.Background())
	defer end()
	go func() {
		var o order
		for in.Decode(&o) == nil {
			if o.Do == orderEnd {
				end()
				continue
			}
			if err := w.suffer(o); err != nil {
				w.tell(report{What: reportBroken, Text: fmt.Sprintf("%s: %v", o.Do, err)})
				os.Exit(exitFailed)
			}
		}
		os.Exit(exitOK) // the director is gone, or wants no more
	}()
	if err := w.run(ctx); err != nil {
		w.tell(report{What: reportBroken, Text: err.Error()})
		return exitFailed
	}
	w.tell(report{What: reportIdle})
	select {} // until the director has heard it from all
}

// suffer does to this process what the director orders.
func (w *worker) suffer(o order) error {
	switch o.Do {
	case orderFailFsync:
		return harm.FailFsync()
	case orderRate:
		w.keeps.Store(o.Keep)
		return harm.SetClockRate(o.Rate)
	}
	return errors.New("no such order")
}

func (w *worker) tell(r report) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.out.Encode(r) // an error means that the director is gone, which is seen elsewhere
}

func (w *worker) now() int64 { return machineTime() - w.cfg.Begin }

// run opens the replica and lets the clients call until ctx ends.
func (w *worker) run(ctx context.Context) error {
	level := slog.LevelWarn
	if w.cfg.Verbose {
		level = slog.LevelInfo
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})).With("worker", w.cfg.ID, "life", w.cfg.Life)
	var err error
	w.node, err = quorumlock.Open(quorumlock.Options{
		ReplicaID: w.cfg.ID, Address: w.cfg.Members[w.cfg.ID], Members: w.cfg.Members, Dir: w.cfg.Dir,
		Cluster: "torture", Groups: w.cfg.Groups, Owner: fmt.Sprintf("%d.%d", w.cfg.ID, w.cfg.Life),
		SessionTTL: sessionTTL, ElectionTimeout: electionTimeout, Logger: log,
		OnFatal: func(err error) { log.Error("fatal", "err", err) },
	})
	if err != nil {
		return err
	}
	w.store = dialStore(w.cfg.Store)
	var clients sync.WaitGroup
	clients.Go(func() { w.probe(ctx) })
	for i := range uint64(lockClients + setClients) {
		rng := rand.New(rand.NewPCG(w.cfg.Seed, w.cfg.ID<<32|uint64(w.cfg.Life)<<8|i))
		c := &client{w: w, rng: rng, calls: make(map[string]int)}
		if i < lockClients {
			clients.Go(func() { c.locks(ctx) })
		} else {
			clients.Go(func() { c.sets(ctx, []lockKind{lockSetKind, fencedSetKind}[i%2]) })
		}
	}
	clients.Wait()
	return nil // the node lives on: the others may still need it
}

// probe takes locks that nobody else wants, again and again, to show when this worker
// can be granted a lock of every group.
func (w *worker) probe(ctx context.Context) {
	names := probeNames(w.cfg.ID, w.cfg.Groups)
	for ctx.Err() == nil {
		at := w.now()
		try, cancel := context.WithTimeout(ctx, time.Duration(w.cfg.Groups)*probeTimeout)
		hold, err := w.node.AcquireAll(try, names...)
		cancel()
		if err == nil {
			r := report{What: reportProbe, At: at, Leaders: w.leaders()}
			for _, name := range names {
				r.Tokens = append(r.Tokens, hold.TokenFor(name))
			}
			w.tell(r)
			_ = hold.Release(ctx) // if not now, then in the background
		}
		pause(ctx, probeEvery)
	}
}

// leaders are those of the groups, as far as this worker knows.
func (w *worker) leaders() (ids []uint64) {
	s := w.node.Status()
	for _, g := range s.Groups {
		ids = append(ids, g.Leader)
	}
	if ids == nil {
		ids = []uint64{s.Leader}
	}
	return ids
}

func probeName(worker uint64, i int) string { return fmt.Sprintf("probe/%d/%d", worker, i) }

func probeNames(worker uint64, groups int) (names []string) {
	n := 1
	if groups > 1 {
		n = groups * probesPerGroup
	}
	for i := range n {
		names = append(names, probeName(worker, i))
	}
	return names
}

// pause lets a time pass, or what is left until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
