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
	n.machine.mu.Lock()
	defer n.machine.mu.Unlock()
	other := newSpeaker(b, n.machine.fsm, 7)
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
			var read, missed atomic.Int64
			var readers sync.WaitGroup
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			ready := make(chan struct{}, watchers)
			for range watchers {
				readers.Go(func() { watchOn(ctx, n, ready, &read, &missed) })
			}
			for range watchers {
				<-ready
			}
			var took []time.Duration // of an entry
			b.ResetTimer()
			next := time.Now()
			for done := 0; done < b.N; {
				log := s.pairs(64, &hold)
				log = log[:min(len(log), (b.N-done+31)/32)]
				for i := range log {
					time.Sleep(time.Until(next))
					start := time.Now()
					n.machine.apply(log[i : i+1])
					took = append(took, time.Since(start))
					next = later(next, start).Add(32 * time.Second / watchedRate)
					done += 32
				}
			}
			all := int64(watchers) * 64 * int64(len(took))
			for read.Load() < all && missed.Load() == 0 && b.Context().Err() == nil {
				time.Sleep(time.Millisecond)
			}
			b.StopTimer()
			cancel()
			readers.Wait()
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

// watchOn watches as Watch does once it has shown every lock.
func watchOn(ctx context.Context, n *Node, ready chan<- struct{}, read, missed *atomic.Int64) {
	n.watched(+1)
	defer n.watched(-1)
	w := watcher{n: n, yield: func(e Event, err error) bool {
		switch {
		case err != nil:
		case e.Kind == EventMissed:
			missed.Add(1)
			return false
		default:
			read.Add(1)
		}
		return err == nil
	}}
	w.restart()
	w.page = pages
	ready <- struct{}{}
	for w.step(ctx) {
	}
}
