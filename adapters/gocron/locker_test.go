package gocronlock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"
	"github.com/jonboulle/clockwork"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/adapters/internal/five"
)

// A register only grows, as a cluster's does.
type register map[string]int64

func (r register) ClaimTick(_ context.Context, job string, tick int64) (bool, error) {
	if last, ok := r[job]; ok && tick <= last {
		return false, nil
	}
	r[job] = tick
	return true, nil
}

func TestNewJobRefusesWhatReplicasWouldNotShare(t *testing.T) {
	s, err := newScheduler(register{}, Options{})
	require.NoError(t, err)
	defer s.Shutdown()
	midnight := gocron.NewAtTimes(gocron.NewAtTime(0, 0, 0))
	days := gocron.NewDaysOfTheMonth(1)
	sunday := gocron.NewWeekdays(time.Sunday)
	soon := time.Now().Add(time.Hour)
	nothing := gocron.NewTask(func() {})
	for name, d := range map[string]gocron.JobDefinition{
		"random":      gocron.DurationRandomJob(time.Second, time.Minute),
		"microsecond": gocron.DurationJob(time.Microsecond),
		"2 days":      gocron.DailyJob(2, midnight),
		"2 weeks":     gocron.WeeklyJob(2, sunday, midnight),
		"2 months":    gocron.MonthlyJob(2, days, midnight),
		"now":         gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()),
	} {
		_, err := s.NewJob(d, nothing, gocron.WithName(name))
		require.ErrorIs(t, err, ErrSchedule, name)
	}
	require.Empty(t, s.Jobs())
	for name, d := range map[string]gocron.JobDefinition{
		"cron":    gocron.CronJob("0 2 * * *", false),
		"a day":   gocron.DailyJob(1, midnight),
		"a week":  gocron.WeeklyJob(1, sunday, midnight),
		"a month": gocron.MonthlyJob(1, days, midnight),
		"once":    gocron.OneTimeJob(gocron.OneTimeJobStartDateTime(soon)),
	} {
		_, err := s.NewJob(d, nothing, gocron.WithName(name))
		require.NoError(t, err, name)
	}
	_, err = s.NewJob(gocron.CronJob("0 3 * * *", false), nothing, gocron.WithName("cron"))
	require.ErrorIs(t, err, ErrSameName)
	require.Len(t, s.Jobs(), 5)
	j := s.Jobs()[0]
	require.NoError(t, s.RemoveJob(j.ID()))
	_, err = s.NewJob(gocron.CronJob("0 3 * * *", false), nothing, gocron.WithName(j.Name()))
	require.NoError(t, err, "its name is free again")
}

// A job's plan as gocron keeps it.
type planned []time.Time

func (planned) ID() uuid.UUID                       { return uuid.Nil }
func (p planned) NextRuns(int) ([]time.Time, error) { return p, nil }
func (p *planned) set(seconds ...float64)           { *p = nil; p.add(seconds...) }
func (p *planned) add(seconds ...float64) {
	for _, s := range seconds {
		*p = append(*p, second(s))
	}
}

func second(s float64) time.Time {
	return time.Unix(1_700_000_000, 0).Add(time.Duration(s * float64(time.Second)))
}

func TestDueIsWhatGocronPlanned(t *testing.T) {
	var list planned
	p := &plan{job: &list}
	due := func(now float64) any {
		got, err := p.due(second(now))
		if err != nil {
			return err
		}
		return got.Sub(second(0)).Seconds()
	}
	list.set(60, 120)
	require.Equal(t, 60.0, due(60.7), "and not what the clock shows")
	require.Equal(t, ErrNotPlanned, due(60.8), "once; the next is by hand, long before its time")
	list.set(60, 120, 180)
	require.Equal(t, 120.0, due(119.9), "gocron still has the one before, and its timer is early")
	list.set(180, 240)
	require.Equal(t, ErrNotPlanned, due(150), "by hand")
	require.Equal(t, 180.0, due(245), "late, and gocron means the earlier one")
	list.set(300.25, 360)
	require.Equal(t, ErrNotPlanned, due(300.3), "started at once, for no time that others have too")
	p.every = time.Minute
	list.set(425.5, 485.5)
	require.Equal(t, 400.0, due(425.6), "the minute, which does not begin with 0 in this test")
}

func TestRunNowIsNoPlannedRun(t *testing.T) {
	clock := clockwork.NewFakeClockAt(second(0))
	r, ran, failed := register{}, make(chan struct{}, 100), make(chan error, 100)
	s, err := newScheduler(r, Options{Clock: clock, OnError: func(_ string, err error) { failed <- err }})
	require.NoError(t, err)
	j, err := s.NewJob(gocron.DurationJob(time.Hour), gocron.NewTask(func() { ran <- struct{}{} }), gocron.WithName("hourly"))
	require.NoError(t, err)
	s.Start()
	require.NoError(t, j.RunNow())
	require.ErrorIs(t, <-failed, ErrNotPlanned)
	require.Empty(t, r)
	// The scheduler sets the job's timer when it likes: an hour passes until it has.
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for done := false; !done; {
		clock.Advance(time.Hour)
		select {
		case <-ran:
			done = true
		case <-again.C:
		}
	}
	require.NoError(t, s.Shutdown()) // nothing claims any more
	require.Len(t, r, 1)
}

// Of five replicas one leads; when its node dies, another does. The one that died
// knows at once. With the elector as Options.Elector, only the leader claims.
func TestElector(t *testing.T) {
	nodes := openNodes(t)
	electors := make([]*Elector, five.Replicas)
	for i := range electors {
		electors[i] = NewElector(nodes.Node(i), "scheduler")
		defer electors[i].Stop()
	}
	leads := func() (who []int) {
		for i, e := range electors {
			if e.IsLeader(t.Context()) == nil {
				who = append(who, i)
			}
		}
		return who
	}
	one := func() int {
		var who []int
		require.Eventually(t, func() bool { who = leads(); return len(who) > 0 }, 10*time.Second, time.Millisecond)
		require.Len(t, who, 1)
		return who[0]
	}
	first := one()
	for i := range electors {
		l := &locker{register: register{}, clock: clockwork.NewRealClock(), elector: electors[i], jobs: map[string]*plan{}}
		_, err := l.Lock(t.Context(), "no such job")
		require.Equal(t, i == first, errors.Is(err, ErrNotPlanned), "only the leader gets so far")
	}
	require.NoError(t, nodes.Node(first).Close())
	require.Error(t, electors[first].IsLeader(t.Context()), "it knows at once")
	second := one()
	require.NotEqual(t, first, second)
	electors[second].Stop()
	require.Error(t, electors[second].IsLeader(t.Context()))
	third := one()
	require.NotContains(t, []int{first, second}, third)
}
