package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/quorumlock/quorumlock/examples/internal/crew"
)

const (
	workers = 5
	// startLimit is how long it may take until all workers were granted a lock.
	startLimit = 30 * time.Second
	// recoverLimit is how long that may take after a fault has ended. None may take
	// for ever; how long each took is in the table.
	recoverLimit = 30 * time.Second
	// endLimit is how long the calls under way at the end may take.
	endLimit = 15 * time.Second
	// reapLimit is how long the end of a killed process may take.
	reapLimit = 5 * time.Second
)

// A director starts the workers, hurts them, and takes what their clients saw. Orders
// and faults come from one goroutine, which is locked to its thread; each worker's
// process has one more, which listens to it.
type director struct {
	options
	dir   string // holds everything; whoever made it removes it
	out   io.Writer
	rng   *rand.Rand
	begin int64 // of the machine's clock

	net     *network // nil: all workers are on the loopback
	homes   []string // each worker's disk, or directory
	disks   bool     // whether they are disks
	members map[uint64]string
	store   *store
	history *history
	crew    map[uint64]*crew.Process
	lives   int
	faults  []fault
	results map[string]*result
	turn    int                // which group's leader is hit next
	rates   map[uint64]float64 // of the workers' clocks; none: nobody has touched them

	mu    sync.Mutex // guards what follows
	seen  map[uint64]sight
	idle  map[uint64]bool
	words map[uint64]string // why a worker gave up
	news  chan struct{}     // has a value when there may be something new
}

// A sight is when a worker last asked for its own locks and was granted them, and who it
// thought led each group.
type sight struct {
	at      int64
	leaders []uint64
}

func (d *director) now() int64 { return machineTime() - d.begin }

func (d *director) tell(format string, args ...any) {
	fmt.Fprintf(d.out, "%7.1fs  %s\n", time.Duration(d.now()).Seconds(), fmt.Sprintf(format, args...))
}

// run is the whole torture. However it ends, no worker is left.
func (d *director) run(ctx context.Context) (err error) {
	if d.store, err = openStore(filepath.Join(d.dir, "store")); err != nil {
		return err
	}
	defer d.store.close()
	if err := d.place(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.leave()) }()
	for id := uint64(1); id <= workers; id++ {
		if err := d.start(id); err != nil {
			return err
		}
	}
	if !d.until(ctx, startLimit, func() bool { return d.granted(0) == workers }) {
		return errors.Join(fmt.Errorf("only %d of %d workers were granted a lock within %v", d.granted(0), workers, startLimit), ctx.Err())
	}
	d.tell("all %d workers are granted locks; the torture begins", workers)
	judging, stop := context.WithCancel(ctx)
	var judge sync.WaitGroup
	judge.Go(func() { d.judge(judging) })
	err = d.hurt(ctx)
	stop()
	judge.Wait()
	if err == nil && ctx.Err() == nil {
		err = d.finish(ctx)
	}
	return err
}

// place makes the directories, and the network and the disks if they can be made here.
func (d *director) place() error {
	for id := 1; id <= workers; id++ {
		home := filepath.Join(d.dir, fmt.Sprintf("replica-%d", id))
		if err := os.Mkdir(home, 0o700); err != nil {
			return err
		}
		d.homes = append(d.homes, home)
	}
	var err error
	if d.isolated {
		if err := disks(d.homes); err != nil {
			return err
		}
		d.disks = true
		if d.net, err = newNetwork(workers, newLinks(rand.New(rand.NewPCG(d.seed, 1)))); err != nil {
			return err
		}
		d.members = d.net.members()
		return nil
	}
	d.members, err = crew.FreeAddresses(workers)
	return err
}

// leave ends every process and lets go of what place made.
func (d *director) leave() error {
	for _, p := range d.crew {
		p.Kill()
	}
	var errs []error
	for _, p := range d.crew {
		errs = append(errs, p.Reap(reapLimit))
	}
	if d.net != nil {
		errs = append(errs, d.net.close())
	}
	if d.disks {
		errs = append(errs, unmount(d.homes))
	}
	return errors.Join(errs...)
}

// start starts a worker's process, or its next one on the same directory.
func (d *director) start(id uint64) error {
	life := 1
	if p := d.crew[id]; p != nil {
		life = p.Life + 1
	}
	d.lives++
	cfg := workerConfig{ID: id, Life: life, Members: d.members, Dir: filepath.Join(d.homes[id-1], "data"),
		Store: filepath.Join(d.dir, "store"), Seed: d.seed, Begin: d.begin, Verbose: d.verbose, Rate: d.rates[id], Groups: d.groups}
	start := func() error {
		if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
			return err
		}
		p, err := crew.Start(crew.Worker{ID: id, Life: life, Env: workerEnv, Config: cfg, Echo: d.verbose,
			Log: filepath.Join(d.dir, fmt.Sprintf("worker-%d.%d.log", id, life))},
			func(r report) { d.hear(id, life, r) }, func(string) { d.wake() })
		if err == nil {
			d.crew[id] = p
		}
		return err
	}
	if d.net != nil {
		return d.net.within(id, start)
	}
	return start()
}

// hear takes what a worker says.
func (d *director) hear(id uint64, life int, r report) {
	switch r.What {
	case reportEvent:
		d.history.add(id, life, r.Event)
		return
	case reportProbe:
		d.history.probe(id, r.Tokens)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch r.What {
	case reportProbe:
		d.seen[id] = sight{r.At, r.Leaders}
	case reportIdle:
		d.idle[id] = true
	case reportBroken:
		d.words[id] = r.Text
	}
	d.wake()
}

func (d *director) wake() {
	select {
	case d.news <- struct{}{}:
	default: // one who looks will see this too
	}
}

// granted is how many workers were granted a lock that they asked for after then.
func (d *director) granted(then int64) (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.seen {
		if s.at > then {
			n++
		}
	}
	return n
}

// leader is who leads, of one group after the other, as the worker that was last granted
// its locks knows; 0 if nobody knows.
func (d *director) leader() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	var last sight
	for _, s := range d.seen {
		if s.at > last.at {
			last = s
		}
	}
	if len(last.leaders) == 0 {
		return 0
	}
	d.turn++
	return last.leaders[d.turn%len(last.leaders)]
}

// until waits for something, and reports whether it came before the limit. Meanwhile it
// looks after the workers.
func (d *director) until(ctx context.Context, limit time.Duration, done func() bool) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		if done() {
			return true
		}
		select {
		case <-d.news:
			d.tend()
		case <-timer.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// tend starts a worker again whose process ended by itself, which it must not.
func (d *director) tend() {
	for id, p := range d.crew {
		if p.Doomed || !ended(p) {
			continue
		}
		d.history.wrong("worker %d ended by itself: %s; %s", id, d.lastWord(id), p.LastWords())
		d.tell("worker %d ended by itself", id)
		if err := d.start(id); err != nil {
			p.Doomed = true
			d.history.wrong("worker %d cannot be started again: %v", id, err)
		}
	}
}

func ended(p *crew.Process) bool {
	select {
	case <-p.Done:
		return true
	default:
		return false
	}
}

// lastWord returns why a worker gave up, once.
func (d *director) lastWord(id uint64) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	text := d.words[id]
	delete(d.words, id)
	if text == "" {
		return "no reason given"
	}
	return text
}

// judge judges what is old enough, again and again, so that memory holds the last
// minute only.
func (d *director) judge(ctx context.Context) {
	every := time.NewTicker(roundLength)
	defer every.Stop()
	for {
		select {
		case <-every.C:
			d.judgeBefore(d.now()-int64(judgeAfter), time.Now().Add(-judgeAfter))
		case <-ctx.Done():
			return
		}
	}
}

func (d *director) judgeBefore(asked int64, written time.Time) {
	d.history.judgeBefore(asked)
	for _, text := range d.store.judgeBefore(written) {
		d.history.wrong("%s", text)
	}
}

// finish has the clients end their calls, and judges what is left.
func (d *director) finish(ctx context.Context) error {
	d.tell("that will do: the last calls end, and the rest is judged")
	for _, p := range d.crew {
		if err := p.Tell(order{Do: orderEnd}); err != nil {
			return err
		}
	}
	if !d.until(ctx, endLimit, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return len(d.idle) == workers
	}) && ctx.Err() == nil {
		d.history.wrong("calls under way did not end within %v", endLimit)
	}
	d.judgeBefore(d.now()+1, time.Now().Add(time.Hour))
	return ctx.Err()
}
