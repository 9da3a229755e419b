package quorumlock

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/lni/dragonboat/v4/config"
	"github.com/lni/dragonboat/v4/raftio"
	"github.com/lni/dragonboat/v4/raftpb"

	"github.com/quorumlock/quorumlock/internal/peer"
)

// The frames between engines.
const (
	kindBatch    = peer.KindUser     // a raftpb.MessageBatch
	kindChunk    = peer.KindUser + 1 // a raftpb.Chunk: a part of a snapshot
	kindProposal = peer.KindUser + 2 // an entry for the first group's log, from a replica that follows

	kindGroupProposal = peer.KindUser + 3 // one for another group's: the shard's id, and the entry
)

var (
	errBarred = errors.New("barred: a peer refuses this replica")
	errForged = errors.New("a message that its sender could not send")
)

// carrier is the engine's transport over a peer.Transport, whose owner is the
// replica: the engine only starts and stops to use it.
type carrier struct {
	self   uint64
	shards uint64 // how many there are: numbered from 1
	peers  *peer.Transport
	dir    *addresses

	// barred is set once a peer has refused this replica as wiped. Others may
	// not know, so that it must keep itself from voting and acknowledging.
	barred atomic.Bool

	message  raftio.MessageHandler
	chunk    raftio.ChunkHandler
	proposed func(shard uint64, tagged []byte) // must not block
}

var (
	_ config.TransportFactory = (*carrier)(nil)
	_ raftio.ITransport       = (*carrier)(nil)
)

// Create takes the engine's handlers. They are there before the gate of the
// peer.Transport opens, and so before receive runs.
func (w *carrier) Create(_ config.NodeHostConfig, m raftio.MessageHandler, c raftio.ChunkHandler) raftio.ITransport {
	w.message, w.chunk = m, c
	return w
}

// Validate is asked about the addresses in NodeHostConfig, which Options has
// checked.
func (w *carrier) Validate(string) bool { return true }

func (w *carrier) Name() string { return "quorumlock" }
func (w *carrier) Start() error { return nil }
func (w *carrier) Close() error { return nil }

// known reports whether there is such a shard.
func (w *carrier) known(shard uint64) bool { return shard >= 1 && shard <= w.shards }

// receive takes what replica from sent.
func (w *carrier) receive(from uint64, kind peer.Kind, payload []byte) error {
	if w.barred.Load() {
		return errBarred
	}
	switch kind {
	case kindBatch:
		batch, err := w.decodeBatch(from, payload)
		if err != nil {
			return err
		}
		w.message(batch)
	case kindProposal:
		if len(payload) > maxEntry+tagLen {
			return errForged
		}
		w.proposed(shardOf(0), slices.Clone(payload))
	case kindGroupProposal:
		if len(payload) < 8 || len(payload) > 8+maxEntry+tagLen || !w.known(binary.BigEndian.Uint64(payload)) {
			return errForged
		}
		w.proposed(binary.BigEndian.Uint64(payload), slices.Clone(payload[8:]))
	case kindChunk:
		var chunk raftpb.Chunk
		if err := decode(func() error { return chunk.Unmarshal(payload) }); err != nil {
			return err
		}
		if chunk.From != from || chunk.ReplicaID != w.self || !w.known(chunk.ShardID) || chunk.Witness {
			return errForged
		}
		if !w.chunk(chunk) {
			return errors.New("the engine declined a part of a snapshot")
		}
	}
	return nil // other kinds are a newer version's
}

// decodeBatch refuses what would have the engine do as if it had said it itself,
// or as if another replica had.
func (w *carrier) decodeBatch(from uint64, payload []byte) (raftpb.MessageBatch, error) {
	var batch raftpb.MessageBatch
	if err := decode(func() error { return batch.Unmarshal(payload) }); err != nil {
		return batch, err
	}
	for _, m := range batch.Requests {
		if m.From != from || m.To != w.self || !w.known(m.ShardID) || local(m.Type) {
			return batch, fmt.Errorf("%w: %s from %d to %d over the connection of %d", errForged, m.Type, m.From, m.To, from)
		}
	}
	return batch, nil
}

// local tells whether a message never travels: it is the engine's own, or, for
// a snapshot, made by the receiver when all its parts are there.
func local(t raftpb.MessageType) bool {
	switch t {
	case raftpb.LocalTick, raftpb.Election, raftpb.LeaderHeartbeat, raftpb.ConfigChangeEvent,
		raftpb.Unreachable, raftpb.CheckQuorum, raftpb.SnapshotStatus, raftpb.InstallSnapshot:
		return true
	}
	return false
}

// decode keeps a malformed message from stopping the process.
func decode(unmarshal func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = asError("decode", p)
		}
	}()
	return unmarshal()
}

// GetConnection returns a way to a replica that mends itself, since the engine
// would wait for up to a second and a half after each failure.
func (w *carrier) GetConnection(ctx context.Context, target string) (raftio.IConnection, error) {
	id, err := parseTarget(target)
	if err != nil {
		return nil, err
	}
	return &batchLink{
		carrier: w,
		ctx:     ctx,
		link:    w.peers.Link(id, w.dir),
	}, nil
}

// batchLink is used by one goroutine of the engine.
type batchLink struct {
	carrier *carrier
	ctx     context.Context
	link    *peer.Link
	buf     []byte
}

func (l *batchLink) Close() { l.link.Close() }

// SendMessageBatch loses what cannot be sent, as the network may: Raft repeats.
func (l *batchLink) SendMessageBatch(batch raftpb.MessageBatch) error {
	if l.carrier.barred.Load() {
		return nil
	}
	payload, err := marshal(&l.buf, batch.SizeUpperLimit(), batch.MarshalTo)
	if err != nil {
		return err
	}
	l.link.Send(l.ctx, kindBatch, payload)
	return nil
}

func (w *carrier) GetSnapshotConnection(ctx context.Context, target string) (raftio.ISnapshotConnection, error) {
	id, err := parseTarget(target)
	if err != nil {
		return nil, err
	}
	addr := w.dir.Address(id)
	conn, err := w.peers.Dial(ctx, id, addr)
	if err != nil {
		w.dir.Failed(id, addr)
		return nil, err
	}
	return &chunkLink{carrier: w, conn: conn}, nil
}

type chunkLink struct {
	carrier *carrier
	conn    *peer.Conn
	buf     []byte
}

func (l *chunkLink) Close() { l.conn.Close() }

func (l *chunkLink) SendChunk(chunk raftpb.Chunk) error {
	if l.carrier.barred.Load() {
		return errBarred
	}
	payload, err := marshal(&l.buf, chunk.Size(), chunk.MarshalTo)
	if err != nil {
		return err
	}
	return l.conn.SendAll(kindChunk, payload)
}

// keptBuffer is the largest buffer kept between messages.
const keptBuffer = 1 << 20

func marshal(buf *[]byte, size int, to func([]byte) (int, error)) ([]byte, error) {
	b := *buf
	if cap(b) < size {
		b = make([]byte, size)
	}
	if size <= keptBuffer {
		*buf = b
	}
	n, err := to(b[:size])
	return b[:n], err
}

func parseTarget(target string) (uint64, error) {
	id, err := strconv.ParseUint(target, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("quorumlock: no replica %q", target)
	}
	return id, nil
}

// addresses says where replicas are dialled. To the engine the address of a
// replica is its id, so that it may move.
type addresses struct {
	configured map[uint64]string // from Options.Members
	book       *peer.Book        // what they said themselves
	founded    map[uint64]string // from the first start

	moved chan struct{} // has a token when the membership may have changed

	mu    sync.RWMutex
	left  map[uint64]bool            // shards of which this replica has applied its own removal
	known map[raftio.NodeInfo]string // a group's replica to the engine's name of its address
	turn  map[uint64]int             // which of a replica's addresses is tried
}

var (
	_ config.NodeRegistryFactory = (*addresses)(nil)
	_ raftio.INodeRegistry       = (*addresses)(nil)
)

// Create hands itself to the engine.
func (a *addresses) Create(string, uint64, config.TargetValidator) (raftio.INodeRegistry, error) {
	return a, nil
}

func (a *addresses) Close() error { return nil }

// Add is called for each member, and for each message that arrives.
func (a *addresses) Add(shard, replica uint64, _ string) {
	key := raftio.GetNodeInfo(shard, replica)
	a.mu.RLock()
	_, ok := a.known[key]
	a.mu.RUnlock()
	if ok {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.known[key] = strconv.FormatUint(replica, 10)
	nudge(a.moved)
}

// Remove is called when another's removal from a shard is applied.
func (a *addresses) Remove(shard, replica uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.known, raftio.GetNodeInfo(shard, replica))
	nudge(a.moved)
}

// RemoveShard is called when this replica's own removal from a shard is applied.
func (a *addresses) RemoveShard(shard uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.known, func(key raftio.NodeInfo, _ string) bool { return key.ShardID == shard })
	a.left[shard] = true
	nudge(a.moved)
}

// leaves is how many shards this replica was removed from.
func (a *addresses) leaves() int {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return len(a.left)
}

func (a *addresses) hasLeft(shard uint64) bool {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.left[shard]
}

// Resolve returns the engine's name of the address and of the queue to it.
func (a *addresses) Resolve(shard, replica uint64) (address, queue string, err error) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	name, ok := a.known[raftio.GetNodeInfo(shard, replica)]
	if !ok {
		return "", "", fmt.Errorf("quorumlock: replica %d is unknown", replica)
	}
	return name, name, nil
}

// Address returns where to dial replica next, or "".
func (a *addresses) Address(replica uint64) string {
	all := a.candidates(replica)
	if len(all) == 0 {
		return ""
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	return all[a.turn[replica]%len(all)]
}

// Failed has the next address of replica tried. Which one holds cannot be known:
// the replica may have moved since Members was written, or since it was heard.
func (a *addresses) Failed(replica uint64, addr string) {
	if a.Address(replica) != addr {
		return // it is another's turn already
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.turn[replica]++
}

func (a *addresses) candidates(replica uint64) []string {
	return distinct(a.configured[replica], a.book.Address(replica), a.founded[replica])
}

// told are the addresses of replica by whose hosts its certificate is judged:
// never what it said itself, or whoever has a certificate could be any replica.
func (a *addresses) told(replica uint64) []string {
	return distinct(a.configured[replica], a.founded[replica])
}

func distinct(addrs ...string) []string {
	var all []string
	for _, addr := range addrs {
		if addr != "" && !slices.Contains(all, addr) {
			all = append(all, addr)
		}
	}
	return all
}

// shown is the address of replica for people: where it said itself that it is.
func (a *addresses) shown(replica uint64) string {
	if addr := a.book.Address(replica); addr != "" {
		return addr
	}
	return a.Address(replica)
}
