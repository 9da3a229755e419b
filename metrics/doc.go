// Package metrics shows a node's numbers to Prometheus.
//
//	prometheus.MustRegister(metrics.New(node))
//
// It is a module of its own, so that who does not want Prometheus does not link it.
// The numbers are those of quorumlock.Stats; what each means is in docs/NUMBERS.md,
// and grafana.json beside this file is a dashboard of them.
//
// # Labels
//
// There are as many series as there are refusals, losses, quotas and Raft groups to tell
// apart, whatever is locked: no label is a lock's name, unless WithNames asks for it.
//
// In a cluster of several Raft groups (quorumlock.Options.Groups), what each group has
// of its own has the label "group", from "0" on, as in quorumlock.Status.Groups: has_leader,
// is_leader, term, applied_index and locks. A cluster of one group has no such label, so
// that a query "by (group)" is right for both. All else is of the process, over all of
// its groups; members are those of the first group, which only differ while a change of
// the members is under way.
package metrics
