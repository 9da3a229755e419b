package once

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/quorumlock/quorumlock"
)

// ErrNotLeading is returned to a replica that does not lead.
var ErrNotLeading = errors.New("another replica leads, or none")

// A hold is what a leader has.
type hold interface {
	Err() error
	Done() <-chan struct{}
	Release(ctx context.Context) error
}

// A Leader takes part in who leads: in the background it waits for the lock of a
// name, holds it for as long as it can, and waits again.
type Leader struct {
	name    string
	acquire func(ctx context.Context) (hold, error)
	began   func() // called when this replica begins to lead
	pause   time.Duration

	cancel context.CancelFunc
	done   chan struct{}

	mu  sync.Mutex
	now hold  // the last one that was had; it may be lost
	err error // why there is none
}

// Lead takes part in who leads, until Stop. began, if it is not nil, is called
// each time this replica begins to.
func Lead(node *quorumlock.Node, name string, began func()) *Leader {
	l := &Leader{
		name: name, began: began, pause: 100 * time.Millisecond, done: make(chan struct{}),
		acquire: func(ctx context.Context) (hold, error) {
			h, err := node.Acquire(ctx, name)
			if err != nil {
				return nil, err // and not a nil *Hold, which would be no nil hold
			}
			return h, nil
		},
	}
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	go l.run(ctx)
	return l
}

// Err returns nil if this replica leads now. It asks the hold and the hold asks the
// clock, so it is right in a process that has just woken from a long stop.
func (l *Leader) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	why := l.err
	if l.now != nil {
		why = l.now.Err()
		if why == nil {
			return nil
		}
	}
	if why == nil {
		return fmt.Errorf("%s: %w", l.name, ErrNotLeading)
	}
	return fmt.Errorf("%s: %w: %w", l.name, ErrNotLeading, why)
}

// Stop gives up the leadership and takes no more part.
func (l *Leader) Stop() {
	l.cancel()
	<-l.done
}

func (l *Leader) run(ctx context.Context) {
	defer close(l.done)
	for ctx.Err() == nil {
		h, err := l.acquire(ctx)
		l.set(h, err)
		switch {
		case errors.Is(err, quorumlock.ErrClosed):
			return // the node will never have another
		case err != nil:
			select {
			case <-time.After(l.pause):
			case <-ctx.Done():
			}
			continue
		}
		if l.began != nil {
			l.began()
		}
		select {
		case <-h.Done():
		case <-ctx.Done():
			// It is over for this process at once. The cluster learns of it now, in
			// the background, or when the session ends.
			_ = h.Release(ctx)
		}
	}
}

func (l *Leader) set(h hold, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now, l.err = h, err
}
