package quorumlock

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"net"
	"time"

	"github.com/lni/dragonboat/v4"
	"github.com/lni/dragonboat/v4/config"
	"github.com/lni/dragonboat/v4/raftio"
	"github.com/lni/dragonboat/v4/statemachine"
	"github.com/lni/vfs"

	"github.com/quorumlock/quorumlock/internal/peer"
	"github.com/quorumlock/quorumlock/internal/raftlog"
)

const (
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

// start opens one thing after the other, the port before anything is written.
// No message passes before the marker says that the engine is in place.
func (r *replica) start(o Options) error {
	listener, err := o.listen()
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
	if err := checkSnapshots(r.dir.file(engineName)); err != nil {
		return err
	}
	process.add(r.voice)
	if err := r.startHost(o); err != nil {
		return err
	}
	for _, s := range r.shards {
		if err := s.start(o, founding); err != nil {
			return err
		}
	}
	if err := r.dir.bootstrapped(); err != nil {
		return err
	}
	r.mu.Lock()
	r.running = true
	r.mu.Unlock()
	r.peers.Open()
	r.peers.Meet(ids(r.dir.marker.Founders), r.where)
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.following.Go(r.follow)
	}
	return nil
}

func (r *replica) connect(o Options, listener net.Listener, book *peer.Book) {
	m := r.dir.marker
	configured := map[uint64]string{r.id: o.Address}
	maps.Copy(configured, o.Members)
	r.where = &addresses{configured: configured, book: book, founded: m.Founders, known: make(map[raftio.NodeInfo]string), turn: make(map[uint64]int),
		left: make(map[uint64]bool), moved: make(chan struct{}, 1)}
	r.carrier = &carrier{self: r.id, shards: uint64(len(r.shards)), dir: r.where, proposed: r.proposed}
	r.self = peer.Identity{
		Cluster:  m.Cluster,
		Replica:  m.Replica,
		Storage:  m.storage(),
		Founders: m.foundersHash(),
		Epoch:    m.Epoch,
		Life:     m.Life,
		Address:  o.Address,
		Zone:     o.Zone,
		NoVote:   o.NonVoting,
		Level:    o.level,
		Groups:   m.Groups,
	}
	r.peers = peer.New(peer.Config{
		Self:     r.self,
		Book:     book,
		Listener: listener,
		Dial:     o.dialer(),
		TLS:      o.certificates,
		Told:     r.where.told,
		Receive:  r.carrier.receive,
		Refused:  r.refused,
		Logger:   r.logger,
		Faults:   o.faults,
	})
	r.carrier.peers = r.peers
}

func (r *replica) startHost(o Options) error {
	conf := config.NodeHostConfig{
		DeploymentID:        deploymentID(o.Cluster),
		NodeHostID:          hostID(o.Cluster, o.ReplicaID),
		NodeHostDir:         r.dir.file(engineName),
		RTTMillisecond:      uint64(r.tick.Milliseconds()),
		RaftAddress:         o.Address,
		MaxSendQueueSize:    64 << 20,
		MaxReceiveQueueSize: 64 << 20,
		RaftEventListener:   leaderListener{r},
		Expert: config.ExpertConfig{
			Engine: config.EngineConfig{
				ExecShards: execShards, CommitShards: 1, ApplyShards: 1, SnapshotShards: 2, CloseShards: 1,
			},
			LogDB:               config.LogDBConfig{Shards: logShards},
			LogDBFactory:        logStore(o),
			TransportFactory:    r.carrier,
			NodeRegistryFactory: r.where,
			FS:                  &engineFiles{FS: vfs.Default, dir: r.dir.file(engineName), logger: r.logger},
		},
	}
	if err := conf.Validate(); err != nil {
		return fmt.Errorf("quorumlock: engine: %w", err)
	}
	err := guarded("start the engine", func() (err error) {
		r.host, err = dragonboat.NewNodeHost(conf)
		if err == nil && r.host == nil {
			err = errNoHost
		}
		return err
	})
	if err != nil {
		r.host = nil
		return fmt.Errorf("%w: %s: %w", ErrDirectory, conf.NodeHostDir, err)
	}
	return nil
}

// logStore is where the log is kept. Segments in a simulated memory are short, as each
// sync copies the whole one. Elsewhere the log does without a descriptor that it cannot
// get, and must not wait for one.
func logStore(o Options) raftlog.Factory {
	if o.hardware != nil {
		return raftlog.Factory{FS: o.hardware.Disk, SegmentSize: 256 << 10}
	}
	return raftlog.Factory{FS: vfs.Default}
}

func (s *shard) start(o Options, founding bool) error {
	r := s.r
	election, heartbeat := ticks(o.ElectionTimeout)
	conf := config.Config{
		ShardID:             s.id,
		ReplicaID:           r.id,
		ElectionRTT:         election,
		HeartbeatRTT:        heartbeat,
		CheckQuorum:         true,
		PreVote:             true,
		OrderedConfigChange: true,
		// Staggered, so that not all replicas write theirs at the same entry.
		SnapshotEntries:    tuning.snapshotEntries + (r.id+5*(s.id-1))%16*(tuning.snapshotEntries/100),
		CompactionOverhead: tuning.compactionOverhead,
		MaxInMemLogSize:    128 << 20,
		// Who joins has no vote at first. The engine wants to hear of that for ever,
		// whatever became of it: the log says when it was given one.
		IsNonVoting: r.dir.marker.Joined,
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
	create := func(uint64, uint64) statemachine.IConcurrentStateMachine { return s.fsm }
	s.session = r.host.GetNoOPSession(s.id)
	err := guarded("start the replica", func() error {
		return r.host.StartConcurrentReplica(members, founding && r.dir.marker.Joined, create, conf)
	})
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrDirectory, r.dir.file(engineName), err)
	}
	return nil
}

// tickOf returns the engine's unit of time. An idle replica wakes at each, so it is as
// long as can be: ten to twenty make a timeout, and as the replicas' ticks do not fall
// together, their timeouts differ by less than a tick too.
func tickOf(election time.Duration) time.Duration {
	return min(max(election/20, 5*time.Millisecond), 50*time.Millisecond).Truncate(time.Millisecond)
}

// ticks returns after how many ticks without a word from the leader an election
// may start, and how many pass between the leader's words. The engine draws
// each replica's own timeout between once and twice the former, so that the
// ElectionTimeout that Options speak of is the longest, and that a vote that was
// split and had to be repeated still ends within one and a half of it.
func ticks(timeout time.Duration) (election, heartbeat uint64) {
	election = uint64(timeout / 2 / tickOf(timeout))
	return election, max(election/5, 1)
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
