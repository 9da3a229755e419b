package httpfence

import (
	"context"

	"github.com/quorumlock/quorumlock/fencing"
)

type contextKey struct{}

type grant struct {
	resource string
	token    fencing.Token
}

// NewContext returns a context that carries the token for the resource: for
// [Transport], which sends it along.
func NewContext(ctx context.Context, resource string, t fencing.Token) context.Context {
	return context.WithValue(ctx, contextKey{}, grant{resource, t})
}

// FromContext returns what [NewContext] put in. In a handler behind [Handler]
// that is the token that was admitted, and a Transport that is given the request's
// context passes it on to the next service.
func FromContext(ctx context.Context) (resource string, t fencing.Token, ok bool) {
	g, ok := ctx.Value(contextKey{}).(grant)
	return g.resource, g.token, ok
}
