package quorumlock

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/quorumlock/quorumlock/internal/wire"
)

// ClaimTick claims a tick of a job, and returns true for exactly one call in the
// whole cluster, ever, for each job and tick. A tick is a number that grows, such as
// the Unix time for which a run was planned: once it was claimed, so were all before
// it. No clock and no lease is involved, so it makes no difference how far the
// callers' clocks are apart, how short the job is, or when a caller comes late.
//
// It is a promise of at most one: a caller that claims a tick and dies does not run
// it, and nobody else does. On an error matching ErrNoQuorum and ctx's error, the
// tick may have been claimed for nobody. Other errors match ErrName, for the job,
// ErrTooManyJobs and ErrClosed.
func (n *Node) ClaimTick(ctx context.Context, job string, tick int64) (bool, error) {
	if err := checkCall(ctx, job); err != nil {
		return false, err
	}
	g := n.groupOf(job)
	why, err := g.ask(ctx, job, wire.Command{Op: wire.Claim, Name: job, More: &wire.More{Tick: tick}})
	if err != nil || why == causeClaimed {
		return false, err
	}
	return why == 0, g.outcome(job, wire.Command{Op: wire.Claim}, why)
}

// A JobInfo tells which tick of a job was claimed last.
type JobInfo struct {
	Name      string
	Tick      int64
	Replica   uint64    // whose call claimed it
	ClaimedAt time.Time // by that process's wall clock; for display
}

// Jobs lists the jobs whose names begin with prefix, in the order of their names.
// It is linearizable, and its errors are those of Describe.
func (n *Node) Jobs(ctx context.Context, prefix string) ([]JobInfo, error) {
	if err := n.consult(ctx); err != nil {
		return nil, err
	}
	var infos []JobInfo
	for _, g := range n.groups {
		g.machine.read(func(f *lockFSM) {
			for name, j := range f.jobs {
				if strings.HasPrefix(name, prefix) {
					infos = append(infos, JobInfo{Name: name, Tick: j.Tick, Replica: j.By.Replica, ClaimedAt: time.UnixMilli(j.At)})
				}
			}
		})
	}
	slices.SortFunc(infos, func(a, b JobInfo) int { return strings.Compare(a.Name, b.Name) })
	return infos, nil
}

// ForgetJob forgets a job. Whoever claims a tick of it then, an old one too, gets
// it: forget only what nobody runs any more. It returns ErrNotHeld for a job that is
// not known; other errors are those of ClaimTick.
func (n *Node) ForgetJob(ctx context.Context, job string) error {
	if err := checkCall(ctx, job); err != nil {
		return err
	}
	return n.groupOf(job).call(ctx, job, wire.Command{Op: wire.Forget, Name: job, More: &wire.More{}})
}
