package grafanatest

import (
	"errors"
	"io"
	"maps"
	"math"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	client "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/stretchr/testify/require"
)

// scrapeInterval is what a Prometheus is often set to. In the tests it takes no time.
const scrapeInterval = 15 * time.Second

// A server is what a Prometheus is made of: its parser of what targets show, and its
// engine for queries. Only the store between them is not Prometheus' own, which would
// bring the clients of every cloud with it.
type server struct {
	storage.MockQuerier
	series     map[string]*promql.Series // by labels
	start, now time.Time
	parser     parser.Parser
	engine     *promql.Engine
}

func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{series: map[string]*promql.Series{}, start: time.Unix(1_700_000_000, 0), parser: parser.NewParser(parser.Options{})}
	s.now = s.start.Add(-scrapeInterval)
	s.SelectMockFunction = func(_ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
		return &selection{storage.EmptySeriesSet(), s.matching(matchers), -1}
	}
	s.engine = promql.NewEngine(promql.EngineOpts{MaxSamples: 1_000_000, Timeout: time.Minute, Parser: s.parser})
	t.Cleanup(func() { require.NoError(t, s.engine.Close()) })
	return s
}

// Querier makes s a storage.Queryable.
func (s *server) Querier(int64, int64) (storage.Querier, error) { return s, nil }

// matching returns the series that are selected, in the order of their labels.
func (s *server) matching(matchers []*labels.Matcher) (found []*promql.Series) {
	for _, name := range slices.Sorted(maps.Keys(s.series)) {
		one := s.series[name]
		if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(one.Metric.Get(m.Name)) }) {
			found = append(found, one)
		}
	}
	return found
}

// A selection goes through series. Like an empty set, it has no error and no warning.
type selection struct {
	storage.SeriesSet
	series []*promql.Series
	at     int
}

func (s *selection) Next() bool {
	s.at++
	return s.at < len(s.series)
}

func (s *selection) At() storage.Series { return promql.NewStorageSeries(*s.series[s.at]) }

// scrape reads what all targets show, in the text that a Prometheus reads, and adds the
// labels that it adds. One interval has passed since the time before. It calls meanwhile
// after each target, since they are not all read at one moment.
func (s *server) scrape(t *testing.T, job string, targets map[string]client.Gatherer, meanwhile func()) {
	t.Helper()
	s.now = s.now.Add(scrapeInterval)
	for instance, target := range targets {
		page := httptest.NewRecorder()
		promhttp.HandlerFor(target, promhttp.HandlerOpts{}).ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
		require.Equal(t, 200, page.Code, page.Body)
		p, err := textparse.New(page.Body.Bytes(), page.Header().Get("Content-Type"), nil, textparse.ParserOptions{})
		require.NoError(t, err)
		for {
			kind, err := p.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err)
			if kind != textparse.EntrySeries {
				continue
			}
			var l labels.Labels
			p.Labels(&l)
			require.Empty(t, l.Get("job")+l.Get("instance"), "of the scrape alone")
			_, _, value := p.Series()
			s.add(labels.NewBuilder(l).Set("job", job).Set("instance", instance).Labels(), value)
		}
		meanwhile()
	}
}

func (s *server) add(l labels.Labels, value float64) {
	one := s.series[l.String()]
	if one == nil {
		one = &promql.Series{Metric: l}
		s.series[l.String()] = one
	}
	one.Floats = append(one.Floats, promql.FPoint{T: s.now.UnixMilli(), F: value})
}

// query evaluates a query over all that was scraped, as for a graph, and returns the
// numbers: a graph shows none where there is none. What Prometheus has to remark about a
// query is a mistake.
func (s *server) query(t *testing.T, expr string) promql.Matrix {
	t.Helper()
	q, err := s.engine.NewRangeQuery(t.Context(), s, nil, expr, s.start, s.now, scrapeInterval)
	require.NoError(t, err, expr)
	defer q.Close() // from then on the answer is not ours
	result := q.Exec(t.Context())
	require.NoError(t, result.Err, expr)
	require.Empty(t, result.Warnings, expr)
	matrix, err := result.Matrix()
	require.NoError(t, err, expr)
	var numbers promql.Matrix
	for _, one := range matrix {
		one.Floats = slices.DeleteFunc(slices.Clone(one.Floats), func(p promql.FPoint) bool { return math.IsNaN(p.F) })
		if len(one.Floats) > 0 {
			numbers = append(numbers, one)
		}
	}
	return numbers
}

// labelValues returns which values a label of the series has that a selector selects.
func (s *server) labelValues(t *testing.T, selector, label string) []string {
	t.Helper()
	matchers, err := s.parser.ParseMetricSelector(selector)
	require.NoError(t, err, selector)
	var values []string
	for _, one := range s.matching(matchers) {
		values = append(values, one.Metric.Get(label))
	}
	slices.Sort(values)
	return slices.Compact(values)
}
