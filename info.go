package quorumlock

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/queue"
	"github.com/quorumlock/quorumlock/sessions"
)

// A Mode is how a lock is held.
type Mode = queue.Mode

// How a lock is held.
const (
	Exclusive = queue.Exclusive // alone: as Acquire takes it
	Shared    = queue.Shared    // beside others that share it: see Share
	Counted   = queue.Counted   // by as many as there are permits for: see Permits
)

// LockInfo describes one lock.
type LockInfo struct {
	Name         string
	Mode         Mode      // of the holders, or of who waits first; zero if there is neither
	Holders      []Holder  // in the order in which they were granted
	Waiters      []Waiter  // in line, the next one first
	Limit        int       // of a counted lock: how many permits there are
	Taken        int       // and how many of them are taken
	DelayedUntil time.Time // until when a LockDelay keeps it from being granted, as seen here; zero if none does
}

// A Holder is who holds a lock. The times are for display: they come from the wall
// clocks of two machines, and nothing is decided by them.
type Holder struct {
	Session    sessions.ID
	Hold       uint64 // which acquisition of the session's process: the two together name this one
	Owner      string // empty if the session is over and the hold is kept by MinHold
	Replica    uint64
	Mode       Mode
	Token      fencing.Token
	Value      string    // what the holder publishes
	Slots      []int     // of a counted lock: which permits, in order
	Names      []string  // all names of the hold, if there are several
	AcquiredAt time.Time // by the wall clock of the process whose call made it free
	LeaseUntil time.Time // from when on its session may be ended unless it is renewed, as seen here; zero if unknown
	MaxHold    time.Duration
	HeldUntil  time.Time // when MaxHold ends it, as seen here; zero if nothing does, or the holder does not know of its hold yet
	MinHold    time.Duration
	Released   bool      // the holder has released it, and MinHold keeps it
	KeptUntil  time.Time // until when MinHold keeps it, as seen here; zero if it does not
	LockDelay  time.Duration
}

// A Waiter is who stands in line for a lock.
type Waiter struct {
	Session sessions.ID
	Hold    uint64 // which acquisition of the session's process, as in Holder
	Owner   string
	Replica uint64
	Mode    Mode
	Permits int       // of a counted lock: how many it waits for
	Value   string    // what the waiter publishes
	Names   []string  // all names of the wait, if there are several
	Since   time.Time // by the waiter's wall clock; for display
}

// Describe tells who holds a lock and who waits for it. It is linearizable: it
// shows the effect of every call that returned anywhere before Describe was called.
// For a name that nobody holds or waits for, Holders and Waiters are empty. Errors
// match ErrName, ErrClosed, or ErrNoQuorum and ctx's error when ctx ended first.
func (n *Node) Describe(ctx context.Context, name string) (LockInfo, error) {
	if err := checkCall(ctx, name); err != nil {
		return LockInfo{}, err
	}
	g := n.groupOf(name)
	if err := g.barrier(ctx); err != nil {
		return LockInfo{}, err
	}
	info := LockInfo{Name: name}
	g.machine.read(func(f *lockFSM) {
		if l := f.table.line(name); l != nil {
			info = g.describe(f, l)
		}
	})
	return info, nil
}

// A ListOption changes one thing about a List.
type ListOption func(*listOptions)

type listOptions struct {
	after string
	limit int
}

// After makes List begin after a name: the last one of the page before.
func After(name string) ListOption { return func(o *listOptions) { o.after = name } }

// Limit sets how many locks List returns at most. Default, and for a limit below 1:
// 1,000.
func Limit(locks int) ListOption { return func(o *listOptions) { o.limit = locks } }

const defaultListLimit = 1000

// List describes the locks whose names begin with prefix and that somebody holds or
// waits for, or that a LockDelay keeps from being granted, in the order of their
// names, a page at a time: see After and Limit. An empty prefix stands for all.
//
// Each lock is shown as it was at some moment after List was called, not all of
// them at the same one, since List never holds up the log. Its cost grows with the
// number of all locks. Errors are those of Describe.
func (n *Node) List(ctx context.Context, prefix string, opts ...ListOption) ([]LockInfo, error) {
	o := listOptions{limit: defaultListLimit}
	for _, opt := range opts {
		opt(&o)
	}
	if o.limit < 1 {
		o.limit = defaultListLimit
	}
	if err := n.consult(ctx); err != nil {
		return nil, err
	}
	names, err := n.names(ctx, prefix, o)
	if err != nil {
		return nil, err
	}
	infos := make([]LockInfo, 0, len(names))
	for chunk := range slices.Chunk(names, 100) {
		for _, g := range n.groups {
			infos = append(infos, g.describeAll(chunk)...)
		}
	}
	slices.SortFunc(infos, func(a, b LockInfo) int { return strings.Compare(a.Name, b.Name) })
	return infos, nil
}

// describeAll describes those of some names that are the group's and in use.
func (g *group) describeAll(names []string) (infos []LockInfo) {
	g.machine.read(func(f *lockFSM) {
		for _, name := range names {
			if g.n.groupOf(name) != g {
				continue
			}
			if l := f.table.line(name); l != nil {
				infos = append(infos, g.describe(f, l))
			}
		}
	})
	return infos
}

// names returns the first names of a page, in order. It takes the lock once for
// each page of the table.
func (n *Node) names(ctx context.Context, prefix string, o listOptions) ([]string, error) {
	var names []string
	trim := func() {
		slices.Sort(names)
		names = names[:min(len(names), o.limit)]
	}
	for _, g := range n.groups {
		for i := range pages {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			g.machine.read(func(f *lockFSM) {
				for _, name := range f.table.lineNames(i) {
					if name > o.after && strings.HasPrefix(name, prefix) {
						names = append(names, strings.Clone(name))
					}
				}
			})
			if len(names) > 2*o.limit+1024 {
				trim()
			}
		}
	}
	trim()
	return names, nil
}

func (f *lockFSM) owner(id sessions.ID) string {
	if s := f.roll.Session(id); s != nil {
		return s.Owner
	}
	return ""
}

// A SessionInfo describes a session.
type SessionInfo struct {
	ID         sessions.ID
	Owner      string
	Replica    uint64
	TTL        time.Duration
	OpenedAt   time.Time // by its process's wall clock; for display
	RenewedAt  time.Time // when its process's last renewal was applied here; zero if unknown
	LeaseUntil time.Time // from when on it may be ended unless it is renewed, as seen here; zero if unknown
	Holds      int       // locks that it holds: of several names, each counts
	Waits      int       // places that it has in lines
}

// Sessions tells which sessions are alive, in the order of their ids. It is
// linearizable, and its errors are those of Describe. A hold that MinHold keeps
// after its session's end is nobody's.
func (n *Node) Sessions(ctx context.Context) ([]SessionInfo, error) {
	if err := n.consult(ctx); err != nil {
		return nil, err
	}
	byID := make(map[sessions.ID]SessionInfo)
	for _, g := range n.groups {
		for _, i := range g.sessions() {
			byID[i.ID] = i.with(byID[i.ID])
		}
	}
	return slices.SortedFunc(maps.Values(byID), func(a, b SessionInfo) int {
		return cmp.Or(cmp.Compare(a.ID.Replica, b.ID.Replica), cmp.Compare(a.ID.Epoch, b.ID.Epoch), cmp.Compare(a.ID.Seq, b.ID.Seq))
	}), nil
}

// with adds what another group says of the session, if it knows it: the session lasts
// as long as it does where it ends first.
func (i SessionInfo) with(other SessionInfo) SessionInfo {
	if other.ID.IsZero() {
		return i
	}
	i.Holds, i.Waits = i.Holds+other.Holds, i.Waits+other.Waits
	if other.OpenedAt.Before(i.OpenedAt) {
		i.OpenedAt = other.OpenedAt
	}
	if i.LeaseUntil.IsZero() || !other.LeaseUntil.IsZero() && other.LeaseUntil.Before(i.LeaseUntil) {
		i.RenewedAt, i.LeaseUntil = other.RenewedAt, other.LeaseUntil
	}
	return i
}

// sessions tells which sessions are alive in the group.
func (g *group) sessions() (infos []SessionInfo) {
	g.machine.read(func(f *lockFSM) {
		g.n.mu.Lock()
		defer g.n.mu.Unlock()
		for p := range f.roll.Processes() {
			renewed, ok := g.judge.RenewedAt(p.Replica, p.Epoch)
			for s := range p.Sessions() {
				i := SessionInfo{ID: s.ID, Owner: s.Owner, Replica: s.ID.Replica, TTL: s.TTL, OpenedAt: time.UnixMilli(s.OpenedAt)}
				if ok {
					i.RenewedAt, i.LeaseUntil = renewed.Round(0), renewed.Add(sessions.Lease(s.TTL)).Round(0)
				}
				i.Holds, i.Waits = f.table.counts(s.ID)
				infos = append(infos, i)
			}
		}
	})
	return infos
}

// Status is what this replica knows without asking the others.
type Status struct {
	ReplicaID uint64
	Epoch     uint64            // which life of this replica's process this is
	Ready     bool              // this life has begun in the log, and what was to be restored is there
	Leader    uint64            // who leads, as this replica believes; 0 for nobody; of several groups, the first
	Term      uint64            // of that leader
	Applied   uint64            // index of the last log entry applied here; of several groups, in the first
	Groups    []GroupStatus     // each of them, if there are several: see Options.Groups
	Members   map[uint64]string // voting replicas and their addresses
	Locks     int               // names that somebody in the cluster holds or waits for
	Sessions  int               // sessions of this process
	Holds     int               // holds and waits of this process
	Token     fencing.Token     // the last one granted in the cluster, as seen here
	Warnings  []string          // what does not hurt yet: that one zone's loss would take the majority
	Level     int               // the feature level in force, as seen here: who does not speak it is stopped
	MaxLevel  int               // the highest feature level that this version speaks
	Err       error             // why this node can do nothing any more, or nil
	// Unreachable are replicas to which a connection failed within the last minute,
	// and why: a host that is down, a certificate that is not theirs. Who was not
	// needed in that time is not among them.
	Unreachable map[uint64]error
}

// GroupStatus is what this replica knows of one group of several.
type GroupStatus struct {
	Leader  uint64 // who leads it, as this replica believes; 0 for nobody
	Term    uint64 // of that leader
	Applied uint64 // index of the last log entry applied here
	Locks   int    // of its names, those that somebody holds or waits for
}

// Status returns what this replica knows. It asks nobody, waits for nothing, and
// may be behind the others.
func (n *Node) Status() Status {
	s := Status{ReplicaID: n.opts.ReplicaID, Epoch: n.self.Epoch, Ready: n.ready()}
	s.Members = maps.Clone(n.groups[0].engine.members())
	s.Unreachable, s.MaxLevel = n.host.unreachable(), int(n.opts.level)
	if risk := n.zoneRisk(s.Members); risk != "" {
		s.Warnings = append(s.Warnings, risk)
	}
	for i, g := range n.groups {
		var own GroupStatus
		own.Leader, own.Term = g.engine.leader()
		g.machine.read(func(f *lockFSM) {
			own.Applied, own.Locks = g.machine.applied, f.table.n
			s.Token = max(s.Token, f.token)
			if level := int(f.level); i == 0 || level < s.Level {
				s.Level = level
			}
		})
		s.Locks += own.Locks
		if i == 0 {
			s.Leader, s.Term, s.Applied = own.Leader, own.Term, own.Applied
		}
		if len(n.groups) > 1 {
			s.Groups = append(s.Groups, own)
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	s.Sessions, s.Holds, s.Err = len(n.sessions), n.claimCount(), n.failed
	return s
}

// claimCount is how many acquisitions of this process there are. n.mu is held.
func (n *Node) claimCount() (count int) {
	for _, g := range n.groups {
		for _, p := range g.parts {
			count += len(p.claims)
		}
	}
	return count
}

// consult is barrier for a call of a user's.
func (n *Node) consult(ctx context.Context) error {
	if err := checkCtx(ctx); err != nil {
		return err
	}
	return n.barrier(ctx)
}

// barrier is that of every group.
func (n *Node) barrier(ctx context.Context) error {
	if len(n.groups) == 1 {
		return n.groups[0].barrier(ctx)
	}
	return atOnce(n.groups, func(g *group) error { return g.barrier(ctx) })
}

// Quorum asks every group at once whether a majority answers, and returns what came of it
// in the order of Status.Groups, or for the only group: nil, or an error matching
// ErrClosed, or ErrNoQuorum and ctx's error if ctx ended before.
func (n *Node) Quorum(ctx context.Context) []error {
	answers := make([]error, len(n.groups))
	_ = atOnce(n.groups, func(g *group) error { // each has an error of its own
		if answers[g.index] = checkCtx(ctx); answers[g.index] == nil {
			answers[g.index] = g.barrier(ctx)
		}
		return nil
	})
	return answers
}

// barrier waits until this replica has applied everything that was committed in the
// group when barrier was called.
func (g *group) barrier(ctx context.Context) error { return g.n.inquire(ctx, g.engine.barrier) }

// inquire asks the cluster for something that changes nothing. A try whose answer was
// lost is repeated: reads can get lost without a word.
func (n *Node) inquire(ctx context.Context, question func(context.Context) error) error {
	for backoff := minBackoff; ; backoff = min(2*backoff, maxBackoff) {
		if err := n.err(); err != nil {
			return err
		}
		try, cancel := n.clk.WithTimeout(ctx, n.opts.ElectionTimeout/4)
		err := question(try)
		cancel()
		if err == nil {
			return nil
		}
		n.later(backoff, ctx.Done())
		if ctx.Err() != nil {
			return &ctxError{ErrNoQuorum, ctx.Err()}
		}
	}
}
