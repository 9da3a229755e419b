package quorumlock

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/quorumlock/quorumlock/internal/wire"
)

// A sim is a simulated log: what the nodes of a test run over in place of Raft. It
// keeps an engine's promises and no more. Entries are committed in one order and
// applied by every replica in that order; everything else may go wrong: proposals
// are dropped, delayed, applied twice, or applied long after their proposer gave
// up; replicas lag, are cut off, and are brought up by a snapshot.
type sim struct {
	mu       sync.Mutex
	changed  chan struct{} // closed, and made anew, at every change
	seed     uint64
	tries    map[fateOf]uint64 // how often something was proposed
	log      [][]byte
	replicas map[uint64]*simReplica
	leader   uint64
	term     uint64
	limbo    [][]byte // proposals whose fate is open: they may yet be committed
	faults   simFaults
	strays   sync.WaitGroup // late proposals that will be committed by themselves

	others []*sim // of the other groups, if there are several: each has a log and a leader of its own
	first  uint64 // the replica that leads first
	peers  *simPeers

	votes map[uint64]bool // of each member: whether it votes
	gone  map[uint64]bool // members that were removed
	moves uint64          // changes of the members

	altered   func(c memberChange)                  // if set, is told of each change of the members; s.mu is held
	led       func(r *simReplica)                   // if set, is told before a replica is that it leads a new term; s.mu is held
	asked     func(r *simReplica, entry []byte)     // if set, is told of every proposal that a node makes
	committed func(entry []byte)                    // if set, is told of every entry that the log gets; s.mu is held
	reached   func(r *simReplica, index int)        // if set, is told that a replica has applied so much
	donor     func() (snapshot []byte, entries int) // if set, has the snapshots to install
}

// simFaults are probabilities, and the longest delay.
type simFaults struct {
	drop, duplicate, late, snapshot float64
	delay                           time.Duration
	stray                           time.Duration // if set, half of what is late comes within so long
}

// What befalls a proposal depends on the seed and on what it is, and not on what else
// went on before it: so a run that leaves out a step is like the one with it.
type fateOf struct{ replica, epoch, renewal, batch, op uint64 }

// dice returns the random source for one decision.
func (s *sim) dice(of ...uint64) *rand.Rand {
	h := uint64(0x9e3779b97f4a7c15)
	for _, x := range of {
		h = (h ^ x) * 0xbf58476d1ce4e5b9
		h ^= h >> 29
	}
	return rand.New(rand.NewPCG(s.seed, h))
}

// What a decision is about.
const (
	fateProposal uint64 = iota + 1
	fateApply
	fateBarrier
	fateLimbo
	fateLife
	fateChange
)

// fate returns the random source for one try of a proposal. s.mu is held.
func (s *sim) fate(r *simReplica, entry []byte) *rand.Rand {
	of := fateOf{replica: r.id, epoch: r.epoch}
	var e wire.Entry
	if err := wire.DecodeEntry(entry, &e); err == nil {
		of.renewal, of.batch = e.Renewal, e.Batch
		if len(e.Commands) > 0 {
			of.op = uint64(e.Commands[0].Op)
		}
	}
	s.tries[of]++
	return s.dice(fateProposal, of.replica, of.epoch, of.renewal, of.batch, of.op, s.tries[of])
}

type simReplica struct {
	sim      *sim
	id       uint64
	m        stateMachine
	ev       engineEvents
	onLeader func(leader, term uint64)
	epoch    uint64
	level    byte // that it speaks
	applied  int  // how many entries
	barriers uint64
	term     uint64 // the last one that it was told it leads

	marked   func(io.Writer, <-chan struct{}) error // a snapshot that is still to be written
	markedAt int
	cut      bool // from all others
	mute     bool // heard by nobody, but it hears
	paused   bool // applies nothing
	down     bool
	closed   chan struct{}
	applier  sync.WaitGroup
}

func newSim(seed uint64, replicas int) *sim {
	s := &sim{
		changed:  make(chan struct{}),
		seed:     seed,
		tries:    make(map[fateOf]uint64),
		replicas: make(map[uint64]*simReplica),
		votes:    make(map[uint64]bool),
		gone:     make(map[uint64]bool),
		peers: &simPeers{founders: uint64(replicas), groups: 1, where: make(map[uint64]string), zones: make(map[uint64]string),
			left: make(map[uint64]int)},
	}
	for id := uint64(1); id <= uint64(replicas); id++ {
		s.replicas[id] = &simReplica{sim: s, id: id, down: true}
		s.votes[id], s.peers.where[id] = true, simAddress(id)
	}
	return s
}

// options are a node's over this simulation.
func (s *sim) options(id uint64) Options {
	members := make(map[uint64]string)
	for r := uint64(1); r <= s.peers.founders; r++ {
		members[r] = simAddress(r)
	}
	if id > s.peers.founders {
		members = nil
	}
	start := time.Now()
	return Options{
		ReplicaID: id, Address: simAddress(id), Members: members, Join: members == nil, Dir: os.TempDir(),
		Owner: fmt.Sprintf("owner-%d", id),
		trust: func() time.Duration { return time.Since(start) + time.Hour },
	}
}

func simAddress(id uint64) string { return fmt.Sprintf("sim:%d", id) }

// open opens a node. Opened again, a replica begins a new life with an empty state,
// and the log is applied to it from the start.
func (s *sim) open(t testing.TB, o Options) *Node {
	t.Helper()
	o, err := o.complete()
	if err != nil {
		t.Fatal(err)
	}
	n, err := open(o, s.opener)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (s *sim) openAll(t testing.TB) map[uint64]*Node {
	nodes := make(map[uint64]*Node)
	for id := range s.replicas {
		nodes[id] = s.open(t, s.options(id))
	}
	return nodes
}

func (s *sim) opener(o Options, m []stateMachine, ev engineEvents) (engineHost, identity, error) {
	if o.backupErr != nil {
		return nil, identity{}, o.backupErr
	}
	var host simHost
	for i, own := range s.all(len(m)) {
		host = append(host, own.openReplica(o, m[i], ev, func(leader, term uint64) { ev.leader(i, leader, term) }))
	}
	s.peers.note(func(p *simPeers) { p.zones[o.ReplicaID] = o.Zone })
	id := identity{epoch: host[0].epoch}
	if o.backup != nil {
		id.backup = o.backup.info.Sum
	}
	return host, id, nil
}

// all returns the simulations of all groups, which are so many.
func (s *sim) all(groups int) []*sim {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.others) < groups-1 {
		founders := int(s.peers.founders)
		own := newSim(s.seed+uint64(len(s.others))+1, founders)
		own.first, own.faults, own.peers = uint64((len(s.others)+1)%founders), s.faults, s.peers
		s.others = append(s.others, own)
		s.peers.note(func(p *simPeers) { p.groups++ })
	}
	return append([]*sim{s}, s.others...)
}

// each does something to the simulations of all groups.
func (s *sim) each(f func(*sim)) {
	for _, own := range s.all(1) {
		f(own)
	}
}

// A simHost has a replica's part in each group.
type simHost []*simReplica

func (h simHost) group(i int) engine { return h[i] }

// introduce tells everybody at once.
func (h simHost) introduce(_ context.Context, replica uint64, address string) error {
	h[0].sim.peers.note(func(p *simPeers) { p.where[replica] = address })
	return nil
}

func (h simHost) alive(_ context.Context, m membership) map[uint64]bool {
	s := h[0].sim
	s.mu.Lock()
	defer s.mu.Unlock()
	alive := make(map[uint64]bool)
	for _, member := range m.members {
		if other := s.replicas[member.ID]; other != nil && !other.down && !other.cut {
			alive[member.ID] = true
		}
	}
	return alive
}

func (h simHost) zone(replica uint64) (zone string) {
	h[0].sim.peers.note(func(p *simPeers) { zone = p.zones[replica] })
	return zone
}

// simPeers is what replicas know of each other beside the logs of the groups.
type simPeers struct {
	mu       sync.Mutex // after that of any sim
	founders uint64
	groups   int
	where    map[uint64]string // addresses
	zones    map[uint64]string // in which each says that it is
	left     map[uint64]int    // from how many groups each was removed
}

func (p *simPeers) note(f func(*simPeers)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(p)
}

// removed tells whether a replica was removed from all groups.
func (p *simPeers) removed(id uint64) (yes bool) {
	p.note(func(p *simPeers) { yes = p.left[id] == p.groups })
	return yes
}

func (simHost) unreachable() map[uint64]error { return nil }

func (h simHost) close() error {
	for _, r := range h {
		r.close()
	}
	return nil
}

func (s *sim) openReplica(o Options, m stateMachine, ev engineEvents, leader func(leader, term uint64)) *simReplica {
	id := o.ReplicaID
	s.mu.Lock()
	defer s.mu.Unlock()
	// A life of its own: calls of the former one may still be under way.
	former := s.replicas[id]
	if former == nil { // it joins
		former = &simReplica{id: id}
	}
	r := &simReplica{
		sim: s, id: former.id, m: m, ev: ev, onLeader: leader, epoch: former.epoch + 1, level: o.level,
		cut: former.cut, mute: former.mute, paused: former.paused, closed: make(chan struct{}),
	}
	s.replicas[r.id] = r
	r.applier.Add(1)
	go r.applyLoop(r.closed)
	s.elect()
	return r
}

// change announces a change. s.mu is held.
func (s *sim) change() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// connected wants s.mu held, as all of the next do.
func (r *simReplica) connected() bool {
	_, member := r.sim.votes[r.id]
	return !r.down && !r.cut && member
}

func (s *sim) quorum() bool {
	up, voters := 0, s.voters()
	for _, id := range voters {
		if s.replicas[id].connected() {
			up++
		}
	}
	return up > len(voters)/2
}

func (s *sim) voters() []uint64 {
	var voters []uint64
	for id, votes := range s.votes {
		if votes {
			voters = append(voters, id)
		}
	}
	slices.Sort(voters)
	return voters
}

// elect makes sure that a connected replica leads if there is a quorum, and tells
// everyone. s.mu is held.
func (s *sim) elect() {
	defer s.change()
	for id := range s.gone { // who can be told is
		if r := s.replicas[id]; r != nil && !r.down && !r.cut && !r.mute && !r.paused && s.peers.removed(id) {
			r.ev.refused(ErrRemoved)
		}
	}
	if !s.quorum() {
		s.leader = 0
		return
	}
	if s.leader == 0 || !s.replicas[s.leader].connected() || !s.votes[s.leader] {
		s.newLeader(0)
		return
	}
	s.tell()
}

// newLeader lets another replica lead than except. s.mu is held.
func (s *sim) newLeader(except uint64) {
	voters := s.voters()
	n := uint64(len(voters))
	for i := range n {
		id := voters[(s.first+i)%n]
		if id != except && s.replicas[id].connected() {
			s.leader = id
			break
		}
	}
	s.lead(s.leader)
}

// lead makes a replica the leader of the next term. s.mu is held.
func (s *sim) lead(id uint64) {
	s.leader = id
	s.term++
	s.tell()
	// What was under way is committed by the new leader, or is not.
	for i, e := range s.limbo {
		if s.dice(fateLimbo, s.term, uint64(i)).IntN(2) == 0 {
			s.commit(e)
		}
	}
	s.limbo = nil
}

// commit appends an entry to the log. s.mu is held.
func (s *sim) commit(entry []byte) {
	s.log = append(s.log, entry)
	if s.committed != nil {
		s.committed(entry)
	}
}

// tell announces who leads, in the order in which leaders come and go: the node
// never calls the engine with a lock of its own held. s.mu is held.
func (s *sim) tell() {
	for _, r := range s.replicas {
		if r.connected() {
			if s.led != nil && s.leader == r.id && s.term != r.term {
				r.term = s.term
				s.led(r)
			}
			r.onLeader(s.leader, s.term)
		}
	}
}

// alterAll changes the simulations of all groups in the same way.
func (s *sim) alterAll(f func(s *sim)) {
	s.each(func(s *sim) { s.alter(func() { f(s) }) })
}

// alter changes the simulation of one group.
func (s *sim) alter(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	s.elect()
}

// length is how many entries the log has.
func (s *sim) length() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.log)
}

func (s *sim) cut(ids ...uint64) {
	s.alterAll(func(s *sim) {
		for _, id := range ids {
			s.replicas[id].cut = true
		}
	})
}

func (s *sim) heal() {
	s.alterAll(func(s *sim) {
		for _, r := range s.replicas {
			r.cut, r.mute, r.paused = false, false, false
		}
	})
}

func (s *sim) pause(id uint64, paused bool) {
	s.alterAll(func(s *sim) { s.replicas[id].paused = paused })
}

func (s *sim) mute(id uint64, mute bool) {
	s.alterAll(func(s *sim) { s.replicas[id].mute = mute })
}

// forget lets go of the entries, once every replica has applied them. No replica may
// be opened again after that.
func (s *sim) forget() {
	s.alter(func() {
		clear(s.log)
		s.tries = make(map[fateOf]uint64)
	})
}

// logSize is what the log itself takes once forget was called, in bytes.
func (s *sim) logSize() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return uint64(cap(s.log)) * uint64(unsafe.Sizeof(s.log[0]))
}

// has tells whether a replica was ever opened.
func (s *sim) has(id uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.replicas[id] != nil
}

// memberships tells of how many groups a replica is a member, and from how many it was
// removed.
func (s *sim) memberships(id uint64) (in, out int) {
	s.each(func(s *sim) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if _, member := s.votes[id]; member {
			in++
		}
		if s.gone[id] {
			out++
		}
	})
	return in, out
}

func (s *sim) moveLeader() {
	s.alter(func() { s.newLeader(s.leader) })
}

// chance is a coin that falls on true with probability p.
func chance(rng *rand.Rand, p float64) bool { return rng.Float64() < p }

// nap is a delay up to the longest one.
func (s *sim) nap(rng *rand.Rand) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.faults.delay <= 0 {
		return 0
	}
	return time.Duration(rng.Int64N(int64(s.faults.delay)))
}

func (r *simReplica) propose(ctx context.Context, entry []byte) error {
	s := r.sim
	if s.asked != nil {
		s.asked(r, entry)
	}
	s.mu.Lock()
	rng := s.fate(r, entry)
	s.mu.Unlock()
	r.pass(ctx, s.nap(rng))
	s.mu.Lock()
	if isClosed(r.closed) {
		s.mu.Unlock()
		return ErrClosed
	}
	if !r.connected() || r.mute || s.leader == 0 {
		// It may sit in a queue and be sent when the cut is healed.
		if chance(rng, s.faults.late) {
			s.late(rng, entry)
		}
		s.mu.Unlock()
		if s.leaderless(r) {
			return errDropped
		}
		return r.giveUp(ctx)
	}
	switch {
	case chance(rng, s.faults.drop):
		s.mu.Unlock()
		return r.giveUp(ctx)
	case chance(rng, s.faults.late):
		s.late(rng, entry)
		s.mu.Unlock()
		return r.giveUp(ctx)
	}
	s.commit(entry)
	at := len(s.log)
	if chance(rng, s.faults.duplicate) {
		s.late(rng, entry)
		if chance(rng, 0.5) {
			s.commit(entry)
		}
	}
	s.change()
	s.mu.Unlock()
	return r.reach(ctx, at)
}

// late leaves the fate of a proposal open: a new leader may commit it, or it comes
// by itself, whatever its proposer did meanwhile. s.mu is held.
func (s *sim) late(rng *rand.Rand, entry []byte) {
	if s.faults.stray <= 0 || chance(rng, 0.5) {
		s.limbo = append(s.limbo, entry)
		return
	}
	d := time.Duration(rng.Int64N(int64(s.faults.stray)))
	s.strays.Go(func() {
		<-time.After(d)
		s.alter(func() {
			if s.quorum() {
				s.commit(entry)
			}
		})
	})
}

func (s *sim) leaderless(r *simReplica) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return r.connected() && s.leader == 0
}

func (r *simReplica) pass(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	case <-r.closed:
	}
}

func (r *simReplica) giveUp(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case <-r.closed:
	}
	return errUnknown
}

// reach waits until the replica has applied the first n entries.
func (r *simReplica) reach(ctx context.Context, n int) error {
	for {
		r.sim.mu.Lock()
		done, changed := r.applied >= n, r.sim.changed
		r.sim.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return errUnknown
		case <-r.closed:
			return errUnknown
		}
	}
}

func (r *simReplica) barrier(ctx context.Context) error {
	r.sim.mu.Lock()
	r.barriers++
	rng := r.sim.dice(fateBarrier, r.id, r.epoch, r.barriers)
	r.sim.mu.Unlock()
	r.pass(ctx, r.sim.nap(rng))
	r.sim.mu.Lock()
	ok, n := r.connected() && !r.mute && r.sim.leader != 0 && !chance(rng, r.sim.faults.drop), len(r.sim.log)
	r.sim.mu.Unlock()
	if !ok {
		return r.giveUp(ctx)
	}
	return r.reach(ctx, n)
}

func (r *simReplica) leader() (uint64, uint64) {
	r.sim.mu.Lock()
	defer r.sim.mu.Unlock()
	return r.sim.leader, r.sim.term
}

func (r *simReplica) transfer(_ context.Context, to uint64) error {
	r.sim.mu.Lock()
	defer r.sim.mu.Unlock()
	if !r.sim.replicas[to].connected() {
		return errUnknown
	}
	r.sim.leader = to
	r.sim.term++
	r.sim.tell()
	r.sim.change()
	return nil
}

func (r *simReplica) members() map[uint64]string {
	r.sim.mu.Lock()
	defer r.sim.mu.Unlock()
	members := make(map[uint64]string)
	for _, id := range r.sim.voters() {
		r.sim.peers.note(func(p *simPeers) { members[id] = p.where[id] })
	}
	return members
}

func (r *simReplica) membership(ctx context.Context) (membership, error) {
	if err := r.barrier(ctx); err != nil {
		return membership{}, err
	}
	s := r.sim
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone[r.id] {
		return membership{}, errLeft
	}
	m := membership{removed: maps.Clone(s.gone), heard: make(map[uint64]bool), last: s.moves}
	for id, votes := range s.votes {
		s.peers.note(func(p *simPeers) {
			m.members = append(m.members, Member{ID: id, Address: p.where[id], Zone: p.zones[id], Voting: votes, MaxLevel: s.speaks(id)})
		})
		m.heard[id] = s.replicas[id] != nil
	}
	return m, nil
}

// change is made, or lost, or made without a word.
func (r *simReplica) change(ctx context.Context, at uint64, c memberChange) error {
	s := r.sim
	s.mu.Lock()
	rng := s.dice(fateChange, r.id, at, uint64(c.op), c.replica)
	s.mu.Unlock()
	r.pass(ctx, s.nap(rng))
	s.mu.Lock()
	ok := r.connected() && !r.mute && s.leader != 0 && !chance(rng, s.faults.drop)
	made, late := ok && at == s.moves, chance(rng, s.faults.late)
	if made {
		s.alterMembers(c)
	}
	s.mu.Unlock()
	switch {
	case !ok, late:
		return r.giveUp(ctx)
	case !made:
		return errDropped
	}
	return nil
}

// alterMembers wants s.mu held.
func (s *sim) alterMembers(c memberChange) {
	s.moves++
	switch c.op {
	case addMember:
		s.votes[c.replica] = false
	case promoteMember:
		s.votes[c.replica] = true
	case removeMember:
		delete(s.votes, c.replica)
		s.gone[c.replica] = true
		s.peers.note(func(p *simPeers) { p.left[c.replica]++ })
	}
	if s.altered != nil {
		s.altered(c)
	}
	s.elect()
	for _, r := range s.replicas {
		if r.connected() {
			r.ev.members()
		}
	}
}

// speaks is the level that a replica's latest life said, if it was ever connected to any.
// s.mu is held.
func (s *sim) speaks(id uint64) int {
	if r := s.replicas[id]; r != nil {
		return int(r.level)
	}
	return 0
}

func (h simHost) levels() map[uint64]byte {
	r := h[0]
	r.sim.mu.Lock()
	defer r.sim.mu.Unlock()
	levels := make(map[uint64]byte)
	for id, other := range r.sim.replicas {
		if id != r.id && r.connected() && other.connected() {
			levels[id] = other.level
		}
	}
	return levels
}

func (r *simReplica) close() {
	r.sim.alter(func() {
		r.down = true
		close(r.closed)
	})
	r.applier.Wait()
}

// applyLoop applies the log as it grows, a few entries at a time, now and then by a
// snapshot in place of them.
func (r *simReplica) applyLoop(closed chan struct{}) {
	defer r.applier.Done()
	s := r.sim
	for {
		s.mu.Lock()
		changed := s.changed
		rng := s.dice(fateApply, r.id, r.epoch, uint64(r.applied))
		var entries []logEntry
		_, member := s.votes[r.id]
		if !r.paused && !r.cut && member {
			end := min(len(s.log), r.applied+1+rng.IntN(4))
			for i := r.applied; i < end; i++ {
				entries = append(entries, logEntry{uint64(i + 1), s.log[i]})
			}
		}
		install := len(s.log)-r.applied > 4 && chance(rng, s.faults.snapshot) && !r.paused && !r.cut && member
		log, applied := s.log, r.applied
		s.mu.Unlock()
		switch {
		case install && s.donor == nil:
			r.install(log)
		case install && r.accept(applied):
		case len(entries) > 0:
			r.apply(entries)
		default:
			select {
			case <-changed:
			case <-closed:
				return
			}
			continue
		}
		if d := s.nap(rng); d > 0 {
			r.pass(context.Background(), d)
		}
		if isClosed(closed) {
			return
		}
	}
}

func (r *simReplica) apply(entries []logEntry) {
	if r.sim.reached == nil {
		r.m.apply(entries)
		r.advance(len(entries))
		return
	}
	for i := range entries {
		r.m.apply(entries[i : i+1])
		r.sim.reached(r, int(entries[i].index))
		r.advance(1)
	}
}

func (r *simReplica) advance(n int) {
	r.sim.mu.Lock()
	defer r.sim.mu.Unlock()
	r.applied += n
	r.sim.change()
}

// install brings the replica up to the end of log by a snapshot.
func (r *simReplica) install(log [][]byte) {
	f := newLockFSM()
	for _, e := range log {
		f.apply(e)
	}
	r.restore(f.bytes(), len(log))
}

// accept installs the donor's snapshot, if that is newer than what was applied.
func (r *simReplica) accept(applied int) bool {
	snapshot, n := r.sim.donor()
	if n <= applied {
		return false
	}
	r.restore(snapshot, n)
	return true
}

// restore replaces the replica's state by a snapshot of the first n entries.
func (r *simReplica) restore(snapshot []byte, n int) {
	if err := r.m.restore(bytes.NewReader(snapshot), nil); err != nil {
		panic(err)
	}
	r.sim.mu.Lock()
	defer r.sim.mu.Unlock()
	r.applied = n
	r.sim.change()
}
