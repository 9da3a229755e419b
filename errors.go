package quorumlock

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/quorumlock/quorumlock/fencing"
)

// Refusals: the cluster answered, and the answer is no.
var (
	// ErrHeld is returned when somebody else holds the lock: at once by
	// TryAcquire, and by Acquire when ctx ended while it stood in line. The
	// error is a *HeldError, which names the holders.
	ErrHeld = errors.New("quorumlock: held by another")
	// ErrQueueFull is returned when the line of a name is as long as it may be
	// (MaxWaiters), or the session stands in as many lines as it may (MaxWaits).
	ErrQueueFull = errors.New("quorumlock: too many wait for this name")
	// ErrNotHeld is returned when a hold that is asked about or released is no
	// longer there, and by Hold.Err after a Release.
	ErrNotHeld = errors.New("quorumlock: not held")
	// ErrMode is returned when a name is in use in another mode than asked for, or
	// as a counted lock with another limit. The error is a *ModeError, which names
	// both.
	ErrMode = errors.New("quorumlock: in use in another mode")
	// ErrNoWaiter is returned by Hold.HandOver when the session does not wait for
	// the lock.
	ErrNoWaiter = errors.New("quorumlock: no such waiter")
	// ErrTooManyJobs is returned by ClaimTick for a new job when MaxJobs are
	// remembered: see ForgetJob.
	ErrTooManyJobs = errors.New("quorumlock: too many jobs")
	// ErrUpgrade is returned when a shared hold is to become an exclusive one. It
	// matches ErrMode.
	ErrUpgrade = fmt.Errorf("%w: a shared hold cannot become exclusive, since two that try would wait for each other: "+
		"release it and acquire", ErrMode)
)

// Losses: something that was had is gone.
var (
	// ErrLost is returned when a hold ended without its holder's doing. The
	// error is a *LostError, whose cause says why.
	ErrLost = errors.New("quorumlock: lock lost")
	// ErrSessionExpired is returned when the session ended: the cluster ended
	// it, or it could not be renewed for so long that it can no longer be
	// trusted.
	ErrSessionExpired = errors.New("quorumlock: session expired")
	// ErrSessionClosed is returned when the session was closed by its owner.
	ErrSessionClosed = errors.New("quorumlock: session closed")
	// ErrRevoked is returned when somebody ended the hold or the session over its
	// holder's head. The error is a *RevokedError, which says who and why.
	ErrRevoked = errors.New("quorumlock: revoked")
	// ErrMaxHold is returned when the lock was held for as long as its MaxHold
	// allows.
	ErrMaxHold = errors.New("quorumlock: held for as long as it may be")
)

// Conditions of the cluster or of this process: the same call may do later.
var (
	// ErrNoQuorum is returned when a majority of the replicas did not answer
	// before ctx ended. Whether the call took effect is then unknown, but
	// nothing of it is left behind: what it may have taken is given back.
	ErrNoQuorum = errors.New("quorumlock: no quorum")
	// ErrBusy is returned at once when more acquires are under way on this node
	// than it queues.
	ErrBusy = errors.New("quorumlock: busy")
	// ErrQuota is returned at once when an acquire would go beyond one of
	// Options.Quotas. The error is a *QuotaError, which says beyond which, and when
	// it may be tried again.
	ErrQuota = errors.New("quorumlock: beyond a quota")
	// ErrTransfer is returned when the replica that was chosen to lead did not
	// lead in time.
	ErrTransfer = errors.New("quorumlock: leadership did not move")
	// ErrReplicaAlive is returned when a replica that is to be replaced as a dead one
	// was heard a moment ago.
	ErrReplicaAlive = errors.New("quorumlock: replica is alive")
	// ErrMajority is returned for a change of the members after which the majority
	// that is then needed could not be reached. Nothing was changed.
	ErrMajority = errors.New("quorumlock: no majority would be left")
	// ErrUnfinished is returned when ctx ended before a change of the members was
	// complete. The same call goes on where it was.
	ErrUnfinished = errors.New("quorumlock: change of members is not complete")
	// ErrClosed is returned when the node was closed.
	ErrClosed = errors.New("quorumlock: closed")
	// ErrRemoved is returned when this replica was removed from the cluster: what its
	// process held is lost, and it can never take part again under its replica id.
	ErrRemoved = errors.New("quorumlock: replica was removed")
)

// Mistakes: the same call will never do.
var (
	// ErrName is returned for a name that is empty, longer than MaxNameLen
	// bytes, or not UTF-8.
	ErrName = errors.New("quorumlock: bad name")
	// ErrNameTwice is returned for several names of which two are the same. It
	// matches ErrName.
	ErrNameTwice = fmt.Errorf("%w: given twice", ErrName)
	// ErrTooManyNames is returned for more than MaxNames names. It matches ErrName.
	ErrTooManyNames = fmt.Errorf("%w: too many names", ErrName)
	// ErrPermits is returned for a number of permits that is not 1 to the limit,
	// and for a limit that is not 1 to MaxPermits.
	ErrPermits = errors.New("quorumlock: bad number of permits")
	// ErrDuration is returned for a time that is negative, too long, or shorter
	// than the election timeout.
	ErrDuration = errors.New("quorumlock: bad duration")
	// ErrReason is returned when something is to be forced without saying who
	// wants it and why.
	ErrReason = errors.New("quorumlock: who wants it, and why?")
	// ErrValue is returned for a value that is not UTF-8 of at most MaxValueLen
	// bytes.
	ErrValue = errors.New("quorumlock: bad value")
	// ErrNotMember is returned for the id of a replica that is not in the cluster,
	// or has no vote where one is needed.
	ErrNotMember = errors.New("quorumlock: no such member")
	// ErrMember is returned for a replica that cannot be added: its id is 0, it is a
	// member at another address, or one that votes where a new one is to take a dead
	// one's place; or its address is none or another member's.
	ErrMember = errors.New("quorumlock: replica cannot be added")
	// ErrUsedReplica is returned for a replica that is to be added under an id that
	// was removed. It matches ErrMember.
	ErrUsedReplica = fmt.Errorf("%w: its id was used before", ErrMember)
	// ErrLastVoter is returned for the removal of the last replica that votes.
	ErrLastVoter = errors.New("quorumlock: last voting replica")
	// ErrOptions is returned by Open for options that cannot work. The error
	// lists every fault, not just the first.
	ErrOptions = errors.New("quorumlock: bad options")
	// ErrNilContext is returned when ctx is nil.
	ErrNilContext = errors.New("quorumlock: nil context")
	// ErrDirectory is returned by Open when Dir belongs to another replica,
	// cluster or host, is in use, or holds damaged data.
	ErrDirectory = errors.New("quorumlock: directory cannot be used")
	// ErrWiped is returned when this replica's directory is new although its
	// peers have seen the replica before. Votes and acknowledged entries are
	// lost with a wiped directory; a replica that forgot them could help to
	// grant one lock twice, so the peers refuse it.
	ErrWiped = errors.New("quorumlock: directory was wiped under a used replica id")
	// ErrMembers is returned when the founders do not agree on Members, when Members differs
	// from those the directory was founded with, and when a founder that starts for the first
	// time finds another replica of the cluster at the address of one: it was founded already.
	ErrMembers = errors.New("quorumlock: members differ")
	// ErrBackup is returned for a backup that was cut short or damaged, or is none, and
	// when one cannot be restored where it is to be.
	ErrBackup = errors.New("quorumlock: backup cannot be used")
	// ErrGroups is returned when Options.Groups is not the number of Raft groups
	// that the cluster was founded with, which can never change, and for a group that
	// there is not.
	ErrGroups = errors.New("quorumlock: number of groups differs")
	// ErrFormat is returned when the log or a snapshot holds something that
	// this version does not know: it was written by a newer one, or is damaged.
	ErrFormat = errors.New("quorumlock: unknown or damaged format")
)

// A HeldError says who holds a lock that could not be had. It matches ErrHeld
// with errors.Is, and the ctx error too when it was ctx that ended the wait.
type HeldError struct {
	Name    string   // the lock; of several, the first that could not be had
	Mode    Mode     // in which it is held; zero if nobody holds it
	Holders []Holder // who holds it, as this replica last saw it
	Limit   int      // of a counted lock: how many permits there are
	Taken   int      // and how many are taken
	Delayed bool     // a LockDelay keeps it from being granted
	Ahead   int      // how many stood in line before us
	ctxErr  error
}

func (e *HeldError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "quorumlock: %q is ", e.Name)
	switch {
	case len(e.Holders) == 0 && e.Delayed:
		b.WriteString("kept free by a lock delay")
	case len(e.Holders) == 0:
		b.WriteString("waited for")
	default:
		b.WriteString("held")
	}
	if e.Mode == Shared {
		b.WriteString(" shared")
	}
	if e.Limit > 0 {
		fmt.Fprintf(&b, ", %d of %d permits,", e.Taken, e.Limit)
	}
	for i, h := range e.Holders {
		if i > 0 {
			b.WriteString(" and")
		}
		fmt.Fprintf(&b, " by %s (session %s, token %s, since %s)", h.Owner, h.Session, h.Token,
			h.AcquiredAt.UTC().Format(time.RFC3339))
	}
	if e.Ahead > 0 {
		fmt.Fprintf(&b, ", %d ahead in line", e.Ahead)
	}
	if e.ctxErr != nil {
		fmt.Fprintf(&b, ": %v", e.ctxErr)
	}
	return b.String()
}

// Unwrap makes errors.Is find ErrHeld and the ctx error.
func (e *HeldError) Unwrap() []error {
	if e.ctxErr != nil {
		return []error{ErrHeld, e.ctxErr}
	}
	return []error{ErrHeld}
}

// A LostError says which hold was lost, when and why. It matches ErrLost with
// errors.Is, and its cause: ErrSessionExpired when the session ended, and ErrNoQuorum
// too when that is since the cluster could not be reached for so long that the hold
// can no longer be trusted; ErrSessionClosed, ErrMaxHold or ErrRevoked; ErrClosed when
// the node was closed, or what else ended it, such as ErrRemoved.
type LostError struct {
	Name  string        // the lock
	Token fencing.Token // of the hold that is gone
	Cause error         // why
	At    time.Time     // when this process learned of it, by its wall clock
}

func (e *LostError) Error() string {
	cause := strings.ReplaceAll(e.Cause.Error(), "quorumlock: ", "") // said once is enough
	return fmt.Sprintf("quorumlock: lost %q (token %s): %s", e.Name, e.Token, cause)
}

// Unwrap makes errors.Is find ErrLost and the cause.
func (e *LostError) Unwrap() []error { return []error{ErrLost, e.Cause} }

// A ModeError says in which mode a name is in use. It matches ErrMode.
type ModeError struct {
	Name       string
	Mode       Mode // in which it is in use
	Limit      int  // of permits, if it is in use as a counted lock
	AskedMode  Mode
	AskedLimit int
}

func (e *ModeError) Error() string {
	kind := func(m Mode, limit int) string {
		if m == Counted {
			return fmt.Sprintf("counted with a limit of %d", limit)
		}
		return m.String()
	}
	return fmt.Sprintf("quorumlock: %q is in use as %s, and was asked for as %s",
		e.Name, kind(e.Mode, e.Limit), kind(e.AskedMode, e.AskedLimit))
}

// Unwrap makes errors.Is find ErrMode.
func (e *ModeError) Unwrap() error { return ErrMode }

// A RevokedError says who ended a hold or a session over its holder's head, and
// why. It matches ErrRevoked.
type RevokedError struct {
	By     string
	Reason string
}

func (e *RevokedError) Error() string {
	return fmt.Sprintf("quorumlock: revoked by %s: %s", e.By, e.Reason)
}

// Unwrap makes errors.Is find ErrRevoked.
func (e *RevokedError) Unwrap() error { return ErrRevoked }

// A QuotaError says which of Options.Quotas an acquire would have gone beyond. It
// matches ErrQuota.
type QuotaError struct {
	Quota Quota
	Bound string // what of it: QuotaRate, QuotaHolds or QuotaWaiters
	Names int    // for how many names of the call the quota is
	// RetryAfter is when the rate allows the call, if nobody else comes before. 0
	// when that is not known: holds and waits end when they end; a call for more names
	// than are allowed at one moment is never allowed.
	RetryAfter time.Duration
}

func (e *QuotaError) Error() string {
	var most int
	var what string
	switch q := &e.Quota; e.Bound {
	case QuotaRate:
		most, what = q.burst(), fmt.Sprintf("%v acquires a second", q.Rate)
	case QuotaHolds:
		most, what = q.Holds, fmt.Sprintf("%d holds", q.Holds)
	case QuotaWaiters:
		most, what = q.Waiters, fmt.Sprintf("%d waiters", q.Waiters)
	}
	text := fmt.Sprintf("%v of %s for %s", ErrQuota, what, e.Quota.covers())
	switch {
	case e.Names > most:
		return fmt.Sprintf("%s: %d names in one call are never allowed, at most %d", text, e.Names, most)
	case e.RetryAfter > 0:
		return fmt.Sprintf("%s: allowed in %v", text, e.RetryAfter)
	}
	return text
}

// Unwrap makes errors.Is find ErrQuota.
func (e *QuotaError) Unwrap() error { return ErrQuota }

// ctxError joins the library's own error with that of the caller's ctx, so that
// errors.Is finds both.
type ctxError struct {
	err    error
	ctxErr error
}

func (e *ctxError) Error() string   { return e.err.Error() + ": " + e.ctxErr.Error() }
func (e *ctxError) Unwrap() []error { return []error{e.err, e.ctxErr} }
