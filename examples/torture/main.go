// Command torture hurts five processes that lock through each other, for as long as it
// is told, and holds all that their clients saw against what is promised.
//
//	go run ./examples/torture               half a minute
//	go run ./examples/torture -for 30m      longer
//	go run ./examples/torture -faults stop  one kind of harm only
//	go run ./examples/torture -seed 7       the same faults in the same order
//	go run ./examples/torture -groups 3     the names are spread over three Raft groups
//
// Each worker is a process of its own, with a replica and clients inside. As root on
// Linux each also has a network namespace and a small disk of its own, so that packets
// can be lost, late or cut off in one direction, and a disk can be full; they have no
// name and are gone with the processes. Elsewhere all share the loopback, and what is
// left is to kill, stop and restart processes, and what a process can do to itself: on
// Linux an fsync that fails, and on amd64 clocks that go at another rate.
//
// A seed gives the same faults in the same order, for as long. Who leads and is hit, and
// what the processes do meanwhile, depends on the machine: it repeats the harm and not
// the run.
//
// It ends with a table, and with status 0 only if nothing that is promised was broken.
//
// Where to read: client.go is what is done with locks, history.go and models.go how
// that is judged, nemesis.go and harm.go what goes wrong, store.go what the token is for.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/quorumlock/quorumlock/examples/internal/crew"
)

const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130
)

// options are what a run is told.
type options struct {
	length   time.Duration
	seed     uint64
	groups   int
	isolated bool // network namespaces and disks
	verbose  bool
}

func main() {
	if os.Getenv(workerEnv) != "" {
		os.Exit(workerMain())
	}
	// See crew.Start: the workers are tied to the thread that starts them. Namespaces
	// belong to a thread, too.
	runtime.LockOSThread()
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("torture", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var o options
	flags.DurationVar(&o.length, "for", 30*time.Second, "how long to hurt them")
	flags.Uint64Var(&o.seed, "seed", 0, "of the faults; 0 for a new one")
	flags.IntVar(&o.groups, "groups", 1, fmt.Sprintf("of Raft, over which the names are spread: 1 to %d", maxGroups))
	list := flags.String("faults", "", "which faults, with commas between: "+strings.Join(faultNames(), ", ")+"; default: all that can be done here")
	loopback := flags.Bool("loopback", false, "make no network namespaces and disks, even as root on Linux")
	flags.BoolVar(&o.verbose, "v", false, "show the log lines of the library")
	if status, ok := crew.ParseFlags(flags, args); !ok {
		return status
	}
	if o.length <= 0 {
		fmt.Fprintf(stderr, "torture: -for %v: must be longer than nothing\n", o.length)
		return exitUsage
	}
	if o.groups < 1 || o.groups > maxGroups {
		fmt.Fprintf(stderr, "torture: -groups %d: must be 1 to %d\n", o.groups, maxGroups)
		return exitUsage
	}
	o.isolated = !*loopback && runtime.GOOS == "linux" && os.Geteuid() == 0
	faults, err := chooseFaults(*list, o.isolated)
	if err != nil {
		fmt.Fprintln(stderr, "torture:", err)
		return exitUsage
	}
	for o.seed == 0 {
		o.seed = rand.Uint64() >> 32 // short, to be typed
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	// The store writes to killed workers, so SIGPIPE says nothing about the output.
	signal.Ignore(syscall.SIGPIPE)
	dir, err := os.MkdirTemp("", "torture-")
	if err != nil {
		fmt.Fprintln(stderr, "torture:", err)
		return exitFailed
	}
	defer os.RemoveAll(dir)
	return torture(ctx, o, faults, dir, &outlet{stdout, stop}, stderr)
}

// An outlet ends the run when whoever read the output has gone, so that the workers
// and their files do not stay behind.
type outlet struct {
	io.Writer
	gone func()
}

func (o *outlet) Write(text []byte) (int, error) {
	n, err := o.Writer.Write(text)
	if err != nil {
		o.gone()
	}
	return n, err
}

// torture does it, and shows what came of it.
func torture(ctx context.Context, o options, faults []fault, dir string, stdout, stderr io.Writer) int {
	where := "on the loopback"
	if o.isolated {
		where = "each with a network and a disk of its own"
	}
	if o.groups > 1 {
		where += fmt.Sprintf(", %d groups", o.groups)
	}
	fmt.Fprintf(stdout, "torture: seed %d, %d processes, %s, for %v\n", o.seed, workers, where, o.length)
	d := &director{options: o, dir: dir, out: stdout, rng: rand.New(rand.NewPCG(o.seed, 0)), begin: machineTime(),
		faults: faults, results: make(map[string]*result), history: newHistory(), crew: make(map[uint64]*crew.Process),
		rates: make(map[uint64]float64), seen: make(map[uint64]sight), idle: make(map[uint64]bool), words: make(map[uint64]string), news: make(chan struct{}, 1)}
	err := d.run(ctx)
	if d.store != nil {
		d.table(stdout)
	}
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(stderr, "torture: interrupted; the workers are ended")
		return exitInterrupted
	case err != nil:
		fmt.Fprintln(stderr, "torture:", err)
		return exitFailed
	}
	return d.verdict(stdout)
}
