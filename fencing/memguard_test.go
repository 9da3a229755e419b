package fencing

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
)

func TestMemGuardAdmits(t *testing.T) {
	var g MemGuard
	for i, step := range []struct {
		resource string
		token    Token
		admitted Token // what the refusal names; zero if there is none
	}{
		{"a", 5, 0},
		{"a", 5, 0}, // the same holder writes again
		{"a", 9, 0},
		{"a", 8, 9},
		{"b", 1, 0}, // another resource has its own memory
		{"A", 1, 0},
		{"a ", 1, 0},
		{"a\x00", 1, 0},
		{"a", 9, 0}, // a refusal changed nothing
	} {
		err := g.Admit(t.Context(), step.resource, step.token)
		if step.admitted == 0 {
			if err != nil {
				t.Errorf("step %d: %v", i, err)
			}
			continue
		}
		var stale *StaleError
		if !errors.Is(err, ErrStale) || !errors.As(err, &stale) {
			t.Fatalf("step %d: %v, want ErrStale", i, err)
		}
		if want := (StaleError{step.resource, step.token, step.admitted}); *stale != want {
			t.Errorf("step %d: %+v, want %+v", i, *stale, want)
		}
	}
}

func TestMemGuardRefusesBadInput(t *testing.T) {
	var g MemGuard
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	longest := strings.Repeat("x", MaxResourceLen)

	for _, c := range []struct {
		ctx      context.Context
		resource string
		token    Token
		want     error // nil: any
	}{
		{t.Context(), "a", 0, ErrToken},
		{t.Context(), "", 1, ErrResource},
		{t.Context(), longest + "x", 1, ErrResource},
		{ended, "a", 1, context.Canceled},
		{nil, "a", 1, nil},
	} {
		err := g.Admit(c.ctx, c.resource, c.token)
		if err == nil || (c.want != nil && !errors.Is(err, c.want)) {
			t.Errorf("Admit(%.10q, %d) = %v, want %v", c.resource, c.token, err, c.want)
		}
		ran := false
		err = g.Do(c.ctx, c.resource, c.token, func() error { ran = true; return nil })
		if err == nil || ran {
			t.Errorf("Do(%.10q, %d) = %v, ran: %t", c.resource, c.token, err, ran)
		}
	}
	if len(g.admitted) != 0 {
		t.Errorf("remembered %v", g.admitted)
	}
	if err := g.Admit(t.Context(), longest, 1); err != nil {
		t.Errorf("the longest name: %v", err)
	}
}

// A newer token waits for the write of an older one to end; an even older one
// need not wait to be refused.
func TestMemGuardDoIsOneStep(t *testing.T) {
	var g MemGuard
	writing, finish := make(chan struct{}), make(chan struct{})
	var finished bool
	var all sync.WaitGroup

	all.Go(func() {
		if err := g.Do(t.Context(), "a", 5, func() error {
			close(writing)
			<-finish
			finished = true
			return nil
		}); err != nil {
			t.Error(err)
		}
	})
	<-writing

	if err := g.Admit(t.Context(), "a", 4); !errors.Is(err, ErrStale) {
		t.Errorf("older, during the write: %v", err)
	}
	if err := g.Admit(t.Context(), "b", 1); err != nil {
		t.Errorf("another resource, during the write: %v", err)
	}
	brief, cancel := context.WithCancel(t.Context())
	all.Go(func() { cancel() })
	if err := g.Admit(brief, "a", 7); !errors.Is(err, context.Canceled) {
		t.Errorf("gave up waiting: %v", err)
	}
	all.Go(func() { close(finish) })
	if err := g.Admit(t.Context(), "a", 6); err != nil {
		t.Error(err)
	}
	if !finished {
		t.Error("6 was admitted while 5 wrote")
	}
	all.Wait()
	if err := g.Admit(t.Context(), "a", 6); err != nil {
		t.Errorf("the wait that was given up left its token: %v", err)
	}
}

func TestMemGuardDoFailsAndPanics(t *testing.T) {
	var g MemGuard
	broken := errors.New("disk full")
	if err := g.Do(t.Context(), "a", 5, func() error { return broken }); err != broken {
		t.Errorf("got %v, want the write's own error", err)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		_ = g.Do(t.Context(), "a", 6, func() error { panic("oops") })
	}()
	// Free again, and both tokens count although their writes came to nothing.
	if err := g.Do(t.Context(), "a", 5, func() error { return nil }); !errors.Is(err, ErrStale) {
		t.Errorf("after the panic: %v", err)
	}
	if err := g.Do(t.Context(), "a", 6, func() error { return nil }); err != nil {
		t.Errorf("after the panic: %v", err)
	}
	if len(g.writing) != 0 {
		t.Errorf("still writing: %v", g.writing)
	}
}

// Each write looks at the store twice with room for others in between. If check
// and write were two steps, the race detector and the order below would show it.
func TestMemGuardConcurrently(t *testing.T) {
	const workers, rounds = 16, 500
	resources := []string{"a", "b", "c"}
	stored := make([]Token, len(resources)) // guarded by g alone
	var g MemGuard
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(w)))
			for round := range rounds {
				i := rng.IntN(len(resources))
				token := Token(round + 1 + rng.IntN(20))
				if rng.IntN(4) == 0 {
					_ = g.Admit(t.Context(), resources[i], token)
					continue
				}
				err := g.Do(t.Context(), resources[i], token, func() error {
					if stored[i] > token {
						t.Errorf("%d wrote after %d", token, stored[i])
					}
					stored[i] = token
					return nil
				})
				if err != nil && !errors.Is(err, ErrStale) {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}
