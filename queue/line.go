// Package queue is one lock's line: who holds it, who waits, who is next.
//
// It is pure: no clock, no goroutine, no I/O. What may hold beside what is
// decided here and nowhere else; who lives and which token a grant gets is
// decided by its caller.
package queue

import (
	"iter"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/sessions"
)

// A Mode is how a lock is held. The numbers are part of the durable format.
type Mode uint8

const (
	Exclusive Mode = 1 // alone
)

// String returns the mode's name in lower case.
func (m Mode) String() string {
	if m == Exclusive {
		return "exclusive"
	}
	return "mode?"
}

// Valid reports whether m is a mode that this version knows.
func (m Mode) Valid() bool { return m == Exclusive }

// A Claim is one acquisition, from its place in line to the end of its hold. Its
// identity is (Session, Seq), never the session alone: two goroutines of one
// session exclude each other as two processes do.
type Claim struct {
	Session sessions.ID
	Seq     uint64        // which acquisition of its process, from 1
	Mode    Mode          // as it was asked for
	Token   fencing.Token // zero while it waits
	At      int64         // Unix milliseconds, for display: waiting since, then holding since

	line       *Line
	prev, next *Claim
}

// Holds reports whether the claim was granted.
func (c *Claim) Holds() bool { return !c.Token.IsZero() }

// Line returns the line that the claim stands in, or nil.
func (c *Claim) Line() *Line { return c.line }

// A Line is who holds and who waits for one name, in strict arrival order. The
// zero Line is free. A claim is in at most one line.
type Line struct {
	Name string

	holders list
	waiters list
}

// Free reports whether a newcomer in this mode may hold at once: nobody is in its
// way, and nobody has waited longer.
func (l *Line) Free(m Mode) bool {
	return l.waiters.n == 0 && l.compatible(m)
}

// compatible reports whether mode m may hold beside the present holders. There is
// only one mode so far, and it is held alone.
func (l *Line) compatible(Mode) bool { return l.holders.n == 0 }

// Hold makes c a holder with this token. The caller has asked Free or Next.
func (l *Line) Hold(c *Claim, t fencing.Token) {
	if c.line != nil {
		c.line.waiters.remove(c)
	}
	c.Token = t
	c.line = l
	l.holders.push(c)
}

// Wait puts c at the end of the line.
func (l *Line) Wait(c *Claim) {
	c.line = l
	l.waiters.push(c)
}

// Next returns the claim that has waited longest if it may hold now, or nil. The
// caller grants it with Hold and asks again.
func (l *Line) Next() *Claim {
	if c := l.waiters.head; c != nil && l.compatible(c.Mode) {
		return c
	}
	return nil
}

// Leave takes c out of its line, whether it holds or waits. The caller then asks
// Next. It takes the same time wherever in the line c stands.
func (c *Claim) Leave() {
	l := c.line
	if l == nil {
		return
	}
	if c.Holds() {
		l.holders.remove(c)
	} else {
		l.waiters.remove(c)
	}
	c.line = nil
}

// Empty reports whether nobody holds and nobody waits: the line can be forgotten.
func (l *Line) Empty() bool { return l.holders.n == 0 && l.waiters.n == 0 }

// Holders yields the holders in the order in which they were granted.
func (l *Line) Holders() iter.Seq[*Claim] { return l.holders.all }

// Waiters yields the waiters, the next one first.
func (l *Line) Waiters() iter.Seq[*Claim] { return l.waiters.all }

// Holding returns how many hold.
func (l *Line) Holding() int { return l.holders.n }

// Waiting returns how many wait.
func (l *Line) Waiting() int { return l.waiters.n }

// Ahead returns how many stand before c in its line, 0 if it holds or is next.
// It counts from the head, so it is for telling a person and not for deciding.
func (c *Claim) Ahead() int {
	n := 0
	if c.line == nil || c.Holds() {
		return 0
	}
	for w := c.line.waiters.head; w != nil && w != c; w = w.next {
		n++
	}
	return n
}

// A list is doubly linked through its claims, so that leaving from the middle
// costs nothing and a holder with no waiters costs no node.
type list struct {
	head, tail *Claim
	n          int
}

func (l *list) push(c *Claim) {
	c.prev, c.next = l.tail, nil
	if l.tail != nil {
		l.tail.next = c
	} else {
		l.head = c
	}
	l.tail = c
	l.n++
}

func (l *list) remove(c *Claim) {
	if c.prev != nil {
		c.prev.next = c.next
	} else {
		l.head = c.next
	}
	if c.next != nil {
		c.next.prev = c.prev
	} else {
		l.tail = c.prev
	}
	c.prev, c.next = nil, nil
	l.n--
}

func (l *list) all(yield func(*Claim) bool) {
	for c := l.head; c != nil; {
		next := c.next // c may leave while it is looked at
		if !yield(c) {
			return
		}
		c = next
	}
}
