package main

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// A link is one direction between two workers.
type link struct{ from, to uint64 }

// links are what the network does to packets.
type links struct {
	mu     sync.Mutex
	rng    *rand.Rand
	cut    map[link]bool
	loss   float64       // of all packets
	delay  time.Duration // of each packet
	jitter time.Duration // and up to so much more, by which they overtake each other

	passed, dropped atomic.Uint64
}

func newLinks(rng *rand.Rand) *links { return &links{rng: rng, cut: make(map[link]bool)} }

// verdict says what happens to the next packet of a link.
func (l *links) verdict(from, to uint64) (drop bool, delay time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut[link{from, to}] || l.loss > 0 && l.rng.Float64() < l.loss {
		l.dropped.Add(1)
		return true, 0
	}
	l.passed.Add(1)
	delay = l.delay
	if l.jitter > 0 {
		delay += time.Duration(l.rng.Int64N(int64(l.jitter)))
	}
	return false, delay
}

// sever cuts every link from one of these to one of those.
func (l *links) sever(these, those []uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range these {
		for _, b := range those {
			l.cut[link{a, b}] = true
		}
	}
}

// shape sets what every link does to packets.
func (l *links) shape(loss float64, delay, jitter time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.loss, l.delay, l.jitter = loss, delay, jitter
}

// heal makes all links whole and quick.
func (l *links) heal() {
	l.shape(0, 0, 0)
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.cut)
}
