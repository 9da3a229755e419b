package asynqlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/robfig/cron/v3"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/adapters/internal/once"
)

const (
	// DefaultPatience is the Patience of Options that set none.
	DefaultPatience = 10 * time.Second
	// DefaultCatchUp is the CatchUp of Options that set none.
	DefaultCatchUp = time.Minute
)

// ErrSameName is returned by Register for a name that is registered already.
var ErrSameName = errors.New("asynqlock: another task has this name")

// Options are for NewScheduler; the zero value is its default.
type Options struct {
	// Scheduler are asynq's own options. PostEnqueueFunc is called for what this
	// replica enqueues and for what it gives up; its info is nil too when a second
	// try found the task there. The other functions are not called.
	Scheduler asynq.SchedulerOpts
	// Leader is the name of the lock that the leader holds. Default:
	// "asynq/scheduler".
	Leader string
	// Clock is the replica's clock. Default: time.Now, which is asynq's.
	Clock func() time.Time
	// Patience is for how long a claim waits for its answer, and an enqueuing for
	// Redis. It should be long enough for a new leader of the cluster. Default: 10 s.
	Patience time.Duration
	// CatchUp is how far back a replica that begins to lead makes up for what nobody
	// enqueued: more than the nodes' SessionTTL. Of what is older, only the latest is
	// made up for, if it came while this replica was up. Default: 1 min.
	CatchUp time.Duration
}

// A Scheduler is an asynq.Scheduler of which one replica in the cluster enqueues. It
// is safe for concurrent use.
type Scheduler struct {
	asynq    *asynq.Scheduler
	client   *asynq.Client
	register once.Register
	o        Options
	lead     func(began func()) *once.Leader

	ctx    context.Context // ends with Shutdown
	cancel context.CancelFunc
	leader *once.Leader // from Start on

	mu      sync.Mutex
	entries map[*asynq.Task]*entry // by their stand-ins
}

// An entry is a task and when it is to be enqueued.
type entry struct {
	id     string // asynq's
	name   string
	task   *asynq.Task
	opts   []asynq.Option
	diary  *once.Diary
	claims *once.Claims
	wanted atomic.Int64 // how often it was asked to look since somebody began to
}

// NewScheduler returns a scheduler that enqueues in the Redis of r. Shutdown it before
// the node is closed, so that another replica leads at once.
func NewScheduler(node *quorumlock.Node, r asynq.RedisConnOpt, o Options) *Scheduler {
	if o.Leader == "" {
		o.Leader = "asynq/scheduler"
	}
	return newScheduler(node, r, o, func(began func()) *once.Leader { return once.Lead(node, o.Leader, began) })
}

func newScheduler(register once.Register, r asynq.RedisConnOpt, o Options, lead func(began func()) *once.Leader) *Scheduler {
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.Scheduler.Location == nil {
		o.Scheduler.Location = time.UTC
	}
	if o.Patience <= 0 {
		o.Patience = DefaultPatience
	}
	if o.CatchUp <= 0 {
		o.CatchUp = DefaultCatchUp
	}
	s := &Scheduler{register: register, o: o, lead: lead, client: asynq.NewClient(r), entries: make(map[*asynq.Task]*entry)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	// The user's functions are left out: they would hear of the stand-ins.
	s.asynq = asynq.NewScheduler(r, &asynq.SchedulerOpts{
		HeartbeatInterval: o.Scheduler.HeartbeatInterval, Logger: o.Scheduler.Logger,
		LogLevel: o.Scheduler.LogLevel, Location: o.Scheduler.Location,
		PreEnqueueFunc: func(standIn *asynq.Task, _ []asynq.Option) { s.fired(standIn) },
	})
	return s
}

// TaskID is the id of the task that is enqueued for a planned time.
func TaskID(name string, planned time.Time) string {
	return fmt.Sprintf("%s@%s", name, planned.UTC().Format(time.RFC3339Nano))
}

// standIn is the option with which asynq refuses to enqueue a task.
func standIn() asynq.Option { return asynq.TaskID(" ") }

// Register has a task enqueued at the times of a cronspec: asynq's, with a name that
// is that of the job in the cluster, and used for nothing else. An asynq.TaskID among
// the options has no effect, since TaskID is the id.
func (s *Scheduler) Register(name, cronspec string, task *asynq.Task, opts ...asynq.Option) (entryID string, err error) {
	times, err := parse(cronspec)
	if err != nil {
		return "", err
	}
	e := &entry{name: name, task: task, opts: opts, claims: once.NewClaims(s.register, name, s.o.Patience),
		diary: once.NewDiary(times, s.now(), s.o.CatchUp)}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, other := range s.entries {
		if other.name == name {
			return "", fmt.Errorf("%w: %s", ErrSameName, name)
		}
	}
	mark := asynq.NewTask(task.Type(), task.Payload())
	if e.id, err = s.asynq.Register(cronspec, mark, standIn()); err != nil {
		return "", err
	}
	s.entries[mark] = e
	return e.id, nil
}

// parse reads a cronspec as asynq does.
func parse(cronspec string) (once.Schedule, error) {
	schedule, err := cron.ParseStandard(cronspec)
	if err != nil {
		return nil, err
	}
	if every, ok := schedule.(cron.ConstantDelaySchedule); ok {
		return once.Every(every.Delay), nil
	}
	return schedule, nil
}

// Unregister removes a task from this replica's scheduler: asynq's.
func (s *Scheduler) Unregister(entryID string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for mark, e := range s.entries {
		if e.id == entryID {
			delete(s.entries, mark)
		}
	}
	return s.asynq.Unregister(entryID)
}

// Start starts the scheduler, and takes part in who leads. It is to be called once.
func (s *Scheduler) Start() error {
	if err := s.asynq.Start(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leader = s.lead(s.catchUp)
	return nil
}

// Shutdown stops the scheduler and gives up the leadership. What is being enqueued is
// given up too.
func (s *Scheduler) Shutdown() error {
	s.cancel()
	s.asynq.Shutdown()
	s.mu.Lock()
	leader := s.leader
	s.mu.Unlock()
	if leader != nil {
		leader.Stop()
	}
	return s.client.Close()
}

func (s *Scheduler) now() time.Time { return s.o.Clock().In(s.o.Scheduler.Location) }
