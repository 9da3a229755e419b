package quorumlock

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/queue"
	"github.com/quorumlock/quorumlock/sessions"
)

// restoreFSM reads a snapshot. Its errors match ErrFormat when it was the snapshot
// that was at fault.
func restoreFSM(r io.Reader, stop <-chan struct{}) (*lockFSM, error) {
	src, head, err := wire.ReadSnapshot(r)
	if err != nil {
		return nil, unreadable(err)
	}
	f := newLockFSM()
	f.level, f.token, f.origin = head.Level, head.Token, head.Origin
	f.roll = head.Roll
	for i := range head.Jobs {
		f.jobs[head.Jobs[i].Name] = &head.Jobs[i]
	}
	for p := range f.roll.Processes() {
		for s := range p.Sessions() {
			f.table.enroll(s.ID)
		}
	}
	f.table.init()
	numbers := make(map[sessions.ID][]uint64)
	for i := 0; ; i++ {
		if i%1024 == 0 && isClosed(stop) {
			return nil, errStopped
		}
		l, err := src.Line()
		if err == io.EOF {
			if err = errors.Join(f.checkNumbers(numbers), f.checkLines()); err == nil {
				f.resume()
				return f, nil
			}
		} else if err == nil {
			err = f.adopt(l, numbers)
		}
		if err != nil {
			return nil, unreadable(err)
		}
	}
}

// checkNumbers reports a session that has two claims under one number. One on
// several names counts once, so it is counted only now that its parts are joined.
func (f *lockFSM) checkNumbers(numbers map[sessions.ID][]uint64) error {
	for l := range f.table.allLines {
		for _, side := range []func(func(*queue.Claim) bool){l.Holders(), l.Waiters()} {
			for c := range side {
				if c.Joint() && c.Parts()[0] == c {
					numbers[c.Session] = append(numbers[c.Session], c.Seq)
				}
			}
		}
	}
	for id, own := range numbers {
		slices.Sort(own)
		for i := range own[1:] {
			if own[i] == own[i+1] {
				return fmt.Errorf("%w: claim %s/%d stands twice", wire.ErrMalformed, id, own[i])
			}
		}
	}
	return nil
}

// unreadable tells a snapshot that is at fault from one that could not be read.
func unreadable(err error) error {
	if errors.Is(err, wire.ErrMalformed) || errors.Is(err, wire.ErrVersion) {
		return fmt.Errorf("%w: %w", ErrFormat, err)
	}
	return err
}

// adopt takes over a line from a snapshot, lets its bars run, and notes the numbers
// of its claims but for those on several names.
func (f *lockFSM) adopt(l *queue.Line, numbers map[sessions.ID][]uint64) error {
	if l.Empty() || f.table.line(l.Name) != nil || f.table.full(pageOf(hashOf(l.Name)), 1) {
		return fmt.Errorf("%w: line %q is empty, stands twice, or is one too many", wire.ErrMalformed, l.Name)
	}
	for _, side := range []func(func(*queue.Claim) bool){l.Holders(), l.Waiters()} {
		for c := range side {
			if err := f.checkClaim(c); err != nil {
				return fmt.Errorf("%w: %q: claim %s/%d %w", wire.ErrMalformed, l.Name, c.Session, c.Seq, err)
			}
			if !c.Joint() {
				numbers[c.Session] = append(numbers[c.Session], c.Seq)
			}
		}
	}
	for _, b := range l.Bars() {
		id := timeID{hold: b.ID, what: lockDelay}
		if _, twice := f.times[id]; twice || b.ID > uint64(f.token) {
			return fmt.Errorf("%w: %q: bar %d stands twice or was never numbered", wire.ErrMalformed, l.Name, b.ID)
		}
		f.times[id] = runningTime{line: l, d: b.For}
	}
	f.table.adopt(l)
	return nil
}

// adopt takes over a line that a snapshot holds.
func (t *table) adopt(l *queue.Line) {
	s := spotOf(hashOf(l.Name), l.Name)
	if c := l.Alone(); c != nil {
		t.holdClaim(s, c)
		return
	}
	t.addLine(s.page, l)
	t.n++
	for c := range l.Holders() {
		t.adoptClaim(c)
	}
	for c := range l.Waiters() {
		t.adoptClaim(c)
		t.members[t.member(c.Session)].places++
	}
}

// adoptClaim indexes a claim that a snapshot holds. Of several names, the first one
// is kept.
func (t *table) adoptClaim(c *queue.Claim) {
	if c.Is(queue.Leaving) {
		return
	}
	if first := t.members[t.member(c.Session)].claims[c.Seq]; first == nil || c.Line().Name < first.Line().Name {
		t.index(c)
	}
}

func (f *lockFSM) checkClaim(c *queue.Claim) error {
	switch p := f.roll.Process(c.Session.Replica, c.Session.Epoch); {
	case c.Token > f.token:
		return fmt.Errorf("has token %s, which was never granted", c.Token)
	case c.Is(queue.Leaving) && c.Holds():
		return nil // its session may be over
	case f.table.member(c.Session) == 0:
		return errors.New("of a session that is not on the roll")
	case c.Seq > p.Claimed:
		return errors.New("was never numbered")
	}
	return nil
}

// checkLines reports a lock that nobody is in the way of and that somebody waits
// for. That can be told only when every line was read.
func (f *lockFSM) checkLines() error {
	for l := range f.table.allLines {
		if l.Next() != nil {
			return fmt.Errorf("%w: %q: a waiter that nobody is in the way of", wire.ErrMalformed, l.Name)
		}
	}
	return nil
}

// resume lets the times of claims run that ran when the snapshot was taken, as adopt
// did with those of bars. Whoever counts them begins anew, so none is cut short.
func (f *lockFSM) resume() {
	for l := range f.table.allLines {
		for c := range l.Holders() {
			if c.Terms == nil {
				continue
			}
			if c.Terms.MinHold > 0 && !c.Is(queue.Matured) {
				f.times[timeID{c.Session, c.Seq, minHold}] = runningTime{claim: c, d: c.Terms.MinHold}
			}
			if c.Is(queue.Started) && !c.Is(queue.Leaving) && c.Terms.MaxHold > 0 {
				f.times[timeID{c.Session, c.Seq, maxHold}] = runningTime{claim: c, d: c.Terms.MaxHold}
			}
		}
	}
}
