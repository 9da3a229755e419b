package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// table prints what was done to the workers and what came of it.
func (d *director) table(w io.Writer) {
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "fault\ttimes\ta majority goes on: p50\tmax\tall recovered: p50\tmax\t")
	total := &result{}
	row := func(name string, r *result) {
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\t\n", name, r.times, quantile(r.goesOn, 0.5), quantile(r.goesOn, 1), quantile(r.recovered, 0.5), quantile(r.recovered, 1))
	}
	for _, f := range d.faults {
		r := d.result(f.name)
		row(f.name, r)
		total.times += r.times
		total.goesOn = append(total.goesOn, r.goesOn...)
		total.recovered = append(total.recovered, r.recovered...)
	}
	row("all", total)
	t.Flush()
	for _, f := range d.faults {
		notes := d.result(f.name).notes
		for _, what := range slices.Sorted(maps.Keys(notes)) {
			fmt.Fprintf(w, "  %s: %s %d times\n", f.name, what, notes[what])
		}
	}
	h, s := d.history.result(), d.store.result()
	fmt.Fprintf(w, "\nprocesses started %d, names used %d\n", d.lives, h.Names)
	fmt.Fprintf(w, "acquires %d: granted %d, refused %d, with unknown outcome %d; holds whose release had no answer or that were lost %d\n",
		h.Asked, h.Granted, h.Refused, h.Unknown, h.Lost)
	if d.net != nil {
		fmt.Fprintf(w, "packets carried %d, dropped %d\n", d.net.passed.Load(), d.net.dropped.Load())
	}
	if h.Late > 0 {
		fmt.Fprintf(w, "events that came after their name was judged %d\n", h.Late)
	}
	fmt.Fprintf(w, "lock-set, without the token: %d elements written, %d lost\n", s.Written[lockSetKind], s.Lost[lockSetKind])
	fmt.Fprintf(w, "fenced-set, with the token: %d elements written, %d lost; %d requests refused as stale\n", s.Written[fencedSetKind], s.Lost[fencedSetKind], s.Refused)
	fmt.Fprintf(w, "violations %d\n", len(h.Wrong))
	const most = 10
	for i, text := range h.Wrong {
		if i == most {
			fmt.Fprintf(w, "  and %d more\n", len(h.Wrong)-i)
			break
		}
		fmt.Fprintf(w, "  %s\n", strings.TrimSpace(text))
	}
}

// verdict says in words what it comes to, and returns the exit status.
func (d *director) verdict(w io.Writer) int {
	h := d.history.result()
	switch {
	case len(h.Wrong) > 0:
		fmt.Fprintf(w, "\nThe check FAILS. The faults come again with -seed %d.\n", d.seed)
		return exitFailed
	case h.Granted == 0 || d.store.result().Written[fencedSetKind] == 0:
		fmt.Fprintln(w, "\nThe check FAILS: nothing was done, so it shows nothing.")
		return exitFailed
	}
	fmt.Fprintln(w, "\nThe check HOLDS: nothing that is promised was broken. What the lock-set lost is what\n"+
		"a lock without its token cannot prevent.")
	return exitOK
}

// quantile returns a quantile in seconds, or a dash of nothing.
func quantile(spans []time.Duration, q float64) string {
	if len(spans) == 0 {
		return "-"
	}
	sorted := slices.Sorted(slices.Values(spans))
	return fmt.Sprintf("%.2fs", sorted[int(q*float64(len(sorted)-1))].Seconds())
}
