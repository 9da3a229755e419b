// Package robfigcron makes the jobs of github.com/robfig/cron/v3 run once per planned
// time in a whole cluster, although every replica has a Cron of its own.
//
//	schedule, err := cron.ParseStandard("0 2 * * *")
//	robfigcron.Add(c, node, "nightly report", schedule, cron.FuncJob(report), robfigcron.Options{})
//
// Add the same jobs under the same names and schedules on every replica. The first
// replica whose clock says that it is time claims the run; the others are refused
// that one.
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
// be lost. If the clock of a replica is ahead of the others' by more than the time
// between two runs, the runs before the first that it claims after its start are
// lost: a claim stands for all planned times before it. The wrapped job is not told
// its planned time.
//
// # How the planned time is known
//
// A cron.Job is run without being told for when. So Once has the schedule too, and
// when its job is run it asks the schedule which times have come since it was last
// asked. The time claimed comes from the schedule; the clock is asked only whether it
// is past. A Cron that fires twice for one time, as it does when its timer is early,
// or a job that is run by hand, finds that nothing has come, and does not run. A Cron
// that fires late, after the next time has come too, runs for both, one after the
// other; what has come two seconds before is left to others, unless it is the latest.
//
// The times of cron.Every and "@every" count from each Cron's own start. Their tick is
// the multiple of the interval since 1970 that has come last: a Cron fires once between
// two of them, so there is one run per interval in the cluster.
package robfigcron
