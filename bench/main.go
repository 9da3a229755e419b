// Command bench runs the same jobs on quorumlock, on etcd and on Redis, on one
// machine and in turns, and prints what it measured with the ratios.
//
//	go run ./bench            everything, in about ten minutes
//	go run ./bench -short     what the goals need, in less than one
//	go run ./bench -json      an object a row, and the ratios at the end
//
// quorumlock and etcd run as five replicas each, with their logs on the same disk
// and with fsync; Redis is one server without persistence, which it starts itself
// (Debian: apt-get install redis-server). Each system has a process of its own, in
// which its callers run too. Where that holds all members of a cluster, GOMAXPROCS is
// what five processes would have together. All traffic stays on loopback. A system
// that cannot start is reported as missing.
//
// Where to read: plan.go says how much is measured; quorumlock.go, etcd.go and
// redis.go are the systems; pairs.go, latency.go, contended.go, kinds.go, overload.go,
// cost.go, groups.go, memory.go, idle.go, deaths.go and pieces.go are the jobs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130
)

func main() {
	if os.Getenv(childEnv) != "" {
		os.Exit(serve(os.Stdin, os.Stdout))
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

type settings struct {
	short, json   bool
	jobs, systems string
	dir, profiles string
}

func run(args []string, stdout, stderr io.Writer) int {
	var s settings
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.BoolVar(&s.short, "short", false, "less of everything, in less than 60 s without compilation")
	flags.BoolVar(&s.json, "json", false, "print an object a row, and the ratios at the end")
	flags.StringVar(&s.jobs, "job", "", "run only these `jobs`, divided by commas: "+strings.Join(jobNames(), ", "))
	flags.StringVar(&s.systems, "systems", "", "measure only these `systems`, divided by commas: "+strings.Join(systemNames, ", "))
	flags.StringVar(&s.dir, "dir", "", "keep the data under this `directory` while it runs (default: the system's for temporary files)")
	flags.StringVar(&s.profiles, "cpuprofile", "", "write processor profiles of quorumlock's turns to this `directory`")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		return exitUsage
	case flags.NArg() > 0:
		fmt.Fprintf(stderr, "bench: takes no arguments, only flags; got %q\n", flags.Arg(0))
		return exitUsage
	}
	wanted, err1 := chosen(s.systems, systemNames)
	todo, err2 := chosen(s.jobs, jobNames())
	if err := errors.Join(err1, err2); err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return exitUsage
	}
	b := &bench{plan: fullPlan(), systems: wanted, jobs: todo, profiles: s.profiles, progress: stderr}
	if s.short {
		b.plan = shortPlan()
	}
	return b.execute(s, stdout, stderr)
}

func jobNames() (names []string) {
	for _, j := range jobs {
		names = append(names, j.name)
	}
	return names
}

// chosen returns those of all that a flag names, in their own order.
func chosen(flag string, all []string) ([]string, error) {
	if flag == "" {
		return all, nil
	}
	named := strings.Split(flag, ",")
	for _, n := range named {
		if !slices.Contains(all, n) {
			return nil, fmt.Errorf("%q is none of %s", n, strings.Join(all, ", "))
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(n string) bool { return !slices.Contains(named, n) }), nil
}

// execute runs the bench in a directory of its own.
func (b *bench) execute(s settings, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	defer stop()
	dir, err := os.MkdirTemp(s.dir, "quorumlock-bench-")
	if err == nil {
		defer os.RemoveAll(dir)
		dir, err = filepath.Abs(dir)
	}
	if err == nil && s.profiles != "" {
		s.profiles, err = filepath.Abs(s.profiles)
		err = errors.Join(err, os.MkdirAll(s.profiles, 0o755))
	}
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return exitFailed
	}
	b.dir, b.profiles = dir, s.profiles
	kind, disk := fileSystem(dir)
	if !disk {
		fmt.Fprintln(stderr, "bench: the data would be in memory, where fsync costs nothing: name a directory on a disk with -dir")
		return exitFailed
	}
	b.build(ctx, dir)
	began := time.Now()
	b.run(ctx)
	if ctx.Err() != nil {
		fmt.Fprintln(stderr, "\nbench: interrupted; all it started is ended")
		return exitInterrupted
	}
	b.about["machine"] = fmt.Sprintf("%s/%s, %d processors, %s, in %.0f s", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), time.Since(began).Seconds())
	b.about["data"] = kind
	if !s.json {
		b.writeTable(stdout)
		return exitOK
	}
	if err := b.writeJSON(stdout); err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return exitFailed
	}
	return exitOK
}
