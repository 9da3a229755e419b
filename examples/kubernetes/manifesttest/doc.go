// Package manifesttest holds the manifest of examples/kubernetes against what Kubernetes
// knows and what the example does, and, when it is asked to, runs it in a Kubernetes. It is
// a module of its own, so that nobody else needs Kubernetes' types.
package manifesttest
