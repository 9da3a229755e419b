package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// writeJSON writes an object a row, what is missing, and the ratios.
func (b *bench) writeJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	for _, r := range b.rows.list {
		if err := enc.Encode(r); err != nil {
			return err
		}
	}
	if len(b.missing) > 0 {
		if err := enc.Encode(map[string]any{"missing": b.missing}); err != nil {
			return err
		}
	}
	if err := enc.Encode(map[string]any{"about": b.about}); err != nil {
		return err
	}
	ratios := make(map[string]float64)
	for _, f := range b.rows.figures() {
		if f.key != "" && f.unit == "" {
			ratios[f.key] = f.value
		}
	}
	return enc.Encode(map[string]any{"ratios": ratios})
}

// writeTable writes all that was measured for people to read.
func (b *bench) writeTable(w io.Writer) {
	fmt.Fprintln(w)
	for _, name := range append(slices.Clone(systemNames), "machine", "data") {
		if b.about[name] != "" {
			fmt.Fprintf(w, "%-14s %s\n", name, b.about[name])
		}
	}
	b.writePairs(w)
	b.writeKinds(w)
	b.writeRows(w)
	b.writeFigures(w)
	if len(b.missing) > 0 {
		fmt.Fprintln(w, "\nMissing")
		for _, m := range b.missing {
			what := m.System
			if m.Job != "" {
				what += ", " + m.Job
			}
			fmt.Fprintf(w, "  %s: %s\n", what, m.Reason)
		}
	}
}

func columns(w io.Writer) *tabwriter.Writer {
	return tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
}

// writePairs writes the pairs/s, a line for each number of callers.
func (b *bench) writePairs(w io.Writer) {
	all := b.rows.of(pairsJob)
	if len(all) == 0 {
		return
	}
	fmt.Fprintln(w, "\nLock+unlock pairs/s, a name each, callers on all five replicas (medians; × is quorumlock's ratio to it)")
	t := columns(w)
	fmt.Fprint(t, "callers\t")
	for _, s := range b.systems {
		fmt.Fprintf(t, "%s\t", s)
		if s != quorumlockName {
			fmt.Fprint(t, "×\t")
		}
	}
	fmt.Fprintln(t)
	for _, callers := range b.plan.callers {
		fmt.Fprintf(t, "%d\t", callers)
		own, haveOwn := b.rows.value(key{pairsJob, quorumlockName, callers, 0, everywhere}, "pairs_per_s")
		for _, s := range b.systems {
			v, ok := b.rows.value(key{pairsJob, s, callers, 0, place(s, everywhere)}, "pairs_per_s")
			fmt.Fprintf(t, "%s\t", orDash(v, ok))
			if s != quorumlockName {
				r, ok := ratio(own, v, haveOwn && ok)
				fmt.Fprintf(t, "%s\t", orDash(r, ok))
			}
		}
		fmt.Fprintln(t)
	}
	_ = t.Flush() // an error of w shows itself at the next write
}

// writeKinds writes the pairs/s of locks that are not just exclusive.
func (b *bench) writeKinds(w io.Writer) {
	all := []string{sharedJob, countedJob, severalJob}
	if !slices.ContainsFunc(all, func(job string) bool { return len(b.rows.of(job)) > 0 }) {
		return
	}
	fmt.Fprintf(w, "\nPairs/s of other kinds of lock, %d callers on all five replicas (- for a system that has none)\n", b.plan.kindCallers)
	t := columns(w)
	fmt.Fprintf(t, "\t%s\t\n", strings.Join(b.systems, "\t"))
	for _, job := range all {
		fmt.Fprintf(t, "%s\t", job)
		for _, s := range b.systems {
			v, ok := b.rows.value(key{job, s, b.plan.kindCallers, 0, everywhere}, "pairs_per_s")
			fmt.Fprintf(t, "%s\t", orDash(v, ok))
		}
		fmt.Fprintln(t)
	}
	_ = t.Flush()
}

func orDash(v float64, ok bool) string {
	if !ok {
		return "-"
	}
	return number(v)
}

// writeRows writes every row with all its values.
func (b *bench) writeRows(w io.Writer) {
	fmt.Fprintln(w, "\nEverything measured (p50, p99 are of an acquire; of a hand-off in contended; medians of rounds)")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, r := range b.rows.list {
		size := r.Where
		if r.Callers > 0 {
			size = fmt.Sprintf("%d callers %s", r.Callers, r.Where)
		}
		if r.Locks > 0 {
			size = fmt.Sprintf("%d locks %s", r.Locks, r.Where)
		}
		var values []string
		for _, name := range r.names() {
			if name == "errors" && r.Values[name] == 0 {
				continue
			}
			values = append(values, name+" "+number(r.Values[name]))
		}
		note := ""
		if r.Note != "" {
			note = "  (" + r.Note + ")"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s%s\n", r.Job, r.System, strings.TrimSpace(size), strings.Join(values, "  "), note)
	}
	_ = t.Flush()
}

// writeFigures writes the ratios and goals.
func (b *bench) writeFigures(w io.Writer) {
	fmt.Fprintln(w, "\nRatios and goals")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range b.rows.figures() {
		aim, verdict := "", ""
		if f.goal != nil {
			aim, verdict = "at most ", "MISSED"
			if f.goal.least {
				aim = "at least "
			}
			aim += number(f.goal.limit)
			if f.goal.met(f.value) {
				verdict = "met"
			}
		}
		fmt.Fprintf(t, "  %s\t%s %s\t%s\t%s\n", f.what, number(f.value), f.unit, aim, verdict)
	}
	_ = t.Flush()
}

// number shows three digits, or all of a large number.
func number(v float64) string {
	if v == 0 {
		return "0"
	}
	if v == math.Trunc(v) && math.Abs(v) < 1000 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	digits := max(0, 2-int(math.Floor(math.Log10(math.Abs(v)))))
	return thousands(strconv.FormatFloat(v, 'f', digits, 64))
}

// thousands puts commas into a number.
func thousands(s string) string {
	whole, fraction, dot := strings.Cut(s, ".")
	for i := len(whole) - 3; i > 0 && whole[i-1] != '-'; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if dot {
		return whole + "." + fraction
	}
	return whole
}
