// Package metrics shows a node's numbers to Prometheus.
//
//	prometheus.MustRegister(metrics.New(node))
//
// It is a module of its own, so that who does not want Prometheus does not link it.
// The numbers are those of quorumlock.Stats; what each means is in docs/NUMBERS.md,
// and grafana.json beside this file is a dashboard of them.
package metrics
