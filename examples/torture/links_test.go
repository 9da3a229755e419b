package main

import (
	"math/rand/v2"
	"testing"
	"time"
)

// What is cut is cut in that direction only, what is lost is about as much as was said,
// and what is late is as late; healed links do neither.
func TestLinks(t *testing.T) {
	const seed, packets = 1, 10_000
	l := newLinks(rand.New(rand.NewPCG(seed, 0)))
	dropped := func(from, to uint64) (n int) {
		for range packets {
			if drop, delay := l.verdict(from, to); drop {
				n++
			} else if delay < l.delay || delay > l.delay+l.jitter {
				t.Fatalf("delay of %v", delay)
			}
		}
		return n
	}
	l.sever([]uint64{1}, []uint64{2, 3})
	if dropped(1, 2) != packets || dropped(1, 3) != packets || dropped(2, 1) != 0 || dropped(1, 4) != 0 {
		t.Error("the cut is not where it was made")
	}
	l.heal()
	l.shape(0.1, time.Millisecond, time.Millisecond)
	if n := dropped(1, 2); n < packets/20 || n > packets/5 {
		t.Errorf("%d of %d dropped", n, packets)
	}
	l.heal()
	if drop, delay := l.verdict(1, 2); drop || delay > 0 {
		t.Error("not healed")
	}
}
