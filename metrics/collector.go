package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorumlock/quorumlock"
)

// A Collector shows one node's numbers. It is safe for concurrent use, and goes on
// to show the last ones when the node is closed, though as one that leads nothing.
type Collector struct {
	node   *quorumlock.Node
	top    int
	names  bool
	groups []groupMetric
}

// An Option changes one thing about a Collector.
type Option func(*Collector)

// Busiest sets how many of the busiest names are shown, from 0 to 128. Default: 10.
// What is outside of that is the nearest that is allowed.
func Busiest(names int) Option {
	return func(c *Collector) { c.top = min(max(names, 0), 128) }
}

// WithNames shows the busiest names themselves, as a label in place of their rank. Every
// name that was ever among them is then a series in Prometheus: leave it out when names
// are many, or say what nobody should read.
func WithNames() Option {
	return func(c *Collector) { c.names = true }
}

// New returns a collector of a node's numbers, and makes the node count: what
// happened before is not among them.
func New(node *quorumlock.Node, opts ...Option) *Collector {
	c := &Collector{node: node, top: 10, groups: groupMetrics(len(node.Status().Groups) > 0)}
	for _, o := range opts {
		o(c)
	}
	node.Stats()
	return c
}

var _ prometheus.Collector = (*Collector)(nil)

// Describe tells which metrics there are.
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	for _, m := range metrics {
		out <- m.desc
	}
	for _, m := range c.groups {
		out <- m.desc
	}
	out <- refusals
	out <- lost
	for _, d := range []*prometheus.Desc{quotaUsed, quotaMost, quotaRefusals} {
		out <- d
	}
	out <- c.busiest()
}

// Collect shows the numbers as they are now. It asks no other replica.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	now := reading{c.node.Stats(), c.node.Status()}
	for _, m := range metrics {
		out <- m.read(m.desc, &now)
	}
	c.collectGroups(out, &now.Status)
	for reason, n := range now.Refusals {
		out <- prometheus.MustNewConstMetric(refusals, prometheus.CounterValue, float64(n), reason)
	}
	for cause, n := range now.Lost {
		out <- prometheus.MustNewConstMetric(lost, prometheus.CounterValue, float64(n), cause)
	}
	for _, use := range now.Quotas {
		collectQuota(out, &use)
	}
	for i, b := range now.Busiest[:min(c.top, len(now.Busiest))] {
		label := strconv.Itoa(i + 1)
		if c.names {
			label = b.Name
		}
		out <- prometheus.MustNewConstMetric(c.busiest(), prometheus.GaugeValue, float64(b.Calls), label)
	}
}

// collectGroups shows what each Raft group has of its own.
func (c *Collector) collectGroups(out chan<- prometheus.Metric, s *quorumlock.Status) {
	show := func(g quorumlock.GroupStatus, label ...string) {
		if s.Err != nil {
			g.Leader = 0 // whom it knew last tells nothing, above all not that it leads itself
		}
		for _, m := range c.groups {
			out <- prometheus.MustNewConstMetric(m.desc, prometheus.GaugeValue, m.value(&g, s.ReplicaID), label...)
		}
	}
	if len(s.Groups) == 0 {
		show(quorumlock.GroupStatus{Leader: s.Leader, Term: s.Term, Applied: s.Applied, Locks: s.Locks})
	}
	for i := range s.Groups {
		show(s.Groups[i], strconv.Itoa(i))
	}
}

func collectQuota(out chan<- prometheus.Metric, use *quorumlock.QuotaUse) {
	show := func(d *prometheus.Desc, kind prometheus.ValueType, value float64, bound string) {
		out <- prometheus.MustNewConstMetric(d, kind, value, use.Quota.Prefix, strconv.FormatBool(use.Quota.PerSession), bound)
	}
	for bound, n := range use.Refusals {
		show(quotaRefusals, prometheus.CounterValue, float64(n), bound)
	}
	if q := use.Quota; q.Holds > 0 {
		show(quotaUsed, prometheus.GaugeValue, float64(use.Holds), quorumlock.QuotaHolds)
		show(quotaMost, prometheus.GaugeValue, float64(q.Holds), quorumlock.QuotaHolds)
	}
	if q := use.Quota; q.Waiters > 0 {
		show(quotaUsed, prometheus.GaugeValue, float64(use.Waiters), quorumlock.QuotaWaiters)
		show(quotaMost, prometheus.GaugeValue, float64(q.Waiters), quorumlock.QuotaWaiters)
	}
}

// busiest has one label: a rank beside the name would make each name a series for every
// rank that it ever had.
func (c *Collector) busiest() *prometheus.Desc {
	label := "rank"
	if c.names {
		label = "name"
	}
	return desc("busiest_calls", "Acquires of the names that are asked for most here; what was long ago counts for less.", label)
}

// A reading is what a node says at one moment.
type reading struct {
	quorumlock.Stats
	quorumlock.Status
}

// A metric is one that has no labels.
type metric struct {
	desc *prometheus.Desc
	read func(*prometheus.Desc, *reading) prometheus.Metric
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("quorumlock_"+name, help, labels, nil)
}

var (
	refusals = desc("refusals_total", "Acquires of this process that were not granted, by reason.", "reason")
	lost     = desc("holds_lost_total", "Holds of this process that ended without their holder's doing, by cause.", "cause")

	quotaUsed     = desc("quota_used", "How much of a quota is used; per session, by the session that uses most.", "prefix", "per_session", "bound")
	quotaMost     = desc("quota_most", "How much of a quota there is.", "prefix", "per_session", "bound")
	quotaRefusals = desc("quota_refusals_total", "Acquires that a quota refused.", "prefix", "per_session", "bound")
)

var metrics = []metric{
	counter("grants_total", "Acquires of this process that were granted.", func(r *reading) uint64 { return r.Grants }),
	counter("late_renewals_total", "Times that a session of this process was in jeopardy.", func(r *reading) uint64 { return r.LateRenewals }),
	counter("expiries_total", "Sessions of any process that ended because they were not renewed.", func(r *reading) uint64 { return r.Expiries }),
	counter("leader_changes_total", "Times that another replica was found to lead.", func(r *reading) uint64 { return r.LeaderChanges }),

	times("wait_seconds", "Time from an acquire of this process to its grant.", func(r *reading) *quorumlock.Histogram { return &r.Waits }),
	times("hold_seconds", "Time from a grant to this process until the lock was free again.", func(r *reading) *quorumlock.Histogram { return &r.Stats.Holds }),
	times("proposal_seconds", "Time from a batch's making until it was applied here.", func(r *reading) *quorumlock.Histogram { return &r.Proposals }),
	times("apply_seconds", "Time that it took to apply what the engine gave at once.", func(r *reading) *quorumlock.Histogram { return &r.Applies }),
	sizes("batch_commands", "Commands in one batch, which is one log entry.", func(r *reading) *quorumlock.Histogram { return &r.Batches }),

	gauge("unsent_acquires", "Acquires that wait in this process to be sent.", func(r *reading) float64 { return float64(r.Unsent) }),
	gauge("waiting_acquires", "Acquires of this process that stand in line.", func(r *reading) float64 { return float64(r.Waiting) }),
	gauge("batches_under_way", "Batches that were sent and not yet applied.", func(r *reading) float64 { return float64(r.UnderWay) }),
	gauge("claims", "Holds and waits of this process.", func(r *reading) float64 { return float64(r.Status.Holds) }),
	gauge("sessions", "Sessions of this process.", func(r *reading) float64 { return float64(r.Sessions) }),

	gauge("ready", "1 if this replica's life has begun in the log.", func(r *reading) float64 { return is(r.Ready) }),
	gauge("failed", "1 if this node can do nothing any more.", func(r *reading) float64 { return is(r.Err != nil) }),
	gauge("members", "Voting replicas; of several groups, those of the first.", func(r *reading) float64 { return float64(len(r.Members)) }),
}

// A groupMetric is a gauge that each Raft group has of its own.
type groupMetric struct {
	desc  *prometheus.Desc
	value func(g *quorumlock.GroupStatus, self uint64) float64
}

// groupMetrics returns them, with a label if there are several groups. A cluster of one
// has no label that would tell nothing; to Prometheus, by (group) is right for both.
func groupMetrics(several bool) []groupMetric {
	var labels []string
	if several {
		labels = []string{"group"}
	}
	return []groupMetric{
		{desc("locks", "Names that somebody in the cluster holds or waits for.", labels...),
			func(g *quorumlock.GroupStatus, _ uint64) float64 { return float64(g.Locks) }},
		{desc("has_leader", "1 if this replica knows who leads.", labels...),
			func(g *quorumlock.GroupStatus, _ uint64) float64 { return is(g.Leader != 0) }},
		{desc("is_leader", "1 if this replica leads, as it believes.", labels...),
			func(g *quorumlock.GroupStatus, self uint64) float64 { return is(g.Leader == self) }},
		{desc("term", "Term of the leader that this replica knows.", labels...),
			func(g *quorumlock.GroupStatus, _ uint64) float64 { return float64(g.Term) }},
		{desc("applied_index", "Index of the last log entry applied here.", labels...),
			func(g *quorumlock.GroupStatus, _ uint64) float64 { return float64(g.Applied) }},
	}
}

func is(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func counter(name, help string, value func(*reading) uint64) metric {
	return metric{desc(name, help), func(d *prometheus.Desc, r *reading) prometheus.Metric {
		return prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value(r)))
	}}
}

func gauge(name, help string, value func(*reading) float64) metric {
	return metric{desc(name, help), func(d *prometheus.Desc, r *reading) prometheus.Metric {
		return prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value(r))
	}}
}

// times shows microseconds as seconds, from 16 us to 4.8 hours by fours.
func times(name, help string, of func(*reading) *quorumlock.Histogram) metric {
	return metric{desc(name, help), func(d *prometheus.Desc, r *reading) prometheus.Metric {
		return histogram(d, of(r), 4, 2, 1e-6)
	}}
}

// sizes shows numbers from 1 to 4,096 by twos.
func sizes(name, help string, of func(*reading) *quorumlock.Histogram) metric {
	return metric{desc(name, help), func(d *prometheus.Desc, r *reading) prometheus.Metric {
		return histogram(d, of(r), 0, 1, 1)
	}}
}

// histogram shows every so many powers of two, beginning with one, as buckets.
func histogram(d *prometheus.Desc, h *quorumlock.Histogram, begin, step int, unit float64) prometheus.Metric {
	buckets := make(map[float64]uint64)
	below := uint64(0)
	for i, n := range h.Counts[:len(h.Counts)-1] { // the last has no bound
		below += n
		if i >= begin && (i-begin)%step == 0 {
			buckets[float64(uint64(1)<<i)*unit] = below
		}
	}
	return prometheus.MustNewConstHistogram(d, h.Count(), float64(h.Sum)*unit, buckets)
}
