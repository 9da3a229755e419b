package robfigcron

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/robfig/cron/v3"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/adapters/internal/five"
)

// speed is how fast the replicas' clocks run, so that a test sees more ticks.
const speed = 2

// A skewed schedule has a Cron, which knows the real clock only, fire when a
// replica's own clock shows the planned time.
type skewed struct {
	schedule cron.Schedule
	clock    five.Clock

	mu      sync.Mutex
	planned map[time.Time]time.Time // by when the Cron fires for it
}

func (s *skewed) Next(real time.Time) time.Time {
	planned := s.schedule.Next(s.clock.Shows(real).UTC())
	fires := s.clock.At(planned).UTC()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.planned[fires.Round(0)] = planned
	return fires
}

// of returns for what time the Cron has last fired, as the Cron itself tells.
func (s *skewed) of(e cron.Entry) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.planned[e.Prev.UTC().Round(0)]
}

// Five Crons, clocks that are up to 4 s apart, jobs each second that take no time,
// and the leader of the cluster dies while a tick is being claimed, and later one who
// claims.
func TestOneRunPerPlannedTime(t *testing.T) {
	const ticks = 24
	ctx, cancel := context.WithTimeout(t.Context(), 23*time.Second)
	defer cancel()
	nodes, err := five.Open(ctx, t.TempDir())
	require.NoError(t, err)
	defer func() { require.NoError(t, nodes.Close()) }()
	killer, ledger := five.NewKiller(nodes, 8, time.Second/speed), five.NewLedger()
	seconds, err := cron.NewParser(cron.Second | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow).Parse("* * * * * *")
	require.NoError(t, err)
	jobs := map[string]cron.Schedule{"spec": seconds, "every": cron.Every(time.Second)}
	for i, clock := range five.Clocks(speed) { // the one whose clock is ahead starts first: see the package's comment
		c := cron.New(cron.WithLocation(time.UTC))
		for name, schedule := range jobs {
			s := &skewed{schedule: schedule, clock: clock, planned: make(map[time.Time]time.Time)}
			id := make(chan cron.EntryID, 1)
			once := wrapper(killer.Register(i), name, schedule, Options{Clock: clock.Now, Location: time.UTC})
			ran := func() {
				e := <-id
				id <- e
				ledger.Ran(name, s.of(c.Entry(e)), i)
			}
			id <- c.Schedule(s, once(cron.FuncJob(ran)))
		}
		c.Start()
		defer func() { <-c.Stop().Done() }()
	}
	for job := range jobs {
		require.NoError(t, ledger.Await(ctx, job, ticks, time.Second))
	}
	killed, lost := killer.Killed()
	t.Logf("killed %v, claims of %v died with them, others were slow at %v, runs by replica %v", killed, lost, killer.Slow(), ledger.Share())
	require.Len(t, killed, 2)
	require.LessOrEqual(t, len(lost), 2*len(killed), "at most the tick of each job")
	for job := range jobs {
		require.Empty(t, ledger.Check(job, ticks, time.Second, lost))
	}
}
