package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/quorumlock/quorumlock/dashboard/api"
)

// A watch is what supervise knows of a command that is to end.
type watch struct {
	why  error         // the lock is lost, or may be
	term bool          // it was told to end
	kill time.Duration // when it is to be gone
}

// supervise waits for the command, and ends it if the lock is lost: told by the page, cut
// off from it, or without an answer for so long that nothing proves any more that it is
// ours. Then the command is gone before anybody else can be granted the lock.
func (r *runner) supervise(c *child) (code int, err error) {
	var w watch
	heard := r.line.heard
	for {
		select {
		case a, ok := <-heard:
			switch {
			case !ok:
				heard, w.why = nil, r.line.err
			case a.State == api.HoldLost:
				heard, w.why = nil, errors.New(a.Error)
			case a.State == api.HoldHeld:
				if at, known := r.lease.answered(a.Ping); known {
					r.lease.since = max(at, r.lease.since)
				}
			}
		case <-r.tick.C:
			if w.why == nil && r.lease.due() {
				r.line.tell(r.lease.ping())
			}
		case s := <-r.signals:
			r.say("passing on %v", s)
			c.signal(s)
		case <-c.done:
			c.finish()
			if w.term {
				c.kill() // what it has left behind in its group
				return exitLost, fmt.Errorf("the lock %q was lost, and the command ended: %w", r.ask.Name, w.why)
			}
			r.release()
			return c.code(), nil
		}
		r.enforce(&w, c)
	}
}

// enforce ends the command when it is time to.
func (r *runner) enforce(w *watch, c *child) {
	at := now() // which goes on while the machine is suspended, as no timer does
	if w.why == nil && at >= r.lease.term() {
		w.why = fmt.Errorf("no answer in the last %v", (at - r.lease.since).Round(time.Millisecond))
	}
	switch {
	case w.why == nil:
	case !w.term:
		w.term, w.kill = true, min(at+r.lease.grace, r.lease.kill())
		r.say("the lock %q is lost: %v", r.ask.Name, w.why)
		if at < w.kill {
			c.terminate()
			break
		}
		fallthrough // it was suspended for long
	case at >= w.kill:
		c.kill()
	}
}
