package quorumlock

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorumlock/quorumlock/internal/wire"
)

// watchedRate is how many acquires and releases a second the log brings while it is
// watched: about what five replicas do at their best.
const watchedRate = 100_000

// watchedNode is a node on which one session of another process holds that many
// locks with names of 60 bytes.
func watchedNode(b *testing.B, locks int) (*Node, *speaker) {
	s := newSim(1, 1)
	n := s.open(b, s.options(1))
	b.Cleanup(func() { n.Close() })
	if err := n.Ready(b.Context()); err != nil {
		b.Fatal(err)
	}
	n.groups[0].machine.mu.Lock()
	defer n.groups[0].machine.mu.Unlock()
	other := newSpeaker(b, n.groups[0].machine.fsm, 7)
	other.say(wire.Command{Op: wire.Open, Session: 1, TTL: uint64(maxTTL / time.Millisecond)})
	for i := range uint64(locks) {
		other.acquire(1, i+1, fmt.Sprintf("%060d", i))
	}
	other.flush()
	return n, other
}

// The time is for one acquire and one release in the log, as in BenchmarkApply, at
// the rate of a busy cluster, while two million locks are held and so many watch
// all of them. Each reads every event that there is.
func BenchmarkApplyWatched(b *testing.B) {
	held := 2_000_000
	if testing.Short() {
		held = 200_000
	}
	n, s := watchedNode(b, held)
	hold := uint64(held)
	for _, watchers := range []int{0, 100} {
		b.Run(fmt.Sprintf("watchers=%d", watchers), func(b *testing.B) {
			entries := (b.N + 31) / 32
			var missed atomic.Int64
			var ready, readers sync.WaitGroup
			ready.Add(watchers)
			for range watchers {
				readers.Go(func() { watchOn(b.Context(), n, &ready, 64*entries, &missed) })
			}
			ready.Wait()
			var took []time.Duration // of an entry
			b.ResetTimer()
			next := time.Now()
			for len(took) < entries {
				log := s.pairs(min(64, entries-len(took)), &hold)
				for i := range log {
					<-time.After(time.Until(next))
					start := time.Now()
					n.groups[0].machine.apply(log[i : i+1])
					took = append(took, time.Since(start))
					next = later(next, start).Add(32 * time.Second / watchedRate)
				}
			}
			readers.Wait()
			b.StopTimer()
			var sum time.Duration
			for _, d := range took {
				sum += d
			}
			slices.Sort(took)
			b.ReportMetric(float64(sum)/float64(32*len(took)), "ns/op")
			b.ReportMetric(float64(took[len(took)/2])/32, "median-ns/op")
			b.ReportMetric(float64(missed.Load()), "missed") // readers that fell behind: a busy machine
			b.ReportMetric(float64(held), "locks")
			b.ReportMetric(float64(watchers), "watchers")
		})
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// watchOn watches as Watch does once it has shown every lock, until it was told so
// many changes, or that it missed some.
func watchOn(ctx context.Context, n *Node, ready *sync.WaitGroup, changes int, missed *atomic.Int64) {
	n.groups[0].watched(+1)
	defer n.groups[0].watched(-1)
	w := watcher{n: n, readers: []logReader{{g: n.groups[0]}}, yield: func(e *Event, err error) bool {
		if e.Kind == EventMissed {
			missed.Add(1)
			return false
		}
		changes--
		return err == nil && changes > 0
	}}
	w.restart()
	w.readers[0].page, w.shown = pages, 1
	ready.Done()
	for w.step(ctx) {
	}
}
