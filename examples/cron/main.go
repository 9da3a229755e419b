// Command cron has five processes write a nightly report, "every second", each by a
// clock of its own that is up to two seconds wrong, and kills the one that leads the
// cluster on the way. It ends with a count, and with status 0 only if every planned
// time had one run.
//
//	go run ./examples/cron
//	go run ./examples/cron -unclaimed    the same without asking the cluster
//
// Where to read: worker.go is what an application does with the library, which is
// one call, ClaimTick. This file starts the workers, and audit.go counts.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/quorumlock/quorumlock/examples/internal/crew"
)

const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2

	workers  = 5
	runLimit = 55 * time.Second
	// workerEnv marks a process that the program started as one of its workers.
	workerEnv = "QUORUMLOCK_CRON_WORKER"
)

// skews are by how much the workers' clocks are wrong.
var skews = [workers]time.Duration{2 * time.Second, 900 * time.Millisecond, 0, -700 * time.Millisecond, -2 * time.Second}

func main() {
	if os.Getenv(workerEnv) != "" {
		os.Exit(workerMain())
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("cron", flag.ContinueOnError)
	flags.SetOutput(stderr)
	unclaimed := flags.Bool("unclaimed", false, "run the report without asking the cluster, to see what that is for; the count then fails")
	ticks := flags.Int("ticks", 12, "how `many` planned times to count")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		return exitUsage
	case flags.NArg() > 0 || *ticks < 4 || *ticks > 40:
		fmt.Fprintln(stderr, "cron: takes no arguments, and -ticks from 4 to 40")
		return exitUsage
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, runLimit)
	defer cancel()
	dir, err := os.MkdirTemp("", "cron-")
	if err != nil {
		fmt.Fprintln(stderr, "cron:", err)
		return exitFailed
	}
	defer os.RemoveAll(dir)
	d := &director{dir: dir, ticks: *ticks, claim: !*unclaimed, out: stdout, began: time.Now(), audit: newAudit()}
	if err := d.run(ctx); err != nil {
		fmt.Fprintln(stderr, "cron:", err)
		return exitFailed
	}
	if !d.audit.print(stdout, d.first, d.ticks) {
		return exitFailed
	}
	return exitOK
}

// A director starts the workers, kills one, and hears what they run.
type director struct {
	dir   string
	ticks int
	claim bool
	out   io.Writer
	began time.Time

	crew    [workers]*exec.Cmd
	pipes   [workers]io.WriteCloser
	reports chan report
	first   int64 // the first tick of the worker whose clock is ahead; 0 before
	last    int64
	leader  int
	killed  int // 0 for nobody yet
	audit   *audit
}

func (d *director) tell(format string, args ...any) {
	fmt.Fprintf(d.out, "%5.1fs  %s\n", time.Since(d.began).Seconds(), fmt.Sprintf(format, args...))
}

func (d *director) run(ctx context.Context) error {
	members, err := crew.FreeAddresses(workers)
	if err != nil {
		return err
	}
	d.reports = make(chan report, 1024)
	var listeners sync.WaitGroup
	defer func() {
		for i, cmd := range d.crew {
			if cmd != nil {
				_ = cmd.Process.Kill() // fails only when it has ended
				d.pipes[i].Close()
			}
		}
		go func() {
			listeners.Wait()
			close(d.reports)
		}()
		for range d.reports {
		}
	}()
	for i := range workers {
		if err := d.start(i, members, &listeners); err != nil {
			return err
		}
	}
	for ready := 0; ready < workers; {
		r, err := d.next(ctx)
		if err != nil {
			return err
		}
		if r.Ready {
			ready++
		}
	}
	d.tell("five workers are ready; their clocks are wrong by %v", skews)
	for _, p := range d.pipes { // the one whose clock is ahead is first
		if _, err := io.WriteString(p, "go\n"); err != nil {
			return err
		}
	}
	return d.listen(ctx)
}

// listen hears of runs until all that are to be counted are past, and kills the
// worker that leads the cluster after a third of them.
func (d *director) listen(ctx context.Context) error {
	for d.first == 0 || d.last <= d.first+int64(d.ticks) {
		r, err := d.next(ctx)
		if err != nil {
			return err
		}
		d.audit.hear(r)
		if r.Ran {
			d.leader, d.last = r.Leader, max(d.last, r.Tick)
			d.tell("worker %d writes the report for %s; its clock shows %s", r.Worker, clockTime(time.Unix(r.Tick, 0)), clockTime(r.Shown))
			if r.Worker == 1 && d.first == 0 {
				d.first = r.Tick
			}
		}
		if d.killed == 0 && d.leader != 0 && d.first != 0 && d.last >= d.first+int64(d.ticks)/3 {
			d.killed = d.leader
			if err := d.crew[d.killed-1].Process.Kill(); err != nil {
				return err
			}
			d.tell("KILL worker %d (SIGKILL), which leads the cluster", d.killed)
		}
	}
	return nil
}

// next returns the next report.
func (d *director) next(ctx context.Context) (report, error) {
	select {
	case r := <-d.reports:
		if r.Failed != "" && r.Worker != d.killed {
			return r, fmt.Errorf("worker %d: %s", r.Worker, r.Failed)
		}
		return r, nil
	case <-ctx.Done():
		return report{}, fmt.Errorf("after %d of %d planned times: %w", max(0, d.last-d.first), d.ticks, ctx.Err())
	}
}

// start starts this program once more, as a worker. It ends when its standard input
// does.
func (d *director) start(i int, members map[uint64]string, listeners *sync.WaitGroup) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cfg, err := json.Marshal(config{ID: uint64(i + 1), Members: members, Dir: filepath.Join(d.dir, fmt.Sprint(i+1)), Skew: skews[i], Claim: d.claim})
	if err != nil {
		return err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), workerEnv+"="+string(cfg))
	cmd.Stderr = os.Stderr
	if d.pipes[i], err = cmd.StdinPipe(); err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	d.crew[i] = cmd
	listeners.Go(func() {
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			r := report{Worker: i + 1}
			if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
				r.Failed = err.Error()
			}
			d.reports <- r
		}
		if err := cmd.Wait(); err != nil {
			d.reports <- report{Worker: i + 1, Failed: err.Error()}
		}
	})
	return nil
}

func clockTime(t time.Time) string { return t.UTC().Format("15:04:05.0") }
