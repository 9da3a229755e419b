// Package manifesttest holds the manifest of examples/kubernetes against what Kubernetes
// knows and what the example does. It is a module of its own, so that nobody else needs
// Kubernetes' types.
package manifesttest
