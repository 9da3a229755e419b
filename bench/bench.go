package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// A bench is one run: all jobs on all systems, on this machine.
type bench struct {
	plan     plan
	dir      string   // for all data, thrown away
	systems  []string // to be measured, in the order of their turns
	jobs     []string // to be run; empty for all
	profiles string   // directory for processor profiles; empty for none
	built    built
	progress io.Writer

	running map[string]*child
	about   map[string]string
	rows    rows
	missing []absence
}

// An absence is what could not be measured, and why.
type absence struct {
	Job    string `json:"job,omitempty"` // empty for all
	System string `json:"system"`
	Reason string `json:"reason"`
}

// A job measures one thing.
type job struct {
	name string
	run  func(b *bench, ctx context.Context)
	// shared says that it uses the processes that all such jobs share.
	shared bool
}

// jobs are in the order in which they run: those that share processes first.
var jobs = []job{
	{pairsJob, (*bench).pairs, true},
	{latencyJob, (*bench).latency, true},
	{contendedJob, (*bench).contended, true},
	{sharedJob, (*bench).shared, true},
	{countedJob, (*bench).counted, true},
	{severalJob, (*bench).several, true},
	{overloadJob, (*bench).overload, true},
	{costJob, (*bench).cost, false},
	{groupsJob, (*bench).groups, false},
	{memoryJob, (*bench).memory, false},
	{processesJob, (*bench).processes, false},
	{piecesJob, (*bench).runPieces, false},
}

func (b *bench) wants(name string) bool { return len(b.jobs) == 0 || slices.Contains(b.jobs, name) }

// run runs all jobs. What cannot be measured is noted among the missing.
func (b *bench) run(ctx context.Context) {
	b.running, b.about = make(map[string]*child), make(map[string]string)
	ctx, cancel := context.WithTimeoutCause(ctx, b.plan.limit, fmt.Errorf("no time left of %s", b.plan.limit))
	defer cancel()
	defer b.stopSystems()
	if slices.ContainsFunc(jobs, func(j job) bool { return j.shared && b.wants(j.name) }) {
		b.startSystems(ctx)
	}
	for _, j := range jobs {
		if !b.wants(j.name) {
			continue
		}
		if !j.shared {
			b.stopSystems() // an idle cluster is not quite idle
		}
		began := time.Now()
		if ctx.Err() != nil {
			b.miss(j.name, "all", context.Cause(ctx))
			continue
		}
		fmt.Fprintf(b.progress, "%s ...", j.name)
		j.run(b, ctx)
		fmt.Fprintf(b.progress, " %.1f s\n", time.Since(began).Seconds())
	}
}

// startSystems starts every system in a process of its own.
func (b *bench) startSystems(ctx context.Context) {
	type started struct {
		name string
		c    *child
		err  error
	}
	all := make(chan started, len(b.systems))
	for _, name := range b.systems {
		go func() {
			c, err := b.launch(ctx, name, name, order{})
			all <- started{name, c, err}
		}()
	}
	for range b.systems {
		s := <-all
		if s.err != nil {
			b.miss("", s.name, s.err)
			continue
		}
		b.running[s.name] = s.c
	}
}

// aboutMu guards about while systems start at once.
var aboutMu sync.Mutex

// launch starts a system in a process of its own, as o says, with its data under that
// name.
func (b *bench) launch(ctx context.Context, system, name string, o order) (*child, error) {
	dir := filepath.Join(b.dir, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c, err := startChild(self, filepath.Join(b.dir, name+".log"))
	if err != nil {
		return nil, err
	}
	o.Do, o.System, o.Dir = "start", system, dir
	r, err := c.ask(ctx, o)
	if err != nil {
		c.end()
		return nil, err
	}
	aboutMu.Lock()
	defer aboutMu.Unlock()
	b.about[o.System] = r.Text
	return c, nil
}

func (b *bench) stopSystems() {
	var ends sync.WaitGroup
	for _, c := range b.running {
		ends.Go(c.end)
	}
	ends.Wait()
	clear(b.running)
}

// has tells whether a system is to be measured.
func (b *bench) has(system string) bool { return slices.Contains(b.systems, system) }

// turn gives one system its turn, and notes what it measured.
func (b *bench) turn(ctx context.Context, r row, o order) {
	c := b.running[r.System]
	if c == nil {
		return // noted when it did not start
	}
	if b.profiles != "" && r.System == quorumlockName {
		o.Profile = filepath.Join(b.profiles, fmt.Sprintf("%s-%s-%d.pprof", r.Job, o.Where, r.Callers))
	}
	got, err := c.ask(ctx, o)
	r.Values = got.Values
	b.note(r, err)
	if err != nil && (ctx.Err() != nil || isDone(c)) {
		c.end() // it may still be busy, or it is dead: there is nothing more to ask it
		delete(b.running, r.System)
		b.miss("", r.System, errors.New("ended after the failure above"))
	}
}

func isDone(c *child) bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// note adds a row, or says why it is missing.
func (b *bench) note(r row, err error) {
	if err != nil {
		b.miss(r.Job, r.System, err)
		return
	}
	b.rows.add(r)
}

func (b *bench) miss(job, system string, reason error) {
	b.missing = append(b.missing, absence{job, system, reason.Error()})
}
