package quorumlock

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lni/dragonboat/v4"
	"github.com/lni/dragonboat/v4/client"
	"github.com/lni/dragonboat/v4/config"
	"github.com/lni/dragonboat/v4/raftio"
	"github.com/lni/dragonboat/v4/statemachine"

	"github.com/quorumlock/quorumlock/internal/peer"
)

const (
	shardID = 1 // the only Raft group

	// The geometry of the log on disk. It can never change for a directory.
	execShards = 1
	logShards  = 1

	// maxEntry bounds one proposal, so that the messages of the engine stay
	// within what a peer.Transport carries.
	maxEntry = 16 << 20

	probeTime = 500 * time.Millisecond
)

// tuning is what tests set lower to see snapshots with few entries.
var tuning = struct {
	snapshotEntries    uint64 // between two snapshots
	compactionOverhead uint64 // kept behind one, for replicas that lag
}{snapshotEntries: 100_000, compactionOverhead: 20_000}

// identity is what this life of a replica is told from all others by.
type identity struct {
	epoch   uint64   // how often the directory was opened, this time included
	storage [16]byte // of the directory; another one after it was wiped
}

// replica is the engine over dragonboat.
//
// A failing disk, a snapshot that cannot be read and a broken invariant of Raft
// stop the process: the engine panics in a goroutine of its own, where nobody
// can recover. That is by design, as with any log that cannot be trusted after
// a failed fsync. OnFatal has the last word where the engine says why through
// its logger; a failing write of its storage (pebble) is not among those.
type replica struct {
	id      uint64
	logger  *slog.Logger
	onFatal func(error)
	events  engineEvents
	others  int           // founders but for this one
	try     time.Duration // what a call without a deadline gets
	tick    time.Duration

	dir     *directory
	peers   *peer.Transport
	carrier *carrier
	where   *addresses
	fsm     *fsm
	host    *dragonboat.NodeHost
	session *client.Session

	closing chan struct{} // closed when close begins
	calls   sync.WaitGroup

	mu       sync.Mutex
	closed   bool // no further calls
	running  bool // refusals are reported
	gone     chan struct{}
	closeErr error
	refusers map[uint64]bool // peers founded with other members
	wiped    bool
	heard    map[string]bool // refusals that were logged

	leads   atomic.Pointer[leadership]
	changed chan struct{} // closed and replaced at each change of leads, with mu held
}

type leadership struct{ replica, term uint64 }

var _ engine = (*replica)(nil)

// openReplica starts the replica that o describes, which calls m and ev from
// now on. What it opened is closed again when it fails.
func openReplica(o Options, m stateMachine, ev engineEvents) (engine, identity, error) {
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
	return r, identity{epoch: dir.marker.Epoch, storage: dir.marker.storage()}, nil
}

func newReplica(o Options, dir *directory, m stateMachine, ev engineEvents) *replica {
	r := &replica{
		id:       o.ReplicaID,
		logger:   o.Logger,
		onFatal:  o.OnFatal,
		events:   ev,
		others:   max(len(dir.marker.Founders)-1, 0),
		try:      o.ElectionTimeout,
		tick:     tickOf(o.ElectionTimeout),
		dir:      dir,
		closing:  make(chan struct{}),
		gone:     make(chan struct{}),
		refusers: make(map[uint64]bool),
		heard:    make(map[string]bool),
		changed:  make(chan struct{}),
	}
	r.leads.Store(&leadership{})
	r.fsm = &fsm{machine: m, fatal: func(err error) {
		r.logger.Error("the state machine cannot go on, the process stops", "err", err)
		lastWords(err, []*replica{r})
	}}
	return r
}

// start opens one thing after the other, the port before anything is written.
// No message passes before the marker says that the engine is in place.
func (r *replica) start(o Options) error {
	listener, err := net.Listen("tcp", o.Listen)
	if err != nil {
		return fmt.Errorf("quorumlock: cannot listen at %q (Options.Listen, by default Address): %w", o.Listen, err)
	}
	book, err := r.dir.begin()
	if err != nil {
		_ = listener.Close()
		return err
	}
	r.connect(o, listener, book)
	founding := r.dir.marker.State == stateBootstrapping
	if founding {
		if err := r.probe(o.Members); err != nil {
			return err
		}
	}
	if err := r.startHost(o); err != nil {
		return err
	}
	if err := r.startShard(o, founding); err != nil {
		return err
	}
	if err := r.dir.bootstrapped(); err != nil {
		return err
	}
	r.mu.Lock()
	r.running = true
	r.mu.Unlock()
	process.add(r)
	r.peers.Open()
	r.peers.Meet(ids(r.dir.marker.Founders), r.where)
	return nil
}

func (r *replica) connect(o Options, listener net.Listener, book *peer.Book) {
	m := r.dir.marker
	configured := map[uint64]string{r.id: o.Address}
	maps.Copy(configured, o.Members)
	r.where = &addresses{configured: configured, book: book, founded: m.Founders, known: make(map[uint64]string), turn: make(map[uint64]int)}
	r.carrier = &carrier{self: r.id, dir: r.where}
	r.peers = peer.New(peer.Config{
		Self: peer.Identity{
			Cluster:  m.Cluster,
			Replica:  m.Replica,
			Storage:  m.storage(),
			Founders: m.foundersHash(),
			Epoch:    m.Epoch,
			Life:     m.Life,
			Address:  o.Address,
		},
		Book:     book,
		Listener: listener,
		Receive:  r.carrier.receive,
		Refused:  r.refused,
		Logger:   r.logger,
		Faults:   o.faults,
	})
	r.carrier.peers = r.peers
}

// probe asks the other founders, before this one first takes part, whether they
// know better. Who does not answer is not waited for.
func (r *replica) probe(members map[uint64]string) error {
	ctx, cancel := context.WithTimeout(context.Background(), probeTime)
	defer cancel()
	welcome, refusals := r.peers.Probe(ctx, members)
	var disagree []*peer.Refusal
	for _, refusal := range refusals {
		switch {
		case refusal.Code == peer.CodeWiped && refusal.By != r.id:
			return r.wipedError(refusal)
		case refusal.Code == peer.CodeMembers:
			disagree = append(disagree, refusal)
		}
	}
	if n := len(disagree); n > 0 && n >= len(welcome) {
		return r.membersError(disagree[0])
	}
	return nil
}

func (r *replica) wipedError(refusal *peer.Refusal) error {
	return fmt.Errorf("%w: %w. Restore %s as replica %d last had it, or leave that id for good: "+
		"add a replica with a new id and an empty directory", ErrWiped, refusal, r.dir.path, r.id)
}

func (r *replica) membersError(refusal *peer.Refusal) error {
	return fmt.Errorf("%w: %w. This one was founded with %v: all founders need the same Members "+
		"from their first start on; empty the directories of those that had it wrong and never took part",
		ErrMembers, refusal, ids(r.dir.marker.Founders))
}

// refused hears that a peer will not talk to this replica. One that knows
// another storage of it is enough to stop. Of those founded with other members
// it takes most: else one mistaken replica would stop all others.
func (r *replica) refused(refusal *peer.Refusal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.running || r.closed {
		return
	}
	if text := refusal.Error(); !r.heard[text] && len(r.heard) < 100 {
		r.heard[text] = true
		r.logger.Warn("a peer refuses this replica", "peer", refusal.By, "why", refusal.Text)
	}
	switch refusal.Code {
	case peer.CodeWiped:
		r.carrier.barred.Store(true)
		if !r.wiped {
			r.wiped = true
			r.report(r.wipedError(refusal))
		}
	case peer.CodeMembers:
		before := len(r.refusers)
		r.refusers[refusal.By] = true
		if after := len(r.refusers); 2*before <= r.others && 2*after > r.others {
			r.report(r.membersError(refusal))
		}
	}
}

func (r *replica) report(err error) {
	r.logger.Error("this replica is of no use", "err", err)
	if r.events.refused != nil {
		r.events.refused(err)
	}
}

func (r *replica) startHost(o Options) error {
	db := config.GetTinyMemLogDBConfig()
	db.Shards = logShards
	db.KVWriteBufferSize = 16 << 20
	conf := config.NodeHostConfig{
		DeploymentID:      deploymentID(o.Cluster),
		NodeHostID:        hostID(o.Cluster, o.ReplicaID),
		NodeHostDir:       r.dir.file(engineName),
		RTTMillisecond:    uint64(r.tick.Milliseconds()),
		RaftAddress:       o.Address,
		MaxSendQueueSize:  64 << 20,
		RaftEventListener: leaderListener{r},
		Expert: config.ExpertConfig{
			Engine: config.EngineConfig{
				ExecShards: execShards, CommitShards: 1, ApplyShards: 1, SnapshotShards: 2, CloseShards: 1,
			},
			LogDB:               db,
			TransportFactory:    r.carrier,
			NodeRegistryFactory: r.where,
		},
	}
	if err := conf.Validate(); err != nil {
		return fmt.Errorf("quorumlock: engine: %w", err)
	}
	return guarded("start the engine", func() error {
		host, err := dragonboat.NewNodeHost(conf)
		if err == nil && host == nil {
			err = errNoHost
		}
		if err != nil {
			return fmt.Errorf("%w: %s: %w", ErrDirectory, conf.NodeHostDir, err)
		}
		r.host = host
		r.session = host.GetNoOPSession(shardID)
		return nil
	})
}

func (r *replica) startShard(o Options, founding bool) error {
	election, heartbeat := ticks(o.ElectionTimeout)
	conf := config.Config{
		ShardID:             shardID,
		ReplicaID:           r.id,
		ElectionRTT:         election,
		HeartbeatRTT:        heartbeat,
		CheckQuorum:         true,
		PreVote:             true,
		OrderedConfigChange: true,
		// Staggered, so that not all replicas write theirs at the same entry.
		SnapshotEntries:    tuning.snapshotEntries + r.id%16*(tuning.snapshotEntries/100),
		CompactionOverhead: tuning.compactionOverhead,
		MaxInMemLogSize:    128 << 20,
	}
	if err := conf.Validate(); err != nil {
		return fmt.Errorf("quorumlock: engine: %w", err)
	}
	members := make(map[uint64]dragonboat.Target)
	if founding {
		for id := range r.dir.marker.Founders {
			members[id] = hostID(o.Cluster, id)
		}
	}
	create := func(uint64, uint64) statemachine.IConcurrentStateMachine { return r.fsm }
	return guarded("start the replica", func() error {
		return r.host.StartConcurrentReplica(members, founding && r.dir.marker.Joined, create, conf)
	})
}

// tickOf returns the engine's unit of time.
func tickOf(election time.Duration) time.Duration {
	if election < 500*time.Millisecond {
		return 5 * time.Millisecond
	}
	return 10 * time.Millisecond
}

// ticks returns after how many ticks without a word from the leader an election
// may start, and how many pass between the leader's words. The engine draws
// each replica's own timeout between once and twice the former, so that it lies
// around the ElectionTimeout that Options speak of.
func ticks(timeout time.Duration) (election, heartbeat uint64) {
	election = uint64(timeout * 6 / 10 / tickOf(timeout))
	return election, max(election/10, 1)
}

// deploymentID is how the engine tells clusters apart: never 0 or 1, which mean
// that it should not.
func deploymentID(cluster string) uint64 {
	sum := sha256.Sum256([]byte("cluster\x00" + cluster))
	return binary.BigEndian.Uint64(sum[:]) | 2
}

// hostID is what the engine knows a replica by in place of its address.
func hostID(cluster string, replica uint64) string {
	sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte("replica\x00"+cluster+"\x00"), replica))
	id := sum[:16]
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80 // a UUID of version 8
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
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

func (r *replica) propose(ctx context.Context, entry []byte) error {
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
	state, err := r.host.Propose(r.session, entry, r.patience(ctx))
	if err != nil {
		// Whatever Propose itself returns, the entry is not in the log.
		return fmt.Errorf("%w: %w", errDropped, err)
	}
	return r.outcome(ctx, state)
}

func (r *replica) barrier(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !r.enter() {
		return ErrClosed
	}
	defer r.leave()
	ctx, cancel := context.WithTimeout(ctx, r.try)
	defer cancel()
	state, err := r.host.ReadIndex(shardID, r.patience(ctx))
	if err != nil {
		return fmt.Errorf("%w: %w", errDropped, err)
	}
	return r.outcome(ctx, state)
}

// patience is the timeout that the engine counts in ticks. It is never shorter
// than ctx's, whose end is seen here; without a deadline it is long enough for
// every outcome that is still to come.
func (r *replica) patience(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return min(max(time.Until(deadline), 0)+2*r.tick, time.Hour)
	}
	return 10 * r.try
}

// outcome waits for what becomes of a request.
func (r *replica) outcome(ctx context.Context, state *dragonboat.RequestState) error {
	select {
	case result := <-state.AppliedC():
		state.Release()
		switch {
		case result.Completed():
			return nil
		case result.Dropped():
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
	r.leads.Store(&leadership{replica: info.LeaderID, term: info.Term})
	r.mu.Lock()
	close(r.changed)
	r.changed = make(chan struct{})
	r.mu.Unlock()
	if r.events.leader != nil {
		r.events.leader(info.LeaderID, info.Term)
	}
}

func (r *replica) leader() (replica, term uint64) {
	now := r.leads.Load()
	return now.replica, now.term
}

// transfer asks again now and then: a request is lost when the leader changes
// or the target lags.
func (r *replica) transfer(ctx context.Context, to uint64) error {
	if !r.enter() {
		return ErrClosed
	}
	defer r.leave()
	again := time.NewTicker(r.try)
	defer again.Stop()
	for {
		r.mu.Lock()
		changed := r.changed
		r.mu.Unlock()
		if now, _ := r.leader(); now == to {
			return nil
		}
		// Refused while another request is under way, which may be our own.
		_ = r.host.RequestLeaderTransfer(shardID, to)
		if err := r.await(ctx, to, changed, again.C); err != nil {
			return err
		}
	}
}

// await waits until to leads or it is time to ask again.
func (r *replica) await(ctx context.Context, to uint64, changed <-chan struct{}, again <-chan time.Time) error {
	for {
		select {
		case <-changed:
			if now, _ := r.leader(); now == to {
				return nil
			}
			r.mu.Lock()
			changed = r.changed
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
func (r *replica) members() map[uint64]string {
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
			if len(shard.Replicas) == 0 {
				continue // nothing applied yet
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
	r.calls.Wait()
	process.remove(r)
	var faults []error
	if r.peers != nil {
		faults = append(faults, r.peers.Close())
	}
	if r.host != nil {
		faults = append(faults, guarded("close the engine", func() error {
			r.host.Close()
			return nil
		}))
	}
	r.fsm.shut()
	r.dir.release()
	return errors.Join(faults...)
}
