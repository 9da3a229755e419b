package quorumlock

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// An engine is the replicated log of one group as the node needs it: everything above it
// runs unchanged over Raft (replica.go) and over a simulated log (tests).
//
// What an engine says of a proposal only decides whether to propose again:
// whether it took effect is learned from apply, which every replica sees.
type engine interface {
	// propose asks for entry to be appended to the log. It returns nil once the
	// entry was applied on this replica, errDropped when it is certain that it
	// never will be, ErrClosed after close, and any other error (errUnknown, or
	// ctx's) when nothing can be said: the entry may still be applied, much
	// later. entry must not be changed afterwards, not even after an error.
	propose(ctx context.Context, entry []byte) error

	// barrier returns nil once this replica has applied everything that was
	// committed anywhere when barrier was called, so that a look at the local
	// state is linearizable. One short try: the caller tries again.
	barrier(ctx context.Context) error

	// leader returns who leads, as this replica believes, and in which term.
	// Replica 0 stands for nobody. A hint: never a ground to grant anything.
	leader() (replica, term uint64)

	// transfer asks that leadership move to another replica and returns when it
	// has moved or ctx ended.
	transfer(ctx context.Context, to uint64) error

	// members returns the voting replicas and the addresses they are dialled at.
	members() map[uint64]string

	// membership returns who is in the group, as of when it was called or later.
	// One short try, as barrier. It is errLeft once this replica has applied its own
	// removal from the group: it hears of it no more.
	membership(ctx context.Context) (membership, error)

	// change makes one change of the membership, unless another was made after the
	// one that at names: membership.last. One short try. Whatever it returns, what
	// became of it is seen in membership: the change may also be made later.
	change(ctx context.Context, at uint64, c memberChange) error
}

// An engineHost has the engines of all groups: they share a directory and a port.
type engineHost interface {
	// group returns the engine of one group.
	group(i int) engine

	// introduce notes where a replica is that is added, and tells the others.
	introduce(ctx context.Context, replica uint64, address string) error

	// alive returns which of some replicas answer now, or were heard a moment ago by
	// this one or by one that answers. It asks all who are in m.
	alive(ctx context.Context, m membership) map[uint64]bool

	// zone returns the zone that a replica said that it is in, or "".
	zone(replica uint64) string

	// unreachable returns to which replicas a connection failed of late, and why.
	unreachable() map[uint64]error

	// levels returns which feature level each other replica that is connected to this
	// one speaks; 0 for one of a version that does not say.
	levels() map[uint64]byte

	// close stops at once and waits until nothing calls a stateMachine any more.
	// It is idempotent, and safe with calls under way, which fail.
	close() error
}

// A stateMachine is what an engine drives. apply, snapshot and restore never
// run at the same time as each other; the function that snapshot returned does
// run at the same time as apply, in a goroutine of its own.
type stateMachine interface {
	// apply applies entries in log order. It does not keep or change cmd. It
	// never fails: what is malformed is a refusal that is the same everywhere.
	apply(entries []logEntry)

	// snapshot marks the present state in constant time and returns the
	// function that writes it, which gives up with errStopped once stop closes.
	// The function is called exactly once; with a nil writer it only gives
	// back what the mark holds.
	snapshot() func(w io.Writer, stop <-chan struct{}) error

	// restore replaces the whole state by the one read from r. On error the
	// state is as it was.
	restore(r io.Reader, stop <-chan struct{}) error
}

// logEntry is one committed entry.
type logEntry struct {
	index uint64
	cmd   []byte
}

// engineEvents are how an engine reports what nobody asked it for. They are
// called from the engine's goroutines and must not block or call the engine.
type engineEvents struct {
	// leader is called when this replica learns of a new leader of a group, or
	// (replica 0) that there is none.
	leader func(group int, replica, term uint64)
	// refused is called when peers will not talk to this replica, or it was removed,
	// with an error that matches ErrWiped, ErrMembers, ErrGroups or ErrRemoved. The
	// replica is then of no use.
	refused func(err error)
	// members is called when the membership may have changed.
	members func()
}

// membership is who is in the cluster, as the log has it.
type membership struct {
	members []Member        // in no order, and nobody is marked as leader
	removed map[uint64]bool // who was, and can never be again
	heard   map[uint64]bool // who has ever spoken for itself, as far as known here
	last    uint64          // which change was the last one
}

// A memberChange is one change of the membership.
type memberChange struct {
	op      memberOp
	replica uint64
}

type memberOp int

const (
	addMember     memberOp = iota + 1 // without a vote
	promoteMember                     // gives a member a vote
	removeMember
)

var (
	errDropped = errors.New("quorumlock: proposal dropped")
	errUnknown = errors.New("quorumlock: outcome of proposal unknown")
	errStopped = errors.New("quorumlock: stopped")
	errLeft    = fmt.Errorf("%w from a group", ErrRemoved)
)
