package quorumlock

import (
	"errors"
	"maps"
	"math/bits"
	"time"
)

// Stats are the numbers of this replica since it began to count: of its own
// process's calls, unless a field says otherwise. All but the gauges, which tell how
// it is now, only grow.
type Stats struct {
	Since    time.Time         // when it began to count
	Grants   uint64            // acquires that were granted
	Refusals map[string]uint64 // acquires that were not, by Refusal...
	Lost     map[string]uint64 // holds that ended without their holder's doing, by Loss...

	Waits     Histogram // of granted acquires, from the call to the grant; microseconds
	Holds     Histogram // from a grant until the lock was free again, as this replica saw them; microseconds
	Batches   Histogram // log entries that carry calls, by how many commands are in them
	Proposals Histogram // of those, from being made until they were applied here; microseconds
	Applies   Histogram // what it took to apply the entries that the engine gave at once; microseconds

	LateRenewals  uint64 // times that a session was in jeopardy; see Options.OnJeopardy
	Expiries      uint64 // sessions of any process that a leader ended because they were not renewed; of several groups, each does
	LeaderChanges uint64 // times that another replica was found to lead, in any group

	Unsent   int // gauge: acquires that wait in this process to be sent
	Waiting  int // gauge: acquires that stand in line
	UnderWay int // gauge: batches that were sent and not yet applied

	Quotas []QuotaUse // gauges: of Options.Quotas, in their order

	// Busiest are the names that were asked for most, the busiest first. What was
	// long ago counts for less: all counts are halved after each 131,072 calls.
	Busiest []NameCount
}

// Why an acquire was not granted.
const (
	RefusalHeld      = "held"       // somebody had it, and it was not to wait
	RefusalQueueFull = "queue_full" // ErrQueueFull
	RefusalMode      = "mode"       // ErrMode
	RefusalPermits   = "permits"    // ErrPermits
	RefusalBusy      = "busy"       // ErrBusy
	RefusalQuota     = "quota"      // ErrQuota
	RefusalGaveUp    = "gave_up"    // its ctx ended first
	RefusalSession   = "session"    // its session was over
)

// Why a hold was lost.
const (
	LossExpired = "session_expired" // not renewed in time, or its process restarted
	LossClosed  = "session_closed"  // its session was closed while it was held
	LossMaxHold = "max_hold"
	LossRevoked = "revoked"
	LossNode    = "node" // this node was closed, or can do nothing any more
)

// A NameCount tells how often a name was asked for: at most Calls times, and at
// least Calls less Over. After the first 8,192 calls since all counts were last halved,
// one call in sixteen, chosen at random, stands for all, and both are estimates.
type NameCount struct {
	Name        string
	Calls, Over uint64
}

// A Histogram counts values by powers of two.
type Histogram struct {
	// Counts[i] is how many values were at most 1<<i, and more than half of that.
	// Counts[0] has those of at most 1, and the last also all that are larger.
	Counts [histogramBuckets]uint64
	Sum    uint64 // of all values
}

// histogramBuckets reach to 2^36 microseconds, 19 hours.
const histogramBuckets = 37

// Count returns how many values were counted.
func (h *Histogram) Count() (n uint64) {
	for _, c := range h.Counts {
		n += c
	}
	return n
}

// add adds what another one has counted.
func (h *Histogram) add(other *Histogram) {
	for i, c := range other.Counts {
		h.Counts[i] += c
	}
	h.Sum += other.Sum
}

func (h *Histogram) observe(v uint64) {
	i := 0
	if v > 1 {
		i = min(bits.Len64(v-1), histogramBuckets-1)
	}
	h.Counts[i]++
	h.Sum += v
}

func (h *Histogram) observeTime(d time.Duration) {
	h.observe(uint64(max(d, 0) / time.Microsecond))
}

// Stats returns the numbers of this replica. The first call makes it count, and
// returns zeros; until then nothing is counted and it costs nothing. A call takes
// the node's lock for as long as it takes to copy some three thousand bytes.
func (n *Node) Stats() Stats {
	var applies Histogram
	for _, g := range n.groups {
		applies.add(g.machine.applies(n.clk.Now))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stats == nil {
		n.beginStats()
	}
	s := n.stats.Stats
	s.Refusals, s.Lost = maps.Clone(s.Refusals), maps.Clone(s.Lost)
	s.Applies = applies
	for _, g := range n.groups {
		s.Unsent += len(g.stream.acquires)
		s.UnderWay += len(g.stream.sent)
	}
	s.Quotas = n.quotas.inUse()
	s.Busiest = n.stats.busiest.list()
	return s
}

// beginStats begins to count. n.mu is held.
func (n *Node) beginStats() {
	now := n.clk.Now()
	n.stats = &stats{Stats: Stats{Since: now.Round(0)}, node: n}
	n.counting.Store(true)
	n.stats.Refusals = map[string]uint64{RefusalHeld: 0, RefusalQueueFull: 0, RefusalMode: 0, RefusalPermits: 0,
		RefusalBusy: 0, RefusalQuota: 0, RefusalGaveUp: 0, RefusalSession: 0}
	n.stats.Lost = map[string]uint64{LossExpired: 0, LossClosed: 0, LossMaxHold: 0, LossRevoked: 0, LossNode: 0}
	for _, g := range n.groups {
		for _, p := range g.parts {
			for _, h := range p.claims {
				if h.inLine() {
					n.stats.Waiting++
				}
			}
		}
	}
}

// stats count. A nil one counts nothing, so that who is to be counted need not ask.
// All is guarded by n.mu, which is held wherever there is something to count: it
// takes no lock of its own, and no memory for each call.
type stats struct {
	Stats
	node    *Node
	entry   time.Duration // when the entry came whose effects are performed
	busiest busiest
}

// asked returns when an acquire is asked for, if that is counted. It is called before
// n.mu is taken: to read the clock takes as long as all else that is counted of it.
func (n *Node) asked() (at time.Duration) {
	if n.counting.Load() {
		at = n.age()
	}
	return at
}

// age is how long ago the node was opened. It is never 0.
func (n *Node) age() time.Duration { return n.clk.Since(n.start) }

// entered notes the time of an entry, once for all its effects.
func (s *stats) entered() {
	if s != nil {
		s.entry = s.node.age()
	}
}

// asked notes an acquire.
func (s *stats) asked(r *request) {
	switch {
	case s == nil:
	case len(r.names) == 0:
		s.busiest.add(r.name)
	default:
		for _, name := range r.names {
			s.busiest.add(name)
		}
	}
}

// inLine reports whether a claim waits, as far as its caller knows.
func (h *Hold) inLine() bool { return h.queued && !h.granted() && !h.forgotten }

func (s *stats) queued(h *Hold) {
	if s != nil && !h.inLine() {
		s.Waiting++
	}
}

// leavesLine is called before a claim is in line no more.
func (s *stats) leavesLine(h *Hold) {
	if s != nil && h.inLine() {
		s.Waiting--
	}
}

// granted is called before the grant is told.
func (s *stats) granted(h *Hold) {
	if s == nil {
		return
	}
	s.Grants++
	if h.at != 0 {
		s.Waits.observeTime(s.entry - h.at)
	}
	h.at = s.entry
}

// forgotten is called before a claim is forgotten, which may be a second time.
func (s *stats) forgotten(h *Hold) {
	if s == nil || h.forgotten {
		return
	}
	s.leavesLine(h)
	if h.granted() && h.at != 0 {
		s.Holds.observeTime(s.entry - h.at)
	}
}

func (s *stats) refused(why string) {
	if s != nil {
		s.Refusals[why]++
	}
}

// label names a refusal.
func (c cause) label() string {
	switch c {
	case causeHeld:
		return RefusalHeld
	case causeQueueFull:
		return RefusalQueueFull
	case causeMode, causeLimit:
		return RefusalMode
	case causePermits:
		return RefusalPermits
	default:
		return RefusalSession
	}
}

func (s *stats) lost(why error) {
	if s == nil {
		return
	}
	label := LossNode
	switch {
	case errors.Is(why, ErrMaxHold):
		label = LossMaxHold
	case errors.Is(why, ErrRevoked):
		label = LossRevoked
	case errors.Is(why, ErrSessionExpired):
		label = LossExpired
	case errors.Is(why, ErrSessionClosed):
		label = LossClosed
	}
	s.Lost[label]++
}

// made notes a batch.
func (s *stats) made(b *outgo) {
	if s != nil {
		b.made = s.node.age()
		s.Batches.observe(uint64(len(b.commands)))
	}
}

// settled notes that a batch was applied.
func (s *stats) settled(b *outgo) {
	if s != nil && b != nil && b.made != 0 {
		s.Proposals.observeTime(s.entry - b.made)
	}
}

func (s *stats) lateRenewal() {
	if s != nil {
		s.LateRenewals++
	}
}

func (s *stats) ended(why cause) {
	if s != nil && why == causeExpired {
		s.Expiries++
	}
}

func (s *stats) led(former, now uint64) {
	if s != nil && now != 0 && now != former {
		s.LeaderChanges++
	}
}

// applies returns what it took to apply entries since it was first called.
func (m *machine) applies(now func() time.Time) *Histogram {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopwatch == nil {
		m.stopwatch = &stopwatch{now: now}
	}
	taken := m.stopwatch.taken
	return &taken
}

// A stopwatch measures how long applying takes. The state machine's lock guards it.
// A nil one measures nothing.
type stopwatch struct {
	now   func() time.Time
	taken Histogram
}

func (w *stopwatch) begin() (t time.Time) {
	if w != nil {
		t = w.now()
	}
	return t
}

func (w *stopwatch) end(begun time.Time) {
	if w != nil {
		w.taken.observeTime(w.now().Sub(begun))
	}
}
