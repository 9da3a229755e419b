package metrics_test

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/metrics"
)

// open opens a cluster of one, which is enough to have numbers.
func open(t *testing.T, quotas ...quorumlock.Quota) *quorumlock.Node {
	t.Helper()
	return openGroups(t, 1, quotas...)
}

func openGroups(t *testing.T, groups int, quotas ...quorumlock.Quota) *quorumlock.Node {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	n, err := quorumlock.Open(quorumlock.Options{ReplicaID: 1, Address: addr, Dir: t.TempDir(),
		Members: map[uint64]string{1: addr}, ElectionTimeout: 300 * time.Millisecond, Groups: groups, Quotas: quotas})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	require.NoError(t, n.Ready(ctx))
	return n
}

func gather(t *testing.T, c prometheus.Collector) *prometheus.Registry {
	t.Helper()
	r := prometheus.NewPedanticRegistry() // refuses what was not described, and what is said twice
	require.NoError(t, r.Register(c))
	return r
}

func TestCollectorShowsWhatHappened(t *testing.T) {
	n := open(t)
	r := gather(t, metrics.New(n, metrics.Busiest(2), metrics.WithNames()))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	held, err := n.Acquire(ctx, "a")
	require.NoError(t, err)
	for range 3 {
		_, err = n.TryAcquire(ctx, "a")
		require.ErrorIs(t, err, quorumlock.ErrHeld)
	}
	for _, name := range []string{"b", "b", "c"} {
		require.NoError(t, n.Do(ctx, name, nothing))
	}
	require.NoError(t, held.Release(ctx))
	require.NoError(t, testutil.GatherAndCompare(r, strings.NewReader(`
# HELP quorumlock_busiest_calls Acquires of the names that are asked for most here; what was long ago counts for less.
# TYPE quorumlock_busiest_calls gauge
quorumlock_busiest_calls{name="a"} 4
quorumlock_busiest_calls{name="b"} 2
# HELP quorumlock_grants_total Acquires of this process that were granted.
# TYPE quorumlock_grants_total counter
quorumlock_grants_total 4
# HELP quorumlock_is_leader 1 if this replica leads, as it believes.
# TYPE quorumlock_is_leader gauge
quorumlock_is_leader 1
# HELP quorumlock_refusals_total Acquires of this process that were not granted, by reason.
# TYPE quorumlock_refusals_total counter
quorumlock_refusals_total{reason="busy"} 0
quorumlock_refusals_total{reason="gave_up"} 0
quorumlock_refusals_total{reason="held"} 3
quorumlock_refusals_total{reason="mode"} 0
quorumlock_refusals_total{reason="permits"} 0
quorumlock_refusals_total{reason="queue_full"} 0
quorumlock_refusals_total{reason="quota"} 0
quorumlock_refusals_total{reason="session"} 0
`), "quorumlock_busiest_calls", "quorumlock_grants_total", "quorumlock_is_leader", "quorumlock_refusals_total"))

	families, err := r.Gather()
	require.NoError(t, err)
	for _, f := range families {
		switch h := f.GetMetric()[0].GetHistogram(); f.GetName() {
		case "quorumlock_wait_seconds", "quorumlock_hold_seconds":
			require.EqualValues(t, 4, h.GetSampleCount())
			require.Less(t, h.GetSampleSum(), 20.0, "seconds")
			require.Positive(t, h.GetSampleSum())
			last := uint64(0)
			for _, b := range h.GetBucket() {
				require.GreaterOrEqual(t, b.GetCumulativeCount(), last)
				last = b.GetCumulativeCount()
			}
			require.EqualValues(t, 4, last)
		}
	}
}

func TestCollectorShowsQuotas(t *testing.T) {
	n := open(t, quorumlock.Quota{Prefix: "team/", Holds: 2, Rate: 1000}, quorumlock.Quota{PerSession: true, Waiters: 5})
	r := gather(t, metrics.New(n))
	for i, want := range []error{nil, nil, quorumlock.ErrQuota} {
		_, err := n.TryAcquire(t.Context(), fmt.Sprint("team/", i))
		require.ErrorIs(t, err, want)
	}
	require.NoError(t, testutil.GatherAndCompare(r, strings.NewReader(`
# HELP quorumlock_quota_most How much of a quota there is.
# TYPE quorumlock_quota_most gauge
quorumlock_quota_most{bound="holds",per_session="false",prefix="team/"} 2
quorumlock_quota_most{bound="waiters",per_session="true",prefix=""} 5
# HELP quorumlock_quota_refusals_total Acquires that a quota refused.
# TYPE quorumlock_quota_refusals_total counter
quorumlock_quota_refusals_total{bound="holds",per_session="false",prefix="team/"} 1
quorumlock_quota_refusals_total{bound="holds",per_session="true",prefix=""} 0
quorumlock_quota_refusals_total{bound="rate",per_session="false",prefix="team/"} 0
quorumlock_quota_refusals_total{bound="rate",per_session="true",prefix=""} 0
quorumlock_quota_refusals_total{bound="waiters",per_session="false",prefix="team/"} 0
quorumlock_quota_refusals_total{bound="waiters",per_session="true",prefix=""} 0
# HELP quorumlock_quota_used How much of a quota is used; per session, by the session that uses most.
# TYPE quorumlock_quota_used gauge
quorumlock_quota_used{bound="holds",per_session="false",prefix="team/"} 2
quorumlock_quota_used{bound="waiters",per_session="true",prefix=""} 0
`), "quorumlock_quota_used", "quorumlock_quota_most", "quorumlock_quota_refusals_total"))
}

func nothing(context.Context, fencing.Token) error { return nil }

func TestCollectorShowsEachGroup(t *testing.T) {
	n := openGroups(t, 3)
	r := gather(t, metrics.New(n))
	for i := range 30 {
		_, err := n.Acquire(t.Context(), fmt.Sprint(i))
		require.NoError(t, err)
	}
	require.NoError(t, testutil.GatherAndCompare(r, strings.NewReader(`
# HELP quorumlock_has_leader 1 if this replica knows who leads.
# TYPE quorumlock_has_leader gauge
quorumlock_has_leader{group="0"} 1
quorumlock_has_leader{group="1"} 1
quorumlock_has_leader{group="2"} 1
# HELP quorumlock_is_leader 1 if this replica leads, as it believes.
# TYPE quorumlock_is_leader gauge
quorumlock_is_leader{group="0"} 1
quorumlock_is_leader{group="1"} 1
quorumlock_is_leader{group="2"} 1
# HELP quorumlock_members Voting replicas; of several groups, those of the first.
# TYPE quorumlock_members gauge
quorumlock_members 1
`), "quorumlock_has_leader", "quorumlock_is_leader", "quorumlock_members"))
	before := n.Status().Groups
	families, err := r.Gather()
	require.NoError(t, err)
	after := n.Status().Groups
	shown := 0
	for _, f := range families {
		value, ok := map[string]func(g quorumlock.GroupStatus) uint64{
			"quorumlock_locks":         func(g quorumlock.GroupStatus) uint64 { return uint64(g.Locks) },
			"quorumlock_term":          func(g quorumlock.GroupStatus) uint64 { return g.Term },
			"quorumlock_applied_index": func(g quorumlock.GroupStatus) uint64 { return g.Applied },
		}[f.GetName()]
		if !ok {
			continue
		}
		for i, m := range f.GetMetric() {
			require.Equal(t, strconv.Itoa(i), m.GetLabel()[0].GetValue(), f.GetName())
			require.Positive(t, m.GetGauge().GetValue(), "%s of group %d", f.GetName(), i)
			require.GreaterOrEqual(t, m.GetGauge().GetValue(), float64(value(before[i])), "%s of group %d", f.GetName(), i)
			require.LessOrEqual(t, m.GetGauge().GetValue(), float64(value(after[i])), "%s of group %d", f.GetName(), i)
			shown++
		}
	}
	require.Equal(t, 9, shown)
}

// A node that can do nothing any more leads nothing: else one that is still scraped hides
// that nobody does.
func TestClosedNodeLeadsNothing(t *testing.T) {
	n := open(t)
	r := gather(t, metrics.New(n))
	require.NoError(t, n.Close())
	require.NoError(t, testutil.GatherAndCompare(r, strings.NewReader(`
# HELP quorumlock_failed 1 if this node can do nothing any more.
# TYPE quorumlock_failed gauge
quorumlock_failed 1
# HELP quorumlock_has_leader 1 if this replica knows who leads.
# TYPE quorumlock_has_leader gauge
quorumlock_has_leader 0
# HELP quorumlock_is_leader 1 if this replica leads, as it believes.
# TYPE quorumlock_is_leader gauge
quorumlock_is_leader 0
`), "quorumlock_failed", "quorumlock_has_leader", "quorumlock_is_leader"))
}

// Names and units are as Prometheus has them.
func TestNamesAreOfPrometheus(t *testing.T) {
	n := openGroups(t, 2, quorumlock.Quota{Holds: 10, Waiters: 10})
	r := gather(t, metrics.New(n, metrics.WithNames()))
	require.NoError(t, n.Do(t.Context(), "x", nothing))
	problems, err := testutil.GatherAndLint(r)
	require.NoError(t, err)
	require.Empty(t, problems)
}

// However many names there are, no more of them are shown than are asked for, and no
// more than are counted.
func TestBusiestNamesAreBounded(t *testing.T) {
	n := open(t)
	few := metrics.New(n, metrics.WithNames())
	most := metrics.New(n, metrics.WithNames(), metrics.Busiest(100_000))
	none := metrics.New(n, metrics.WithNames(), metrics.Busiest(-1))
	before := testutil.CollectAndCount(most)
	for i := range 200 {
		require.NoError(t, n.Do(t.Context(), fmt.Sprint(i), nothing))
	}
	require.Equal(t, before+10, testutil.CollectAndCount(few))
	require.Equal(t, before+128, testutil.CollectAndCount(most))
	require.Equal(t, before, testutil.CollectAndCount(none))
}

func TestCollectorShowsNoNameUnlessAsked(t *testing.T) {
	n := open(t)
	r := gather(t, metrics.New(n))
	for i := range 20 {
		require.NoError(t, n.Do(t.Context(), fmt.Sprint("secret-", i), nothing))
	}
	families, err := r.Gather()
	require.NoError(t, err)
	series := 0
	for _, f := range families {
		require.NotContains(t, f.String(), "secret-")
		series += len(f.GetMetric())
	}
	require.Less(t, series, 60, "however many names there are")
}
