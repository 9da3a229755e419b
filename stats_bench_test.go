package quorumlock

import (
	"fmt"
	"testing"
)

// The time is for all that counting adds to one acquire and its release, with more names than are kept: each call is then a name that takes
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
				r := request{name: names[i%len(names)]}
				h.at = n.asked()
				n.stats.asked(&r)
				n.stats.granted(h)
				n.stats.forgotten(h)
			}
		})
	}
}

// BenchmarkQuotas is what quotas add to one acquire and its release, under the node's
// lock: three that are about the name, two of them with a rate, and a hundred that are
// not.
func BenchmarkQuotas(b *testing.B) {
	quotas := []Quota{
		{Rate: 1e9, Burst: 1e9, Holds: 1e6, Waiters: 1e6},
		{PerSession: true, Holds: 1e6, Waiters: 1e6},
		{Prefix: "team/", Rate: 1e9, Burst: 1e9, Holds: 1e6},
	}
	for i := range 100 {
		quotas = append(quotas, Quota{Prefix: fmt.Sprintf("team-%d/", i), Holds: 1})
	}
	names := make([]string, 1<<16)
	for i := range names {
		names[i] = fmt.Sprintf("team/%055d", i)
	}
	s := newSim(1, 1)
	o := s.options(1)
	o.Quotas = quotas
	n := s.open(b, o)
	defer n.Close()
	h := &Hold{part: &part{Session: &Session{quota: n.quotas.ofSession()}}, wait: true}
	n.mu.Lock()
	defer n.mu.Unlock()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		r := request{name: names[i%len(names)]}
		h.rule = n.quotas.ruleOf(&r)
		if err := n.quotas.admit(h.part.Session, &r, h.rule, true); err != nil {
			b.Fatal(err)
		}
		h.name, h.answered, h.token = r.name, false, 0
		n.quotas.granted(h)
		h.answered, h.token = true, 1
		n.quotas.forgotten(h)
	}
}
