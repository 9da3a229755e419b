package fencing

import (
	"context"
	"sync"
)

// MemGuard is a [Guard] in memory, for a store that lives in this process and
// dies with it. The zero value is ready. It is safe for concurrent use, and must
// not be copied after first use.
//
// It keeps one token per resource for as long as it lives. A store that outlives
// the process needs a guard that does too, such as fencing/sqlfence.
type MemGuard struct {
	mu       sync.Mutex
	admitted map[string]Token
	writing  map[string]chan struct{} // closed when the Do under way ends
}

var _ Guard = (*MemGuard)(nil)

// Admit implements [Guard]. It says whether t may write at this moment and
// nothing about the next: a newer token may be admitted before the caller's write
// is done. Use Do where that matters.
//
// While a Do is under way for the resource, Admit waits for it to end, or refuses
// t at once if t is older. When ctx ends first, t is not remembered.
func (g *MemGuard) Admit(ctx context.Context, resource string, t Token) error {
	if err := g.lockAdmitted(ctx, resource, t); err != nil {
		return err
	}
	g.mu.Unlock()
	return nil
}

// Do admits t and runs write as one step: until write returns, no other token is
// admitted for the resource, equal ones included. It returns the error of Admit,
// in which case write was not run, or that of write.
//
// The token stays admitted when write fails or panics, since nobody knows how far
// it came. ctx bounds the wait for earlier writes, not write itself. A write that
// calls Admit or Do for its own resource waits for itself until ctx ends.
func (g *MemGuard) Do(ctx context.Context, resource string, t Token, write func() error) error {
	if err := g.lockAdmitted(ctx, resource, t); err != nil {
		return err
	}
	done := make(chan struct{})
	if g.writing == nil {
		g.writing = make(map[string]chan struct{})
	}
	g.writing[resource] = done
	g.mu.Unlock()

	defer func() {
		g.mu.Lock()
		delete(g.writing, resource)
		g.mu.Unlock()
		close(done)
	}()
	return write()
}

// lockAdmitted returns nil with t remembered, no write under way and g.mu held,
// or an error with g.mu free.
func (g *MemGuard) lockAdmitted(ctx context.Context, resource string, t Token) error {
	if err := Check(ctx, resource, t); err != nil {
		return err
	}
	for {
		g.mu.Lock()
		if highest := g.admitted[resource]; t < highest {
			g.mu.Unlock()
			return &StaleError{Resource: resource, Presented: t, Admitted: highest}
		}
		done := g.writing[resource]
		if done == nil {
			if g.admitted == nil {
				g.admitted = make(map[string]Token)
			}
			g.admitted[resource] = t
			return nil
		}
		g.mu.Unlock()

		select {
		case <-done:
		case <-ctx.Done():
			return unchecked(ctx, resource, t)
		}
	}
}
