// Package grafanatest holds metrics/grafana.json against the schema that Grafana
// publishes, and asks its queries of Prometheus' own engine. It is a module of its own,
// so that nobody else needs either.
package grafanatest
