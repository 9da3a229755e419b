package quorumlock

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/queue"
)

// An AcquireOption changes one thing about an acquire.
type AcquireOption func(*terms)

// terms are what an acquire asks for beside its name.
type terms struct {
	maxWaiters uint32
	mode       Mode
	permits    int
	limit      int // of permits
	maxHold    time.Duration
	minHold    time.Duration
	delay      time.Duration
	value      string
}

func termsOf(opts []AcquireOption) terms {
	t := terms{maxWaiters: math.MaxUint32, mode: Exclusive}
	if len(opts) > 0 {
		return t.with(opts) // apart, since it puts them on the heap
	}
	return t
}

func (t terms) with(opts []AcquireOption) terms {
	for _, opt := range opts {
		opt(&t)
	}
	return t
}

// plain reports whether nothing is asked for that a plain acquire cannot say.
func (t *terms) plain() bool {
	return t.mode == Exclusive && t.permits == 0 && t.limit == 0 && t.maxHold == 0 && t.minHold == 0 && t.delay == 0 && t.value == ""
}

// be sets the mode. Two different ones make none, which check refuses.
func (t *terms) be(m Mode) {
	if t.mode != Exclusive && t.mode != m {
		m = 0
	}
	t.mode = m
}

// MaxWaiters makes Acquire return ErrQueueFull at once when that many stand in line
// already. 0 means not to wait behind anybody who waits. Negative counts as 0.
// Default: about a million.
func MaxWaiters(waiters int) AcquireOption {
	return func(t *terms) { t.maxWaiters = uint32(min(max(waiters, 0), math.MaxUint32)) }
}

// Share takes the lock in shared mode: beside others that share it, but not beside
// an exclusive holder. It stands in line behind whoever came before, so a reader
// does not overtake a waiting writer. Holders that overlap have the same token.
func Share() AcquireOption {
	return func(t *terms) { t.be(Shared) }
}

// Permits takes so many of the permits of a counted lock, which has limit of them
// in all: at most MaxPermits. Each permit is a slot, numbered from 0, and the
// lowest free ones are taken; see Hold.Slots. Who comes first to a name that is
// free sets its limit, which stays while anybody holds or waits: another limit is
// refused with ErrMode. See Node.Resize for a way to change it.
func Permits(permits, limit int) AcquireOption {
	return func(t *terms) {
		t.be(Counted)
		t.permits, t.limit = permits, limit
	}
}

// MaxHold bounds how long the lock is held: the cluster frees it after d although
// its session lives. The holder stops before: the hold is lost for it, with
// ErrMaxHold, after seven eighths of d, counted by its own clock from the moment
// the grant reached it, however long it had waited. Release then still gives the
// lock to the next in line before d is over.
func MaxHold(d time.Duration) AcquireOption { return func(t *terms) { t.maxHold = d } }

// MinHold makes a release take effect no sooner than d after the grant: nobody else
// is granted the lock before. It is for jobs that are shorter than the difference
// of their callers' clocks. Release returns at once all the same, and so does the
// end of the session by Close; a lost session frees the lock without delay.
func MinHold(d time.Duration) AcquireOption { return func(t *terms) { t.minHold = d } }

// LockDelay keeps the lock from being granted for d after this hold was lost: its
// session expired or was forced to end, its process was restarted, or it was held
// for longer than MaxHold. It is for stores that cannot check tokens. After Release
// or Close there is no delay, but for Remote sessions after Close. The idea is that of Chubby (Burrows, OSDI 2006).
func LockDelay(d time.Duration) AcquireOption { return func(t *terms) { t.delay = d } }

// Value publishes a text with the hold, and with the wait for it: others see it in
// Describe and Watch. At most MaxValueLen bytes of UTF-8. See Hold.SetValue.
func Value(value string) AcquireOption { return func(t *terms) { t.value = value } }

// check returns what is wrong with the terms.
func (t *terms) check(electionTimeout time.Duration) error {
	if t.plain() {
		return nil
	}
	if !wire.ValidText(t.value, MaxValueLen) {
		return fmt.Errorf("%w: %.32q...: must be UTF-8 of at most %d bytes", ErrValue, t.value, MaxValueLen)
	}
	if !t.mode.Valid() {
		return fmt.Errorf("%w: Share and Permits: it cannot be both", ErrMode)
	}
	if t.mode == Counted && (t.limit < 1 || t.limit > MaxPermits) {
		return fmt.Errorf("%w: a limit of %d: must be 1 to %d", ErrPermits, t.limit, MaxPermits)
	}
	if t.mode == Counted && (t.permits < 1 || t.permits > t.limit) {
		return fmt.Errorf("%w: %d permits of %d: must be 1 to the limit", ErrPermits, t.permits, t.limit)
	}
	for _, x := range []struct {
		what string
		d    time.Duration
	}{{"MaxHold", t.maxHold}, {"MinHold", t.minHold}, {"LockDelay", t.delay}} {
		switch {
		case x.d < 0 || x.d > wire.MaxTerm:
			return fmt.Errorf("%w: %s of %v: must be 0 to %v", ErrDuration, x.what, x.d, wire.MaxTerm)
		case x.d > 0 && x.d < electionTimeout:
			return fmt.Errorf("%w: %s of %v is shorter than the election timeout, %v", ErrDuration, x.what, x.d, electionTimeout)
		}
	}
	if t.maxHold > 0 && t.minHold > trusted(t.maxHold) {
		return fmt.Errorf("%w: MinHold of %v is longer than seven eighths of MaxHold, %v", ErrDuration, t.minHold, t.maxHold)
	}
	return nil
}

// trusted is how long the holder of a lock relies on a MaxHold. It leaves room for
// a clock of the leader that runs by an eighth faster than its own.
func trusted(maxHold time.Duration) time.Duration { return maxHold / 8 * 7 }

// checkNames returns what is wrong with the names of one acquisition, and them in
// the order in which the log wants them.
func checkNames(names []string) ([]string, error) {
	switch {
	case len(names) == 0:
		return nil, fmt.Errorf("%w: no name given", ErrName)
	case len(names) > MaxNames:
		return nil, fmt.Errorf("%w: %d, and at most %d are allowed", ErrTooManyNames, len(names), MaxNames)
	}
	var errs []error
	for _, name := range names {
		errs = append(errs, checkName(name))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	sorted := slices.Sorted(slices.Values(names))
	for i, name := range sorted[1:] {
		if sorted[i] == name {
			return nil, fmt.Errorf("%w: %q", ErrNameTwice, name)
		}
	}
	return sorted, nil
}

// command is how an acquisition is asked for.
func (h *Hold) command() wire.Command {
	c := wire.Command{Op: wire.Acquire, Session: h.part.id.Seq, Hold: h.seq,
		Name: h.name, Mode: uint8(queue.Exclusive), Wait: h.wait, Limit: uint64(h.limit)}
	m := h.more.Load()
	if m == nil || !m.asked {
		return c
	}
	c.Op, c.Name, c.Mode = wire.Take, "", uint8(m.mode)
	c.More = &wire.More{
		Names: m.names, Permits: uint64(m.permits), Of: uint64(m.limit), MaxWaits: h.part.maxWaits,
		MaxHold: milliseconds(m.maxHold), MinHold: milliseconds(m.minHold), Delay: milliseconds(m.delay), Value: m.value,
	}
	return c
}

// milliseconds rounds up: no time is cut short.
func milliseconds(d time.Duration) uint64 {
	return uint64((d + time.Millisecond - 1) / time.Millisecond)
}

// size is about how many bytes command takes in an entry.
func (h *Hold) size() int {
	size := len(h.name) + 32
	if m := h.more.Load(); m != nil {
		size += 64 + len(m.value)
		for _, name := range m.names {
			size += len(name) + 4
		}
	}
	return size
}
