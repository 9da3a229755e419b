package quorumlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lni/dragonboat/v4"
	"github.com/lni/dragonboat/v4/client"
	"github.com/lni/dragonboat/v4/raftio"

	"github.com/quorumlock/quorumlock/internal/peer"
)

// identity is what this life of a replica is told from all others by.
type identity struct {
	epoch   uint64   // how often the directory was opened, this time included
	storage [16]byte // of the directory; another one after it was wiped
	backup  string   // sum of the backup from which the cluster was founded, or ""
}

// replica is the engine over dragonboat.
//
// A failing disk, a snapshot that cannot be read and a broken invariant of Raft
// stop the process: the engine panics in a goroutine of its own, where nobody
// can recover. That is by design, as with any log that cannot be trusted after
// a failed fsync. OnFatal has the last word, as the engine says why through its
// logger.
type replica struct {
	id     uint64
	logger *slog.Logger
	voice  *voice
	try    time.Duration // what a call without a deadline gets
	tick   time.Duration

	forwarder *forwarder

	dir     *directory
	self    peer.Identity
	peers   *peer.Transport
	carrier *carrier
	where   *addresses
	shards  []*shard // by group
	host    *dragonboat.NodeHost

	atClose   func()        // tests: see lab.Hardware
	closing   chan struct{} // closed when close begins
	calls     sync.WaitGroup
	following sync.WaitGroup // the goroutines that follow the membership

	mu       sync.Mutex
	events   engineEvents
	closed   bool // no further calls
	running  bool // refusals are reported
	gone     chan struct{}
	closeErr error
	refusers map[uint64]bool // peers founded with other members
	wiped    bool
	removed  bool
	heard    map[string]bool // refusals that were logged
}

// A shard is the engine of one group: they differ in little else than the number by
// which dragonboat knows them.
type shard struct {
	r       *replica
	id      uint64
	fsm     *fsm
	session *client.Session

	leads   atomic.Pointer[leadership]
	changed chan struct{} // closed and replaced at each change of leads, with r.mu held
}

type leadership struct{ replica, term uint64 }

var (
	_ engineHost = (*replica)(nil)
	_ engine     = (*shard)(nil)
)

// openReplica starts the replica that o describes, which calls m and ev from
// now on. What it opened is closed again when it fails.
func openReplica(o Options, m []stateMachine, ev engineEvents) (engineHost, identity, error) {
	process.prepare()
	dir, err := claimDirectory(o)
	if err != nil {
		return nil, identity{}, err
	}
	r := newReplica(o, dir, m, ev)
	if err := r.start(o); err != nil {
		_ = r.close()
		return nil, identity{}, err
	}
	return r, identity{epoch: dir.marker.Epoch, storage: dir.marker.storage(), backup: dir.marker.Backup}, nil
}

func newReplica(o Options, dir *directory, m []stateMachine, ev engineEvents) *replica {
	r := &replica{
		id:       o.ReplicaID,
		logger:   o.Logger,
		voice:    &voice{logger: o.Logger, onFatal: o.OnFatal},
		events:   ev,
		try:      o.ElectionTimeout,
		tick:     tickOf(o.ElectionTimeout),
		dir:      dir,
		closing:  make(chan struct{}),
		gone:     make(chan struct{}),
		refusers: make(map[uint64]bool),
		heard:    make(map[string]bool),
	}
	if o.hardware != nil {
		r.atClose = o.hardware.Closing
	}
	r.forwarder = newForwarder()
	for i := range m {
		s := &shard{r: r, id: shardOf(i), changed: make(chan struct{})}
		s.leads.Store(&leadership{})
		s.fsm = &fsm{machine: m[i], voice: r.voice, seen: r.forwarder.seen}
		r.shards = append(r.shards, s)
	}
	return r
}

// shardOf returns what dragonboat knows a group by.
func shardOf(group int) uint64 { return uint64(group) + 1 }

func (r *replica) group(i int) engine { return r.shards[i] }

// shard returns the shard of an id that came from elsewhere, or nil.
func (r *replica) shard(id uint64) *shard {
	if id < 1 || id > uint64(len(r.shards)) {
		return nil
	}
	return r.shards[id-1]
}

// enter lets a call of the engine in, unless the replica is closed. leave must
// follow.
func (r *replica) enter() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.calls.Add(1)
	return true
}

func (r *replica) leave() { r.calls.Done() }

func (s *shard) propose(ctx context.Context, entry []byte) error {
	r := s.r
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", errDropped, err)
	}
	if len(entry) == 0 || len(entry) > maxEntry {
		return fmt.Errorf("%w: an entry has from 1 to %d bytes, not %d", errDropped, maxEntry, len(entry))
	}
	if !r.enter() {
		return ErrClosed
	}
	defer r.leave()
	tagged, number, applied := r.forwarder.tag(entry)
	defer r.forwarder.forget(number)
	if leader, _ := s.leader(); leader != 0 && leader != r.id {
		return s.forward(ctx, leader, tagged, applied)
	}
	state, err := r.host.Propose(s.session, tagged, r.patience(ctx))
	if err != nil {
		// Whatever Propose itself returns, the entry is not in the log.
		return fmt.Errorf("%w: %w", errDropped, err)
	}
	return r.outcome(ctx, state)
}

func (s *shard) barrier(ctx context.Context) error {
	r := s.r
	if err := ctx.Err(); err != nil {
		return err
	}
	if !r.enter() {
		return ErrClosed
	}
	defer r.leave()
	ctx, cancel := context.WithTimeout(ctx, r.try)
	defer cancel()
	state, err := r.host.ReadIndex(s.id, r.patience(ctx))
	if err != nil {
		return fmt.Errorf("%w: %w", errDropped, err)
	}
	return r.outcome(ctx, state)
}

// patience is the timeout that the engine counts in ticks. It is never shorter
// than ctx's, whose end is seen in outcome; without a deadline it is short, since
// what a former leader was sent is never heard of again.
func (r *replica) patience(ctx context.Context) time.Duration {
	wait := 2 * r.try
	if deadline, ok := ctx.Deadline(); ok {
		wait = max(time.Until(deadline), r.try) + 2*r.tick
	}
	return min(wait, time.Hour)
}

// outcome waits for what becomes of a request.
func (r *replica) outcome(ctx context.Context, state *dragonboat.RequestState) error {
	select {
	case result := <-state.AppliedC():
		state.Release()
		switch {
		case result.Completed():
			return nil
		case result.Dropped(), result.Rejected():
			return errDropped
		case result.Terminated():
			return r.closedOr(errUnknown)
		}
		return errUnknown
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", errUnknown, ctx.Err())
	case <-r.closing:
		return ErrClosed
	}
}

func (r *replica) closedOr(err error) error {
	select {
	case <-r.closing:
		return ErrClosed
	default:
		return err
	}
}

// leaderListener hears of leaders in the engine's goroutine for such events.
type leaderListener struct{ r *replica }

func (l leaderListener) LeaderUpdated(info raftio.LeaderInfo) {
	r := l.r
	s := r.shard(info.ShardID)
	if s == nil {
		return
	}
	s.leads.Store(&leadership{replica: info.LeaderID, term: info.Term})
	r.mu.Lock()
	close(s.changed)
	s.changed = make(chan struct{})
	tell := r.events.leader
	r.mu.Unlock()
	nudge(r.where.moved) // a snapshot may have told of changes of the members
	if tell != nil {
		tell(int(s.id-1), info.LeaderID, info.Term)
	}
}

func (s *shard) leader() (replica, term uint64) {
	now := s.leads.Load()
	return now.replica, now.term
}

// transfer asks again now and then: a request is lost when the leader changes
// or the target lags.
func (s *shard) transfer(ctx context.Context, to uint64) error {
	r := s.r
	if !r.enter() {
		return ErrClosed
	}
	defer r.leave()
	again := time.NewTicker(r.try)
	defer again.Stop()
	for {
		r.mu.Lock()
		changed := s.changed
		r.mu.Unlock()
		if now, _ := s.leader(); now == to {
			return nil
		}
		// Refused while another request is under way, which may be our own.
		_ = r.host.RequestLeaderTransfer(s.id, to)
		if err := s.await(ctx, to, changed, again.C); err != nil {
			return err
		}
	}
}

// await waits until to leads or it is time to ask again.
func (s *shard) await(ctx context.Context, to uint64, changed <-chan struct{}, again <-chan time.Time) error {
	r := s.r
	for {
		select {
		case <-changed:
			if now, _ := s.leader(); now == to {
				return nil
			}
			r.mu.Lock()
			changed = s.changed
			r.mu.Unlock()
		case <-again:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-r.closing:
			return ErrClosed
		}
	}
}

// members returns who votes, as this replica has applied it.
func (s *shard) members() map[uint64]string {
	r := s.r
	all := make(map[uint64]string)
	for id := range r.dir.marker.Founders {
		all[id] = r.where.shown(id)
	}
	if !r.enter() {
		return all
	}
	defer r.leave()
	_ = guarded("members", func() error {
		info := r.host.GetNodeHostInfo(dragonboat.NodeHostInfoOption{SkipLogInfo: true})
		for _, shard := range info.ShardInfoList {
			if shard.ShardID != s.id || len(shard.Replicas) == 0 {
				continue // another one, or nothing applied yet
			}
			clear(all)
			for id := range shard.Replicas {
				all[id] = r.where.shown(id)
			}
		}
		return nil
	})
	return all
}

func (r *replica) unreachable() map[uint64]error { return r.peers.Unreachable() }

func (r *replica) levels() map[uint64]byte { return r.peers.Levels() }

func (r *replica) close() error {
	r.mu.Lock()
	first := !r.closed
	r.closed = true
	r.mu.Unlock()
	if first {
		r.closeErr = r.shutdown()
		close(r.gone)
	}
	<-r.gone
	return r.closeErr
}

// shutdown closes in such an order that nothing waits for the network and
// nothing is called that is gone. The directory comes last: until then nobody
// else may have it.
func (r *replica) shutdown() error {
	close(r.closing)
	var faults []error
	if r.peers != nil {
		faults = append(faults, r.peers.Close()) // a call may be sending
	}
	r.calls.Wait()
	r.following.Wait()
	process.remove(r.voice)
	if r.atClose != nil {
		r.atClose()
	}
	if r.host != nil {
		faults = append(faults, guarded("close the engine", func() error {
			r.host.Close()
			return nil
		}))
	}
	for _, s := range r.shards {
		s.fsm.shut()
	}
	r.dir.release()
	// The engine's metrics, which are global, keep the first replica of a
	// process for ever: it must not keep the node and its locks.
	r.mu.Lock()
	r.events, r.voice = engineEvents{}, nil
	r.mu.Unlock()
	return errors.Join(faults...)
}
