package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/election"
	"github.com/quorumlock/quorumlock/fencing"
)

// exportEvery is how long the exporter takes for a record.
const exportEvery = 20 * time.Millisecond

type worker struct {
	cfg   workerConfig
	store *store
	pause atomic.Bool   // stop before the next write
	goOn  chan struct{} // has a value for the order to go on

	mu  sync.Mutex // guards out
	out *json.Encoder
}

// workerMain is the main function of a worker's process.
func workerMain() int {
	in := json.NewDecoder(os.Stdin)
	w := &worker{goOn: make(chan struct{}, 1), out: json.NewEncoder(os.Stdout)}
	if err := in.Decode(&w.cfg); err != nil {
		fmt.Fprintln(os.Stderr, "worker: no configuration:", err)
		return exitUsage
	}
	ctx, quit := context.WithCancel(context.Background())
	defer quit()
	go w.obey(in, quit)
	if err := w.run(ctx); err != nil {
		w.tell(report{What: reportBroken, Text: err.Error()})
		return exitFailed
	}
	return exitOK
}

// obey carries out orders until the director is gone, in which case the process ends
// here: nobody is there who could want to know.
func (w *worker) obey(in *json.Decoder, quit func()) {
	for {
		var o order
		if err := in.Decode(&o); err != nil {
			os.Exit(exitFailed)
		}
		switch o.Do {
		case orderPause:
			w.pause.Store(true)
		case orderGoOn:
			w.goOn <- struct{}{}
		case orderEnd:
			quit()
		}
	}
}

func (w *worker) tell(r report) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.out.Encode(r) // an error means that the director is gone, which obey sees
}

// run is the application: open the replica, and run the exporter on one of the five.
func (w *worker) run(ctx context.Context) (err error) {
	if w.store, err = openStore(w.cfg.Store, w.cfg.Fenced); err != nil {
		return err
	}
	defer w.store.db.Close()
	level := slog.LevelWarn
	if w.cfg.Verbose {
		level = slog.LevelInfo
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})).With("worker", w.cfg.ID)
	node, err := quorumlock.Open(quorumlock.Options{
		ReplicaID: w.cfg.ID, Address: w.cfg.Members[w.cfg.ID], Members: w.cfg.Members, Dir: w.cfg.Dir,
		Cluster: "singleton", Owner: fmt.Sprintf("worker %d", w.cfg.ID),
		SessionTTL: lease, ElectionTimeout: electionTimeout, Logger: log,
	})
	if err != nil {
		return err
	}
	defer node.Close()
	if err := node.Ready(ctx); err != nil {
		return ignoreIf(ctx, err)
	}
	w.tell(report{What: reportReady})

	err = election.Run(ctx, node, job, func(term context.Context, t *election.Term) error { return w.export(ctx, term, t) },
		election.WithLogger(log),
		election.WithRetry(time.Second),
		election.OnIgnored(func(*election.Term) { os.Exit(exitFailed) }), // rather dead than in the way
	)
	// Run has returned, so the exporter has. Only now may the node go.
	bounded, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return errors.Join(ignoreIf(ctx, err), node.Shutdown(bounded))
}

// export exports records as long as this worker leads. ctx ends with the worker's
// life, term with its leadership.
func (w *worker) export(ctx, term context.Context, t *election.Term) error {
	next, err := w.store.takeOver(term, t.Token())
	if err != nil {
		return err
	}
	for first := true; term.Err() == nil; first = false {
		paused := w.pause.CompareAndSwap(true, false)
		if paused {
			w.tell(report{What: reportPausing, Number: next, Token: t.Token()})
			select {
			case <-w.goOn:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		// The last look at term is above, and a process can be frozen after any last
		// look. So the write takes ctx: it stands for one that is already on its way,
		// which no cancelled context calls back.
		err := w.store.write(ctx, next, t.Token(), w.cfg.ID)
		var stale *fencing.StaleError
		switch {
		case errors.As(err, &stale):
			w.tell(report{What: reportRefused, Number: next, Token: t.Token(), Newest: stale.Admitted})
		case err == nil && first:
			w.tell(report{What: reportExports, Number: next, Token: t.Token()})
		}
		if paused {
			if err == nil {
				w.tell(report{What: reportWrote, Number: next, Token: t.Token()})
			}
			w.tell(report{What: reportBelief, Text: fmt.Sprint(t.Err())})
		}
		if err != nil {
			return err
		}
		next++
		select {
		case <-time.After(exportEvery):
		case <-term.Done():
		}
	}
	return term.Err()
}

// ignoreIf returns err unless ctx has ended, which then explains it.
func ignoreIf(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}
