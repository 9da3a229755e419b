package main

import (
	"fmt"
	"io"
	"time"
)

// An audit counts who wrote the report for each planned time.
type audit struct {
	ran  map[int64][]int // by tick: workers
	open map[int]int64   // by worker: the tick of which it has not said what became
}

func newAudit() *audit { return &audit{ran: make(map[int64][]int), open: make(map[int]int64)} }

func (a *audit) hear(r report) {
	switch {
	case r.Asked:
		a.open[r.Worker] = r.Tick
	case r.Denied:
		delete(a.open, r.Worker)
	case r.Ran:
		delete(a.open, r.Worker)
		a.ran[r.Tick] = append(a.ran[r.Tick], r.Worker)
	}
}

// print writes the count of so many planned times, and reports whether each had one
// run. One that nobody ran is as promised if a worker died after it asked for it.
func (a *audit) print(w io.Writer, first int64, ticks int) bool {
	asked := make(map[int64]int)
	for worker, tick := range a.open {
		asked[tick] = worker
	}
	var once, twice, died, missed, runs int
	share := [workers]int{}
	for tick, ran := range a.ran {
		if runs += len(ran); len(ran) > 1 {
			twice++
			fmt.Fprintf(w, "        TWICE: the report for %s was written by workers %v\n", clockTime(time.Unix(tick, 0)), ran)
		}
		for _, worker := range ran {
			share[worker-1]++
		}
	}
	for tick := first; tick < first+int64(ticks); tick++ {
		switch n := len(a.ran[tick]); {
		case n == 1:
			once++
		case n == 0 && asked[tick] != 0:
			died++
			fmt.Fprintf(w, "        worker %d died between claiming %s and running it: at most once\n", asked[tick], clockTime(time.Unix(tick, 0)))
		case n == 0:
			missed++
			fmt.Fprintf(w, "        MISSED: nobody wrote the report for %s\n", clockTime(time.Unix(tick, 0)))
		}
	}
	fmt.Fprintf(w, "\nCount of the planned times from %s on\n", clockTime(time.Unix(first, 0)))
	fmt.Fprintf(w, "  planned        %3d\n  run once       %3d\n  run twice      %3d\n  died with one  %3d\n  missed         %3d\n", ticks, once, twice, died, missed)
	fmt.Fprintf(w, "  by worker      %v, %d in all with those before and after\n\n", share, runs)
	if twice+missed > 0 || died > 1 || once == 0 {
		fmt.Fprintln(w, "The count FAILS.")
		return false
	}
	fmt.Fprintln(w, "The count HOLDS: one run for each planned time, with clocks that are four seconds apart, a job\n"+
		"of a millisecond, and the death of the leader.")
	return true
}
