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
	"github.com/quorumlock/quorumlock/fencing"
)

const (
	// callLimit bounds one call to the cluster: long enough for a new leader.
	callLimit = 15 * time.Second
	// batch is how many unpaid invoices a worker looks at together.
	batch = 20
	// breather is the wait when there was nothing to do, or something failed.
	breather = 100 * time.Millisecond
)

// A worker is one of the five processes: a replica of the lock cluster, and a
// program that pays invoices under its locks.
type worker struct {
	cfg    workerConfig
	node   *quorumlock.Node
	ledger *ledger

	start  chan struct{} // closed by the order to start
	pause  atomic.Bool   // stop before the next write
	goOn   chan struct{} // a value for each order to go on
	turned atomic.Int64  // how often another held the lock

	mu  sync.Mutex // guards out
	out *json.Encoder
}

// workerMain is the main function of a worker's process.
func workerMain() int {
	in := json.NewDecoder(os.Stdin)
	w := &worker{
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
	var orders sync.WaitGroup
	defer orders.Wait()

	// From here on, a worker whose director is gone goes too, whatever it is at.
	ready := make(chan struct{})
	go w.obey(ctx, in, ready, quit, &orders)

	if err := w.open(ctx); err != nil {
		return err
	}
	// Close, not Shutdown: all five end together, and nobody is left to whom
	// leadership could be handed.
	defer func() {
		quit()
		orders.Wait()
		w.node.Close()
		w.ledger.close()
	}()
	close(ready)
	w.tell(report{What: reportReady})

	select {
	case <-w.start:
		return w.work(ctx)
	case <-ctx.Done():
		return nil
	}
}

func (w *worker) open(ctx context.Context) (err error) {
	level := slog.LevelWarn
	if w.cfg.Verbose {
		level = slog.LevelInfo
	}
	if w.ledger, err = openLedger(w.cfg.Ledger, w.cfg.Fenced); err != nil {
		return err
	}
	w.node, err = quorumlock.Open(quorumlock.Options{
		ReplicaID:       w.cfg.ID,
		Address:         w.cfg.Members[w.cfg.ID],
		Members:         w.cfg.Members,
		Dir:             w.cfg.Dir,
		Cluster:         "payouts",
		Owner:           fmt.Sprintf("worker %d", w.cfg.ID),
		SessionTTL:      w.cfg.Lease,
		ElectionTimeout: electionTimeout(w.cfg.Lease),
		Logger:          slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})),
	})
	if err != nil {
		w.ledger.close()
		return err
	}
	if err := w.node.Ready(ctx); err != nil && ctx.Err() == nil {
		w.node.Close()
		w.ledger.close()
		return err
	}
	return nil
}

// obey carries out orders until the director is gone or says quit.
func (w *worker) obey(ctx context.Context, in *json.Decoder, ready <-chan struct{}, quit func(), orders *sync.WaitGroup) {
	for {
		var o order
		if err := in.Decode(&o); err != nil {
			os.Exit(exitFailed) // nobody is there who could want to know
		}
		switch o.Do {
		case orderStart:
			close(w.start)
		case orderPause:
			w.pause.Store(true)
		case orderGoOn:
			w.goOn <- struct{}{}
		case orderQuit:
			quit()
			continue // the end of the input is still of interest
		}
		var answer func(context.Context, string) error
		switch o.Do {
		case orderSettle:
			answer = w.settleInLine
		case orderProbe:
			answer = w.probe
		case orderStatus:
			answer = w.status
		case orderDescribe:
			answer = w.describe
		default:
			continue
		}
		orders.Go(func() {
			select {
			case <-ready:
			case <-ctx.Done():
				return
			}
			if err := answer(ctx, o.Invoice); err != nil && ctx.Err() == nil {
				w.tell(report{What: reportBroken, Text: fmt.Sprintf("%s: %v", o.Do, err)})
			}
		})
	}
}

// tell sends a report to the director.
func (w *worker) tell(r report) {
	w.mu.Lock()
	defer w.mu.Unlock()
	// An error means that the director is gone, which obey sees for itself.
	_ = w.out.Encode(r)
}

// work settles whatever is unpaid until ctx ends.
func (w *worker) work(ctx context.Context) error {
	for ctx.Err() == nil {
		invoices, err := w.ledger.unpaid(ctx, batch)
		if err != nil {
			return ignoreIf(ctx, err)
		}
		// In different orders, or all five would ask for the same lock and four
		// of them in vain, over and over.
		rand.Shuffle(len(invoices), func(i, j int) { invoices[i], invoices[j] = invoices[j], invoices[i] })
		did := false
		for _, inv := range invoices {
			paid, err := w.tryToSettle(ctx, inv)
			if err != nil {
				return ignoreIf(ctx, err)
			}
			did = did || paid
		}
		if !did {
			sleep(ctx, breather)
		}
	}
	return nil
}

// tryToSettle settles the invoice unless another worker is at it.
func (w *worker) tryToSettle(ctx context.Context, inv invoice) (did bool, err error) {
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	hold, err := w.node.TryAcquire(call, lockName(inv.Number))
	switch {
	case err == nil:
		return w.settle(ctx, hold, inv)
	case errors.Is(err, quorumlock.ErrHeld):
		w.turned.Add(1)
		return false, nil
	case passing(err):
		sleep(ctx, breather)
		return false, nil
	default:
		return false, err
	}
}

// settleInLine settles the invoice as soon as its lock can be had.
func (w *worker) settleInLine(ctx context.Context, number string) error {
	inv, err := w.ledger.invoice(ctx, number)
	if err != nil {
		return err
	}
	hold, err := w.node.Acquire(ctx, lockName(number))
	for passing(err) && ctx.Err() == nil {
		sleep(ctx, breather)
		hold, err = w.node.Acquire(ctx, lockName(number))
	}
	if err != nil {
		return err
	}
	w.tell(report{What: reportGranted, Invoice: number, Token: hold.Token()})
	did, err := w.settle(ctx, hold, inv)
	if err == nil && !did {
		w.tell(report{What: reportAlready, Invoice: number})
	}
	return err
}

// settle pays the invoice under its lock, and releases the lock.
func (w *worker) settle(ctx context.Context, hold *quorumlock.Hold, inv invoice) (did bool, err error) {
	defer func() {
		// Nothing hangs on the answer: a lock that could not be released goes
		// with its session.
		_ = hold.Release(ctx)
	}()
	held, cancel := hold.Context(ctx) // ends when the lock is lost
	defer cancel()

	paid, err := w.ledger.isPaid(held, inv.Number)
	if err != nil || paid {
		return false, ignoreIf(held, err)
	}
	sleep(held, w.cfg.Bank)
	if hold.Err() != nil {
		return false, nil // lost in the middle: whoever has it now goes on
	}
	paused := w.pause.CompareAndSwap(true, false)
	if paused {
		w.tell(report{What: reportPausing, Invoice: inv.Number, Token: hold.Token()})
		select {
		case <-w.goOn:
		case <-ctx.Done():
			return false, nil
		}
	}
	// The last check is above, and a process can be frozen after any last check.
	// So the write takes ctx and not held: it stands for one that is already on
	// its way, which no cancelled context calls back.
	err = w.write(ctx, payment{Invoice: inv.Number, Amount: inv.Amount, Token: hold.Token(), Worker: w.cfg.ID})
	if paused {
		w.tellBelief(held, hold)
	}
	return err == nil, ignoreIf(ctx, err)
}

// write writes the payment and tells what became of it. A refusal is not an
// error: it is what the ledger is asked for.
func (w *worker) write(ctx context.Context, p payment) error {
	err := w.ledger.pay(ctx, p)
	var stale *fencing.StaleError
	switch {
	case err == nil:
		w.tell(report{What: reportPaid, Invoice: p.Invoice, Token: p.Token})
	case errors.As(err, &stale):
		w.tell(report{What: reportRefused, Invoice: p.Invoice, Token: p.Token, Newest: stale.Admitted})
		return nil
	}
	return err
}

// tellBelief tells what the library says of a hold, to a worker that asks it.
func (w *worker) tellBelief(held context.Context, hold *quorumlock.Hold) {
	r := report{What: reportBelief, Invoice: hold.Name(), Token: hold.Token(), Text: "held", Cause: "none"}
	if err := hold.Err(); err != nil {
		r.Text = err.Error()
	}
	if held.Err() != nil {
		r.Cause = context.Cause(held).Error()
	}
	w.tell(r)
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

// passing reports whether err is a condition of the cluster that passes by
// itself, after which the same call may do.
func passing(err error) bool {
	for _, target := range []error{
		quorumlock.ErrNoQuorum, quorumlock.ErrBusy, quorumlock.ErrLost, quorumlock.ErrSessionExpired,
	} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

// ignoreIf returns err unless ctx has ended, which then explains it.
func ignoreIf(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
