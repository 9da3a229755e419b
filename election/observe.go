package election

import (
	"context"
	"fmt"
	"iter"
	"time"
	"unicode/utf8"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/sessions"
)

// A Leader is who leads. The zero Leader stands for nobody.
type Leader struct {
	Session sessions.ID
	Owner   string // of the session; empty if it was over when we looked
	Replica uint64
	Token   fencing.Token // of the term
	Value   string        // what the leader publishes
}

// None reports whether nobody leads.
func (l Leader) None() bool { return l.Token.IsZero() }

// A Candidate is who stands in line.
type Candidate struct {
	Session sessions.ID
	Owner   string
	Replica uint64
	Value   string    // what it publishes
	Since   time.Time // by the candidate's wall clock; for display
}

// LeaderOf tells who leads, or returns an error matching ErrNoLeader. It asks the
// cluster, and shows the effect of every call that returned before; by the time it is
// read, the answer may be past. Other errors are those of quorumlock.Node.Describe.
func LeaderOf(ctx context.Context, node *quorumlock.Node, name string) (Leader, error) {
	info, err := node.Describe(ctx, name)
	if err != nil {
		return Leader{}, err
	}
	l := leaderIn(info)
	if l.None() {
		return Leader{}, fmt.Errorf("%w: %q", ErrNoLeader, name)
	}
	return l, nil
}

// leaderIn returns who leads by what is known of the lock: whoever holds it alone. One
// that has released it, and is only kept from others by a MinHold, leads no more.
func leaderIn(info quorumlock.LockInfo) Leader {
	for _, h := range info.Holders {
		if h.Mode == quorumlock.Exclusive && !h.Released {
			return Leader{Session: h.Session, Owner: h.Owner, Replica: h.Replica, Token: h.Token, Value: h.Value}
		}
	}
	return Leader{}
}

// Candidates tells who stands in line, in the order in which they will lead: it does
// not include the leader. Errors are those of quorumlock.Node.Describe.
func Candidates(ctx context.Context, node *quorumlock.Node, name string) ([]Candidate, error) {
	info, err := node.Describe(ctx, name)
	if err != nil {
		return nil, err
	}
	var all []Candidate
	for _, w := range info.Waiters {
		if w.Mode == quorumlock.Exclusive {
			all = append(all, Candidate{Session: w.Session, Owner: w.Owner, Replica: w.Replica, Value: w.Value, Since: w.Since})
		}
	}
	return all, nil
}

// Observe yields who leads: at first now, and then at each change, in order, as this
// node's own replica learns of it: another leader, nobody, or another value of the same
// leader. A new leader that follows at once is told after nobody.
//
// A reader that falls far behind, and one whose replica was brought up by a snapshot,
// goes on with who leads then; what was between is left out. It ends, with an error as
// its last pair, when ctx ends or the node closes: errors are those of
// quorumlock.Node.Watch, and ErrName.
func Observe(ctx context.Context, node *quorumlock.Node, name string) iter.Seq2[Leader, error] {
	return func(yield func(Leader, error) bool) {
		if name == "" || len(name) > quorumlock.MaxNameLen || !utf8.ValidString(name) {
			yield(Leader{}, fmt.Errorf("%w: %.64q", quorumlock.ErrName, name))
			return
		}
		o := observer{name: name}
		for e, err := range node.Watch(ctx, name) {
			if err != nil {
				yield(Leader{}, err)
				return
			}
			if o.note(e) && !yield(o.now, nil) {
				return
			}
		}
	}
}

// An observer follows one lock in what Watch tells of all that begin with its name.
type observer struct {
	name   string
	now    Leader
	synced bool
	told   *Leader // what was yielded last
}

// note notes an event, and reports whether there is another leader to tell.
func (o *observer) note(e *quorumlock.Event) (changed bool) {
	switch e.Kind {
	case quorumlock.EventPicture:
		for _, l := range e.Locks {
			if l.Name == o.name {
				o.now = leaderIn(l)
			}
		}
	case quorumlock.EventSynced:
		o.synced = true
	case quorumlock.EventMissed:
		o.now, o.synced = Leader{}, false
	default:
		if e.Name == o.name {
			o.change(e)
		}
	}
	if !o.synced || o.told != nil && *o.told == o.now {
		return false
	}
	told := o.now
	o.told = &told
	return true
}

func (o *observer) change(e *quorumlock.Event) {
	switch e.Kind {
	case quorumlock.EventGranted:
		if e.Mode == quorumlock.Exclusive {
			o.now = Leader{Session: e.Session, Owner: e.Owner, Replica: e.Session.Replica, Token: e.Token, Value: e.Value}
		}
	case quorumlock.EventReleased, quorumlock.EventKept, quorumlock.EventLost, quorumlock.EventDowngraded:
		if e.Token == o.now.Token {
			o.now = Leader{}
		}
	case quorumlock.EventValue:
		if e.Token == o.now.Token {
			o.now.Value = e.Value
		}
	}
}
