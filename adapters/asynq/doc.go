// Package asynqlock has the periodic tasks of github.com/hibiken/asynq enqueued once
// per planned time by a whole cluster, although every replica has a scheduler of its
// own.
//
//	s := asynqlock.NewScheduler(node, asynq.RedisClientOpt{Addr: "redis:6379"}, asynqlock.Options{})
//	_, err := s.Register("nightly report", "0 2 * * *", asynq.NewTask("report", nil))
//	err = s.Start()
//
// Register the same tasks under the same names on every replica. One replica leads,
// and only it enqueues. When another comes to lead, it first makes up for what came
// in between.
//
// # What is promised
//
// At most one task enqueued for each name and planned time, for ever: with clocks
// that are apart, through the death of the leader at that very time, and after
// restarts. Leadership does not promise it, it only spares the others the work: the
// planned time is claimed too. No time is left out while a majority of the replicas
// lives and another leads within Options.CatchUp, and Redis takes the task, unless the
// leader dies between claim and enqueuing.
//
// Once it is enqueued, the task is asynq's: it may run more than once, as asynq
// says, after an error or when a server dies. Its id, the name and the planned time,
// is the same each time: see TaskID.
//
// # What is not
//
// A leader that claims a planned time and dies does not enqueue its task, and nobody
// else does. If no majority answers within Options.Patience, the time may be lost. A
// task that Redis does not take within Options.Patience is lost. If the clock of a
// leader is ahead of the next one's, the next one waits until its own comes to times
// that were not claimed; if a clock jumps far ahead, all times up to where it was are
// lost: see quorumlock.Node.ForgetJob. An asynq.PeriodicTaskManager makes a scheduler
// of its own, which is not this one.
//
// # How the planned time is known
//
// asynq's scheduler enqueues one and the same task each time, with options that are
// fixed when it is registered, and it does not say for when. So what is registered is a
// stand-in that asynq itself refuses to enqueue, since its task id is blank. That it is
// time is learned from asynq's PreEnqueueFunc; the schedule is asked which times have
// come since, and the real task is enqueued for each, with an id that names the time.
// The clock is asked only whether a time is past. With Inspector.SchedulerEntries one
// sees when the stand-ins are due; the history of what was enqueued is not kept.
//
// The times of "@every" count from each scheduler's own start. They stand for the
// multiples of the interval since 1970: one task per interval.
package asynqlock
