package gocronlock

import (
	"errors"
	"fmt"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"
	"github.com/jonboulle/clockwork"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/adapters/internal/once"
)

// DefaultPatience is the Patience of Options that set none.
const DefaultPatience = 10 * time.Second

var (
	// ErrSchedule is returned by NewJob for a job of which not every replica has the
	// same planned times.
	ErrSchedule = errors.New("gocronlock: replicas would not have the same planned times")
	// ErrSameName is returned by NewJob for a name that another job of the scheduler
	// has. Ticks are claimed under the job's name.
	ErrSameName = errors.New("gocronlock: another job has this name")
)

// Options are for NewScheduler; the zero value is its default.
type Options struct {
	// Clock is the scheduler's clock. Default: the real one. Do not use
	// gocron.WithClock beside it.
	Clock clockwork.Clock
	// Patience is for how long a run waits for the answer to its claim; without one
	// it is given up. It should be long enough for a new leader of the cluster.
	// Default: 10 s.
	Patience time.Duration
	// Elector, if there is one, has only the leader claim runs. A run whose time comes
	// while nobody leads is then left out.
	Elector *Elector
	// OnError is called when a run is skipped though no other replica is known to
	// have it: without a majority, say. Default: gocron's own AfterLockError.
	OnError func(job string, err error)
}

// NewScheduler returns a gocron.Scheduler whose jobs run once per planned time in the
// whole cluster. Create it on every replica with the same jobs, under the same names
// (gocron.WithName; the default is that of the function). What more it takes are
// gocron's own options, but not gocron.WithDistributedLocker and
// gocron.WithDistributedElector.
func NewScheduler(node *quorumlock.Node, o Options, more ...gocron.SchedulerOption) (gocron.Scheduler, error) {
	return newScheduler(node, o, more...)
}

func newScheduler(node once.Register, o Options, more ...gocron.SchedulerOption) (gocron.Scheduler, error) {
	if o.Clock == nil {
		o.Clock = clockwork.NewRealClock()
	}
	if o.Patience <= 0 {
		o.Patience = DefaultPatience
	}
	l := &locker{
		register: node, clock: o.Clock, patience: o.Patience, elector: o.Elector, onError: o.OnError,
		jobs: make(map[string]*plan),
	}
	more = append(more[:len(more):len(more)], gocron.WithClock(o.Clock), gocron.WithDistributedLocker(l))
	s, err := gocron.NewScheduler(more...)
	if err != nil {
		return nil, err
	}
	return &scheduler{Scheduler: s, locker: l}, nil
}

// A scheduler is a gocron.Scheduler that remembers its jobs for its locker.
type scheduler struct {
	gocron.Scheduler
	locker *locker
}

// NewJob is gocron's, and returns ErrSchedule and ErrSameName too.
func (s *scheduler) NewJob(d gocron.JobDefinition, t gocron.Task, options ...gocron.JobOption) (gocron.Job, error) {
	return s.add(s.Scheduler.NewJob(d, t, options...))
}

// Update is gocron's, and returns ErrSchedule and ErrSameName too; the job is then
// removed.
func (s *scheduler) Update(id uuid.UUID, d gocron.JobDefinition, t gocron.Task, options ...gocron.JobOption) (gocron.Job, error) {
	return s.add(s.Scheduler.Update(id, d, t, options...))
}

// add remembers a job that gocron has, or takes it away again.
func (s *scheduler) add(j gocron.Job, err error) (gocron.Job, error) {
	if err != nil || j == nil {
		return j, err
	}
	if err := s.locker.remember(j); err != nil {
		return nil, errors.Join(fmt.Errorf("job %s: %w", j.Name(), err), s.RemoveJob(j.ID()))
	}
	return j, nil
}

func (l *locker) remember(j gocron.Job) error {
	p := &plan{job: j, claims: once.NewClaims(l.register, j.Name(), l.patience)}
	switch d := j.Schedule().(type) {
	case gocron.CronJobSchedule:
	case gocron.OneTimeJobSchedule:
		p.once = true
		if len(d.StartAt) == 0 {
			return fmt.Errorf("%w: it starts immediately", ErrSchedule)
		}
	case gocron.DurationJobSchedule:
		p.every = d.Duration
		if d.Duration < time.Millisecond {
			return fmt.Errorf("%w: an interval of less than a millisecond", ErrSchedule)
		}
	case gocron.DailyJobSchedule:
		return l.keep(p, j.Name(), d.Interval)
	case gocron.WeeklyJobSchedule:
		return l.keep(p, j.Name(), d.Interval)
	case gocron.MonthlyJobSchedule:
		return l.keep(p, j.Name(), d.Interval)
	default:
		return fmt.Errorf("%w: %T", ErrSchedule, d)
	}
	return l.keep(p, j.Name(), 1)
}

// keep keeps the plan of a job that runs in every interval of its kind. Were some
// left out, they would be others on a replica that started on another day.
func (l *locker) keep(p *plan, name string, interval uint) error {
	if interval != 1 {
		return fmt.Errorf("%w: %d days, weeks or months are counted from each replica's own start; use a CronJob", ErrSchedule, interval)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if other := l.jobs[name]; other != nil && other.job.ID() != p.job.ID() {
		if _, err := other.job.NextRuns(1); !errors.Is(err, gocron.ErrJobNotFound) {
			return ErrSameName
		}
	}
	l.jobs[name] = p
	return nil
}
