package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
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

// open opens the replica and the ledger, and waits for a majority.
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
		Logger:          slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})).With("worker", w.cfg.ID),
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
			done, err := w.tryToSettle(ctx, inv)
			if err != nil {
				return ignoreIf(ctx, err)
			}
			did = did || done
		}
		if !did {
			sleep(ctx, breather)
		}
	}
	return nil
}

// tryToSettle settles the invoice unless another worker is at it.
func (w *worker) tryToSettle(ctx context.Context, inv invoice) (done bool, err error) {
	if paid, err := w.ledger.isPaid(ctx, inv.Number); err != nil || paid {
		return false, err // by another, since this worker last looked
	}
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
	for ctx.Err() == nil {
		hold, err := w.node.Acquire(ctx, lockName(number))
		if passing(err) {
			sleep(ctx, breather)
			continue
		}
		if err != nil {
			return err
		}
		w.tell(report{What: reportGranted, Invoice: number, Token: hold.Token()})
		switch done, err := w.settle(ctx, hold, inv); {
		case err != nil:
			return err
		case done:
			return nil
		}
	}
	return nil
}

// settle pays the invoice under its lock, and releases the lock. It reports
// whether the invoice is done with: false if the lock was lost on the way.
func (w *worker) settle(ctx context.Context, hold *quorumlock.Hold, inv invoice) (done bool, err error) {
	defer func() {
		// Nothing hangs on the answer: a lock that could not be released goes
		// with its session.
		_ = hold.Release(ctx)
	}()
	held, cancel := hold.Context(ctx) // ends when the lock is lost
	defer cancel()

	paid, err := w.ledger.takeOver(held, inv.Number, hold.Token())
	if err != nil || paid {
		return paid, unlessLost(hold, err)
	}
	sleep(held, w.cfg.Bank) // what a call to the bank takes
	if hold.Err() != nil {
		return false, nil
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
	done, err = w.write(ctx, payment{Invoice: inv.Number, Amount: inv.Amount, Token: hold.Token(), Worker: w.cfg.ID})
	if paused {
		w.tellBelief(held, hold)
	}
	return done, ignoreIf(ctx, err)
}

// unlessLost returns err, unless it only says what the hold says too: that others
// have the lock now, and this worker is to leave the invoice to them.
func unlessLost(hold *quorumlock.Hold, err error) error {
	if hold.Err() != nil || errors.Is(err, fencing.ErrStale) {
		return nil
	}
	return err
}

// write writes the payment and tells what became of it. A refusal is not an
// error: it is what the ledger is asked for.
func (w *worker) write(ctx context.Context, p payment) (paid bool, err error) {
	err = w.ledger.pay(ctx, p)
	var stale *fencing.StaleError
	switch {
	case err == nil:
		w.tell(report{What: reportPaid, Invoice: p.Invoice, Token: p.Token})
		return true, nil
	case errors.As(err, &stale):
		w.tell(report{What: reportRefused, Invoice: p.Invoice, Token: p.Token, Newest: stale.Admitted})
		return false, nil
	}
	return false, err
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
