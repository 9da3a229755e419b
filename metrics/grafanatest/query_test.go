package grafanatest

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	client "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/promql"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/locktest"
	"github.com/quorumlock/quorumlock/metrics"
)

const job = "payouts"

// A scene is a cluster of three replicas that a Prometheus scrapes.
type scene struct {
	cluster *locktest.Cluster
	targets map[string]client.Gatherer
	server  *server
}

func newScene(t *testing.T, options func(*quorumlock.Options), opts ...metrics.Option) *scene {
	t.Helper()
	s := &scene{server: newServer(t), targets: map[string]client.Gatherer{}}
	s.cluster = locktest.New(t, locktest.Config{Replicas: 3, Options: func(o *quorumlock.Options) {
		o.ElectionTimeout, o.SessionTTL = time.Second, 10*time.Second // none is to be late on a slow machine
		options(o)
	}})
	for _, id := range s.cluster.Replicas() {
		r := client.NewPedanticRegistry()
		require.NoError(t, r.Register(metrics.New(s.cluster.Node(id), opts...)))
		s.targets[instance(id)] = r
	}
	return s
}

func (s *scene) scrape(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool { // an election is no mistake of the dashboard's
		leaders, groups := 0, 0
		for _, id := range s.cluster.Replicas() {
			status := s.cluster.Node(id).Status()
			if groups = max(len(status.Groups), 1); groups == 1 {
				status.Groups = []quorumlock.GroupStatus{{Leader: status.Leader}}
			}
			for _, g := range status.Groups {
				if g.Leader == id {
					leaders++
				}
			}
		}
		return leaders == groups
	}, time.Minute, time.Millisecond)
	s.server.scrape(t, job, s.targets, func() {})
}

// play has something happen for every panel, with scrapes in between.
func (s *scene) play(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	one, two, three := s.cluster.Node(1), s.cluster.Node(2), s.cluster.Node(3)

	// A grant, a refusal, and somebody in line.
	held, err := one.Acquire(ctx, "a")
	require.NoError(t, err)
	_, err = two.TryAcquire(ctx, "a")
	require.ErrorIs(t, err, quorumlock.ErrHeld)
	waited := make(chan error, 1)
	go func() { waited <- three.Do(ctx, "a", nothing) }()
	require.Eventually(t, func() bool { return three.Stats().Waiting == 1 }, time.Minute, time.Millisecond)
	s.scrape(t)
	require.NoError(t, held.Release(ctx))
	require.NoError(t, <-waited)

	// Two holds that are lost, one of them with its session.
	revoked, err := two.Acquire(ctx, "b")
	require.NoError(t, err)
	require.NoError(t, one.ForceRelease(ctx, "b", revoked.Token(), "this test", "to see a loss"))
	<-revoked.Done()
	expired, err := three.Acquire(ctx, "c")
	require.NoError(t, err)
	s.cluster.MoveClock(3, time.Minute)
	<-expired.Done()

	for i := range 20 { // of each group some
		require.NoError(t, one.Do(ctx, fmt.Sprint("many/", i), nothing))
		_, err = one.Acquire(ctx, fmt.Sprint("kept/", i))
		require.NoError(t, err)
	}
	_, err = one.TryAcquire(ctx, "few/1")
	require.NoError(t, err)
	_, err = one.TryAcquire(ctx, "few/2")
	if err != nil { // where there are quotas
		require.ErrorIs(t, err, quorumlock.ErrQuota)
	}
	s.scrape(t)
	s.scrape(t)
}

// lag has one replica fall behind, and returns its instance.
func (s *scene) lag(t *testing.T) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	followers, err := s.cluster.Followers(ctx)
	require.NoError(t, err)
	late := followers[0]
	s.cluster.Pause(late)
	defer s.cluster.Resume(late)
	for range 6 { // more than a rate interval
		s.server.scrape(t, job, s.targets, func() {
			for i := range 9 { // of each group some
				require.NoError(t, s.cluster.Node(followers[1]).Do(ctx, fmt.Sprint("many/", i), nothing))
			}
		})
	}
	return instance(late)
}

func instance(replica uint64) string { return fmt.Sprintf("app-%d:9090", replica) }

func nothing(context.Context, fencing.Token) error { return nil }

// ofCalls are the panels that have nothing to show before somebody asks for a lock.
var ofCalls = []string{"Wait for a lock", "Time held", "From batch to applied", "Applying", "Commands in a batch", "Busiest names"}

// Every query of the dashboard is answered, with the labels that its legend names.
func TestQueriesAreAnswered(t *testing.T) {
	d := load(t)
	for _, c := range []struct {
		name    string
		options func(*quorumlock.Options)
		opts    []metrics.Option
		labels  []string // that are not there
		empty   []string // because there is nothing to show
	}{
		{"one group", func(*quorumlock.Options) {}, nil, []string{"group", "name"}, []string{"Quotas, part used A", "Refused by quotas A"}},
		{"three groups, with quotas and names", func(o *quorumlock.Options) {
			o.Groups, o.Quotas = 3, []quorumlock.Quota{{Prefix: "few/", Holds: 1}}
		}, []metrics.Option{metrics.WithNames()}, []string{"rank"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // a session's loss is noticed when it would be renewed
			s := newScene(t, c.options, c.opts...)
			for range 5 { // a rate interval
				s.scrape(t)
			}
			quiet := s.ask(t, d)
			s.play(t)
			busy := s.ask(t, d)
			var silent, empty []string
			for where := range queries(d) {
				if len(quiet[where]) == 0 {
					silent = append(silent, where)
				}
				if len(busy[where]) == 0 {
					empty = append(empty, where)
				}
			}
			require.ElementsMatch(t, c.empty, empty)
			for _, where := range silent {
				panel := where[:len(where)-len(" A")]
				require.True(t, slices.Contains(c.empty, where) || slices.Contains(ofCalls, panel), where)
			}
			requireLegends(t, d, busy, c.labels)
			s.requireVariables(t, d)
			s.requireAllShown(t, d)
			requireNumbers(t, busy)
			late := s.lag(t)
			for _, one := range s.ask(t, d)["Entries behind A"] {
				behind := one.Floats[len(one.Floats)-1].F
				require.Equal(t, one.Metric.Get("instance") == late, behind > 0, "%s: %v", one.Metric, behind)
			}
		})
	}
}

// queries yields each query of the dashboard, by panel and query.
func queries(d *classic) iter.Seq2[string, *prometheus.Dataquery] {
	return func(yield func(string, *prometheus.Dataquery) bool) {
		for _, p := range d.Panels {
			for _, q := range p.Panel.Targets {
				q := q.(*prometheus.Dataquery)
				if !yield(*p.Panel.Title+" "+*q.RefId, q) {
					return
				}
			}
		}
	}
}

var legendLabel = regexp.MustCompile(`{{(.*?)}}`)

// requireLegends requires that each label that a legend names is in the answers, but for
// those that this cluster has not, and that the legend tells the answers apart.
func requireLegends(t *testing.T, d *classic, answers map[string]promql.Matrix, missing []string) {
	t.Helper()
	for where, q := range queries(d) {
		seen := map[string]bool{}
		for _, one := range answers[where] {
			legend := legendLabel.ReplaceAllStringFunc(*q.LegendFormat, func(name string) string {
				name = strings.Trim(name, "{}")
				if slices.Contains(missing, name) {
					require.False(t, one.Metric.Has(name), "%s: %s", where, name)
				} else {
					require.True(t, one.Metric.Has(name), "%s: %s", where, name)
				}
				return one.Metric.Get(name)
			})
			require.False(t, seen[legend], "%s: %s twice", where, legend)
			seen[legend] = true
		}
	}
}

var variableQuery = regexp.MustCompile(`^label_values\((.+), (\w+)\)$`)

func (s *scene) requireVariables(t *testing.T, d *classic) {
	t.Helper()
	for _, v := range d.Templating.List[1:] {
		call := variableQuery.FindStringSubmatch(*v.Definition)
		require.NotNil(t, call, *v.Definition)
		require.Equal(t, v.Name, call[2])
		want := []string{job}
		if v.Name == "instance" {
			want = slices.Sorted(maps.Keys(s.targets))
		}
		require.Equal(t, want, s.server.labelValues(t, substitute(t, d, call[1]), call[2]))
	}
}

// requireAllShown requires that no metric is there that no panel shows.
func (s *scene) requireAllShown(t *testing.T, d *classic) {
	t.Helper()
	var all strings.Builder
	for _, q := range queries(d) {
		all.WriteString(q.Expr + "\n")
	}
	for _, target := range s.targets {
		families, err := target.Gather()
		require.NoError(t, err)
		for _, f := range families {
			require.Regexp(t, `\b`+f.GetName()+`(_bucket)?{`, all.String())
		}
	}
}

// requireNumbers requires what was to be seen once all was done.
func requireNumbers(t *testing.T, answers map[string]promql.Matrix) {
	t.Helper()
	last := func(where string, labels ...string) float64 {
		t.Helper()
		for _, one := range answers[where] {
			if len(labels) == 0 || one.Metric.Get(labels[0]) == labels[1] {
				return one.Floats[len(one.Floats)-1].F
			}
		}
		require.Fail(t, "no such answer", "%s %v", where, labels)
		return 0
	}
	require.EqualValues(t, 3, last("Replicas ready A"))
	require.EqualValues(t, 0, last("Replicas failed A"))
	require.EqualValues(t, 1, last("Leaders A"))
	require.EqualValues(t, 3, last("Voting members A"))
	require.GreaterOrEqual(t, last("Locks A"), 21.0, "20 that are kept, and one of a few")
	require.Positive(t, last("Term A"))
	require.Positive(t, last("Grants A", "instance", "app-1:9090"))
	require.Positive(t, last("Refusals A", "reason", "held"))
	require.Positive(t, last("Holds lost A", "cause", "revoked"))
	require.Positive(t, last("Holds lost A", "cause", "session_expired"))
	require.Zero(t, last("Holds lost A", "cause", "max_hold"))
	require.GreaterOrEqual(t, last("Sessions and claims B", "instance", "app-1:9090"), 21.0)
	waiting := 0.0
	for _, one := range answers["In line A"] {
		for _, point := range one.Floats {
			waiting = max(waiting, point.F)
		}
	}
	require.EqualValues(t, 1, waiting)
}

// ask asks every query of the dashboard, and returns the answers by panel and query.
func (s *scene) ask(t *testing.T, d *classic) map[string]promql.Matrix {
	t.Helper()
	answers := map[string]promql.Matrix{}
	for where, q := range queries(d) {
		answers[where] = s.server.query(t, substitute(t, d, q.Expr))
	}
	return answers
}

// substitute puts in what Grafana puts in for variables: here for all jobs and instances.
func substitute(t *testing.T, d *classic, expr string) string {
	t.Helper()
	for _, v := range d.Templating.List[1:] {
		require.True(t, *v.IncludeAll)
		expr = strings.ReplaceAll(expr, "$"+v.Name, *v.AllValue)
	}
	expr = strings.ReplaceAll(expr, "$__rate_interval", (4 * scrapeInterval).String())
	require.NotContains(t, expr, "$")
	return expr
}
