package queue

import (
	"time"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/sessions"
)

// A Mode is how a lock is held. The numbers are part of the durable format.
type Mode uint8

const (
	Exclusive Mode = 1 // alone
	Shared    Mode = 2 // beside others in this mode
	Counted   Mode = 3 // beside others in this mode, as long as there are permits
)

// String returns the mode's name in lower case.
func (m Mode) String() string {
	names := [...]string{Exclusive: "exclusive", Shared: "shared", Counted: "counted"}
	if m.Valid() {
		return names[m]
	}
	return "mode?"
}

// Valid reports whether m is a mode that this version knows.
func (m Mode) Valid() bool { return m >= Exclusive && m <= Counted }

// A Claim is one acquisition of one name, from its place in line to the end of its
// hold. Its identity is (Session, Seq), never the session alone: two goroutines of
// one session exclude each other as two processes do. An acquisition of several
// names is a claim on each, which are joined.
type Claim struct {
	Session sessions.ID
	Seq     uint64        // which acquisition of its process, from 1
	Mode    Mode          // as it was asked for, or exclusive downgraded to shared
	Token   fencing.Token // zero while it waits
	At      int64         // Unix milliseconds, for display: waiting since, then holding since

	Permits uint32   // Counted: how many it takes
	Slots   []uint32 // Counted: which ones it has, in order; nil while it waits
	Terms   *Terms   // nil for none
	Value   string   // what its owner publishes with it
	State   State

	line       *Line
	prev, next *Claim
	parts      []*Claim // of an acquisition of several names: all of them, in the order of names
}

// Terms are bounds in time that an acquisition sets itself. Zero stands for none.
type Terms struct {
	MaxHold time.Duration // it is over after this long
	MinHold time.Duration // it is not over before this long, unless its session is lost
	Delay   time.Duration // for this long after it was lost, nobody is granted the name
}

// State is what has become of a hold that has terms.
type State uint8

const (
	Started State = 1 << iota // its holder knows of it: MaxHold runs
	Matured                   // MinHold is over
	Leaving                   // it was released before MinHold was over; nothing ties it to its session
)

// Is reports whether all of s is so.
func (c *Claim) Is(s State) bool { return c.State&s == s }

// Holds reports whether the claim was granted.
func (c *Claim) Holds() bool { return !c.Token.IsZero() }

// Plain reports whether the claim is an exclusive one on one name without terms,
// or value, as nearly all are.
func (c *Claim) Plain() bool {
	return c.Mode == Exclusive && c.Terms == nil && c.Value == "" && c.parts == nil && c.State == 0
}

// Line returns the line that the claim stands in, or nil.
func (c *Claim) Line() *Line { return c.line }

// Join makes one acquisition of claims on several names, given in the order of
// their names. They are granted together or not at all.
func Join(parts []*Claim) {
	for _, c := range parts {
		c.parts = parts
	}
}

// Joint reports whether the claim is one of several, also while the others are not
// known yet.
func (c *Claim) Joint() bool { return c.parts != nil }

// Parts returns all claims of the acquisition: those that were joined with c, or c
// alone.
func (c *Claim) Parts() []*Claim {
	if c.parts == nil {
		return []*Claim{c}
	}
	return c.parts
}

// ready reports whether every claim of the acquisition is next in its line and may
// hold.
func (c *Claim) ready() bool {
	if c.parts == nil {
		return c.line.fits(c)
	}
	for _, p := range c.parts {
		if p.line == nil || p.line.waiters.head != p || !p.line.fits(p) {
			return false
		}
	}
	return true
}

// Leave takes c out of its line, whether it holds or waits. The caller then asks
// Next. It takes the same time wherever in the line c stands. The claims that c is
// joined with stay where they are.
func (c *Claim) Leave() {
	l := c.line
	if l == nil {
		return
	}
	if c.Holds() {
		l.holders.remove(c)
		l.slots.free(c.Slots)
	} else {
		l.waiters.remove(c)
	}
	c.line = nil
}

// Downgrade makes an exclusive holder a shared one that keeps its token. The caller
// then asks Next: those who wait to share are granted.
func (c *Claim) Downgrade() { c.Mode = Shared }

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
