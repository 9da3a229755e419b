package robfigcron

import (
	"context"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/adapters/internal/once"
)

const (
	// DefaultPatience is the Patience of Options that set none.
	DefaultPatience = 10 * time.Second
	// recent is how long a time may have passed that the Cron came to late.
	recent = 2 * time.Second
)

// Options are for Add and Once; the zero value is its default.
type Options struct {
	// Clock is the replica's clock. Default: time.Now, which is the Cron's.
	Clock func() time.Time
	// Location is that of the Cron (cron.WithLocation), in which a schedule without
	// a time zone of its own is meant: it must be the same on every replica. Add
	// takes the Cron's. Default: time.Local, as it is the Cron's.
	Location *time.Location
	// Patience is for how long a run waits for the answer to its claim; without one
	// it is given up. It should be long enough for a new leader of the cluster.
	// Default: 10 s.
	Patience time.Duration
	// OnError is called when a run is given up though no other replica is known to
	// have it: without a majority, say. Default: it is skipped without a word.
	OnError func(job string, err error)
}

// Add adds a job to a Cron that is run once per planned time in the whole cluster. The
// name is that of the job in the cluster: at most quorumlock.MaxNameLen bytes, and
// used for no other job.
func Add(c *cron.Cron, node *quorumlock.Node, name string, schedule cron.Schedule, job cron.Job, o Options) cron.EntryID {
	o.Location = c.Location()
	return c.Schedule(schedule, Once(node, name, schedule, o)(job))
}

// Once returns a wrapper for one job, for use in a cron.Chain with what else is to
// wrap it. Put it first: a wrapper around it that leaves out or delays a run would
// do so before it is known whose run it is. The schedule must be the one under which
// the job is added.
func Once(node *quorumlock.Node, name string, schedule cron.Schedule, o Options) cron.JobWrapper {
	return wrapper(node, name, schedule, o)
}

func wrapper(node once.Register, name string, schedule cron.Schedule, o Options) cron.JobWrapper {
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.Location == nil {
		o.Location = time.Local
	}
	if o.Patience <= 0 {
		o.Patience = DefaultPatience
	}
	var times once.Schedule = schedule
	if every, ok := schedule.(cron.ConstantDelaySchedule); ok {
		times = once.Every(every.Delay)
	}
	now := func() time.Time { return o.Clock().In(o.Location) }
	claims := once.NewClaims(node, name, o.Patience)
	return func(j cron.Job) cron.Job {
		diary := once.NewDiary(times, now(), recent)
		return cron.FuncJob(func() {
			for _, planned := range diary.Due(now()) {
				won, err := claims.Claim(context.Background(), planned)
				if err != nil && o.OnError != nil {
					o.OnError(name, err)
				}
				if won {
					j.Run()
				}
			}
		})
	}
}
