package quorumlock

import (
	"fmt"
	"strings"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/queue"
	"github.com/quorumlock/quorumlock/sessions"
)

// An effect is something that an entry did, as data: the state machine decides it,
// the node performs it. Every replica sees every effect, in log order, and acts on
// those that concern its own process.
type effect struct {
	kind    effectKind
	session sessions.ID
	hold    uint64        // which acquisition
	name    string        // which lock
	token   fencing.Token // granted
	n       uint64        // renewed, batch: its number; refused: 1 if it stood in line
	cause   cause         // refused, ended, batch, lost, left, answered
	mode    queue.Mode    // granted, published
	plain   bool          // granted: there is no more to say of the claim
	what    timeKind      // timed, untimed
	note    string        // who wanted it and why: lost, ended, asked
}

type effectKind uint8

const (
	renewed    effectKind = iota + 1 // a process's renewal n was applied
	batch                            // a process's batch n was judged; cause says how if not fresh
	booted                           // a process's life began, or, with a cause, was over already
	opened                           // a session was opened
	ended                            // a session ended, and with it all it held
	granted                          // a claim holds the lock
	queued                           // a claim stands in line
	refused                          // a claim cannot be had; nothing is left of it
	released                         // a hold ended at its holder's wish
	gone                             // a hold or wait was to be ended and was not there
	left                             // a wait ended at the waiter's wish
	lost                             // a hold ended without its holder's doing
	lingers                          // a hold was released too soon and is kept
	downgraded                       // an exclusive hold is a shared one now
	resized                          // a counted lock has n permits now
	asked                            // a holder is asked to give the lock up
	timed                            // a time of n milliseconds runs
	untimed                          // it runs no more
	published                        // a hold has another value
	ticked                           // tick n of a job was claimed
	forgotten                        // a job was forgotten
	answered                         // the outcome of a call
	restored                         // n parts of a backup are there
	raised                           // the feature level is n now
	halted                           // this replica met what it does not know, and stopped
)

// A cause says why.
type cause uint8

const (
	causeHeld      cause = iota + 1 // somebody holds the lock
	causeQueueFull                  // too many wait
	causeSession                    // no such session
	causeMode                       // the mode is unknown
	causeRepeated                   // the acquisition number is in use
	causeClosed                     // its owner closed it
	causeExpired                    // it was not renewed
	causeRestarted                  // its process began a new life
	causeDuplicate                  // the batch was applied before
	causeGap                        // an earlier batch is missing
	causeStranger                   // the process's life is over
	causeLimit                      // the lock has another number of permits
	causePermits                    // there are not so many permits
	causeGone                       // what was to be changed is not there
	causeRevoked                    // somebody ended it over its holder's head
	causeMaxHold                    // it was held for as long as it may be
	causeClaimed                    // the tick or a later one was claimed
	causeJobs                       // there are too many jobs
	causeNoWaiter                   // the session does not wait for it
	causeRestored                   // the part of a backup is there, or another backup is
)

// err returns the public error of a refusal or an end.
func (c cause) err() error {
	switch c {
	case causeHeld:
		return ErrHeld
	case causeQueueFull:
		return ErrQueueFull
	case causeMode:
		return ErrMode
	case causeLimit:
		return ErrMode
	case causePermits:
		return ErrPermits
	case causeGone:
		return ErrNotHeld
	case causeMaxHold:
		return ErrMaxHold
	case causeJobs:
		return ErrTooManyJobs
	case causeNoWaiter:
		return ErrNoWaiter
	case causeRevoked:
		return ErrRevoked
	case causeClosed:
		return ErrSessionClosed
	default:
		return ErrSessionExpired
	}
}

// err returns the public error of a loss or an end.
func (e *effect) err() error {
	if by, reason, ok := strings.Cut(e.note, "\x00"); ok {
		return &RevokedError{By: by, Reason: reason}
	}
	return e.cause.err()
}

func (k effectKind) String() string {
	names := [...]string{renewed: "renewed", batch: "batch", booted: "booted", opened: "opened",
		ended: "ended", granted: "granted", queued: "queued", refused: "refused",
		released: "released", gone: "gone", left: "left", lost: "lost", lingers: "lingers",
		downgraded: "downgraded", resized: "resized", asked: "asked", timed: "timed", untimed: "untimed",
		published: "published", ticked: "ticked", forgotten: "forgotten", answered: "answered", restored: "restored", raised: "raised", halted: "halted"}
	return names[k]
}

func (c cause) String() string {
	names := [...]string{0: "", causeHeld: "held", causeQueueFull: "queue full", causeSession: "no session",
		causeMode: "mode", causeRepeated: "repeated", causeClosed: "closed", causeExpired: "expired", causeRestarted: "restarted",
		causeDuplicate: "duplicate", causeGap: "gap", causeStranger: "stranger", causeLimit: "limit",
		causePermits: "permits", causeGone: "gone", causeRevoked: "revoked", causeMaxHold: "max hold",
		causeClaimed: "claimed", causeJobs: "too many jobs", causeNoWaiter: "no waiter", causeRestored: "restored"}
	return names[c]
}

// String is for test scripts and log lines.
func (e effect) String() string {
	s := e.kind.String()
	switch e.kind {
	case renewed, batch:
		s = fmt.Sprintf("%s %d.%d #%d", s, e.session.Replica, e.session.Epoch, e.n)
	case booted:
		s = fmt.Sprintf("%s %d.%d", s, e.session.Replica, e.session.Epoch)
	case opened, ended:
		s = fmt.Sprintf("%s %s", s, e.session)
	case granted, queued, refused:
		s = fmt.Sprintf("%s %q to %s/%d", s, e.name, e.session, e.hold)
	case released, left, lost, lingers, downgraded, asked, published:
		s = fmt.Sprintf("%s %q by %s/%d", s, e.name, e.session, e.hold)
	case gone:
		s = fmt.Sprintf("%s %s/%d", s, e.session, e.hold)
	case resized:
		s = fmt.Sprintf("%s %q to %d", s, e.name, e.n)
	case ticked:
		s = fmt.Sprintf("%s %q tick %d by %d.%d", s, e.name, int64(e.n), e.session.Replica, e.session.Epoch)
	case restored:
		s = fmt.Sprintf("%s %d parts", s, e.n)
	case raised:
		s = fmt.Sprintf("%s to level %d", s, e.n)
	case forgotten:
		s = fmt.Sprintf("%s %q", s, e.name)
	case timed:
		s = fmt.Sprintf("%s %s of %s/%d for %dms", s, e.what, e.session, e.hold, e.n)
	case untimed:
		s = fmt.Sprintf("%s %s of %s/%d", s, e.what, e.session, e.hold)
	case answered:
		s = fmt.Sprintf("%s call %d of %d.%d", s, e.hold, e.session.Replica, e.session.Epoch)
	}
	if !e.token.IsZero() {
		s += " token " + e.token.String()
	}
	if e.cause != 0 {
		s += ": " + e.cause.String()
	}
	if by, reason, ok := strings.Cut(e.note, "\x00"); ok {
		s += fmt.Sprintf(" (%s: %s)", by, reason)
	}
	return s
}
