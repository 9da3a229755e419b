package quorumlock

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"time"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/queue"
)

const (
	// tokenJump is by how much a restored cluster's tokens exceed those of the backup when
	// the clock is wrong, as it is before the time of the backup: twelve days of a million
	// grants a second, or years of what is likely.
	tokenJump = 1 << 40
	// maxRestoredToken leaves room for as many again in the signed columns of stores.
	maxRestoredToken = math.MaxInt64 / 2

	// partItems is how many ticks or names are restored by one entry.
	partItems = 500
)

// A restoration is what is taken from a backup.
type restoration struct {
	info  BackupInfo
	token fencing.Token // the last one granted
	ticks []wire.Tick
	bars  []wire.NamedBar
	grace time.Duration // for as long a holder of the lost cluster may believe in its lock
}

// readRestoration reads the backup at path, to its end, for a cluster of so many groups.
func readRestoration(path string, groups int) (*restoration, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("quorumlock: backup cannot be read: %w", err)
	}
	defer func() { _ = f.Close() }()
	r := new(restoration)
	if r.info, err = readBackup(f, r.head, r.line); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if r.token > maxRestoredToken {
		return nil, fmt.Errorf("%w: %s: token %s is so large that there is no room for larger ones", ErrBackup, path, r.token)
	}
	if err := r.fits(groups); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// fits returns an error if so many groups cannot take all: a tick that was left out could be
// claimed once more, and a name that was left out be granted too soon. It takes the backup of
// more groups than there are to be, or of names that were chosen to fill one page.
func (r *restoration) fits(groups int) error {
	jobs := make([]int, groups)
	for _, t := range r.ticks {
		g := groupOf(t.Job, groups)
		if jobs[g]++; jobs[g] > MaxJobs {
			return fmt.Errorf("%w: one of %d groups would have more than %d of its %d jobs", ErrBackup, groups, MaxJobs, len(r.ticks))
		}
	}
	type place struct{ group, page int }
	bars := make(map[place]int)
	for _, b := range r.bars {
		at := place{groupOf(b.Name, groups), pageOf(hashOf(b.Name))}
		if bars[at]++; bars[at] > maxSlots {
			return fmt.Errorf("%w: one of %d groups would have no room for all of the %d names that are kept from others", ErrBackup, groups, len(r.bars))
		}
	}
	return nil
}

// head takes what outlives a cluster: the tokens, and which ticks were claimed.
func (r *restoration) head(h wire.Head) {
	r.token = max(r.token, h.Token)
	for _, j := range h.Jobs {
		r.ticks = append(r.ticks, wire.Tick{Job: j.Name, Tick: j.Tick, At: j.At})
	}
	r.grace = max(r.grace, h.Roll.LongestTTL())
}

// line takes of a lock only for how long it is kept from others after its holder is lost,
// as every holder is now.
func (r *restoration) line(l *queue.Line) {
	var d time.Duration
	for _, b := range l.Bars() {
		d = max(d, b.For)
	}
	for c := range l.Holders() {
		if c.Terms == nil {
			continue
		}
		d = max(d, c.Terms.Delay)
		if !c.Is(queue.Matured) {
			d = max(d, c.Terms.MinHold)
		}
	}
	if d > 0 {
		r.bars = append(r.bars, wire.NamedBar{Name: l.Name, For: d})
	}
}

// of returns what of it belongs to one group: the tokens to each of them.
func (r *restoration) of(belongs func(name string) bool) *restoration {
	some := *r
	some.ticks = keep(r.ticks, func(t wire.Tick) bool { return belongs(t.Job) })
	some.bars = keep(r.bars, func(b wire.NamedBar) bool { return belongs(b.Name) })
	return &some
}

func keep[T any](all []T, is func(T) bool) (some []T) {
	for _, x := range all {
		if is(x) {
			some = append(some, x)
		}
	}
	return some
}

// parts is in how many entries it is restored.
func (r *restoration) parts() uint64 {
	return uint64(max(1, (max(len(r.ticks), len(r.bars))+partItems-1)/partItems))
}

// part returns part i, in the words of a log entry. now is by the wall clock.
func (r *restoration) part(i uint64, now time.Time) *wire.Part {
	p := &wire.Part{Origin: wire.Origin{Sum: r.info.Sum, Done: i, Of: r.parts()}}
	p.Ticks, p.Bars = slicePart(r.ticks, i), slicePart(r.bars, i)
	if i == 0 {
		p.Token = r.beyond(now)
	}
	return p
}

// beyond returns a token that none granted before now exceeds: so many as there are
// microseconds since 1970, of which a float64 holds each until the year 2255. No cluster
// grants a million tokens a second, so each is below that at any time, those too that
// were restored. It is no more than that, unless a clock was wrong once, or else the next
// restoration, from another backup, could come out below it.
func (r *restoration) beyond(now time.Time) fencing.Token {
	least := fencing.Token(max(now.UnixMicro(), 0))
	since := now.Sub(r.info.At)
	if since <= 0 {
		return max(least, r.token+tokenJump)
	}
	return max(least, r.token+fencing.Token(since.Microseconds()))
}

func slicePart[T any](all []T, i uint64) []T {
	from := min(i*partItems, uint64(len(all)))
	return all[from:min(from+partItems, uint64(len(all)))]
}

// checkRestore compares the backup that is to be restored, if any, with that from which
// the directory was founded. A backup is for a first start; it may be gone after that.
func (d *directory) checkRestore(o Options) error {
	switch {
	case o.Restore == "" || errors.Is(o.backupErr, fs.ErrNotExist) && d.marker.Backup != "":
		return nil
	case d.marker.Backup == "":
		return fmt.Errorf("%w: %s holds a replica already: a backup is restored by founders with empty directories (Options.Restore)",
			ErrDirectory, d.path)
	case o.backupErr != nil:
		return o.backupErr
	case d.marker.Backup != o.backup.info.Sum:
		return fmt.Errorf("%w: %s was founded from backup %.8s, and %s is backup %.8s",
			ErrDirectory, d.path, d.marker.Backup, o.Restore, o.backup.info.Sum)
	}
	return nil
}

// awaits reports whether something is still to be restored before this node may ask
// the group for anything. The state machine's lock is held.
func (g *group) awaits() bool {
	o := g.machine.fsm.origin
	return g.n.founding != "" && (o.Sum != g.n.founding || o.Done < o.Of)
}

// restoreLoop restores the backup part by part in the groups that this replica leads. It
// begins only when no holder of the lost cluster can believe in its lock any more, since
// that cluster has committed nothing after this process began.
func (n *Node) restoreLoop(r *restoration) {
	wait := max(r.grace, n.opts.SessionTTL)
	n.log.Info("to be restored, after a full grace", "backup", n.founding, "ttl", wait)
	shares := make([]*restoration, len(n.groups))
	for i, g := range n.groups {
		shares[i] = r.of(func(name string) bool { return n.groupOf(name) == g })
	}
	for ok := n.later(wait); ok && !n.ready(); ok = n.later(maxBackoff) {
		for _, g := range n.leading() {
			g.restore(shares[g.index])
		}
	}
}

// restore restores what is missing, as long as that goes on.
func (g *group) restore(r *restoration) {
	var last *wire.Part
	for p := g.nextPart(r); p != nil && (last == nil || p.Done != last.Done); p = g.nextPart(r) {
		e := wire.Entry{Commands: []wire.Command{{Op: wire.Restore, More: &wire.More{Part: p}}}}
		g.propose(g.termNow(), g.n.encodeOf(byte(r.info.Level), e))
		last = p
	}
}

// nextPart returns what is to be restored next, or nil if all is.
func (g *group) nextPart(r *restoration) (p *wire.Part) {
	g.machine.read(func(f *lockFSM) {
		if g.awaits() {
			p = r.part(f.origin.Done, g.n.clk.Now())
		}
	})
	return p
}

// restoredPart hears that a part was restored, or was not needed.
func (g *group) restoredPart(e *effect) {
	if e.cause != 0 && g.n.founding != "" && g.machine.fsm.origin.Sum != g.n.founding {
		g.n.failLocked(fmt.Errorf("%w: this cluster has begun without backup %.8s", ErrBackup, g.n.founding))
		return
	}
	g.settleReady()
}
