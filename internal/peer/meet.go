package peer

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

const (
	minMeetPause = 200 * time.Millisecond
	maxMeetPause = 10 * time.Second
)

// Probe greets all of addresses at once and returns, when all have answered or
// ctx ended, who welcomed this replica and who refused; of a replica that was found
// at the address of another, that it is there (CodeReplica). Who did not answer is in neither.
func (t *Transport) Probe(ctx context.Context, addresses map[uint64]string) (welcome []uint64, refused []*Refusal) {
	var (
		mu sync.Mutex
		wg sync.WaitGroup
	)
	for id, addr := range addresses {
		if id == t.cfg.Self.Replica {
			continue
		}
		wg.Go(func() {
			conn, err := t.Dial(ctx, id, addr)
			mu.Lock()
			defer mu.Unlock()
			var (
				r     *Refusal
				other *otherReplica
			)
			switch {
			case err == nil:
				conn.Close()
				welcome = append(welcome, id)
			case errors.As(err, &r):
				refused = append(refused, r)
			case errors.As(err, &other): // which with TLS is seen before it could say so
				refused = append(refused, &Refusal{Code: CodeReplica, By: other.replica, Text: other.Error()})
			}
		})
	}
	wg.Wait()
	slices.Sort(welcome)
	slices.SortFunc(refused, func(a, b *Refusal) int { return int(a.By) - int(b.By) })
	return welcome, refused
}

// Meet sees to it that this replica has greeted each of replicas, and of those that its
// Book names, at least once, so that each has the other's storage on record even when the
// engine gives them nothing to talk about, and learns whom the other knows. It returns
// at once and goes on until the Transport is closed.
func (t *Transport) Meet(replicas []uint64, route Route) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	t.workers.Go(func() {
		pause := minMeetPause
		for {
			changed := t.cfg.Book.change()
			missing := t.unmet(t.cfg.Book.among(replicas))
			var again <-chan time.Time
			if len(missing) > 0 {
				t.meet(missing, route)
				again = time.After(pause)
				pause = min(2*pause, maxMeetPause)
			}
			select {
			case <-t.stop:
				return
			case <-changed:
				pause = minMeetPause
			case <-again:
			}
		}
	})
}

func (t *Transport) meet(missing []uint64, route Route) {
	addrs := make(map[uint64]string)
	for _, id := range missing {
		addrs[id] = route.Address(id)
	}
	t.Probe(t.ctx, addrs)
	for _, id := range t.unmet(missing) {
		route.Failed(id, addrs[id])
	}
}

// unmet returns those of replicas that were not greeted yet.
func (t *Transport) unmet(replicas []uint64) []uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	var missing []uint64
	for _, id := range replicas {
		if _, met := t.met[id]; id != t.cfg.Self.Replica && !met {
			missing = append(missing, id)
		}
	}
	return missing
}
