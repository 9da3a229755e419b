package quorumlock

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"sort"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/time/rate"
)

// A Quota bounds what the callers of this process may ask for, so that one of them
// that goes wrong does not take the cluster from the others. An acquire has to keep
// to every quota whose prefix its name begins with, and is refused at once, with a
// *QuotaError and before the log is touched, if one of them does not allow it. It is
// then counted by none. Renewals, releases and everything else are never limited.
//
// An acquire of several names counts once for each name that a quota is about. One of
// names in several groups is admitted group by group: what a later one refuses gives
// the earlier names back, but not what they took of a Rate. What
// is 0 is not bounded; a quota that bounds nothing is a fault of the options.
type Quota struct {
	// Prefix is with what the names begin that it is about. Default: all names.
	Prefix string
	// PerSession gives every session such a quota of its own. Default: all sessions
	// of this process have it together.
	PerSession bool

	// Rate is how many acquires a second are let through in the long run, those that
	// are granted and those that are not alike.
	Rate float64
	// Burst is how many of them may come at one moment after a quiet time. Default:
	// those of one second, and at least 1.
	Burst int
	// Holds is how many locks may be held at once. An acquire counts from the call
	// on, and a hold until the cluster has freed it.
	Holds int
	// Waiters is how many acquires may wait at once. TryAcquire does not wait; every
	// other acquire does from the call until its answer, that of a free lock for the
	// few milliseconds that the cluster takes.
	Waiters int
}

// maxQuotas is how many a Hold can tell apart.
const maxQuotas = math.MaxUint16 - 1

// What a Quota bounds.
const (
	QuotaRate    = "rate"    // Quota.Rate and Burst
	QuotaHolds   = "holds"   // Quota.Holds
	QuotaWaiters = "waiters" // Quota.Waiters
)

// A QuotaUse tells how much of a quota is used.
type QuotaUse struct {
	Quota    Quota
	Holds    int               // locks that are held or asked for; per session, those of the session that has most
	Waiters  int               // acquires that wait; per session, likewise
	Refusals map[string]uint64 // acquires that were refused since the node was opened, by Quota...
}

// covers says what a quota is for, for people.
func (q *Quota) covers() string {
	of := "all names"
	if q.Prefix != "" {
		of = fmt.Sprintf("names that begin with %q", q.Prefix)
	}
	if q.PerSession {
		of += ", per session"
	}
	return of
}

// checkQuotas reports quotas that bound nothing, or make no sense.
func (o *Options) checkQuotas(fault func(string, ...any)) {
	type scope struct {
		prefix  string
		session bool
	}
	seen := make(map[scope]int)
	if n := len(o.Quotas); n > maxQuotas {
		fault("Quotas has %d entries: must be at most %d", n, maxQuotas)
	}
	for i, q := range o.Quotas {
		what := fmt.Sprintf("Quotas[%d], for %s", i, q.covers())
		if !utf8.ValidString(q.Prefix) || len(q.Prefix) > MaxNameLen {
			fault("%s: Prefix must be UTF-8 of at most %d bytes, as names are", what, MaxNameLen)
		}
		if math.IsNaN(q.Rate) || math.IsInf(q.Rate, 0) || q.Rate < 0 {
			fault("%s: Rate is %v: must be a positive number of acquires a second", what, q.Rate)
		}
		for _, n := range []struct {
			field string
			value int
		}{{"Burst", q.Burst}, {"Holds", q.Holds}, {"Waiters", q.Waiters}} {
			if n.value < 0 {
				fault("%s: %s is %d: must be positive", what, n.field, n.value)
			}
		}
		if q.Rate == 0 && q.Holds == 0 && q.Waiters == 0 {
			fault("%s: Rate, Holds and Waiters are all 0: one of them must be positive", what)
		}
		if q.Rate == 0 && q.Burst != 0 {
			fault("%s: Burst is %d without a Rate", what, q.Burst)
		}
		of := scope{q.Prefix, q.PerSession}
		if first, twice := seen[of]; twice {
			fault("%s: Quotas[%d] is for the same: there may be one", what, first)
		} else {
			seen[of] = i
		}
	}
}

// quotas are those of a node. A nil one bounds nothing. n.mu guards all of it.
//
// A claim is counted from when it is admitted until it is forgotten, which is as long
// as something of it may be in the cluster: forgetClaim is the one way out.
type quotas struct {
	node   *Node
	rules  []rule // by prefix
	shared []usage
	own    int   // how many are per session
	hits   []hit // what match found last
}

// A rule is a quota in its place among the others.
type rule struct {
	Quota
	given   int // its index in Options.Quotas
	slot    int // of its usage, in quotas.shared or Session.quota
	outer   int // the next rule whose prefix this one's begins with, or -1
	refused map[string]uint64
}

// A usage is how much of a quota is used.
type usage struct {
	claims, waiters int
	tokens          *rate.Limiter // nil if there is no rate
	credit          int           // tokens that were taken in advance
}

// A hit is a rule that is about some names of a claim.
type hit struct {
	*rule
	*usage
	names int
}

// newQuotas returns nil for none.
func newQuotas(n *Node, given []Quota) *quotas {
	if len(given) == 0 {
		return nil
	}
	q := &quotas{node: n}
	for i, quota := range given {
		q.rules = append(q.rules, rule{Quota: quota, given: i,
			refused: map[string]uint64{QuotaRate: 0, QuotaHolds: 0, QuotaWaiters: 0}})
	}
	slices.SortFunc(q.rules, func(a, b rule) int { return cmp.Compare(a.Prefix, b.Prefix) })
	for i := range q.rules {
		r := &q.rules[i]
		r.outer = q.upTo(i-1, r.Prefix)
		if r.PerSession {
			r.slot = q.own
			q.own++
			continue
		}
		r.slot = len(q.shared)
		q.shared = append(q.shared, r.unused())
	}
	return q
}

func (r *rule) unused() (u usage) {
	if r.Rate > 0 {
		u.credit = r.advance()
		u.tokens = rate.NewLimiter(rate.Limit(r.Rate), r.burst()-u.credit)
	}
	return u
}

func (q *Quota) burst() int {
	if q.Burst > 0 {
		return q.Burst
	}
	return int(math.Ceil(min(q.Rate, math.MaxInt32)))
}

// advance is how many tokens are taken at once, so that where acquires are many not each
// reads the clock. They are taken from the burst, so that never more come than it says.
func (q *Quota) advance() int { return min(q.burst()/128, 64) }

// ofSession returns what a new session has of its own.
func (q *quotas) ofSession() []usage {
	if q == nil || q.own == 0 {
		return nil
	}
	own := make([]usage, q.own)
	for i := range q.rules {
		if r := &q.rules[i]; r.PerSession {
			own[r.slot] = r.unused()
		}
	}
	return own
}

func (q *quotas) usageOf(s *Session, r *rule) *usage {
	if r.PerSession {
		return &s.quota[r.slot]
	}
	return &q.shared[r.slot]
}

// upTo returns the last of the rules up to i whose prefix begins a name that is not
// before theirs, or -1. All that do are that one and its outer ones: what lies, in
// order, between such a prefix and the name begins with that prefix too.
func (q *quotas) upTo(i int, name string) int {
	for i >= 0 && !strings.HasPrefix(name, q.rules[i].Prefix) {
		i = q.rules[i].outer
	}
	return i
}

// innermost returns the last rule that is about a name, or -1.
func (q *quotas) innermost(name string) int {
	return q.upTo(sort.Search(len(q.rules), func(i int) bool { return q.rules[i].Prefix > name })-1, name)
}

// match returns the rules that are about some of the names of a claim: of one name,
// its innermost rule and the outer ones of that. It takes no memory.
func (q *quotas) match(s *Session, innermost int, names []string) []hit {
	q.hits = q.hits[:0]
	if len(names) <= 1 {
		for i := innermost; i >= 0; i = q.rules[i].outer {
			r := &q.rules[i]
			q.hits = append(q.hits, hit{r, q.usageOf(s, r), 1})
		}
		return q.hits
	}
	for _, name := range names {
		for i := q.innermost(name); i >= 0; i = q.rules[i].outer {
			r := &q.rules[i]
			if k := slices.IndexFunc(q.hits, func(x hit) bool { return x.rule == r }); k >= 0 {
				q.hits[k].names++
				continue
			}
			q.hits = append(q.hits, hit{r, q.usageOf(s, r), 1})
		}
	}
	return q.hits
}

// now is read from the monotonic clock alone, which takes half the time.
func (q *quotas) now() time.Time { return q.node.start.Add(q.node.age()) }

// ruleOf returns by which rule the one name of a request is found, 0 for none. Rules do
// not change, so it is called before n.mu is taken: a name that nobody has looked at yet
// has to come from memory.
func (q *quotas) ruleOf(r *request) uint16 {
	if q == nil || len(r.names) > 1 {
		return 0
	}
	return uint16(q.innermost(r.name) + 1)
}

// admit counts a claim whose rule this is, or returns which quota does not allow it: of
// several rates, the one that allows it last.
func (q *quotas) admit(s *Session, r *request, rule uint16, wait bool) error {
	if q == nil {
		return nil
	}
	hits := q.match(s, int(rule)-1, r.names)
	var now time.Time
	var slowest *hit // of those whose rate does not allow it
	var longest time.Duration
	for i := range hits {
		h := &hits[i]
		switch {
		case h.Holds > 0 && h.claims+h.names > h.Holds:
			return h.refuse(QuotaHolds, 0)
		case wait && h.Waiters > 0 && h.waiters+h.names > h.Waiters:
			return h.refuse(QuotaWaiters, 0)
		case h.tokens == nil || h.credit >= h.names:
			continue
		case h.names > h.burst():
			return h.refuse(QuotaRate, 0)
		case now.IsZero():
			now = q.now()
		}
		if d := h.allowsIn(now); d > longest {
			slowest, longest = h, d
		}
	}
	if slowest != nil {
		return slowest.refuse(QuotaRate, longest)
	}
	for i := range hits {
		h := &hits[i]
		h.claims += h.names
		if wait {
			h.waiters += h.names
		}
		if h.tokens != nil {
			h.take(now)
		}
	}
	return nil
}

// allowsIn returns after what time the rate allows what is asked for, rounded up so
// that it then does.
func (h *hit) allowsIn(now time.Time) time.Duration {
	missing := float64(h.names-h.credit) - h.tokens.TokensAt(now)
	if missing <= 0 {
		return 0
	}
	return time.Duration(min(math.Floor(missing/h.Rate*1e6)+1, 1<<53)) * time.Microsecond
}

// take takes what the rate allows, and if there is enough some tokens more, for the
// calls that follow.
func (h *hit) take(now time.Time) {
	if h.credit -= h.names; h.credit >= 0 {
		return
	}
	if h.tokens.AllowN(now, h.advance()-h.credit) {
		h.credit = h.advance()
		return
	}
	h.tokens.AllowN(now, -h.credit)
	h.credit = 0
}

func (h *hit) refuse(bound string, after time.Duration) error {
	h.refused[bound]++
	return &QuotaError{Quota: h.Quota, Bound: bound, Names: h.names, RetryAfter: after}
}

// granted is called before a claim's grant is told.
func (q *quotas) granted(h *Hold) {
	if q != nil && h.wait {
		q.giveBack(h, 0, 1)
	}
}

// forgotten is called before a claim is forgotten, which may be a second time.
func (q *quotas) forgotten(h *Hold) {
	if q == nil || h.forgotten {
		return
	}
	waiters := 0
	if h.wait && !h.granted() {
		waiters = 1
	}
	q.giveBack(h, 1, waiters)
}

// giveBack takes a claim out of what is used, for each of its names as a claim and as a
// waiter or not. Nearly all have one name, and it is done twice for each under n.mu.
func (q *quotas) giveBack(h *Hold, claims, waiters int) {
	if m := h.more.Load(); m != nil && len(m.names) > 1 {
		for _, x := range q.match(h.part.Session, -1, m.names) {
			x.claims -= claims * x.names
			x.waiters -= waiters * x.names
		}
		return
	}
	for i := int(h.rule) - 1; i >= 0; i = q.rules[i].outer {
		u := q.usageOf(h.part.Session, &q.rules[i])
		u.claims -= claims
		u.waiters -= waiters
	}
}

// inUse tells how much of each quota is used, in the order of the options.
func (q *quotas) inUse() []QuotaUse {
	if q == nil {
		return nil
	}
	list := make([]QuotaUse, len(q.rules))
	for i := range q.rules {
		r := &q.rules[i]
		use := QuotaUse{Quota: r.Quota, Refusals: maps.Clone(r.refused)}
		if !r.PerSession {
			use.Holds, use.Waiters = q.shared[r.slot].claims, q.shared[r.slot].waiters
		} else {
			for _, s := range q.node.sessions {
				use.Holds, use.Waiters = max(use.Holds, s.quota[r.slot].claims), max(use.Waiters, s.quota[r.slot].waiters)
			}
		}
		list[r.given] = use
	}
	return list
}
