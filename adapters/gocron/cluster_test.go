package gocronlock

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/jonboulle/clockwork"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/adapters/internal/five"
)

// speed is how fast the replicas' clocks run, so that a test sees more ticks.
const speed = 2

// A clock is a replica's clock as gocron takes it.
type clock struct {
	clockwork.Clock
	own five.Clock
}

func (c clock) Now() time.Time { return c.own.Now() }

func (c clock) AfterFunc(d time.Duration, f func()) clockwork.Timer {
	return c.Clock.AfterFunc(c.own.Real(d), f)
}

// A monitor is told by gocron itself for what time each run was planned.
type monitor struct {
	ledger  *five.Ledger
	replica int
}

func (m monitor) JobSchedulingDelay(j gocron.Job, planned, _ time.Time) {
	if j.Name() == "duration" { // planned for another moment of the second on each replica
		planned = planned.Truncate(time.Second)
	}
	m.ledger.Ran(j.Name(), planned, m.replica)
}

func (monitor) SchedulerStarted()                          {}
func (monitor) SchedulerStopped()                          {}
func (monitor) SchedulerShutdown()                         {}
func (monitor) JobRegistered(gocron.Job)                   {}
func (monitor) JobUnregistered(gocron.Job)                 {}
func (monitor) JobStarted(gocron.Job)                      {}
func (monitor) JobRunning(gocron.Job)                      {}
func (monitor) JobFailed(gocron.Job, error)                {}
func (monitor) JobCompleted(gocron.Job)                    {}
func (monitor) JobExecutionTime(gocron.Job, time.Duration) {}
func (monitor) ConcurrencyLimitReached(string, gocron.Job) {}

func openNodes(t *testing.T) *five.Nodes {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	nodes, err := five.Open(ctx, t.TempDir())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, nodes.Close()) })
	return nodes
}

// schedulers starts the same jobs on every replica, with clocks that are up to 4 s
// apart. The one whose clock is ahead starts first: see the package's comment.
func schedulers(t *testing.T, killer *five.Killer, ledger *five.Ledger, o func(replica int) Options) {
	clocks := five.Clocks(speed)
	var all []gocron.Scheduler
	for i := range five.Replicas {
		options := o(i)
		options.Clock = clock{clockwork.NewRealClock(), clocks[i]}
		s, err := newScheduler(killer.Register(i), options, gocron.WithSchedulerMonitor(monitor{ledger, i}), gocron.WithLocation(time.UTC))
		require.NoError(t, err)
		for name, d := range map[string]gocron.JobDefinition{
			"cron":     gocron.CronJob("* * * * * *", true),
			"duration": gocron.DurationJob(time.Second),
		} {
			_, err = s.NewJob(d, gocron.NewTask(func() {}), gocron.WithName(name))
			require.NoError(t, err)
		}
		s.Start()
		all = append(all, s)
	}
	t.Cleanup(func() {
		var wg sync.WaitGroup
		for _, s := range all {
			wg.Go(func() { _ = s.Shutdown() })
		}
		wg.Wait()
	})
}

// Five schedulers, clocks that are up to 4 s apart, jobs each second that take no
// time, and the leader of the cluster dies twice while a tick is being claimed.
func TestOneRunPerPlannedTime(t *testing.T) {
	const ticks = 24
	nodes := openNodes(t)
	killer, ledger := five.NewKiller(nodes, 8, time.Second/speed), five.NewLedger()
	schedulers(t, killer, ledger, func(int) Options { return Options{} })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for _, job := range []string{"cron", "duration"} {
		require.NoError(t, ledger.Await(ctx, job, ticks, time.Second))
	}
	killed, lost := killer.Killed()
	t.Logf("killed %v, claims of %v died with them, others were slow at %v, runs by replica %v", killed, lost, killer.Slow(), ledger.Share())
	require.Len(t, killed, 2)
	require.LessOrEqual(t, len(lost), 2*len(killed), "at most the tick of each job")
	for _, job := range []string{"cron", "duration"} {
		require.Empty(t, ledger.Check(job, ticks, time.Second, append(lost, killer.Slow()...)))
	}
}
