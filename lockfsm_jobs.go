package quorumlock

import (
	"maps"
	"slices"
	"strings"

	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/sessions"
)

// claimTick gives a tick of a job to the first call that claims it. All that is
// remembered of a job is the last tick that was claimed, which only grows: no clock
// and no lease is needed for that, and what is past stays past. The call is
// remembered too, so that it gets the same answer if it comes once more.
func (f *lockFSM) claimTick(id sessions.ID, at int64, c *wire.Command) cause {
	by := sessions.ID{Replica: id.Replica, Epoch: id.Epoch}
	j := f.jobs[c.Name]
	switch {
	case j == nil && len(f.jobs) >= wire.MaxJobs:
		return causeJobs
	case j == nil:
		j = &wire.Job{Name: strings.Clone(c.Name)}
		f.jobs[j.Name] = j
	case j.Tick == c.More.Tick && j.By == by && j.Call == c.More.Call:
		return 0
	case j.Tick >= c.More.Tick:
		return causeClaimed
	}
	j.Tick, j.By, j.Call, j.At = c.More.Tick, by, c.More.Call, at
	f.emit(effect{kind: ticked, session: by, name: j.Name, n: uint64(j.Tick)})
	return 0
}

// forgetJob forgets a job, and with it which ticks were claimed.
func (f *lockFSM) forgetJob(c *wire.Command) cause {
	if f.jobs[c.Name] == nil {
		return causeGone
	}
	delete(f.jobs, c.Name)
	f.emit(effect{kind: forgotten, name: c.Name})
	return 0
}

func (f *lockFSM) jobList() []wire.Job {
	jobs := make([]wire.Job, 0, len(f.jobs))
	for _, name := range slices.Sorted(maps.Keys(f.jobs)) {
		jobs = append(jobs, *f.jobs[name])
	}
	return jobs
}
