package main

import (
	"fmt"
	"strings"
)

// A figure is one number of the summary: a ratio, or a value that has a goal.
type figure struct {
	key   string
	what  string
	value float64
	unit  string // empty for a ratio
	goal  *goal
}

// A goal is what a figure is to reach.
type goal struct {
	limit float64
	least bool // at least; otherwise at most
}

func least(v float64) *goal { return &goal{v, true} }
func most(v float64) *goal  { return &goal{v, false} }

func (g *goal) met(v float64) bool { return v == g.limit || v > g.limit == g.least }

// figures are all that could be made of what was measured.
func (rs *rows) figures() (fs []figure) {
	fs = append(fs, rs.pairFigures()...)
	fs = append(fs, rs.latencyFigures()...)
	fs = append(fs, rs.contendedFigures()...)
	fs = append(fs, rs.kindFigures()...)
	fs = append(fs, rs.groupFigures()...)
	fs = append(fs, rs.overloadFigures()...)
	fs = append(fs, rs.costFigures()...)
	fs = append(fs, rs.memoryFigures()...)
	fs = append(fs, rs.pieceFigures()...)
	return append(fs, rs.idleFigures()...)
}

// over makes a figure of the ratio of two values, if both were measured.
func (rs *rows) over(fs *[]figure, name, what string, a key, av string, b key, bv string, g *goal) {
	x, ok1 := rs.value(a, av)
	y, ok2 := rs.value(b, bv)
	if v, ok := ratio(x, y, ok1 && ok2); ok {
		*fs = append(*fs, figure{key: name, what: what, value: v, goal: g})
	}
}

const goalCallers = 2000

func (rs *rows) pairFigures() (fs []figure) {
	var best *row // of etcd
	for _, r := range rs.of(pairsJob) {
		if r.System == etcdName && (best == nil || r.Values["pairs_per_s"] > best.Values["pairs_per_s"]) {
			best = r
		}
	}
	for _, own := range rs.of(pairsJob) {
		if own.System != quorumlockName {
			continue
		}
		for _, peer := range systemNames[1:] {
			k := key{pairsJob, peer, own.Callers, 0, place(peer, everywhere)}
			var g *goal
			if peer == rueidisName && own.Callers == goalCallers {
				g = least(1)
			}
			rs.over(&fs, fmt.Sprintf("pairs_%d_vs_%s", own.Callers, underlined(peer)),
				fmt.Sprintf("pairs/s, %d callers, to %s", own.Callers, peer), own.key(), "pairs_per_s", k, "pairs_per_s", g)
		}
		if best != nil && own.Callers == goalCallers {
			rs.over(&fs, fmt.Sprintf("pairs_%d_vs_etcd_best", own.Callers),
				fmt.Sprintf("pairs/s, %d callers, to etcd at its best (%d callers)", own.Callers, best.Callers),
				own.key(), "pairs_per_s", best.key(), "pairs_per_s", least(30))
		}
	}
	return fs
}

func underlined(name string) string { return strings.ReplaceAll(name, "-", "_") }

func (rs *rows) latencyFigures() (fs []figure) {
	lone := func(system, where string) key { return key{latencyJob, system, 1, 0, where} }
	floor := lone(floorName, "")
	for _, where := range []string{atLeader, atFollower} {
		own := lone(quorumlockName, where)
		var toFloor, toEtcd *goal
		if where == atLeader {
			toFloor, toEtcd = most(2.5), most(1)
		}
		rs.over(&fs, "p50_"+where+"_vs_floor", "acquire p50 at the "+where+", to the floor", own, "p50_ms", floor, "p50_ms", toFloor)
		rs.over(&fs, "p50_"+where+"_vs_etcd", "acquire p50 at the "+where+", to etcd there", own, "p50_ms", lone(etcdName, where), "p50_ms", toEtcd)
	}
	for _, peer := range []string{rueidisName, goredisName} {
		rs.over(&fs, "p50_leader_vs_"+underlined(peer), "acquire p50 at the leader, to "+peer,
			lone(quorumlockName, atLeader), "p50_ms", lone(peer, oneServer), "p50_ms", nil)
	}
	return fs
}

func (rs *rows) contendedFigures() (fs []figure) {
	own := key{contendedJob, quorumlockName, waiters, 0, everywhere}
	etcd := key{contendedJob, etcdName, waiters, 0, everywhere}
	lone := key{latencyJob, quorumlockName, 1, 0, atLeader}
	follower := key{latencyJob, quorumlockName, 1, 0, atFollower}
	rs.over(&fs, "handoff_p50_vs_one_caller", "hand-off p50, to one caller's acquire at the leader", own, "p50_ms", lone, "p50_ms", most(1.15))
	rs.over(&fs, "handoff_p50_vs_one_caller_follower", "hand-off p50, to one caller's acquire at a follower", own, "p50_ms", follower, "p50_ms", nil)
	rs.over(&fs, "handoffs_vs_etcd", "hand-offs/s, to etcd", own, "handoffs_per_s", etcd, "handoffs_per_s", least(2))
	return rs.plain(fs, "entries_per_handoff", "log entries a hand-off", "", own, "entries_per_handoff", nil)
}

// plain makes a figure of one value, if it was measured.
func (rs *rows) plain(fs []figure, name, what, unit string, k key, value string, g *goal) []figure {
	if v, ok := rs.value(k, value); ok {
		fs = append(fs, figure{name, what, v, unit, g})
	}
	return fs
}

// kindFigures have no goals: nobody said how fast these locks must be.
func (rs *rows) kindFigures() (fs []figure) {
	for _, job := range []string{sharedJob, countedJob, severalJob} {
		for _, own := range rs.of(job) {
			if own.System != quorumlockName {
				continue
			}
			for _, peer := range systemNames[1:] {
				rs.over(&fs, job+"_vs_"+underlined(peer), fmt.Sprintf("%s pairs/s, %d callers, to %s", job, own.Callers, peer),
					own.key(), "pairs_per_s", key{job, peer, own.Callers, 0, everywhere}, "pairs_per_s", nil)
			}
		}
	}
	return fs
}

func (rs *rows) overloadFigures() (fs []figure) {
	peak := key{overloadJob, quorumlockName, sustainable, 0, everywhere}
	over := key{overloadJob, quorumlockName, overloaded, 0, everywhere}
	rs.over(&fs, "overload_vs_peak", fmt.Sprintf("pairs/s, %d callers, to %d", overloaded, sustainable), over, "pairs_per_s", peak, "pairs_per_s", least(0.8))
	return rs.plain(fs, "overload_sessions_expired", "sessions expired of overload", "sessions", over, "sessions_expired", most(0))
}

func (rs *rows) costFigures() (fs []figure) {
	for _, r := range rs.of(costJob) {
		with := strings.TrimPrefix(r.Where, "with ")
		if r.Where == profiled {
			var g *goal
			if r.Values["samples"] >= 1000 { // with fewer it is chance
				g = most(0.03)
			}
			fs = rs.plain(fs, "cost_share", "part of the processor's time in counting and quotas", "", r.key(), "share", g)
			continue
		}
		name := "cost_of_" + strings.NewReplacer(" ", "_", ",", "").Replace(with)
		fs = rs.plain(fs, name, "user time a pair with "+with+", to nothing", "", r.key(), "ratio", nil)
	}
	return fs
}

func (rs *rows) memoryFigures() (fs []figure) {
	for _, r := range rs.of(memoryJob) {
		var g *goal
		if r.Locks >= wantLocks {
			g = most(160)
		}
		fs = rs.plain(fs, "", fmt.Sprintf("memory per held lock, %d locks, %s", r.Locks, r.Where), "bytes", r.key(), "bytes_per_lock", g)
	}
	return fs
}

func (rs *rows) pieceFigures() (fs []figure) {
	var small, large *row
	for _, r := range rs.of(applyJob) {
		if small == nil || r.Locks < small.Locks {
			small = r
		}
		if large == nil || r.Locks > large.Locks {
			large = r
		}
	}
	if small != nil && small != large {
		rs.over(&fs, fmt.Sprintf("apply_%d_vs_%d", large.Locks, small.Locks),
			fmt.Sprintf("apply at %d held locks, to %d", large.Locks, small.Locks), large.key(), "ns_per_pair", small.key(), "ns_per_pair", most(1.5))
	}
	for _, r := range rs.of(watchJob) {
		if r.Where != watching(0) {
			continue
		}
		rs.over(&fs, "watch_100_vs_0", "apply with 100 watchers"+r.ofLocks()+", to none",
			key{watchJob, quorumlockName, 0, r.Locks, watching(100)}, "ns_per_pair", r.key(), "ns_per_pair", most(1.1))
	}
	for _, r := range rs.of(stallJob) {
		fs = rs.plain(fs, "", "log stall while a snapshot is written"+r.ofLocks(), "ms", r.key(), "max_stall_ms", most(10))
	}
	for _, r := range rs.of(restoreJob) {
		fs = rs.plain(fs, "", "restore of a snapshot"+r.ofLocks(), "s", r.key(), "restore_s", most(5))
	}
	return fs
}

func (rs *rows) idleFigures() (fs []figure) {
	for _, where := range []string{atLeader, atFollower} {
		k := key{idleJob, quorumlockName, 0, 0, where}
		fs = rs.plain(fs, "", "idle "+where+", processor", "% of a core", k, "cpu_percent", most(1))
		fs = rs.plain(fs, "", "idle "+where+", goroutines", "", k, "goroutines", most(40))
		fs = rs.plain(fs, "", "idle "+where+", resident memory", "MB", k, "rss_mb", most(40))
	}
	return fs
}

// ofLocks says of how many locks a row is, where that is known.
func (r *row) ofLocks() string {
	if r.Locks == 0 {
		return ""
	}
	return fmt.Sprintf(" of %d locks", r.Locks)
}
