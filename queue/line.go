// Package queue is one lock's line: who holds it, who waits, who is next.
//
// It is pure: no clock, no goroutine, no I/O. What may hold beside what is
// decided here and nowhere else; who lives and which token a grant gets is
// decided by its caller.
package queue

import (
	"iter"
	"slices"
	"time"

	"github.com/quorumlock/quorumlock/fencing"
)

// A Line is who holds and who waits for one name, in strict arrival order. The
// zero Line is free. A claim is in at most one line.
type Line struct {
	Name string

	limit   uint32 // of permits, while the lock is a counted one
	holders list
	waiters list
	slots   slots
	bars    []Bar
}

// A Bar keeps a free lock from being granted: it was lost, and whoever lost it may
// not know yet.
type Bar struct {
	ID  uint64
	For time.Duration
}

// Limit returns how many permits there are, 0 if the lock is not a counted one.
func (l *Line) Limit() uint32 { return l.limit }

// SetLimit makes the lock a counted one with so many permits, or changes how many
// there are. Those who have permits keep them. The caller then asks Next.
func (l *Line) SetLimit(permits uint32) { l.limit = permits }

// InUse reports whether anybody holds or waits. While nobody does, the lock is of
// no mode: whoever comes decides.
func (l *Line) InUse() bool { return l.holders.n > 0 || l.waiters.n > 0 }

// Taken returns how many permits are taken.
func (l *Line) Taken() uint32 { return l.slots.taken }

// Free reports whether a newcomer may hold at once: nobody is in its way, and
// nobody has waited longer.
func (l *Line) Free(c *Claim) bool {
	return l.waiters.n == 0 && l.fits(c)
}

// fits reports whether c may hold beside the present holders.
func (l *Line) fits(c *Claim) bool {
	switch {
	case len(l.bars) > 0:
		return false
	case c.Mode == Counted:
		return l.slots.taken+c.Permits <= l.limit
	case c.Mode == Shared:
		return l.holders.n == 0 || l.holders.head.Mode == Shared
	}
	return l.holders.n == 0
}

// Generation returns the token that a new holder in this mode shares with those
// who hold already, or zero if it is to have one of its own. Readers that overlap
// are one generation.
func (l *Line) Generation(m Mode) fencing.Token {
	if m == Shared && l.holders.n > 0 {
		return l.holders.head.Token
	}
	return 0
}

// Hold makes c a holder with this token, and gives it its slots. The caller has
// asked Free or Next.
func (l *Line) Hold(c *Claim, t fencing.Token) {
	if c.Mode == Counted {
		c.Slots = l.slots.take(c.Permits)
	}
	l.place(c, t)
}

func (l *Line) place(c *Claim, t fencing.Token) {
	if c.line != nil {
		c.line.waiters.remove(c)
	}
	c.Token = t
	c.line = l
	l.holders.push(c)
}

// Restore makes c a holder as it was before, and reports whether it can be: it may
// hold beside those who do, and the slots that it has are free.
func (l *Line) Restore(c *Claim) bool {
	ok := l.holders.n == 0 || c.Mode != Exclusive && c.Mode == l.holders.head.Mode
	if c.Mode == Counted {
		ok = ok && l.limit > 0 && len(c.Slots) == int(c.Permits)
	} else {
		ok = ok && l.limit == 0 && len(c.Slots) == 0
	}
	ok = ok && slices.IsSorted(c.Slots) && l.slots.mark(c.Slots)
	l.place(c, c.Token)
	return ok
}

// Wait puts c at the end of the line.
func (l *Line) Wait(c *Claim) {
	c.line = l
	l.waiters.push(c)
}

// Prefer puts a waiter before all others.
func (l *Line) Prefer(c *Claim) {
	l.waiters.remove(c)
	l.waiters.pushFront(c)
}

// Next returns the claim that has waited longest if it may hold now, and so may all
// that are joined with it, or nil. The caller grants them with Hold and asks again.
func (l *Line) Next() *Claim {
	if c := l.waiters.head; c != nil && c.ready() {
		return c
	}
	return nil
}

// Bar keeps the lock from being granted until it is lifted.
func (l *Line) Bar(b Bar) { l.bars = append(l.bars, b) }

// Lift takes a bar away. The caller then asks Next.
func (l *Line) Lift(id uint64) {
	l.bars = slices.DeleteFunc(l.bars, func(b Bar) bool { return b.ID == id })
}

// Bars returns what keeps the lock from being granted, the oldest first.
func (l *Line) Bars() []Bar { return l.bars }

// Empty reports whether nobody holds, nobody waits and nothing bars the lock: the
// line can be forgotten.
func (l *Line) Empty() bool { return !l.InUse() && len(l.bars) == 0 }

// Holders yields the holders in the order in which they were granted.
func (l *Line) Holders() iter.Seq[*Claim] { return l.holders.all }

// Waiters yields the waiters, the next one first.
func (l *Line) Waiters() iter.Seq[*Claim] { return l.waiters.all }

// Holding returns how many hold.
func (l *Line) Holding() int { return l.holders.n }

// Waiting returns how many wait.
func (l *Line) Waiting() int { return l.waiters.n }

// Alone returns the claim that holds the lock with nobody beside or behind it and
// nothing else to say about the lock, or nil.
func (l *Line) Alone() *Claim {
	if c := l.holders.head; l.holders.n == 1 && l.waiters.n == 0 && len(l.bars) == 0 && c.Plain() {
		return c
	}
	return nil
}
