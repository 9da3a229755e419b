// Package gocronlock makes the jobs of github.com/go-co-op/gocron/v2 run once per
// planned time in a whole cluster, although every replica has a scheduler of its own.
//
//	s, err := gocronlock.NewScheduler(node, gocronlock.Options{})
//	_, err = s.NewJob(gocron.CronJob("0 2 * * *", false), gocron.NewTask(report), gocron.WithName("nightly report"))
//	s.Start()
//
// Start the same jobs under the same names on every replica. The first replica whose
// clock says that it is time claims the run; the others are refused that one.
//
// # What is promised
//
// At most one run for each job and planned time over the whole cluster, for ever:
// with clocks that are apart, with jobs that are shorter than that, through the death
// of the leader, and after restarts. No run is left out while a majority of the
// replicas lives, and one that is not stopped comes to the planned time.
//
// # What is not
//
// A replica that claims a run and dies does not run it, and nobody else does. If no
// majority answers within Options.Patience the run is given up by who asked, and may
// be lost. gocron plans a job's next run when the claim for this one is answered: planned
// times that come while it waits, for a new leader of the cluster say, it passes over.
// That takes about a second, so it matters to jobs that run every second. If the clock of a replica is ahead of the others' by more than the time
// between two runs, the runs before the first that it claims after its start are
// lost: a claim stands for all planned times before it.
//
// # How the planned time is known
//
// gocron gives its Locker the name of the job and nothing else. So the scheduler that
// NewScheduler returns remembers its jobs, and its Locker asks the job for the times
// that are planned (gocron.Job.NextRuns): while a run is being locked, gocron still
// has the time for which it was planned at the head of that list. The clock is asked
// only whether that time is now; what it reads is never part of the claim.
//
// The times of a gocron.DurationJob count from each scheduler's own start. Its tick is
// the interval since 1970 in which the planned time lies: a scheduler plans one run in
// each of them, so there is one run per interval in the cluster. All replicas must use
// the same interval.
//
// Refused by NewJob are jobs of which replicas cannot have the same planned times:
// gocron.DurationRandomJob, and gocron.DailyJob, WeeklyJob and MonthlyJob that leave
// out days, weeks or months. A run that was not planned, by Job.RunNow or by
// gocron.WithStartImmediately, is skipped, but that of RunNow stands for a planned run
// that is less than five seconds away. Jobs that are to run on every replica belong in
// a scheduler of gocron.NewScheduler.
package gocronlock
