package quorumlock

import (
	"fmt"
	"testing"
)

// The time is for all that counting adds to one acquire and its release, under the
// node's lock, with more names than are kept: each call is then a name that takes
// another's place, which is the worst there is. Two more readings of the clock come
// with each batch, however many calls are in it.
func BenchmarkCounting(b *testing.B) {
	names := make([]string, 1<<16)
	for i := range names {
		names[i] = fmt.Sprintf("%060d", i)
	}
	for _, counted := range []bool{false, true} {
		b.Run(fmt.Sprintf("counted=%t", counted), func(b *testing.B) {
			s := newSim(1, 1)
			n := s.open(b, s.options(1))
			defer n.Close()
			if counted {
				n.Stats()
			}
			n.mu.Lock()
			defer n.mu.Unlock()
			h := new(Hold)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				h.at, h.name = 0, names[i%len(names)]
				n.stats.asked(h)
				n.stats.granted(h)
				n.stats.forgotten(h)
			}
		})
	}
}
