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
)

// fsyncLimit is how long a worker may go on whose disk fails: until it has something to
// write, and has written down why it ends.
const fsyncLimit = 10 * time.Second

// failedFsync has each fsync of a worker fail, or of two. It must stop and say why; it
// is started again with a disk that works.
func (d *director) failedFsync() (string, func(context.Context) error, error) {
	ids := d.victims(1 + d.rng.IntN(2))
	for _, id := range ids {
		d.crew[id].Doomed = true // its end will be no surprise
		if err := d.crew[id].Tell(order{Do: orderFailFsync}); err != nil {
			return "", nil, err
		}
	}
	note := d.result("failed-fsync").notes
	return fmt.Sprintf("of %v", ids), func(ctx context.Context) error {
		for _, id := range ids {
			p := d.crew[id]
			stopped := d.until(ctx, fsyncLimit, func() bool { return ended(p) })
			switch text, err := os.ReadFile(p.Log); {
			case ctx.Err() != nil:
				return nil
			case err != nil:
				return err
			case !stopped:
				d.history.wrong("worker %d went on for %v with a disk that fails", id, fsyncLimit)
			case !strings.Contains(string(text), "msg=fatal") || !strings.Contains(string(text), syscall.EIO.Error()):
				d.history.wrong("worker %d ended on a disk that fails without saying so: %s; %s", id, d.lastWord(id), p.LastWords())
			default:
				note["stopped by itself"]++
			}
		}
		return errors.Join(d.end(ids...), d.startAgain(ids...))
	}, nil
}

// slowest and fastest are the rates of clocks: a holder stops in time while its clock is
// not slower than the leader's by more than one eighth (docs/ARCHITECTURE.md).
const slowest, fastest = 0.94, 1.06

// keepTime is how long the one that will be cut off has to take locks that it keeps.
const keepTime = time.Second

// clockRate has each worker's clocks go at a rate of its own. If it can, it cuts off the
// one with the slowest, which must give up what it holds before the others take it. The
// rates stay when the network is whole again: what comes after meets them too.
func (d *director) clockRate() (string, func(context.Context) error, error) {
	slow := d.rng.IntN(workers)
	ids := slices.Insert(others([]uint64{uint64(slow + 1)}), 0, uint64(slow+1))
	if leader := d.leader(); leader > 0 && leader != ids[0] { // has the fastest
		ids = append(slices.DeleteFunc(ids, func(id uint64) bool { return id == leader }), leader)
	}
	cut := d.net != nil
	var text []string
	for i, id := range ids {
		rate := slowest + (fastest-slowest)*float64(i)/(workers-1)
		d.rates[id] = rate
		text = append(text, fmt.Sprintf("%d: %.2f", id, rate))
		if err := d.crew[id].Tell(order{Do: orderRate, Rate: rate, Keep: cut && i == 0}); err != nil {
			return "", nil, err
		}
	}
	slices.Sort(text)
	what := strings.Join(text, ", ")
	if !cut {
		return what, func(context.Context) error { return nil }, nil
	}
	d.pass(context.Background(), keepTime)
	d.net.sever(ids[:1], ids[1:])
	d.net.sever(ids[1:], ids[:1])
	return fmt.Sprintf("%s; %d cut off", what, ids[0]), func(context.Context) error {
		d.net.heal()
		return d.crew[ids[0]].Tell(order{Do: orderRate, Rate: d.rates[ids[0]]})
	}, nil
}
