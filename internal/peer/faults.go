package peer

import (
	"errors"
	"math/rand/v2"
	"sync"
	"time"
)

// Faults makes the network of a test misbehave. It sits at the sending side of
// a Transport, on real connections, and one value is shared by all replicas of
// a test. The nil *Faults, the production one, lets everything pass. Every
// method may be called at any time from any goroutine.
type Faults struct {
	mu       sync.Mutex
	rng      *rand.Rand
	cut      map[link]bool
	isolated map[uint64]bool
	paused   map[uint64][]func() // what is to be sent when a replica goes on
	drop     float64
	dup      float64
	maxDelay time.Duration
}

// link is one direction between two replicas.
type link struct{ from, to uint64 }

var errCut = errors.New("peer: link is cut by a test")

// NewFaults returns a network without faults. The seed fixes the dice, not
// their order between goroutines.
func NewFaults(seed uint64) *Faults {
	return &Faults{
		rng:      rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15)),
		cut:      make(map[link]bool),
		isolated: make(map[uint64]bool),
		paused:   make(map[uint64][]func()),
	}
}

// Cut loses everything between a and b, in both directions.
func (f *Faults) Cut(a, b uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cut[link{a, b}], f.cut[link{b, a}] = true, true
}

// CutOneWay loses what from sends to to; the other direction works.
func (f *Faults) CutOneWay(from, to uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cut[link{from, to}] = true
}

// Isolate loses everything that replica sends or is sent.
func (f *Faults) Isolate(replica uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.isolated[replica] = true
}

// maxHeld bounds what is kept for a paused replica; more is lost.
const maxHeld = 4096

// Pause holds back whatever replica sends and is sent, as if its process were
// stopped, and lets no connection be made with it. Resume must follow.
func (f *Faults) Pause(replica uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.paused[replica]; !ok {
		f.paused[replica] = nil
	}
}

// Resume ends Pause. What was held back is sent now, if the network lets it pass.
func (f *Faults) Resume(replica uint64) {
	f.mu.Lock()
	held := f.paused[replica]
	delete(f.paused, replica)
	f.mu.Unlock()
	for _, send := range held {
		send()
	}
}

// hold keeps a message if one of the two is paused.
func (f *Faults) hold(from, to uint64, message func() (send func())) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, replica := range []uint64{from, to} {
		if held, ok := f.paused[replica]; ok {
			if len(held) < maxHeld {
				f.paused[replica] = append(held, message())
			}
			return true
		}
	}
	return false
}

func (f *Faults) stopped(a, b uint64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.idle(a) || f.idle(b)
}

// idle wants f.mu held.
func (f *Faults) idle(replica uint64) bool {
	_, ok := f.paused[replica]
	return ok
}

// Chaos drops and duplicates messages with the given probabilities and delays
// each by up to maxDelay, which puts them out of order.
func (f *Faults) Chaos(drop, dup float64, maxDelay time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drop, f.dup, f.maxDelay = drop, dup, maxDelay
}

// Heal ends every cut, isolation and chaos. What is delayed still arrives late.
func (f *Faults) Heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.cut)
	clear(f.isolated)
	f.drop, f.dup, f.maxDelay = 0, 0, 0
}

// Join ends every cut and isolation.
func (f *Faults) Join() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.cut)
	clear(f.isolated)
}

// judge decides one message: how late each of its copies is delivered. No copy
// means that it is lost.
func (f *Faults) judge(from, to uint64) []time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.severed(from, to) || f.rng.Float64() < f.drop {
		return nil
	}
	delays := []time.Duration{f.delay()}
	if f.rng.Float64() < f.dup {
		delays = append(delays, f.delay())
	}
	return delays
}

// dialable tells whether a connection can be made: that takes both directions.
func (f *Faults) dialable(from, to uint64) bool {
	if f == nil {
		return true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.severed(from, to) && !f.severed(to, from) && !f.idle(from) && !f.idle(to)
}

// severed wants f.mu held.
func (f *Faults) severed(from, to uint64) bool {
	return f.cut[link{from, to}] || f.isolated[from] || f.isolated[to]
}

// delay wants f.mu held.
func (f *Faults) delay() time.Duration {
	if f.maxDelay <= 0 {
		return 0
	}
	return time.Duration(f.rng.Int64N(int64(f.maxDelay)))
}
