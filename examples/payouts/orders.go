package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/fencing"
)

// A worker is one of the five processes: a replica of the lock cluster, and a
// program that pays invoices under its locks. This file is how it does what the
// director says; worker.go is how it does its work.
type worker struct {
	cfg    workerConfig
	node   *quorumlock.Node
	ledger *ledger

	ready   chan struct{}  // closed when node and ledger are there
	start   chan struct{}  // closed by the order to start
	pause   atomic.Bool    // stop before the next write
	goOn    chan struct{}  // has a value for each order to go on
	turned  atomic.Int64   // how often another held the lock
	answers sync.WaitGroup // orders that are being carried out

	mu  sync.Mutex // guards out
	out *json.Encoder
}

// workerMain is the main function of a worker's process.
func workerMain() int {
	in := json.NewDecoder(os.Stdin)
	w := &worker{
		ready: make(chan struct{}),
		start: make(chan struct{}),
		goOn:  make(chan struct{}, 1),
		out:   json.NewEncoder(os.Stdout),
	}
	if err := in.Decode(&w.cfg); err != nil {
		fmt.Fprintln(os.Stderr, "worker: no configuration:", err)
		return exitUsage
	}
	if err := w.run(in); err != nil {
		fmt.Fprintf(os.Stderr, "worker %d: %v\n", w.cfg.ID, err)
		w.tell(report{What: reportBroken, Text: err.Error()})
		return exitFailed
	}
	w.tell(report{What: reportBye, Turned: int(w.turned.Load())})
	return exitOK
}

func (w *worker) run(in *json.Decoder) error {
	ctx, quit := context.WithCancel(context.Background())
	defer quit()
	// From here on, a worker whose director is gone goes too, whatever it is at.
	go w.obey(ctx, in, quit)

	if err := w.open(ctx); err != nil {
		return err
	}
	// Close, not Shutdown: all five end together, and nobody is left to whom
	// leadership could be handed.
	defer func() {
		quit()
		w.answers.Wait()
		w.node.Close()
		w.ledger.close()
	}()
	close(w.ready)
	w.tell(report{What: reportReady})

	select {
	case <-w.start:
		return w.work(ctx)
	case <-ctx.Done():
		return nil
	}
}

// obey carries out orders until the director is gone, in which case the process
// ends here: nobody is there who could want to know.
func (w *worker) obey(ctx context.Context, in *json.Decoder, quit func()) {
	for {
		var o order
		if err := in.Decode(&o); err != nil {
			os.Exit(exitFailed)
		}
		switch o.Do {
		case orderStart:
			close(w.start)
		case orderPause:
			w.pause.Store(true)
		case orderGoOn:
			w.goOn <- struct{}{}
		case orderSettle:
			w.answer(ctx, o, w.settleInLine)
		case orderProbe:
			w.answer(ctx, o, w.probe)
		case orderStatus:
			w.answer(ctx, o, w.status)
		case orderDescribe:
			w.answer(ctx, o, w.describe)
		case orderQuit:
			quit()
		}
	}
}

// answer carries out an order that takes its time.
func (w *worker) answer(ctx context.Context, o order, do func(context.Context, string) error) {
	w.answers.Go(func() {
		select {
		case <-w.ready:
		case <-ctx.Done():
			return
		}
		if err := do(ctx, o.Invoice); err != nil && ctx.Err() == nil {
			w.tell(report{What: reportBroken, Text: fmt.Sprintf("%s: %v", o.Do, err)})
		}
	})
}

// tell sends a report to the director.
func (w *worker) tell(r report) {
	w.mu.Lock()
	defer w.mu.Unlock()
	// An error means that the director is gone, which obey sees for itself.
	_ = w.out.Encode(r)
}

// probe takes a lock of this worker's own: that it is granted needs a leader and
// a majority, as any other.
func (w *worker) probe(ctx context.Context, _ string) error {
	name := fmt.Sprintf("probe/%d", w.cfg.ID)
	for ctx.Err() == nil {
		err := w.node.Do(ctx, name, func(_ context.Context, token fencing.Token) error {
			w.tell(report{What: reportProbed, Token: token})
			return nil
		})
		if !passing(err) {
			return err
		}
		sleep(ctx, breather)
	}
	return nil
}

func (w *worker) status(context.Context, string) error {
	s := w.node.Status()
	w.tell(report{What: reportStatus, Leader: s.Leader, Term: s.Term})
	return nil
}

func (w *worker) describe(ctx context.Context, number string) error {
	info, err := w.node.Describe(ctx, lockName(number))
	if err != nil {
		return err
	}
	w.tell(report{What: reportSeen, Text: describeLock(info)})
	return nil
}

func describeLock(info quorumlock.LockInfo) string {
	text := "held by nobody"
	for _, h := range info.Holders {
		text = fmt.Sprintf("held by %s with token %s", h.Owner, h.Token)
	}
	for i, waiter := range info.Waiters {
		if i == 0 {
			text += "; in line: "
		} else {
			text += ", "
		}
		text += waiter.Owner
	}
	return text
}
