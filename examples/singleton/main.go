// Command singleton runs an exporter on exactly one of five processes, and moves it:
// when the process that runs it is asked to end, when it is frozen until its lease is
// over, and when it is killed.
//
//	go run ./examples/singleton              every record is exported exactly once
//	go run ./examples/singleton -unfenced    the same without the token check
//
// Each worker is a process of its own, in which the application and its replica of the
// lock cluster live side by side. They share one SQLite file, to which the exporter
// appends numbered records, and nothing else. The program ends with an audit of that
// file, and with status 0 only if every record is there exactly once, in order, one
// late write was refused, and each successor went on within the stated time.
//
// Where to read: worker.go is what an application does with the library, store.go how
// a store checks tokens. director.go is the other side, which starts the workers and
// makes their life hard.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/quorumlock/quorumlock/examples/internal/crew"
)

const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130

	// runLimit is what a run may take before it is given up, on a busy machine too.
	runLimit = 55 * time.Second

	// lease is within what time after its death or freeze the exporter of a worker
	// goes on elsewhere (SessionTTL).
	lease           = 3 * time.Second
	electionTimeout = 400 * time.Millisecond
	// slack is what a slow machine may add.
	slack = 2 * time.Second
)

var errTooLong = fmt.Errorf("gave up after %s", runLimit)

func main() {
	if os.Getenv(workerEnv) != "" {
		os.Exit(workerMain())
	}
	// See crew.Start: the workers are tied to the thread that starts them.
	runtime.LockOSThread()
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("singleton", flag.ContinueOnError)
	flags.SetOutput(stderr)
	unfenced := flags.Bool("unfenced", false, "do not check tokens, to see what they are for; the audit then fails")
	verbose := flags.Bool("v", false, "show the log lines of the library")
	if status, ok := crew.ParseFlags(flags, args); !ok {
		return status
	}
	if !crew.CanFreeze {
		fmt.Fprintln(stderr, "singleton: this demonstration freezes a process with SIGSTOP, which this system does not have;"+
			" run it on Linux, macOS or a BSD")
		return exitFailed
	}
	// SIGPIPE: whoever read the output has gone, which is no reason to leave the
	// workers and their files behind.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	defer stop()
	interrupted := ctx
	ctx, cancel := context.WithTimeoutCause(ctx, runLimit, errTooLong)
	defer cancel()

	dir, err := os.MkdirTemp("", "singleton-")
	if err != nil {
		fmt.Fprintln(stderr, "singleton:", err)
		return exitFailed
	}
	defer os.RemoveAll(dir)
	d := &director{fenced: !*unfenced, verbose: *verbose, dir: dir, out: stdout, began: time.Now()}
	a, err := d.run(ctx)
	switch {
	case interrupted.Err() != nil:
		fmt.Fprintln(stderr, "singleton: interrupted; the workers are ended")
		return exitInterrupted
	case err != nil:
		fmt.Fprintln(stderr, "singleton:", err)
		return exitFailed
	}
	return d.conclude(stdout, a)
}

// conclude prints the audit, says in words what it comes to, and returns the exit
// status.
func (d *director) conclude(w io.Writer, a audit) int {
	fmt.Fprintf(w, "\nAudit of the store\n")
	fmt.Fprintf(w, "  records exported             %5d, by %d workers in %d terms\n", a.records, a.workers, a.terms)
	fmt.Fprintf(w, "  more than once, or missing   %5d\n", len(a.wrong))
	for i, what := range a.wrong {
		if i == 5 {
			fmt.Fprintf(w, "    and %d more\n", len(a.wrong)-i)
			break
		}
		fmt.Fprintf(w, "    %s\n", what)
	}
	fmt.Fprintf(w, "  late writes refused          %5d\n\nFail-over: until another worker exported\n", a.refused)
	slow := false
	for _, m := range d.moves {
		fmt.Fprintf(w, "  %-15s %6.2f s (stated: %v)\n", m.what, m.took.Seconds(), m.stated)
		slow = slow || m.took > m.stated+slack
	}
	fmt.Fprintln(w)
	switch {
	case slow:
		fmt.Fprintln(w, "The check FAILS: a successor took longer than stated.")
	case d.fenced && len(a.wrong) == 0 && a.refused > 0:
		fmt.Fprintf(w, "The check HOLDS, after %.1f s: one exporter ran at a time, wherever it ran, and every record is\n"+
			"there once. The worker that slept through the end of its term did write once more, and its\n"+
			"token was too old for the store.\n", time.Since(d.began).Seconds())
		return exitOK
	case d.fenced && len(a.wrong) == 0:
		fmt.Fprintln(w, "The check FAILS: no late write was tried and refused, so it shows nothing.")
	case d.fenced:
		fmt.Fprintln(w, "The check FAILS, and it should not have. This is a bug: please report it with the output above.")
	case len(a.wrong) > 0:
		fmt.Fprintln(w, "The check FAILS, which is what -unfenced is there to show. There were never two leaders at once,\n"+
			"but a process that is frozen cannot see that its term has ended, and when it wakes it does the\n"+
			"next thing in its program: here, export. Without -unfenced the store refuses that write.")
	default:
		fmt.Fprintln(w, "The check FAILS, though not as -unfenced meant to show: no record was written twice.")
	}
	return exitFailed
}
