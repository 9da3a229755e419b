package gocronlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"
	"github.com/jonboulle/clockwork"

	"github.com/quorumlock/quorumlock/adapters/internal/once"
)

var (
	// ErrTaken is why a run is skipped that another replica has claimed.
	ErrTaken = errors.New("gocronlock: another replica runs it")
	// ErrNotPlanned is why a run is skipped for which no time was planned.
	ErrNotPlanned = errors.New("gocronlock: no run is planned for now")
)

const (
	// early is by how much a clock that was set back may fall behind a timer that
	// was started before: the run is then the planned one all the same.
	early = 5 * time.Second
	// ahead is how many planned times are looked at.
	ahead = 4
)

// A locker is the gocron.Locker of a scheduler.
type locker struct {
	register once.Register
	clock    clockwork.Clock
	patience time.Duration
	elector  *Elector // or nil
	onError  func(job string, err error)

	mu   sync.Mutex
	jobs map[string]*plan // by name
}

// A plan is what is known of a job.
type plan struct {
	job    job
	every  time.Duration // of a gocron.DurationJob; otherwise 0
	once   bool          // a gocron.OneTimeJob
	claims *once.Claims

	mu    sync.Mutex
	asked time.Time // the last planned time for which a claim was begun
}

// A job is what of a gocron.Job is needed.
type job interface {
	ID() uuid.UUID
	NextRuns(count int) ([]time.Time, error)
}

// Lock claims the run that is due. It is gocron's way to ask whether to run; the lock
// that it returns has nothing to unlock, since a claim is for ever.
func (l *locker) Lock(ctx context.Context, name string) (gocron.Lock, error) {
	err := l.lock(ctx, name)
	if err == nil {
		return claimed{}, nil
	}
	if l.onError != nil && !errors.Is(err, ErrTaken) && !errors.Is(err, once.ErrNotLeading) {
		l.onError(name, err)
	}
	return nil, err
}

func (l *locker) lock(ctx context.Context, name string) error {
	if l.elector != nil {
		if err := l.elector.IsLeader(ctx); err != nil {
			return err
		}
	}
	l.mu.Lock()
	p := l.jobs[name]
	l.mu.Unlock()
	if p == nil {
		return fmt.Errorf("%w: %s", ErrNotPlanned, name)
	}
	planned, err := p.due(l.clock.Now())
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	won, err := p.claims.Claim(ctx, planned)
	if err == nil && !won {
		err = fmt.Errorf("%w: %s", ErrTaken, name)
	}
	return err
}

// due returns the planned time of the run that gocron asks for: the first in its list
// for which nobody has asked. Those before it are there only while a clock that was set
// back says that they are to come.
func (p *plan) due(now time.Time) (time.Time, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	times, err := p.job.NextRuns(ahead)
	if err != nil {
		return time.Time{}, err
	}
	for _, t := range times {
		if !t.After(p.asked) {
			continue
		}
		if t.Sub(now) > early {
			break
		}
		p.asked = t
		switch {
		case p.every > 0:
			return once.Floor(t, p.every), nil
		case p.once || t.Nanosecond() == 0:
			return t, nil
		}
	}
	return time.Time{}, ErrNotPlanned
}

type claimed struct{}

func (claimed) Unlock(context.Context) error { return nil }
