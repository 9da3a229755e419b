package quorumlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/fencing"
)

// The tests of this file are kinds of failures that users of other lock systems
// reported of what is beyond a plain mutex; see cases_test.go.

// A waiter whose session can no longer be trusted at the moment of its grant is not
// granted, in whatever mode it waits, and nobody waits for it.
//
// etcd-io/etcd#16221
func TestExpiredWaiterIsNotGrantedInAnyMode(t *testing.T) {
	take := func(opts ...AcquireOption) func(*Node, context.Context) (*Hold, error) {
		return func(n *Node, ctx context.Context) (*Hold, error) { return n.Acquire(ctx, "job", opts...) }
	}
	for mode, c := range map[string]struct {
		held []AcquireOption
		wait func(*Node, context.Context) (*Hold, error)
	}{
		"reader":  {nil, take(Share())},
		"writer":  {[]AcquireOption{Share()}, take()},
		"worker":  {[]AcquireOption{Permits(3, 3)}, take(Permits(1, 3))},
		"several": {nil, func(n *Node, ctx context.Context) (*Hold, error) { return n.AcquireAll(ctx, "job", "other") }},
		"bounded": {nil, take(MaxHold(time.Hour), MinHold(time.Minute))},
	} {
		t.Run(mode, func(t *testing.T) {
			inSimWith(t, func(o *Options, asleep func() time.Duration) {
				if awake := o.trust; o.ReplicaID == 2 {
					o.trust = func() time.Duration { return awake() + asleep() }
				}
			}, func(t *testing.T, _ *sim, nodes map[uint64]*Node, sleep func(time.Duration)) {
				held, err := nodes[1].Acquire(soon(t), "job", c.held...)
				require.NoError(t, err)
				waiting := inBackground(func() (*Hold, error) { return c.wait(nodes[2], t.Context()) })
				inLine(t, nodes[3], "job", 1)
				sleep(DefaultSessionTTL)
				started := time.Now()
				require.NoError(t, held.Release(soon(t)))
				got := <-waiting
				require.Nil(t, got.hold)
				require.ErrorIs(t, got.err, ErrSessionExpired)
				next, err := nodes[3].AcquireAll(soon(t), "job", "other")
				require.NoError(t, err)
				require.Less(t, time.Since(started), time.Second)
				require.NoError(t, next.Release(soon(t)))
				settled(t, nodes)
			})
		})
	}
}

// A fail-over takes as long as was said: within the TTL without a delay, and with one
// as much longer as it is long; never the one for the other.
//
// hashicorp/consul#4508
func TestFailOverTakesAsLongAsWasSaid(t *testing.T) {
	for _, delay := range []time.Duration{0, time.Second, 15 * time.Second} {
		for _, ttl := range []time.Duration{5 * time.Second, DefaultSessionTTL} {
			t.Run(fmt.Sprint(ttl, delay), func(t *testing.T) {
				inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
					own, err := nodes[5].OpenSession(soon(t), WithTTL(ttl))
					require.NoError(t, err)
					h, err := own.Acquire(soon(t), "job", LockDelay(delay))
					require.NoError(t, err)
					s.cut(5)
					cut := time.Now()
					next, err := nodes[3].Acquire(soon(t), "job")
					require.NoError(t, err)
					require.GreaterOrEqual(t, time.Since(cut), ttl/2+delay)
					require.Less(t, time.Since(cut), ttl+delay+200*time.Millisecond)
					require.Greater(t, next.Token(), h.Token())
				})
			})
		}
	}
}

// A lock that is taken away leaves a record for all to see, a victim that knows, and
// a token that is larger.
//
// granit-fx/granit#298; effect-distributed-lock#9
func TestForcedReleaseIsAudited(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		records := []chan Event{watching(t, nodes[3], "job"), watching(t, nodes[5], "")}
		synctest.Wait()
		h, err := nodes[1].Acquire(soon(t), "job")
		require.NoError(t, err)
		all, err := nodes[1].AcquireAll(soon(t), "job/1", "job/2")
		require.NoError(t, err)
		require.NoError(t, nodes[2].ForceRelease(soon(t), "job", h.Token(), "alice", "INC-42"))
		require.NoError(t, nodes[2].ForceRelease(soon(t), "job/2", all.TokenFor("job/2"), "bob", "INC-43"))
		<-h.Done()
		<-all.Done()
		synctest.Wait()
		for _, events := range records {
			var audit []string
			for len(events) > 0 {
				var revoked *RevokedError
				if e := <-events; e.Kind == EventLost && errors.As(e.Cause, &revoked) {
					audit = append(audit, fmt.Sprintf("%s %s of %s (%s): %s, %s", e.Name, e.Token, e.Owner, e.Session, revoked.By, revoked.Reason))
				}
			}
			require.Equal(t, []string{
				fmt.Sprintf("job %s of owner-1 (%s): alice, INC-42", h.Token(), h.Session().ID()),
				fmt.Sprintf("job/1 %s of owner-1 (%s): bob, INC-43", all.TokenFor("job/1"), h.Session().ID()),
				fmt.Sprintf("job/2 %s of owner-1 (%s): bob, INC-43", all.TokenFor("job/2"), h.Session().ID()),
			}, audit)
		}
		next, err := nodes[4].TryAcquire(soon(t), "job")
		require.NoError(t, err)
		require.Greater(t, next.Token(), h.Token())
	})
}

// Who stands by is listed, in order and with how long, and a fail-over can be forced:
// the next in line is granted.
//
// kubernetes/kubernetes#16830
func TestCandidatesAreListed(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		leader, err := nodes[1].Acquire(soon(t), "leader")
		require.NoError(t, err)
		var candidates []<-chan outcome
		for id := uint64(2); id <= 5; id++ {
			candidates = append(candidates, inBackground(func() (*Hold, error) { return nodes[id].Acquire(t.Context(), "leader") }))
			elapse(time.Second)
		}
		for id := range nodes {
			info, err := nodes[id].Describe(soon(t), "leader")
			require.NoError(t, err)
			require.Equal(t, "owner-1", info.Holders[0].Owner)
			require.Len(t, info.Waiters, 4)
			for i, w := range info.Waiters {
				require.Equal(t, []any{fmt.Sprint("owner-", i+2), uint64(i + 2), Exclusive}, []any{w.Owner, w.Replica, w.Mode})
				require.Equal(t, time.Duration(4-i)*time.Second, time.Since(w.Since))
			}
		}
		require.NoError(t, nodes[4].ForceRelease(soon(t), "leader", leader.Token(), "ops", "fail over"))
		next := <-candidates[0]
		require.NoError(t, next.err)
		<-leader.Done() // another replica's word, which may come after the grant
		require.ErrorIs(t, leader.Err(), ErrRevoked)
		for _, c := range candidates[1:] {
			require.Empty(t, c)
		}
	})
}

// Under far more calls than can be served in time, with a bounded line, as many are
// served as can be: those that are refused cost the others nothing.
//
// cockroachdb/cockroach#66017, #66146
func TestGoodputUnderOverload(t *testing.T) {
	for _, opts := range [][]AcquireOption{nil, {Permits(1, 1)}} {
		inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
			const work, patience = 10 * time.Millisecond, 100 * time.Millisecond
			var served, full, late atomic.Int64
			var callers sync.WaitGroup
			end := time.Now().Add(3 * time.Second)
			for id := range nodes {
				for range 20 {
					callers.Go(func() {
						for time.Now().Before(end) {
							ctx, cancel := context.WithTimeout(t.Context(), patience)
							h, err := nodes[id].Acquire(ctx, "hot", append(opts, MaxWaiters(5))...)
							cancel()
							switch {
							case err == nil:
								served.Add(1)
								time.Sleep(work)
								if err := h.Release(t.Context()); err != nil {
									t.Error(err)
								}
							case errors.Is(err, ErrQueueFull):
								full.Add(1)
								time.Sleep(work)
							case errors.Is(err, context.DeadlineExceeded):
								late.Add(1)
							default:
								t.Error(err)
							}
						}
					})
				}
			}
			callers.Wait()
			t.Logf("%d served, %d refused, %d too late", served.Load(), full.Load(), late.Load())
			require.Greater(t, served.Load(), int64(3*time.Second/work)*8/10)
			require.Less(t, late.Load(), int64(10), "who was let into the line was served in time")
			require.NotZero(t, full.Load())
			settled(t, nodes)
		})
	}
}

// One session that asks for all and never gives up takes no more places than it may;
// the others go on.
//
// palantir/atlasdb#1719
func TestOneSessionCannotFloodTheLines(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		flood, err := nodes[1].OpenSession(soon(t), MaxWaits(10))
		require.NoError(t, err)
		held, err := nodes[2].AcquireAll(soon(t), manyNames(20)...)
		require.NoError(t, err)
		var refused atomic.Int64
		ctx, cancel := context.WithCancel(t.Context())
		var calls sync.WaitGroup
		for i := range 1000 {
			calls.Go(func() {
				if _, err := flood.Acquire(ctx, fmt.Sprint("name ", i%20)); errors.Is(err, ErrQueueFull) {
					refused.Add(1)
				}
			})
		}
		elapse(time.Second) // a batch that overtook another is sent again
		require.Equal(t, int64(990), refused.Load())
		infos, err := nodes[3].Sessions(soon(t))
		require.NoError(t, err)
		i := slices.IndexFunc(infos, func(i SessionInfo) bool { return i.ID == flood.ID() })
		require.Equal(t, 10, infos[i].Waits)
		other := inBackground(func() (*Hold, error) { return nodes[4].Acquire(t.Context(), "name 3") })
		require.NoError(t, held.Release(soon(t)))
		require.NoError(t, flood.Close(soon(t)))
		require.NoError(t, (<-other).err)
		cancel()
		calls.Wait()
	})
}

// A try, or a wait with a time limit, leaves nothing in line, in whatever mode it
// ended, and however its replica was doing meanwhile.
//
// redisson/redisson#5019
func TestTimedOutTriesLeaveNothingInAnyMode(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		rng := rand.New(rand.NewPCG(3, 3))
		held, err := nodes[1].AcquireAll(soon(t), "a", "b")
		require.NoError(t, err)
		pool, err := nodes[1].Acquire(soon(t), "pool", Permits(3, 3))
		require.NoError(t, err)
		s.alter(func() { s.faults = simFaults{drop: 0.1, duplicate: 0.3, late: 0.2, delay: 20 * time.Millisecond} })
		var calls sync.WaitGroup
		for range 300 {
			ctx := canceled(t, time.Duration(1+rng.IntN(300))*time.Millisecond)
			n := nodes[uint64(2+rng.IntN(4))]
			calls.Go(func() {
				var err error
				switch n.lastHoldSeen() % 5 {
				case 0:
					_, err = n.AcquireAll(ctx, "b", "c", "a")
				case 1:
					_, err = n.Acquire(ctx, "a", Share())
				case 2:
					_, err = n.Acquire(ctx, "pool", Permits(2, 3))
				case 3:
					_, err = n.TryAcquireAll(ctx, "a", "d")
				default:
					_, err = n.TryAcquire(ctx, "pool", Permits(1, 3), MaxHold(time.Hour))
				}
				if err == nil {
					t.Error("granted what is held")
				}
			})
			elapse(10 * time.Millisecond)
		}
		calls.Wait()
		s.alter(func() { s.faults = simFaults{} })
		s.moveLeader()
		elapse(5 * time.Second)
		require.NoError(t, held.Release(soon(t)))
		require.NoError(t, pool.Release(soon(t)))
		settled(t, nodes)
	})
}

// lastHoldSeen is how many acquisitions were made.
func (n *Node) lastHoldSeen() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.lastHold
}

// Contexts of two holders that exclude each other are never alive at the same time,
// whatever ends the holds (their MaxHold, a partition, a restart, a sleep), by clocks
// of different rates. One that is forced out is told when its replica hears of it.
//
// hashicorp/consul#1843; kubernetes/kubernetes#67651
func TestLiveContextsNeverOverlap(t *testing.T) {
	for _, seed := range seeds(t, 4) {
		ok := t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 5))
			inSimWith(t, func(o *Options, _ func() time.Duration) {
				brisk(o)
				o.rated(0.94 + 0.12*rng.Float64())
			}, func(t *testing.T, s *sim, nodes map[uint64]*Node, _ func(time.Duration)) { contexts(t, s, nodes, seed) })
		})
		if !ok {
			t.Fatalf("replay with %s=%d", seedVar, seed)
		}
	}
}

// A span is how long a context was alive.
type span struct {
	token    fencing.Token
	from, to time.Time
	cause    error
}

func contexts(t *testing.T, s *sim, nodes map[uint64]*Node, seed uint64) {
	var mu sync.Mutex
	var spans []span
	ctx, cancel := context.WithCancel(t.Context())
	var calls sync.WaitGroup
	for id := range nodes {
		rng := rand.New(rand.NewPCG(seed, id))
		calls.Go(func() {
			for ctx.Err() == nil {
				h, err := nodes[id].Acquire(ctx, "job", MaxHold(time.Duration(400+rng.IntN(800))*time.Millisecond))
				if err != nil {
					continue
				}
				x := span{token: h.Token(), from: time.Now()}
				held, end := h.Context(context.Background())
				timer := time.AfterFunc(time.Duration(rng.IntN(1500))*time.Millisecond, func() { _ = h.Release(canceled(t, time.Second)) })
				<-held.Done()
				x.to, x.cause = time.Now(), context.Cause(held)
				end()
				if timer.Stop() && rng.IntN(2) == 0 {
					_ = h.Release(canceled(t, time.Second))
				}
				mu.Lock()
				spans = append(spans, x)
				mu.Unlock()
			}
		})
	}
	rng := rand.New(rand.NewPCG(seed, 99))
	forced := make(map[fencing.Token]bool) // they may end for another reason before they hear of it
	for range 150 {
		elapse(time.Duration(rng.IntN(500)) * time.Millisecond)
		id := uint64(1 + rng.IntN(5))
		switch rng.IntN(7) {
		case 0:
			s.cut(id)
		case 1:
			s.moveLeader()
		case 2:
			s.pause(id, true)
		case 3:
			s.mute(id, true)
		case 4:
			info, err := nodes[id].Describe(canceled(t, 200*time.Millisecond), "job")
			if err == nil && len(info.Holders) > 0 {
				forced[info.Holders[0].Token] = true
				_ = nodes[id].ForceRelease(canceled(t, time.Second), "job", info.Holders[0].Token, "ops", "test")
			}
		default:
			s.heal()
		}
	}
	s.heal()
	elapse(3 * time.Second)
	cancel()
	calls.Wait()
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.token, b.token) })
	causes := make(map[string]int)
	for i, x := range spans {
		for _, c := range []error{ErrMaxHold, ErrRevoked, ErrSessionExpired, ErrNotHeld} {
			if errors.Is(x.cause, c) {
				causes[c.Error()]++
			}
		}
		if i > 0 && spans[i-1].to.After(x.from) && !forced[spans[i-1].token] {
			t.Errorf("token %s until %v (%v), token %s from %v", spans[i-1].token, spans[i-1].to, spans[i-1].cause, x.token, x.from)
		}
	}
	t.Logf("%d holds: %v", len(spans), causes)
}
