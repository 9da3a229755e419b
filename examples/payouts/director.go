package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/quorumlock/quorumlock/examples/internal/crew"
)

const (
	workers = 5
	// reapLimit is how long the end of a killed process may take.
	reapLimit = 5 * time.Second
	// progressEvery is how often the number of paid invoices is shown.
	progressEvery = 2 * time.Second
)

// A director starts the workers, does to them what the story tells, and holds
// the ledger against the file of invoices in the end. All of it happens in one
// goroutine; a worker's process has one more, which listens to it.
type director struct {
	invoices []invoice
	fenced   bool
	verbose  bool
	lease    time.Duration // the workers' SessionTTL
	dir      string        // holds everything; whoever made it removes it
	story    *story

	ledger  *ledger
	members map[uint64]string
	crew    map[uint64]*crew.Process
	reports chan report
	backlog []report      // reports that nobody has awaited yet
	gone    chan struct{} // closed when no report is of interest any more
	ticker  *time.Ticker
	shown   int // paid invoices, as last shown
	faults  faultTimes
	turned  int // how often a worker found a lock held by another
}

// faultTimes are how long it took to recover from what was done to the workers.
type faultTimes struct {
	freezeToGrant time.Duration // of the frozen holder's lock to the next in line
	wakeToWork    time.Duration // of the woken worker: its next grant
	killToGrant   time.Duration // of the next lock asked for after the leader died
	startToWork   time.Duration // of the restarted worker: its first grant
}

// run is the whole story. However it ends, no worker is left.
func (d *director) run(ctx context.Context) (*audit, error) {
	d.crew = make(map[uint64]*crew.Process)
	d.reports = make(chan report, 1024)
	d.gone = make(chan struct{})
	d.ticker = time.NewTicker(progressEvery)
	defer d.ticker.Stop()
	defer d.dismiss()

	path := filepath.Join(d.dir, "ledger.db")
	if err := createLedger(ctx, path, d.invoices); err != nil {
		return nil, err
	}
	var err error
	if d.ledger, err = openLedger(path, d.fenced); err != nil {
		return nil, err
	}
	defer d.ledger.close()

	for _, act := range []func(context.Context) error{d.startAll, d.freezeHolder, d.killLeader, d.finish} {
		if err := act(ctx); err != nil {
			return nil, err
		}
	}
	return auditLedger(ctx, d.ledger, d.invoices)
}

func (d *director) startAll(ctx context.Context) error {
	var err error
	if d.members, err = crew.FreeAddresses(workers); err != nil {
		return err
	}
	var pids []string
	for id := uint64(1); id <= workers; id++ {
		if err := d.startWorker(id, 1); err != nil {
			return err
		}
		pids = append(pids, strconv.Itoa(d.crew[id].Pid()))
	}
	d.story.tell("started workers 1 to %d (pids %s), each a process of its own", workers, strings.Join(pids, ", "))
	d.story.more("with a replica of the lock cluster inside")
	for id := uint64(1); id <= workers; id++ {
		if _, err := d.await(ctx, reportReady, from(id)); err != nil {
			return err
		}
	}
	leader, err := d.leader(ctx)
	if err != nil {
		return err
	}
	d.story.tell("all are ready, and worker %d leads the cluster; whoever is silent for %v loses its locks", leader, d.lease)
	return nil
}

// startWorker starts a worker's process, or starts it again on the same
// directory.
func (d *director) startWorker(id uint64, life int) error {
	cfg := workerConfig{
		ID:      id,
		Members: d.members,
		Dir:     filepath.Join(d.dir, fmt.Sprintf("replica-%d", id)),
		Ledger:  filepath.Join(d.dir, "ledger.db"),
		Fenced:  d.fenced,
		Lease:   d.lease,
		Bank:    bankTime(len(d.invoices)),
		Verbose: d.verbose,
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return err
	}
	hear := func(r report) {
		r.Worker, r.Life = id, life
		select {
		case d.reports <- r:
		case <-d.gone:
		}
	}
	p, err := crew.Start(crew.Worker{
		ID: id, Life: life, Env: workerEnv, Log: filepath.Join(d.dir, fmt.Sprintf("worker-%d.log", id)),
		Echo: d.verbose, Config: cfg,
	}, hear, func(text string) { hear(report{What: reportExited, Text: text}) })
	if err != nil {
		return err
	}
	d.crew[id] = p
	return nil
}

// bankTime is how long a payment takes at the bank: such that the work lasts
// beyond both faults, and a large file still ends within the minute.
func bankTime(invoices int) time.Duration {
	const work, most = 14 * time.Second, 400 * time.Millisecond
	return min(most, work*workers/time.Duration(invoices))
}

// finish waits until everything is paid and sends the workers home.
func (d *director) finish(ctx context.Context) error {
	for {
		n, err := d.ledger.paidCount(ctx)
		if err != nil {
			return whyEnded(ctx, err, "the ledger to answer")
		}
		if n == len(d.invoices) {
			break
		}
		if err := d.pass(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	d.story.tell("every invoice is paid")
	for _, p := range d.crew {
		p.Doomed = true
		if err := p.Tell(order{Do: orderQuit}); err != nil {
			return err
		}
	}
	for id := range d.crew {
		r, err := d.await(ctx, reportBye, from(id))
		if err != nil {
			return err
		}
		d.turned += r.Turned
	}
	return nil
}

// dismiss ends every process that is left.
func (d *director) dismiss() {
	close(d.gone)
	for _, p := range d.crew {
		p.Kill()
	}
	for _, p := range d.crew {
		if err := p.Reap(reapLimit); err != nil {
			fmt.Fprintf(os.Stderr, "worker %d (pid %d): %v\n", p.ID, p.Pid(), err)
		}
	}
}

// leader asks the workers who leads until they know.
func (d *director) leader(ctx context.Context) (uint64, error) {
	for {
		d.forget(reportStatus)
		for _, p := range d.crew {
			if err := p.Tell(order{Do: orderStatus}); err != nil {
				return 0, err
			}
		}
		var leader, term uint64
		for id := range d.crew {
			r, err := d.await(ctx, reportStatus, from(id))
			if err != nil {
				return 0, err
			}
			// One that has not heard of the newest election names an old leader.
			if r.Leader != 0 && r.Term >= term {
				leader, term = r.Leader, r.Term
			}
		}
		if leader != 0 {
			return leader, nil
		}
		if err := d.pass(ctx, breather); err != nil {
			return 0, err
		}
	}
}

// from matches the reports of one worker.
func from(id uint64) func(report) bool {
	return func(r report) bool { return r.Worker == id }
}

// await returns the first report of that kind that matches, and keeps the others
// for those who await them later.
func (d *director) await(ctx context.Context, what reportKind, match func(report) bool) (report, error) {
	for i, r := range d.backlog {
		if r.What == what && match(r) {
			d.backlog = append(d.backlog[:i], d.backlog[i+1:]...)
			return r, nil
		}
	}
	for {
		r, err := d.next(ctx, nil, awaited[what])
		switch {
		case err != nil:
			return report{}, err
		case r.What == what && match(r):
			return r, nil
		}
		d.backlog = append(d.backlog, r)
	}
}

// forget drops the reports of one kind, so that an old one is not taken for the
// answer to a new question.
func (d *director) forget(what reportKind) {
	kept := d.backlog[:0]
	for _, r := range d.backlog {
		if r.What != what {
			kept = append(kept, r)
		}
	}
	d.backlog = kept
}

// pass lets the workers work for a while.
func (d *director) pass(ctx context.Context, while time.Duration) error {
	timer := time.NewTimer(while)
	defer timer.Stop()
	for {
		r, err := d.next(ctx, timer.C, "the workers to work")
		if errors.Is(err, errTimeUp) {
			return nil
		}
		if err != nil {
			return err
		}
		d.backlog = append(d.backlog, r)
	}
}

var errTimeUp = errors.New("time is up")

// next returns the next report, errTimeUp when timer fires first, or why the
// story cannot go on. It shows progress while it waits.
func (d *director) next(ctx context.Context, timer <-chan time.Time, what string) (report, error) {
	for {
		select {
		case r := <-d.reports:
			return r, d.trouble(r)
		case <-timer:
			return report{}, errTimeUp
		case <-d.ticker.C:
			d.showProgress(ctx)
		case <-ctx.Done():
			return report{}, whyEnded(ctx, ctx.Err(), what)
		}
	}
}

// trouble returns an error for a report after which the story cannot go on.
func (d *director) trouble(r report) error {
	p := d.crew[r.Worker]
	switch {
	case r.What == reportBroken:
		return fmt.Errorf("worker %d gave up: %s", r.Worker, r.Text)
	case r.What == reportExited && r.Life == p.Life && !p.Doomed:
		return fmt.Errorf("worker %d ended by itself (%s); %s", r.Worker, r.Text, p.LastWords())
	}
	return nil
}

func (d *director) showProgress(ctx context.Context) {
	n, err := d.ledger.paidCount(ctx)
	if err != nil || n == d.shown {
		return // the end of ctx is for others to report
	}
	d.shown = n
	d.story.tell("paid %d of %s", n, countInvoices(len(d.invoices)))
}

// whyEnded explains an err by the end of ctx, if that is what caused it.
func whyEnded(ctx context.Context, err error, what string) error {
	if ctx.Err() == nil {
		return err
	}
	return fmt.Errorf("%w, while waiting for %s", context.Cause(ctx), what)
}
