package main

import (
	"context"
	"fmt"
	"io"
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
)

// A director starts the workers and does to them what the story tells. All of it
// happens in one goroutine; a worker's process has one more, which listens to it.
type director struct {
	fenced  bool
	verbose bool
	dir     string // holds everything; whoever made it removes it
	out     io.Writer
	began   time.Time

	store   *store
	members map[uint64]string
	crew    map[uint64]*crew.Process
	reports chan report
	gone    chan struct{} // closed when no report is of interest any more
	leads   uint64        // the worker whose exporter runs
	moves   []move
}

// A move is what made the exporter go on elsewhere, and how long that took.
type move struct {
	what         string
	took, stated time.Duration
}

// tell prints a line of the story with the time since it began, and more goes on.
func (d *director) tell(format string, args ...any) {
	fmt.Fprintf(d.out, "%5.1fs  %s\n", time.Since(d.began).Seconds(), fmt.Sprintf(format, args...))
}

func (d *director) more(format string, args ...any) {
	fmt.Fprintf(d.out, "        %s\n", fmt.Sprintf(format, args...))
}

// run is the whole story. However it ends, no worker is left.
func (d *director) run(ctx context.Context) (a audit, err error) {
	d.crew = make(map[uint64]*crew.Process)
	d.reports, d.gone = make(chan report, 1024), make(chan struct{})
	defer d.dismiss()
	path := filepath.Join(d.dir, "store.db")
	if err := createStore(ctx, path); err != nil {
		return a, err
	}
	if d.store, err = openStore(path, d.fenced); err != nil {
		return a, err
	}
	defer d.store.db.Close()
	for _, act := range []func(context.Context) error{d.startAll, d.endCleanly, d.freeze, d.kill, d.quit} {
		if err := act(ctx); err != nil {
			return a, err
		}
	}
	return d.store.audit(ctx)
}

func (d *director) startAll(ctx context.Context) (err error) {
	if d.members, err = crew.FreeAddresses(workers); err != nil {
		return err
	}
	var pids []string
	for id := uint64(1); id <= workers; id++ {
		if err := d.start(id, 1); err != nil {
			return err
		}
		pids = append(pids, strconv.Itoa(d.crew[id].Pid()))
	}
	d.tell("started workers 1 to %d (pids %s), each a process of its own", workers, strings.Join(pids, ", "))
	d.more("with a replica of the lock cluster inside")
	r, err := d.await(ctx, reportExports, func(report) bool { return true })
	if err != nil {
		return err
	}
	d.leads = r.Worker
	d.tell("worker %d leads with token %s: the exporter runs there, and the others stand in line", r.Worker, r.Token)
	return d.work(ctx)
}

// start starts a worker's process, or starts it again on the same directory.
func (d *director) start(id uint64, life int) error {
	cfg := workerConfig{
		ID: id, Members: d.members, Dir: filepath.Join(d.dir, fmt.Sprintf("replica-%d", id)),
		Store: filepath.Join(d.dir, "store.db"), Fenced: d.fenced, Verbose: d.verbose,
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
	if err == nil {
		d.crew[id] = p
	}
	return err
}

// work lets the exporter work for a while.
func (d *director) work(ctx context.Context) error {
	before, err := d.store.count(ctx)
	if err != nil {
		return err
	}
	for {
		n, err := d.store.count(ctx)
		if err != nil || n >= before+20 {
			return err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%w, while waiting for the exporter to work", context.Cause(ctx))
		}
	}
}

// moved waits until the exporter runs on another worker.
func (d *director) moved(ctx context.Context, what string, since time.Time, stated time.Duration) error {
	from := d.leads
	r, err := d.await(ctx, reportExports, func(r report) bool { return r.Worker != from })
	if err != nil {
		return err
	}
	m := move{what, time.Since(since), stated}
	d.moves, d.leads = append(d.moves, m), r.Worker
	d.tell("worker %d leads with token %s, and goes on with record %d, %.2f s later", r.Worker, r.Token, r.Number, m.took.Seconds())
	return nil
}

// endCleanly asks the leader to end.
func (d *director) endCleanly(ctx context.Context) error {
	p := d.crew[d.leads]
	p.Doomed = true
	since := time.Now()
	if err := p.Tell(order{Do: orderEnd}); err != nil {
		return err
	}
	d.tell("END worker %d (pid %d): it is asked to end, as by a rolling upgrade", p.ID, p.Pid())
	if err := d.moved(ctx, "ended cleanly", since, 100*time.Millisecond); err != nil {
		return err
	}
	return d.restart(ctx, p)
}

// restart starts a worker again once its process has ended.
func (d *director) restart(ctx context.Context, p *crew.Process) error {
	if err := ended(ctx, p); err != nil {
		return err
	}
	if err := d.start(p.ID, p.Life+1); err != nil {
		return err
	}
	if _, err := d.await(ctx, reportReady, func(r report) bool { return r.Worker == p.ID && r.Life == p.Life+1 }); err != nil {
		return err
	}
	d.tell("worker %d is started again, and stands in line", p.ID)
	return d.work(ctx)
}

// freeze stops the leader just before a write for longer than its lease, and wakes it.
func (d *director) freeze(ctx context.Context) error {
	victim := d.crew[d.leads]
	if err := victim.Tell(order{Do: orderPause}); err != nil {
		return err
	}
	of := func(r report) bool { return r.Worker == victim.ID }
	caught, err := d.await(ctx, reportPausing, of)
	if err != nil {
		return err
	}
	since := time.Now()
	if err := victim.Freeze(); err != nil {
		return err
	}
	d.tell("FREEZE worker %d (pid %d, SIGSTOP), which was about to write record %d with token %s", victim.ID, victim.Pid(), caught.Number, caught.Token)
	if err := d.moved(ctx, "frozen", since, lease); err != nil {
		return err
	}
	if err := d.work(ctx); err != nil {
		return err
	}
	if err := victim.Tell(order{Do: orderGoOn}); err != nil {
		return err
	}
	if err := victim.Thaw(); err != nil {
		return err
	}
	d.tell("WAKE worker %d (SIGCONT) after %.2f s. It goes straight on to write its record", victim.ID, time.Since(since).Seconds())
	what := reportRefused
	if !d.fenced {
		what = reportWrote
	}
	r, err := d.await(ctx, what, of)
	if err != nil {
		return err
	}
	if d.fenced {
		d.tell("the store REFUSED record %d: its token %s is older than %s, which was admitted since", r.Number, r.Token, r.Newest)
	} else {
		d.tell("the store TOOK record %d with the old token %s: it is there twice", r.Number, r.Token)
	}
	if r, err = d.await(ctx, reportBelief, of); err != nil {
		return err
	}
	d.tell("asked now, worker %d's own library says of its term: %s", victim.ID, r.Text)
	return d.work(ctx)
}

// kill kills the leader, and starts it again.
func (d *director) kill(ctx context.Context) error {
	p := d.crew[d.leads]
	since := time.Now()
	p.Kill()
	d.tell("KILL worker %d (pid %d, SIGKILL)", p.ID, p.Pid())
	if err := d.moved(ctx, "killed", since, lease); err != nil {
		return err
	}
	return d.restart(ctx, p)
}

// quit ends all workers, without ceremony.
func (d *director) quit(ctx context.Context) error {
	for _, p := range d.crew {
		p.Kill()
	}
	for _, p := range d.crew {
		if err := ended(ctx, p); err != nil {
			return err
		}
	}
	d.tell("that will do: all workers are killed")
	return nil
}

// ended waits until a process has ended.
func ended(ctx context.Context, p *crew.Process) error {
	select {
	case <-p.Done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w, while waiting for worker %d to end", context.Cause(ctx), p.ID)
	}
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

// await returns the next report of that kind that matches, or why the story cannot go
// on. Others are of no interest by then.
func (d *director) await(ctx context.Context, what reportKind, match func(report) bool) (report, error) {
	for {
		select {
		case r := <-d.reports:
			p := d.crew[r.Worker]
			switch {
			case r.What == what && match(r):
				return r, nil
			case r.What == reportBroken:
				return r, fmt.Errorf("worker %d gave up: %s", r.Worker, r.Text)
			case r.What == reportExited && r.Life == p.Life && !p.Doomed:
				return r, fmt.Errorf("worker %d ended by itself (%s); %s", r.Worker, r.Text, p.LastWords())
			}
		case <-ctx.Done():
			return report{}, fmt.Errorf("%w, while waiting for a worker to say %q", context.Cause(ctx), what)
		}
	}
}
