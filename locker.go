package quorumlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Locker returns the lock of a name as a sync.Locker, for code that knows no other
// kind. Where there is a choice, take Do or Acquire: a sync.Locker has no words for
// what can happen to a lock of a cluster, so
//
//   - Lock waits for as long as it takes, without a majority too, and no ctx ends it.
//     It waits again when its session is lost meanwhile. It panics when the lock can
//     never be had: with an error matching ErrName, ErrMode, ErrClosed or another one
//     after which the node is of no more use.
//   - What runs between Lock and Unlock is not told when the lock is lost, and has no
//     token for the stores that it writes to. It goes on, and another may have the lock
//     beside it. Unlock calls lost with the *LostError, once it is too late; if lost is
//     nil, Unlock panics with it.
//   - Unlock does not wait for the cluster: a process that ends at once after it
//     leaves the lock to its session's end, unless it ends by Shutdown.
//
// A Locker may be used by many goroutines, which then exclude each other as well. As
// with sync.Mutex, Unlock of what is not locked panics.
func (n *Node) Locker(name string, lost func(err error)) sync.Locker {
	return &syncLocker{n: n, name: name, lost: lost, here: make(chan struct{}, 1)}
}

type syncLocker struct {
	n    *Node
	name string
	lost func(error)

	// here keeps the goroutines of this process apart: an Unlock could not say whose
	// hold it means.
	here chan struct{} // has room for one
	mu   sync.Mutex
	hold *Hold
}

// Lock implements sync.Locker.
func (l *syncLocker) Lock() {
	l.here <- struct{}{}
	for backoff := minBackoff; ; backoff = min(2*backoff, maxBackoff) {
		hold, err := l.n.Acquire(context.Background(), l.name)
		if err == nil {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.hold = hold
			return
		}
		if !passes(err) {
			<-l.here
			panic(err)
		}
		l.n.later(backoff)
	}
}

// passes reports whether Acquire may do better next time.
func passes(err error) bool {
	for _, target := range []error{ErrSessionExpired, ErrSessionClosed, ErrRevoked, ErrBusy, ErrQuota, ErrQueueFull} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

// Unlock implements sync.Locker.
func (l *syncLocker) Unlock() {
	l.mu.Lock()
	hold := l.hold
	l.hold = nil
	l.mu.Unlock()
	if hold == nil {
		panic(fmt.Errorf("quorumlock: Unlock of %q, which is not locked", l.name))
	}
	defer func() { <-l.here }()
	l.n.mu.Lock()
	err := hold.release()
	l.n.mu.Unlock()
	if err != nil {
		if l.lost == nil {
			panic(err)
		}
		l.lost(err)
	}
}
