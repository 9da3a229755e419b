// Command payouts settles the invoices of a finance export with five workers that
// lock for themselves, and does to them what happens to processes: it freezes one
// that holds a lock until its lease is over, and kills the one that leads.
//
//	go run ./examples/payouts              every invoice is paid exactly once
//	go run ./examples/payouts -unfenced    the same without the token check
//	go run ./examples/payouts -csv FILE    with invoices of your own
//
// Each worker is a process of its own, in which the application and its replica
// of the lock cluster live side by side. They share one SQLite ledger and nothing
// else. The program ends with an audit of that ledger, and with status 0 only if
// every invoice was paid exactly once, to the cent, although at least one worker
// tried to pay one that another had paid.
//
// Where to read: worker.go is what an application does with the library, ledger.go
// how a store checks tokens. director.go and faults.go are the other side, which
// starts the workers and makes their life hard.
package main

import (
	"context"
	_ "embed"
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

	// runLimit is what a run may take before it is given up.
	runLimit = 55 * time.Second

	// The lease must not be so short that a slow machine loses it by itself, nor
	// so long that waiting for its end takes the run beyond its limit.
	minLease     = 2 * time.Second
	maxLease     = 10 * time.Second
	defaultLease = 5 * time.Second
)

var errTooLong = fmt.Errorf("gave up after %s", runLimit)

// electionTimeout is the longest that goes with a lease of that length.
func electionTimeout(lease time.Duration) time.Duration { return lease / 5 }

//go:embed invoices.csv
var embedded []byte

func main() {
	if os.Getenv(workerEnv) != "" {
		os.Exit(workerMain())
	}
	// See crew.Start: the workers are tied to the thread that starts them.
	runtime.LockOSThread()
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

type settings struct {
	csv      string
	unfenced bool
	lease    time.Duration
	keep     bool
	verbose  bool
}

func run(args []string, stdout, stderr io.Writer) int {
	var s settings
	flags := flag.NewFlagSet("payouts", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&s.csv, "csv", "", "settle the invoices of this `file` (columns: invoice,supplier,currency,amount,due)")
	flags.BoolVar(&s.unfenced, "unfenced", false, "do not check tokens, to see what they are for; the audit then fails")
	flags.DurationVar(&s.lease, "lease", defaultLease, "`time` within which the locks of a worker that died or froze come free (SessionTTL)")
	flags.BoolVar(&s.keep, "keep", false, "keep the directory with the ledger and the workers' logs, and name it")
	flags.BoolVar(&s.verbose, "v", false, "show the log lines of the library")
	if status, ok := crew.ParseFlags(flags, args); !ok {
		return status
	}
	switch {
	case s.lease < minLease || s.lease > maxLease:
		fmt.Fprintf(stderr, "payouts: -lease is %v and must be from %v to %v\n", s.lease, minLease, maxLease)
		return exitUsage
	case !crew.CanFreeze:
		fmt.Fprintln(stderr, "payouts: this demonstration freezes a process with SIGSTOP, which this system does not have;"+
			" run it on Linux, macOS or a BSD")
		return exitFailed
	}
	invoices, err := loadInvoices(s.csv)
	if err != nil {
		fmt.Fprintf(stderr, "payouts: these invoices cannot be settled, and nothing was started:\n%v\n", err)
		return exitUsage
	}
	return direct(s, invoices, stdout, stderr)
}

func loadInvoices(path string) ([]invoice, error) {
	if path == "" {
		return parseInvoices("invoices.csv", embedded)
	}
	return readInvoices(path)
}

// direct runs the story in a directory of its own and judges how it ended.
func direct(s settings, invoices []invoice, stdout, stderr io.Writer) int {
	// SIGPIPE: whoever read the output has gone, which is no reason to leave the
	// workers and their files behind.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	defer stop()
	interrupted := ctx
	ctx, cancel := context.WithTimeoutCause(ctx, runLimit, errTooLong)
	defer cancel()

	dir, err := os.MkdirTemp("", "payouts-")
	if err != nil {
		fmt.Fprintln(stderr, "payouts:", err)
		return exitFailed
	}
	if s.keep {
		defer fmt.Fprintln(stdout, "\nkept:", dir)
	} else {
		defer os.RemoveAll(dir)
	}
	d := &director{
		invoices: invoices, fenced: !s.unfenced, verbose: s.verbose, lease: s.lease, dir: dir,
		story: &story{w: stdout, began: time.Now()},
	}
	a, err := d.run(ctx)
	switch {
	case interrupted.Err() != nil:
		fmt.Fprintln(stderr, "payouts: interrupted; the workers are ended")
		return exitInterrupted
	case err != nil:
		fmt.Fprintln(stderr, "payouts:", err)
		if !s.keep {
			fmt.Fprintln(stderr, "payouts: -keep keeps the workers' logs, -v shows them")
		}
		return exitFailed
	}
	fmt.Fprintln(stdout, "\nAudit of the ledger against the file")
	a.print(stdout)
	d.printRecovery(stdout)
	return conclude(stdout, a, d.fenced)
}

func (d *director) printRecovery(w io.Writer) {
	fmt.Fprintln(w, "\nRecovery")
	fmt.Fprintf(w, "  holder frozen   its lock was granted to the next in line after %s (SessionTTL is %v);\n", seconds(d.faults.freezeToGrant), d.lease)
	fmt.Fprintf(w, "                  it was granted another lock %s after it woke\n", seconds(d.faults.wakeToWork))
	fmt.Fprintf(w, "  leader killed   the next lock was granted elsewhere after %s;\n", seconds(d.faults.killToGrant))
	fmt.Fprintf(w, "                  restarted, it was granted a lock after %s\n", seconds(d.faults.startToWork))
	fmt.Fprintf(w, "  in all          %s; %d times a worker left an invoice alone because another held its lock\n",
		seconds(time.Since(d.story.began)), d.turned)
}

// conclude says in words what the audit comes to, and returns the exit status.
func conclude(w io.Writer, a *audit, fenced bool) int {
	fmt.Fprintln(w)
	switch {
	case fenced && a.balanced() && a.Refused > 0:
		fmt.Fprintln(w, "The audit HOLDS: every invoice was paid exactly once. The worker that slept through the end of\n"+
			"its lease did try to pay again, and its token was too old for the ledger.")
		return exitOK
	case fenced && a.balanced():
		fmt.Fprintln(w, "The audit FAILS: the ledger balances, but no stale write was tried and refused, so it shows nothing.")
	case fenced, len(a.Missing)+len(a.Wrong)+len(a.Reused) > 0: // which no missing check excuses
		fmt.Fprintln(w, "The audit FAILS, and it should not have. This is a bug: please report it with the output above.")
	case len(a.Twice) > 0:
		fmt.Fprintln(w, "The audit FAILS, which is what -unfenced is there to show. The lock never had two holders at once.\n"+
			"But a process that is frozen cannot see that its lease has ended, and when it wakes it does the\n"+
			"next thing in its program: here, pay. No lock can stop that; the store can, by refusing a token\n"+
			"older than the newest it has seen. Without -unfenced the same write is refused.")
	default:
		fmt.Fprintln(w, "The audit FAILS, though not as -unfenced meant to show: no invoice was paid twice.")
	}
	return exitFailed
}
