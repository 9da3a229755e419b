package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"time"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/dashboard/api"
)

const (
	tokenVar = "QUORUMLOCK_TOKEN"
	nameVar  = "QUORUMLOCK_NAME"
)

const runText = `
While COMMAND runs, nobody else holds NAME. It finds the hold's token in $QUORUMLOCK_TOKEN and
should hand that to each store it writes to. If the lock is lost, or nothing proves any
more that it is not, COMMAND and what it has started (its process group) get SIGTERM, and SIGKILL
after -grace, before anybody else is granted the lock.

The exit status is that of COMMAND, or 128 and the number of the signal that ended it;
75 if others have the lock; 124 if the lock was lost; 125 if COMMAND was not started,
126 if it cannot be, 127 if there is none.
`

// A runner runs one command under a lock.
type runner struct {
	t       *tool
	ask     api.HoldRequest
	wait    time.Duration
	until   time.Duration // by now(): how long to wait in line
	lease   lease
	line    *line
	token   string
	verbose bool
	signals chan os.Signal
	tick    *time.Ticker
}

func lockThread() { runtime.LockOSThread() }

func (t *tool) run() func(context.Context, []string) error {
	t.pages.register(t.flags)
	r := &runner{t: t, signals: make(chan os.Signal, 8)}
	t.flags.DurationVar(&r.wait, "wait", 0, "give up if the lock is not granted in this time; 0 for never")
	t.flags.BoolVar(&r.ask.Try, "try", false, "do not wait in line at all")
	t.flags.DurationVar(&r.lease.length, "lease", 20*time.Second, "after contact is lost, nobody else gets the lock for this `time`,\nand the command is ended in half of it")
	t.flags.DurationVar(&r.lease.grace, "grace", 0, "from SIGTERM to SIGKILL; at most a quarter of the lease (default: that)")
	t.flags.BoolVar(&r.ask.Shared, "shared", false, "share the lock with others who do")
	t.flags.IntVar(&r.ask.Permits, "permits", 0, "of a counted lock: take so `many` (default: 1)")
	t.flags.IntVar(&r.ask.Limit, "limit", 0, "of a counted lock: so `many` there are")
	t.flags.StringVar(&r.ask.By, "owner", "", "`who` others see as the holder (default: user, host and command)")
	t.flags.BoolVar(&r.verbose, "verbose", false, "say on standard error what happens")
	flags := t.flags.Usage
	t.flags.Usage = func() { flags(); fmt.Fprint(t.flags.Output(), runText) }
	return func(ctx context.Context, args []string) error {
		code, err := r.main(ctx, args)
		if code == 0 && err == nil {
			return nil
		}
		return &exit{code, err}
	}
}

// check reads the arguments.
func (r *runner) check(args []string) (command []string, err error) {
	if len(args) > 0 {
		r.ask.Name, args = args[0], args[1:]
	}
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if r.lease.grace == 0 {
		r.lease.grace = r.lease.length / 4
	}
	switch {
	case r.ask.Name == "" || len(args) == 0:
		return nil, fmt.Errorf("%w: say NAME -- COMMAND", errUsage)
	case r.lease.length < time.Second:
		return nil, fmt.Errorf("%w: -lease is %v: at least 1s", errUsage, r.lease.length)
	case r.lease.grace < 0 || r.lease.grace > r.lease.length/4:
		return nil, fmt.Errorf("%w: -grace is %v: at most a quarter of -lease, %v", errUsage, r.lease.grace, r.lease.length/4)
	case r.wait < 0 || r.wait > 0 && r.ask.Try:
		return nil, fmt.Errorf("%w: -wait is for a positive time, and not with -try", errUsage)
	}
	if err := r.checkCount(); err != nil {
		return nil, err
	}
	if r.ask.By == "" {
		r.ask.By = fmt.Sprintf("%s %s (pid %d)", self(), filepath.Base(args[0]), os.Getpid())
	}
	r.ask.Lease = r.lease.length.Milliseconds()
	return args, nil
}

// checkCount reads the flags of counted locks: one permit, if only the limit is given.
func (r *runner) checkCount() error {
	given := make(map[string]bool)
	r.t.flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	if given["limit"] && !given["permits"] {
		r.ask.Permits = 1
	}
	switch permits, limit := r.ask.Permits, r.ask.Limit; {
	case given["permits"] && !given["limit"]:
		return fmt.Errorf("%w: -permits is %d without -limit: how many are there?", errUsage, permits)
	case given["limit"] && r.ask.Shared:
		return fmt.Errorf("%w: -shared with -limit: a lock is shared or counted, not both", errUsage)
	case given["limit"] && (limit < 1 || limit > quorumlock.MaxPermits):
		return fmt.Errorf("%w: -limit is %d: must be 1 to %d", errUsage, limit, quorumlock.MaxPermits)
	case given["permits"] && (permits < 1 || permits > limit):
		return fmt.Errorf("%w: -permits is %d: must be 1 to -limit, %d", errUsage, permits, limit)
	}
	return nil
}

func (r *runner) main(ctx context.Context, args []string) (code int, err error) {
	args, err = r.check(args)
	if err := firstError(err, r.t.pages.open); err != nil {
		return exitTrouble, err
	}
	path, err := exec.LookPath(args[0])
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return exitNotFound, err
	} else if err != nil {
		return exitCannot, err
	}
	for _, s := range passedOn {
		if !signal.Ignored(s) { // nohup and & have it so
			signal.Notify(r.signals, s)
		}
	}
	r.tick = time.NewTicker(max(min(r.lease.length/100, 100*time.Millisecond), 10*time.Millisecond))
	defer r.tick.Stop()
	r.until = math.MaxInt64
	if r.wait > 0 {
		r.until = now() + r.wait
	}
	if err := r.acquire(ctx); err != nil {
		if e := (*exit)(nil); errors.As(err, &e) {
			return e.code, e.err
		}
		return exitTrouble, err
	}
	defer r.line.close()
	r.say("got %q, token %s", r.ask.Name, r.token)
	cmd := exec.Command(path, args[1:]...)
	cmd.Args[0] = args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), tokenVar+"="+r.token, nameVar+"="+r.ask.Name)
	c, err := begin(cmd)
	if err != nil {
		r.release()
		return exitCannot, err
	}
	return r.supervise(c)
}

func (r *runner) say(format string, args ...any) {
	if r.verbose {
		fmt.Fprintf(r.t.err, "quorumlock: "+format+"\n", args...)
	}
}

// acquire asks one page after the other, until one has the lock for us. A page that is
// gone while we stand in its line costs us our place.
func (r *runner) acquire(ctx context.Context) error {
	for {
		joined := false
		err := r.t.pages.first(ctx, func(u *url.URL) error {
			if r.until != math.MaxInt64 {
				r.ask.Wait = max((r.until - now()).Milliseconds(), 1)
			}
			l, err := r.t.pages.dial(ctx, u, r.ask)
			if err != nil {
				return err
			}
			joined = true
			r.say("in line at %s", u.Redacted())
			r.line = l
			r.lease.begin()
			if err = r.queue(); err != nil {
				l.close()
			}
			return err
		})
		if err == nil || !joined || now() >= r.until || errors.As(err, new(refusal)) {
			return err
		}
		r.say("%v: again", err)
		if err := r.pause(time.Second); err != nil {
			return err
		}
	}
}

func (r *runner) pause(d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case s := <-r.signals:
		return &exit{128 + number(s), nil}
	}
}

// queue waits until the lock is ours, and we know until when. A refusal that it returns
// is final.
func (r *runner) queue() error {
	r.line.tell(r.lease.ping())
	for {
		select {
		case a, ok := <-r.line.heard:
			if !ok {
				return r.line.err
			}
			at, known := r.lease.answered(a.Ping)
			switch {
			case a.State == api.HoldHeld && known:
				r.lease.since, r.token = at, a.Token
				if now() < r.lease.term() {
					return nil
				}
			case a.State == api.HoldRefused && a.Held:
				return refusal{&exit{exitNotGot, errors.New(a.Error)}}
			case a.State == api.HoldRefused && !a.Again:
				return refusal{errors.New(a.Error)}
			case a.State == api.HoldRefused, a.State == api.HoldLost:
				return errors.New(a.Error)
			}
		case <-r.tick.C:
			if now() > r.lease.heard+r.lease.length {
				return fmt.Errorf("the page said nothing for %v", r.lease.length)
			}
			if r.lease.due() {
				r.line.tell(r.lease.ping())
			}
		case s := <-r.signals:
			r.release()
			return refusal{&exit{128 + number(s), nil}}
		}
	}
}

// release gives the lock, or our place in line, back, and waits a moment to hear so.
func (r *runner) release() {
	r.line.tell(api.HoldMessage{Release: true})
	patience := time.NewTimer(5 * time.Second)
	defer patience.Stop()
	for {
		select {
		case a, ok := <-r.line.heard:
			switch {
			case !ok || a.State == api.HoldLost:
				r.say("%q was not released, but will be free soon: %v %s", r.ask.Name, r.line.err, a.Error)
				return
			case a.State == api.HoldReleased || a.State == api.HoldRefused:
				return
			}
		case <-patience.C:
			r.say("nothing was heard of the release of %q: it will be free within %v", r.ask.Name, r.lease.length)
			return
		}
	}
}
