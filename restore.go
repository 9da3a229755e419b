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
	f.token = head.Token
	f.roll = head.Roll
	for p := range f.roll.Processes() {
		for s := range p.Sessions() {
			f.table.enroll(s.ID)
		}
	}
	numbers := make(map[sessions.ID][]uint64)
	for i := 0; ; i++ {
		if i%1024 == 0 && isClosed(stop) {
			return nil, errStopped
		}
		l, err := src.Line()
		if err == io.EOF {
			err = checkNumbers(numbers)
			if err == nil {
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

// checkNumbers reports a session that has two claims under one number.
func checkNumbers(numbers map[sessions.ID][]uint64) error {
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

// adopt takes over a line from a snapshot, and notes the numbers of its claims.
func (f *lockFSM) adopt(l *queue.Line, numbers map[sessions.ID][]uint64) error {
	if l.Empty() || f.table.line(l.Name) != nil || f.table.full(pageOf(hashOf(l.Name))) {
		return fmt.Errorf("%w: line %q is empty, stands twice, or is one too many", wire.ErrMalformed, l.Name)
	}
	for _, side := range []func(func(*queue.Claim) bool){l.Holders(), l.Waiters()} {
		for c := range side {
			if err := f.checkClaim(c); err != nil {
				return fmt.Errorf("%w: %q: claim %s/%d %w", wire.ErrMalformed, l.Name, c.Session, c.Seq, err)
			}
			numbers[c.Session] = append(numbers[c.Session], c.Seq)
		}
	}
	f.table.adopt(l)
	return nil
}

func (f *lockFSM) checkClaim(c *queue.Claim) error {
	switch p := f.roll.Process(c.Session.Replica, c.Session.Epoch); {
	case f.table.member(c.Session) == 0:
		return errors.New("of a session that is not on the roll")
	case c.Seq > p.Claimed:
		return errors.New("was never numbered")
	case c.Token > f.token:
		return fmt.Errorf("has token %s, which was never granted", c.Token)
	}
	return nil
}
