// Command quorumlock is an operator's tool. It looks at a cluster through the pages of
// package dashboard, and at the directory of a replica that is stopped; and it runs a
// command under a lock. docs/CLI.md is its manual.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
)

// How it exits. What runs under a lock has the codes for itself but for the last five,
// which are those of timeout(1) and sysexits.h.
const (
	exitFailed   = 1
	exitUsage    = 2
	exitNotGot   = 75  // run: others have the lock
	exitLost     = 124 // run: the lock was lost, and the command ended
	exitTrouble  = 125 // run: no command was started
	exitCannot   = 126 // run: the command cannot be started
	exitNotFound = 127 // run: there is no such command
)

// An exit is an error with a code of its own.
type exit struct {
	code int
	err  error // nil if there is nothing to say
}

func (e *exit) Error() string { return fmt.Sprint(e.err) }

var errUsage = errors.New("bad arguments")

// A tool is one run of this program.
type tool struct {
	out, err io.Writer
	flags    *flag.FlagSet
	json     bool
	pages    pages
}

// A command is the first argument.
type command struct {
	name, args, does string
	prepare          func(*tool) func(context.Context, []string) error // registers its flags
}

var commands = []command{
	{"status", "", "how each replica that -url names sees the cluster", (*tool).status},
	{"members", "[add|remove|replace|lead ...]", "the replicas of the cluster, or a change of them", (*tool).members},
	{"locks", "[PREFIX]", "the locks in use, by name", (*tool).locks},
	{"lock", "NAME", "who holds a lock, and its line", (*tool).lock},
	{"sessions", "[OWNER]", "who is alive; those with OWNER in their owner", (*tool).sessions},
	{"watch", "[PREFIX]", "changes as they happen", (*tool).watch},
	{"inspect", "DIR", "what lies in the directory of a stopped replica", (*tool).inspect},
	{"backup", "FILE", "write a backup, from a page or of a stopped replica", (*tool).backup},
	{"restore", "FILE", "verify a backup, and say how a new cluster begins with it", (*tool).restore},
	{"run", "NAME -- COMMAND [ARG]...", "run a command while holding a lock", (*tool).run},
}

func main() {
	// The first thread lives as long as the process: see tie.
	lockThread()
	ctx, stop := context.Background(), func() {}
	if len(os.Args) > 1 && os.Args[1] != "run" { // which passes signals on
		// Neither leaves anything half done behind, such as a part of a backup.
		ctx, stop = signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	}
	code := start(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func start(ctx context.Context, args []string, out, errs io.Writer) int {
	if len(args) == 0 {
		usage(errs)
		return exitUsage
	}
	if args[0] == "help" || args[0] == "-h" || args[0] == "--help" || args[0] == "-help" {
		if len(args) == 1 {
			usage(out)
			return 0
		}
		args = []string{args[1], "-h"}
	}
	at := slices.IndexFunc(commands, func(c command) bool { return c.name == args[0] })
	if at < 0 {
		fmt.Fprintf(errs, "quorumlock: there is no command %q; quorumlock help shows them\n", args[0])
		return exitUsage
	}
	return perform(ctx, commands[at], args[1:], out, errs)
}

func perform(ctx context.Context, c command, args []string, out, errs io.Writer) int {
	t := &tool{out: out, err: errs, flags: flag.NewFlagSet(c.name, flag.ContinueOnError)}
	t.flags.SetOutput(errs)
	t.flags.Usage = func() {
		fmt.Fprintf(t.flags.Output(), "quorumlock %s [flags] %s\n    %s\n\n", c.name, c.args, c.does)
		t.flags.PrintDefaults()
	}
	do := c.prepare(t)
	if len(args) > 0 && slices.Contains([]string{"-h", "-help", "--help"}, args[0]) {
		t.flags.SetOutput(out)
	}
	args, err := t.parse(args, c.name != "run") // whose command has flags of its own
	if err == nil {
		err = do(ctx, args)
	}
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return 0
	}
	code := exitFailed
	if e := (*exit)(nil); errors.As(err, &e) {
		code, err = e.code, e.err
	}
	switch {
	case errors.Is(err, errUsage):
		if code == exitFailed {
			code = exitUsage
		}
		fmt.Fprintf(errs, "quorumlock %s: %v; see quorumlock help %[1]s\n", c.name, err)
	case err != nil:
		fmt.Fprintf(errs, "quorumlock: %s\n", strings.TrimPrefix(err.Error(), "quorumlock: "))
	}
	return code
}

// parse reads the flags, which stand before the other arguments or, where they may,
// anywhere before a "--", and returns the others.
func (t *tool) parse(args []string, anywhere bool) (others []string, err error) {
	for {
		switch err := t.flags.Parse(args); {
		case errors.Is(err, flag.ErrHelp):
			return nil, err
		case err != nil:
			return nil, &exit{exitUsage, nil} // it was told
		}
		left := t.flags.Args()
		flags := args[:len(args)-len(left)]
		if !anywhere || len(left) == 0 || len(flags) > 0 && flags[len(flags)-1] == "--" {
			return append(others, left...), nil
		}
		others, args = append(others, left[0]), left[1:]
	}
}

func usage(w io.Writer) {
	fmt.Fprint(w, "quorumlock looks at a cluster of locks, and runs commands under them.\n\n")
	for _, c := range commands {
		fmt.Fprintf(w, "  %-36s %s\n", strings.TrimSpace(c.name+" "+c.args), c.does)
	}
	fmt.Fprint(w, `
quorumlock help COMMAND shows its flags. Where the pages are is said by -url, or by the
environment: QUORUMLOCK_URL=http://10.0.0.1:8080/quorumlock/,http://10.0.0.2:8080/quorumlock/
`)
}

// none refuses arguments, one takes at most one, and need takes one.
func none(args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%w: what is %q for?", errUsage, args[0])
	}
	return nil
}

func one(args []string) (string, error) {
	if len(args) == 0 {
		return "", nil
	}
	return args[0], none(args[1:])
}

func need(args []string, what string) (string, error) {
	if len(args) == 0 || args[0] == "" {
		return "", fmt.Errorf("%w: %s", errUsage, what)
	}
	return one(args)
}
