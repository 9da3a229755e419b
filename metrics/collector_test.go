package metrics_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"regexp"
	"slices"
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
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	n, err := quorumlock.Open(quorumlock.Options{ReplicaID: 1, Address: addr, Dir: t.TempDir(),
		Members: map[uint64]string{1: addr}, ElectionTimeout: 300 * time.Millisecond, Quotas: quotas})
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
quorumlock_busiest_calls{name="a",rank="1"} 4
quorumlock_busiest_calls{name="b",rank="2"} 2
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

// Every metric that the dashboard asks for is one that a collector shows, with the
// labels that it asks for.
func TestDashboardAsksForWhatThereIs(t *testing.T) {
	n := open(t, quorumlock.Quota{Holds: 10, Waiters: 10})
	require.NoError(t, n.Do(t.Context(), "x", nothing))
	r := gather(t, metrics.New(n, metrics.WithNames()))
	require.NoError(t, n.Do(t.Context(), "x", nothing))
	families, err := r.Gather()
	require.NoError(t, err)
	shown := map[string][]string{} // labels by series
	for _, f := range families {
		labels := []string{"job", "instance"} // a scrape brings them
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		shown[f.GetName()] = labels
		if f.GetMetric()[0].GetHistogram() != nil {
			shown[f.GetName()+"_bucket"] = append(labels, "le")
		}
	}

	file, err := os.ReadFile("grafana.json")
	require.NoError(t, err)
	var dashboard struct {
		UID, Title    string
		SchemaVersion int
		Templating    struct {
			List []struct{ Name, Definition string }
		}
		Panels []struct {
			ID      int
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr, RefID string }
		}
	}
	require.NoError(t, json.Unmarshal(file, &dashboard))
	require.NotEmpty(t, dashboard.UID)
	require.NotEmpty(t, dashboard.Title)
	require.Positive(t, dashboard.SchemaVersion)

	asked := map[string]bool{}
	ids := map[int]bool{}
	check := func(where, expr string) {
		names := metricName.FindAllString(expr, -1)
		require.NotEmpty(t, names, "%s: %s", where, expr)
		for _, name := range names {
			require.Contains(t, shown, name, "%s: %s", where, expr)
			asked[strings.TrimSuffix(name, "_bucket")] = true
			for _, by := range grouping.FindAllStringSubmatch(expr, -1) {
				for label := range strings.SplitSeq(by[1], ",") {
					require.Contains(t, shown[name], strings.TrimSpace(label), "%s: %s", where, expr)
				}
			}
		}
		require.Equal(t, strings.Count(expr, "("), strings.Count(expr, ")"), "%s: %s", where, expr)
	}
	for _, v := range dashboard.Templating.List {
		if v.Definition != "" {
			check(v.Name, v.Definition)
		}
	}
	for _, p := range dashboard.Panels {
		require.NotEmpty(t, p.Targets, p.Title)
		require.False(t, ids[p.ID], "panel %d twice", p.ID)
		ids[p.ID] = true
		require.LessOrEqual(t, p.GridPos.X+p.GridPos.W, 24, p.Title)
		for _, target := range p.Targets {
			check(p.Title, target.Expr)
		}
	}
	for _, f := range families {
		require.Contains(t, slices.Collect(maps.Keys(asked)), f.GetName(), "no panel shows it")
	}
}

var (
	metricName = regexp.MustCompile(`quorumlock_[a-z_]+`)
	grouping   = regexp.MustCompile(`by \(([^)]*)\)`)
)
