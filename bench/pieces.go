package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// piecesJob measures what cannot be seen from outside: the state machine's cost
// of a command, how long a snapshot holds up the log, and the time to restore one.
// It runs the library's own benchmarks, as go test does, and reads what they print.
const piecesJob = "pieces"

const (
	applyJob   = "apply"
	stallJob   = "snapshot-stall"
	restoreJob = "restore"
	watchJob   = "watch"
)

// A piece is one of them.
type piece struct {
	job, benchmark string
	values         map[string]string // what a unit that it prints is called here
}

var allPieces = []piece{
	{applyJob, "BenchmarkApply", map[string]string{"ns/op": "ns_per_pair", "allocs/op": "allocs_per_pair"}},
	{stallJob, "BenchmarkSnapshotStall", map[string]string{"max-stall-ms": "max_stall_ms"}},
	{restoreJob, "BenchmarkRestore", map[string]string{"s/restore": "restore_s"}},
	{watchJob, "BenchmarkApplyWatched", map[string]string{"ns/op": "ns_per_pair", "median-ns/op": "median_ns_per_pair", "missed": "missed"}},
}

func (b *bench) runPieces(ctx context.Context) {
	if !b.has(quorumlockName) {
		return
	}
	for _, p := range allPieces {
		lines, err := b.built.benchmark(ctx, p.benchmark, b.times(p), p.job == watchJob && b.plan.short)
		if err == nil {
			err = b.notePiece(p, lines)
		}
		if err != nil {
			b.miss(p.job, quorumlockName, err)
		}
	}
}

// times is how often or how long a benchmark is to be repeated.
func (b *bench) times(p piece) string {
	switch p.job {
	case applyJob:
		return b.plan.applies
	case watchJob:
		return b.plan.watched
	}
	return b.plan.once
}

// notePiece notes a row for each size of a benchmark.
func (b *bench) notePiece(p piece, lines []benchLine) error {
	noted := false
	for _, l := range lines {
		name, size, _ := strings.Cut(l.name, "/")
		size = strings.TrimPrefix(size, "held=")
		if name != p.benchmark {
			continue
		}
		r := row{Job: p.job, System: quorumlockName, Where: "state machine", Values: make(map[string]float64)}
		if held, err := strconv.Atoi(size); err == nil {
			r.Locks = held
		} else if held, ok := l.metrics["locks"]; ok {
			r.Locks = int(held)
		}
		if watchers, ok := l.metrics["watchers"]; ok {
			r.Where = watching(int(watchers))
		}
		for unit, called := range p.values {
			if v, ok := l.metrics[unit]; ok {
				r.Values[called] = v
			}
		}
		if len(r.Values) > 0 {
			b.note(r, nil)
			noted = true
		}
	}
	if !noted {
		return fmt.Errorf("the library has no %s that reports what is looked for", p.benchmark)
	}
	return nil
}

// watching says where a row of that many watchers is.
func watching(watchers int) string { return fmt.Sprintf("state machine, %d watch", watchers) }

// benchmark runs one of the library's benchmarks with all its sizes, or with smaller
// ones if it has a way to be short.
func (p *built) benchmark(ctx context.Context, name, times string, short bool) ([]benchLine, error) {
	const limit = 5 * time.Minute
	if p.tests.err != nil {
		return nil, p.tests.err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("it takes more than %s", limit))
	defer cancel()
	cmd := exec.CommandContext(ctx, p.tests.path, "-test.run=^$", "-test.bench=^"+name+"$",
		"-test.benchtime="+times, "-test.benchmem", "-test.timeout="+limit.String(), fmt.Sprint("-test.short=", short))
	cmd.Dir = p.source
	apart(cmd)
	out, err := cmd.CombinedOutput()
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%s was not done in time: %w", name, context.Cause(ctx))
	case err != nil:
		return nil, fmt.Errorf("%s failed: %w: %s", name, err, bytes.TrimSpace(out))
	}
	return parseBenchmarks(string(out)), nil
}

// A benchLine is what go test prints of one benchmark.
type benchLine struct {
	name    string // without the number of processors
	n       int
	metrics map[string]float64 // by unit
}

// parseBenchmarks reads the lines of benchmarks, and passes over all others.
func parseBenchmarks(output string) (found []benchLine) {
	lines := bufio.NewScanner(strings.NewReader(output))
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < 4 || len(f)%2 != 0 || !strings.HasPrefix(f[0], "Benchmark") {
			continue
		}
		n, err := strconv.Atoi(f[1])
		if err != nil {
			continue
		}
		l := benchLine{name: f[0], n: n, metrics: make(map[string]float64)}
		if i := strings.LastIndexByte(l.name, '-'); i > 0 {
			if _, err := strconv.Atoi(l.name[i+1:]); err == nil {
				l.name = l.name[:i]
			}
		}
		for i := 2; i < len(f); i += 2 {
			if v, err := strconv.ParseFloat(f[i], 64); err == nil {
				l.metrics[f[i+1]] = v
			}
		}
		found = append(found, l)
	}
	return found
}
