package quorumlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"
)

// inSimOf is inSim with quotas on every node.
func inSimOf(t *testing.T, quotas []Quota, test func(t *testing.T, s *sim, nodes map[uint64]*Node)) {
	inSimWith(t, func(o *Options, _ func() time.Duration) { o.Quotas = quotas },
		func(t *testing.T, s *sim, nodes map[uint64]*Node, _ func(time.Duration)) { test(t, s, nodes) })
}

// miscounted tells in which quota more or less is counted than there is: the claims of
// all sessions of the node, those that the cluster has still to end too.
func (n *Node) miscounted() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.quotas == nil {
		return ""
	}
	for i := range n.quotas.rules {
		r := &n.quotas.rules[i]
		all, own := usage{}, map[*Session]usage{}
		for _, g := range n.groups {
			for _, p := range g.parts {
				sum := own[p.Session]
				for _, h := range p.claims {
					k := 0
					for _, name := range h.Names() {
						if strings.HasPrefix(name, r.Prefix) {
							k++
						}
					}
					sum.claims, all.claims = sum.claims+k, all.claims+k
					if h.wait && !h.granted() {
						sum.waiters, all.waiters = sum.waiters+k, all.waiters+k
					}
				}
				own[p.Session] = sum
			}
		}
		if !r.PerSession {
			if wrong := r.differs(all, n.quotas.shared[r.slot]); wrong != "" {
				return wrong
			}
			continue
		}
		for s, sum := range own {
			if wrong := r.differs(sum, s.quota[r.slot]); wrong != "" {
				return fmt.Sprintf("session %s: %s", s.id, wrong)
			}
		}
	}
	return ""
}

func (r *rule) differs(want, got usage) string {
	if got.tokens, got.credit = nil, 0; got != want {
		return fmt.Sprintf("quota for %s: counted %+v, there are %+v", r.covers(), got, want)
	}
	if r.Holds > 0 && got.claims > r.Holds || r.Waiters > 0 && got.waiters > r.Waiters {
		return fmt.Sprintf("quota for %s: %+v are too many", r.covers(), got)
	}
	return ""
}

func quotaError(t *testing.T, err error, bound string) *QuotaError {
	t.Helper()
	require.ErrorIs(t, err, ErrQuota)
	var e *QuotaError
	require.ErrorAs(t, err, &e)
	require.Equal(t, bound, e.Bound, err)
	return e
}

func TestQuotaOfRate(t *testing.T) {
	inSimOf(t, []Quota{{Prefix: "team/", Rate: 10, Burst: 3}}, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		n := nodes[2]
		var holds []*Hold
		for i := range 3 {
			h, err := n.Acquire(soon(t), fmt.Sprint("team/", i))
			require.NoError(t, err)
			holds = append(holds, h)
		}
		synctest.Wait()
		before, begun := s.length(), time.Now()
		_, err := n.Acquire(soon(t), "team/x")
		e := quotaError(t, err, QuotaRate)
		require.Positive(t, e.RetryAfter)
		require.LessOrEqual(t, e.RetryAfter, 100*time.Millisecond+time.Microsecond)
		require.ErrorContains(t, err, `acquire "team/x": quorumlock: beyond a quota of 10 acquires a second for names that begin with "team/": allowed in `)
		require.Zero(t, time.Since(begun), "at once")
		require.Equal(t, before, s.length(), "and the log knows nothing of it")

		for _, h := range holds {
			require.NoError(t, h.Release(soon(t)), "a release is never limited")
		}
		_, err = n.Acquire(soon(t), "other")
		require.NoError(t, err, "another name")
		_, err = nodes[3].Acquire(soon(t), "team/x")
		require.NoError(t, err, "another process")

		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		rng := rand.New(rand.NewPCG(seed, 1))
		begun = time.Now()
		granted := 0
		for time.Since(begun) < 20*time.Second {
			h, err := n.TryAcquire(soon(t), fmt.Sprint("team/", rng.IntN(1000)))
			if err == nil {
				granted++
				require.NoError(t, h.Release(soon(t)))
				elapse(time.Duration(rng.IntN(int(200 * time.Millisecond))))
				continue
			}
			wait := quotaError(t, err, QuotaRate).RetryAfter
			elapse(wait)
			h, err = n.Acquire(soon(t), "team/again")
			require.NoError(t, err, "after %v, as it was told", wait)
			granted++
			require.NoError(t, h.Release(soon(t)))
		}
		require.InDelta(t, 200, granted, 25)
	})
}

// Who is beyond every quota keeps what it has: renewals and releases are no acquires.
//
// aws/karpenter#2100, kubernetes-sigs/kueue#15538
func TestQuotasDoNotTouchRenewals(t *testing.T) {
	inSimOf(t, []Quota{{Rate: 0.001, Burst: 1, Holds: 1}}, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		h, err := nodes[2].Acquire(soon(t), "job")
		require.NoError(t, err)
		for begun := time.Now(); time.Since(begun) < 5*DefaultSessionTTL; elapse(DefaultSessionTTL / 10) {
			_, err := nodes[2].TryAcquire(soon(t), "other")
			require.ErrorIs(t, err, ErrQuota)
		}
		require.NoError(t, h.Err())
		require.NoError(t, h.Validate(soon(t)))
		require.NoError(t, h.Release(soon(t)))
	})
}

func TestQuotaOfHolds(t *testing.T) {
	inSimOf(t, []Quota{{Holds: 2}}, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		n := nodes[2]
		a, err := n.Acquire(soon(t), "a")
		require.NoError(t, err)
		_, err = n.Acquire(soon(t), "b")
		require.NoError(t, err)
		synctest.Wait()
		before := s.length()
		for _, f := range []func(context.Context, string, ...AcquireOption) (*Hold, error){n.Acquire, n.TryAcquire} {
			_, err = f(soon(t), "c")
			require.Zero(t, quotaError(t, err, QuotaHolds).RetryAfter)
			require.ErrorContains(t, err, "beyond a quota of 2 holds for all names")
		}
		require.Equal(t, before, s.length())
		require.NoError(t, a.Release(soon(t)))
		c, err := n.Acquire(soon(t), "c")
		require.NoError(t, err, "there is room as soon as Release returned")

		// Until the cluster has freed it, a hold is one.
		s.cut(2)
		done := make(chan error)
		go func() { done <- c.Release(context.Background()) }()
		synctest.Wait()
		_, err = n.TryAcquire(soon(t), "d")
		quotaError(t, err, QuotaHolds)
		s.heal()
		require.NoError(t, <-done)
		_, err = n.TryAcquire(soon(t), "d")
		require.NoError(t, err)
		require.Empty(t, n.miscounted())
	})
}

func TestQuotaOfWaiters(t *testing.T) {
	inSimOf(t, []Quota{{Waiters: 2}}, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		n := nodes[2]
		held, err := nodes[3].Acquire(soon(t), "x")
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		answers := make(chan error, 2)
		for range 2 {
			go func() {
				_, err := n.Acquire(ctx, "x")
				answers <- err
			}()
		}
		synctest.Wait()
		_, err = n.Acquire(soon(t), "x")
		quotaError(t, err, QuotaWaiters)
		_, err = n.Acquire(soon(t), "y")
		quotaError(t, err, QuotaWaiters)
		_, err = n.TryAcquire(soon(t), "x")
		require.ErrorIs(t, err, ErrHeld, "it does not wait")
		require.NoError(t, held.Release(soon(t)))
		require.NoError(t, <-answers)
		synctest.Wait()
		require.Equal(t, 1, n.Stats().Quotas[0].Waiters)
		_, err = n.Acquire(soon(t), "y")
		require.NoError(t, err, "who is granted waits no more")
		cancel()
		require.ErrorIs(t, <-answers, context.Canceled)
		synctest.Wait()
		require.Zero(t, n.Stats().Quotas[0].Waiters)
		require.Equal(t, 2, n.Stats().Quotas[0].Holds)
		require.Empty(t, n.miscounted())
	})
}

// Every quota that is about a name applies, and what one of them refuses is counted by
// none.
func TestQuotasApplyTogether(t *testing.T) {
	quotas := []Quota{
		{Rate: 1, Burst: 100},
		{Prefix: "team/", Holds: 3},
		{Prefix: "team/a/", Holds: 1},
		{Prefix: "team/", PerSession: true, Holds: 2},
	}
	inSimOf(t, quotas, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		n := nodes[2]
		one, err := n.OpenSession(soon(t))
		require.NoError(t, err)
		two, err := n.OpenSession(soon(t))
		require.NoError(t, err)
		_, err = one.Acquire(soon(t), "team/a/1")
		require.NoError(t, err)
		for range 50 {
			_, err = two.Acquire(soon(t), "team/a/2")
			require.Equal(t, "team/a/", quotaError(t, err, QuotaHolds).Quota.Prefix)
		}
		_, err = one.Acquire(soon(t), "team/b")
		require.NoError(t, err)
		_, err = one.Acquire(soon(t), "team/c")
		require.True(t, quotaError(t, err, QuotaHolds).Quota.PerSession)
		require.ErrorContains(t, err, `2 holds for names that begin with "team/", per session`)
		_, err = two.Acquire(soon(t), "team/c")
		require.NoError(t, err)
		_, err = two.Acquire(soon(t), "team/d")
		require.False(t, quotaError(t, err, QuotaHolds).Quota.PerSession)

		// 3 of 100 were let through: 97 are left.
		for i := range 97 {
			_, err = two.Acquire(soon(t), fmt.Sprint("rest ", i))
			require.NoError(t, err)
		}
		_, err = two.Acquire(soon(t), "one more")
		quotaError(t, err, QuotaRate)
		require.NoError(t, two.Close(soon(t)))
		n.mu.Lock()
		require.NotContains(t, n.sessions, two.id.Seq)
		n.mu.Unlock()
		require.Empty(t, n.miscounted())

		use := n.Stats().Quotas
		require.Len(t, use, 4)
		require.Equal(t, quotas[2], use[2].Quota)
		require.Equal(t, []int{2, 2, 1, 2}, []int{use[0].Holds, use[1].Holds, use[2].Holds, use[3].Holds})
		require.Equal(t, map[string]uint64{QuotaRate: 0, QuotaHolds: 50, QuotaWaiters: 0}, use[2].Refusals)
		require.EqualValues(t, 1, use[0].Refusals[QuotaRate])
	})
}

func TestQuotaOfSeveralNames(t *testing.T) {
	quotas := []Quota{{Prefix: "a", Holds: 3, Waiters: 2}, {Prefix: "b", Rate: 0.001, Burst: 2}}
	inSimOf(t, quotas, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		n := nodes[2]
		_, err := n.AcquireAll(soon(t), "a1", "a2", "a3", "a4")
		require.Equal(t, 4, quotaError(t, err, QuotaHolds).Names)
		require.ErrorContains(t, err, "4 names in one call are never allowed, at most 3")
		_, err = n.TryAcquireAll(soon(t), "b1", "b2", "b3")
		require.Equal(t, 3, quotaError(t, err, QuotaRate).Names)
		require.ErrorContains(t, err, "3 names in one call are never allowed, at most 2")
		_, err = n.AcquireAll(soon(t), "a1", "a2", "a3")
		require.Equal(t, 3, quotaError(t, err, QuotaWaiters).Names)
		h, err := n.AcquireAll(soon(t), "a1", "b1", "a2", "c")
		require.NoError(t, err)
		_, err = n.TryAcquireAll(soon(t), "a3", "a4")
		require.ErrorContains(t, err, "beyond a quota of 3 holds")
		_, err = n.AcquireAll(soon(t), "b1", "b2")
		require.Greater(t, quotaError(t, err, QuotaRate).RetryAfter, 900*time.Second, "one of two is left")
		require.Empty(t, n.miscounted())
		require.NoError(t, h.Release(soon(t)))
		require.Empty(t, n.miscounted())
		require.Zero(t, n.Stats().Quotas[0].Holds)
	})
}

// A sync.Locker has no words for a quota: it waits.
func TestLockerWaitsForItsQuota(t *testing.T) {
	inSimOf(t, []Quota{{Rate: 1}}, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		l := nodes[2].Locker("x", nil)
		begun, locked := time.Now(), 0
		for range 4 {
			l.Lock()
			locked++
			l.Unlock()
		}
		require.Equal(t, 4, locked)
		require.GreaterOrEqual(t, time.Since(begun), 3*time.Second)
		require.Less(t, time.Since(begun), 5*time.Second)
	})
}

// Whatever becomes of a claim, its quota learns of it: at every moment as many are
// counted as there are, and at the end there are none. TestSimulation says the same of
// its scripts.
func TestQuotasCountWhatThereIs(t *testing.T) {
	for _, groups := range []int{1, 3} {
		t.Run(fmt.Sprint(groups, " groups"), func(t *testing.T) { quotasCount(t, groups) })
	}
}

func quotasCount(t *testing.T, groups int) {
	synctest.Test(t, func(t *testing.T) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		s := newSim(seed, 3)
		s.faults = simFaults{drop: 0.1, duplicate: 0.1, snapshot: 0.8, delay: 50 * time.Millisecond}
		nodes := make(map[uint64]*Node)
		for id := range s.replicas {
			o := s.options(id)
			o.Groups = groups
			o.Quotas = []Quota{{Holds: 30, Waiters: 25}, {Prefix: "x", Rate: 20, Holds: 12}, {PerSession: true, Holds: 14, Waiters: 9},
				{Prefix: "xy", PerSession: true, Holds: 2}}
			nodes[id] = s.open(t, o)
		}
		n := nodes[1]
		require.NoError(t, n.Ready(t.Context()))
		var done int
		finished := make(chan error)
		const callers = 80
		for i := range callers {
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			on := n
			if i%4 == 0 {
				on = nodes[2] // so that the log goes on without the first
			}
			go func() { finished <- quotaCaller(on, rng, 40) }()
		}
		for i := 0; done < callers; i++ {
			select {
			case err := <-finished:
				require.NoError(t, err)
				done++
			default:
				require.Empty(t, n.miscounted())
				switch i % 40 {
				case 2, 6, 10, 14:
					s.pause(1, true) // what it asked for is done, and a snapshot hides how
				case 3, 7, 11, 15, 20 + i/40%19:
					s.heal()
				case 17:
					s.cut(1) // for longer and longer, until sessions are lost
				case 39:
					s.moveLeader()
				}
				elapse(300 * time.Millisecond)
			}
		}
		s.heal()
		own, err := n.ownSession(soon(t))
		require.NoError(t, err)
		require.NoError(t, own.Close(soon(t))) // it has what was not released
		elapse(time.Minute)
		require.Zero(t, n.Status().Holds)
		require.Empty(t, n.miscounted())
		for _, use := range n.Stats().Quotas {
			require.Zero(t, use.Holds+use.Waiters)
			refused := uint64(0)
			for _, k := range use.Refusals {
				refused += k
			}
			require.NotZero(t, refused, "nothing was ever refused for %s", use.Quota.covers())
		}
		for _, n := range nodes {
			require.NoError(t, n.Close())
		}
	})
}

// quotaCaller makes calls of all kinds on a session of its own or the node's.
func quotaCaller(n *Node, rng *rand.Rand, calls int) error {
	ctx := context.Background()
	open := func() (s *Session, err error) {
		for {
			if s, err = n.OpenSession(ctx, WithTTL(5*time.Second)); !errors.Is(err, ErrSessionExpired) {
				return s, err
			}
		}
	}
	s, err := open()
	if err != nil {
		return err
	}
	for range calls {
		short, cancel := context.WithTimeout(ctx, time.Duration(rng.IntN(3000))*time.Millisecond)
		names := []string{"x", "xy", "xyz", "z"}
		rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		var h *Hold
		switch rng.IntN(6) {
		case 0:
			h, err = n.AcquireAll(short, names[:1+rng.IntN(3)]...)
		case 1:
			h, err = s.TryAcquireAll(short, names[:1+rng.IntN(3)]...)
		case 2:
			h, err = s.Acquire(short, names[0], MinHold(time.Second))
		case 3:
			h, err = n.Acquire(short, names[0], MaxHold(time.Second))
		case 4:
			h, err = n.TryAcquire(short, names[0], Share())
		default:
			h, err = s.Acquire(short, names[0])
		}
		elapse(time.Duration(rng.IntN(600)) * time.Millisecond)
		switch {
		case err != nil:
		case rng.IntN(8) == 0:
			_ = n.ForceRelease(short, h.Name(), h.TokenFor(h.Name()), "somebody", "test")
		case rng.IntN(8) > 0:
			_ = h.Release(short)
		}
		cancel()
		if s.Err() != nil || rng.IntN(12) == 0 {
			_ = s.Close(ctx)
			if s, err = open(); err != nil {
				return err
			}
		}
	}
	return s.Close(ctx)
}

// The rules that a name finds are those whose prefix it has, as one by one would find.
func TestQuotasAreFoundByPrefix(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	text := func(most int) string {
		b := make([]byte, rng.IntN(most+1))
		for i := range b {
			b[i] = "ab/"[rng.IntN(3)]
		}
		return string(b)
	}
	for range 300 {
		var given []Quota
		seen := map[Quota]bool{}
		for range 1 + rng.IntN(20) {
			q := Quota{Prefix: text(5), PerSession: rng.IntN(2) == 0, Holds: 1}
			if !seen[q] {
				seen[q] = true
				given = append(given, q)
			}
		}
		q := newQuotas(&Node{clk: clock.New(), start: time.Now()}, given)
		s := &Session{quota: q.ofSession()}
		for range 50 {
			name := text(8)
			var want, got []int
			for i := range given {
				if strings.HasPrefix(name, given[i].Prefix) {
					want = append(want, i)
				}
			}
			for _, h := range q.match(s, q.innermost(name), nil) {
				got = append(got, h.given)
				require.Equal(t, 1, h.names)
			}
			slices.Sort(got)
			require.Equal(t, want, got, "%q among %v", name, given)
		}
	}
}

// A call that keeps to its quotas takes no more memory than one that has none.
func TestQuotasTakeNoMemory(t *testing.T) {
	s := newSim(1, 1)
	o := s.options(1)
	o.Quotas = []Quota{{Rate: 1e9}, {Prefix: "team/", Holds: 1e6, Waiters: 1e6}, {Prefix: "team/a/", PerSession: true, Holds: 1e6}}
	n := s.open(t, o)
	defer n.Close()
	h := &Hold{part: &part{Session: &Session{quota: n.quotas.ofSession()}}, name: "team/a/1", wait: true}
	r := request{name: h.name}
	n.mu.Lock()
	defer n.mu.Unlock()
	took := testing.AllocsPerRun(1000, func() {
		var err error
		h.rule = n.quotas.ruleOf(&r)
		if err = n.quotas.admit(h.part.Session, &r, h.rule, true); err != nil {
			panic(err)
		}
		h.answered, h.token = false, 0
		n.quotas.granted(h)
		h.answered, h.token = true, 1
		n.quotas.forgotten(h)
	})
	require.Zero(t, took)
	for _, use := range n.quotas.inUse() {
		require.Zero(t, use.Holds+use.Waiters)
	}
}

func TestQuotaErrorSaysWhatTheRuleIs(t *testing.T) {
	err := fmt.Errorf("wrapped: %w", &QuotaError{Quota: Quota{Prefix: "a", Rate: 0.5}, Bound: QuotaRate, Names: 2})
	require.True(t, errors.Is(err, ErrQuota))
	require.EqualError(t, err, `wrapped: quorumlock: beyond a quota of 0.5 acquires a second for names that begin with "a": 2 names in one call are never allowed, at most 1`)
}

// Tokens that are taken in advance bring no more than Burst and Rate say, and what is refused is allowed when it was said.
func TestQuotaRateIsKeptTo(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	for _, quota := range []Quota{{Rate: 1000, Burst: 1000}, {Rate: 3, Burst: 1}, {Rate: 0.5, Burst: 64}, {Rate: 1e5, Burst: 128}, {Rate: 2e5, Burst: 1e5}} {
		synctest.Test(t, func(t *testing.T) {
			q := newQuotas(&Node{clk: clock.New(), start: time.Now()}, []Quota{quota})
			s, begun, let := &Session{}, time.Now(), 0
			call := func(k int) error {
				err := q.admit(s, &request{name: "a", names: []string{"a", "b", "c"}[:k]}, 1, false)
				if err == nil {
					let += k
				}
				return err
			}
			for range 5000 {
				k := 1 + rng.IntN(min(3, quota.Burst))
				err := call(k)
				most := float64(quota.Burst) + quota.Rate*time.Since(begun).Seconds()
				require.LessOrEqual(t, float64(let), most+1e-6, "%+v", quota)
				if err == nil {
					if rng.IntN(500) == 0 {
						elapse(time.Duration(rng.Int64N(int64(100e9 / quota.Rate))))
					}
					continue
				}
				var refused *QuotaError
				require.ErrorAs(t, err, &refused)
				elapse(refused.RetryAfter)
				require.NoError(t, call(refused.Names), "%+v, after %v", quota, refused.RetryAfter)
			}
			require.GreaterOrEqual(t, let, 5000)
		})
	}
}
