package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/quorumlock/quorumlock/examples/internal/crew"
	"github.com/quorumlock/quorumlock/internal/harm"
)

// A fault is one kind of harm.
type fault struct {
	name     string
	isolated bool // needs namespaces
	freezes  bool // needs SIGSTOP
	cannot   bool // needs what this system has not
	least    time.Duration
	most     time.Duration // that it lasts
	// begin does the harm, and returns what was done and what ends it.
	begin func(d *director) (what string, mend func(context.Context) error, err error)
}

// allFaults are those there are, in the order of the table.
var allFaults = []fault{
	{name: "kill", most: 2 * time.Second, begin: (*director).kill},
	{name: "restart-all", most: time.Second, begin: (*director).restartAll},
	{name: "stop", freezes: true, least: sessionTTL / 4, most: 2 * sessionTTL, begin: (*director).stop},
	{name: "partition", isolated: true, least: time.Second, most: 3 * sessionTTL, begin: (*director).partition},
	{name: "one-way", isolated: true, least: time.Second, most: 3 * sessionTTL, begin: (*director).oneWay},
	{name: "loss", isolated: true, least: 2 * time.Second, most: 3 * sessionTTL, begin: (*director).loss},
	{name: "delay", isolated: true, least: 2 * time.Second, most: 3 * sessionTTL, begin: (*director).delay},
	{name: "full-disk", isolated: true, least: 4 * time.Second, most: 3 * sessionTTL, begin: (*director).fullDisk},
	{name: "failed-fsync", cannot: !harm.CanFailFsync, least: time.Second, most: 3 * sessionTTL, begin: (*director).failedFsync},
	{name: "clock-rate", cannot: !harm.CanSetClocks, least: 2 * sessionTTL, most: 4 * sessionTTL, begin: (*director).clockRate},
}

func faultNames() (names []string) {
	for _, f := range allFaults {
		names = append(names, f.name)
	}
	return names
}

// chooseFaults returns those named, or all that can be done here.
func chooseFaults(list string, isolated bool) (chosen []fault, err error) {
	can := func(f fault) bool { return (isolated || !f.isolated) && (crew.CanFreeze || !f.freezes) && !f.cannot }
	if list == "" {
		for _, f := range allFaults {
			if can(f) {
				chosen = append(chosen, f)
			}
		}
		return chosen, nil
	}
	for _, name := range strings.Split(list, ",") {
		i := slices.IndexFunc(allFaults, func(f fault) bool { return f.name == name })
		switch {
		case i < 0:
			return nil, fmt.Errorf("no fault %q: there are %s", name, strings.Join(faultNames(), ", "))
		case !can(allFaults[i]):
			return nil, fmt.Errorf("%s cannot be done here: it needs Linux, root and network namespaces, or SIGSTOP, or clocks that are read as on amd64", name)
		}
		chosen = append(chosen, allFaults[i])
	}
	return chosen, nil
}

// A result is what came of the faults of one kind.
type result struct {
	times     int
	goesOn    []time.Duration // from its beginning until a majority was granted locks again
	recovered []time.Duration // from its end until all were
	notes     map[string]int
}

func (d *director) result(name string) *result {
	if d.results[name] == nil {
		d.results[name] = &result{notes: make(map[string]int)}
	}
	return d.results[name]
}

// hurt does one harm after the other until the time is over. Each kind has its turn
// before one comes again.
func (d *director) hurt(ctx context.Context) error {
	end := d.now() + int64(d.length)
	for {
		for _, i := range d.rng.Perm(len(d.faults)) {
			if d.now() >= end || ctx.Err() != nil {
				return ctx.Err()
			}
			if err := d.harm(ctx, d.faults[i]); err != nil {
				return fmt.Errorf("%s: %w", d.faults[i].name, err)
			}
			d.pass(ctx, d.span(300*time.Millisecond, 1500*time.Millisecond))
		}
	}
}

// harm does one harm, ends it, and waits until all have recovered.
func (d *director) harm(ctx context.Context, f fault) error {
	r := d.result(f.name)
	what, mend, err := f.begin(d)
	if err != nil {
		return err
	}
	began := d.now()
	r.times++
	d.tell("%-12s %s", f.name, what)
	goesOn := int64(0)
	d.until(ctx, d.span(f.least, f.most), func() bool {
		if goesOn == 0 && d.granted(began) > workers/2 {
			goesOn = d.now()
		}
		return false
	})
	if goesOn > 0 {
		r.goesOn = append(r.goesOn, time.Duration(goesOn-began))
	}
	if err := mend(ctx); err != nil {
		return err
	}
	mended := d.now()
	if d.until(ctx, recoverLimit, func() bool { return d.granted(mended) == workers }) {
		r.recovered = append(r.recovered, time.Duration(d.now()-mended))
	} else if ctx.Err() == nil {
		d.history.wrong("%s (%s): only %d workers were granted a lock within %v of its end", f.name, what, d.granted(mended), recoverLimit)
	}
	return nil
}

// pass lets a time pass.
func (d *director) pass(ctx context.Context, span time.Duration) {
	d.until(ctx, span, func() bool { return false })
}

func (d *director) span(least, most time.Duration) time.Duration {
	return least + time.Duration(d.rng.Int64N(int64(most-least)))
}

// victims picks n workers; half of the time the leader is among them.
func (d *director) victims(n int) (ids []uint64) {
	if leader := d.leader(); leader > 0 && d.rng.IntN(2) == 0 {
		ids = append(ids, leader)
	}
	for _, i := range d.rng.Perm(workers) {
		if id := uint64(i + 1); len(ids) < n && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// others are all workers but these.
func others(ids []uint64) (rest []uint64) {
	for id := uint64(1); id <= workers; id++ {
		if !slices.Contains(ids, id) {
			rest = append(rest, id)
		}
	}
	return rest
}

// end kills workers and waits until they have gone.
func (d *director) end(ids ...uint64) error {
	for _, id := range ids {
		d.crew[id].Kill()
	}
	for _, id := range ids {
		if err := d.crew[id].Reap(reapLimit); err != nil {
			return fmt.Errorf("worker %d: %w", id, err)
		}
	}
	return nil
}

func (d *director) startAgain(ids ...uint64) error {
	for _, id := range ids {
		if err := d.start(id); err != nil {
			return err
		}
	}
	return nil
}

func (d *director) kill() (string, func(context.Context) error, error) {
	ids := d.victims(1 + d.rng.IntN(2))
	return fmt.Sprintf("of %v (SIGKILL)", ids), func(context.Context) error { return d.startAgain(ids...) }, d.end(ids...)
}

func (d *director) restartAll() (string, func(context.Context) error, error) {
	all := others(nil)
	return "all are killed, and started again", func(context.Context) error { return d.startAgain(all...) }, d.end(all...)
}

func (d *director) stop() (string, func(context.Context) error, error) {
	ids := d.victims(1 + d.rng.IntN(2))
	each := func(do func(*crew.Process) error) error {
		var errs []error
		for _, id := range ids {
			errs = append(errs, do(d.crew[id]))
		}
		return errors.Join(errs...)
	}
	return fmt.Sprintf("of %v (SIGSTOP)", ids), func(context.Context) error { return each((*crew.Process).Thaw) }, each((*crew.Process).Freeze)
}

func (d *director) partition() (string, func(context.Context) error, error) {
	ids := d.victims(1 + d.rng.IntN(2))
	rest := others(ids)
	d.net.sever(ids, rest)
	d.net.sever(rest, ids)
	return fmt.Sprintf("%v and %v", ids, rest), d.healNetwork, nil
}

func (d *director) oneWay() (string, func(context.Context) error, error) {
	ids := d.victims(1)
	from, to := ids, others(ids)
	if d.rng.IntN(2) == 0 {
		from, to = to, from
	}
	d.net.sever(from, to)
	return fmt.Sprintf("nothing from %v reaches %v", from, to), d.healNetwork, nil
}

func (d *director) loss() (string, func(context.Context) error, error) {
	share := 0.02 + 0.18*d.rng.Float64()
	d.net.shape(share, 0, 0)
	return fmt.Sprintf("of %.0f %% of all packets", 100*share), d.healNetwork, nil
}

func (d *director) delay() (string, func(context.Context) error, error) {
	delay, jitter := d.span(time.Millisecond, 60*time.Millisecond), d.span(time.Millisecond, 60*time.Millisecond)
	d.net.shape(0, delay, jitter)
	return fmt.Sprintf("of every packet by %v and up to %v more", delay.Round(time.Millisecond), jitter.Round(time.Millisecond)), d.healNetwork, nil
}

func (d *director) healNetwork(context.Context) error {
	d.net.heal()
	return nil
}

// fullDisk leaves a worker no space. It may then stop, as a replica must whose log
// cannot be written; whether it did or not, it is started once more on the full disk,
// and then with space.
func (d *director) fullDisk() (string, func(context.Context) error, error) {
	id := d.victims(1)[0]
	p := d.crew[id]
	p.Doomed = true // its end will be no surprise
	free, err := fill(d.homes[id-1])
	if err != nil {
		return "", nil, err
	}
	note := d.result("full-disk").notes
	return fmt.Sprintf("of %d", id), func(ctx context.Context) error {
		switch text, err := os.ReadFile(p.Log); {
		case ended(p) && err == nil && strings.Contains(string(text), syscall.ENOSPC.Error()):
			note["stopped by itself"]++
		case ended(p):
			d.history.wrong("worker %d ended on a full disk without saying that it was full; %s", id, p.LastWords())
		default:
			note["went on"]++
		}
		if err := d.end(id); err != nil {
			return err
		}
		if err := d.start(id); err != nil { // the example cannot even make a directory
			return errors.Join(err, free())
		}
		began, again := d.now(), d.crew[id]
		again.Doomed = true
		d.until(ctx, 2*time.Second, func() bool { return ended(again) || d.grantedTo(id, began) })
		switch {
		case ended(again):
			note["refused to start"]++
			if text := d.lastWord(id); !strings.Contains(text, syscall.ENOSPC.Error()) {
				d.history.wrong("worker %d refused to start on a full disk: %s", id, text)
			}
		case d.grantedTo(id, began):
			note["started all the same"]++
		default:
			note["started without being granted a lock in time"]++
		}
		err := errors.Join(free(), d.end(id))
		return errors.Join(err, d.startAgain(id))
	}, nil
}

func (d *director) grantedTo(id uint64, then int64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.seen[id].at > then
}
