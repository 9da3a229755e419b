package quorumlock

import "context"

// A Tracer is told of every acquire of this process: for tracing, as package tracing does
// it for OpenTelemetry, and for whatever else wants to see single calls. It is called in
// the caller's goroutine, which waits for it, with no lock of the library held. What is
// wrong with a call's arguments is told to the caller alone.
type Tracer interface {
	// AcquireStart is called before an acquire asks for anything. The context that it
	// returns, made of ctx, is that of the call from then on, and AcquireEnd's.
	AcquireStart(ctx context.Context, a AcquireStart) context.Context
	// AcquireEnd is called before the call returns.
	AcquireEnd(ctx context.Context, a AcquireEnd)
}

// An AcquireStart is what a call asks for.
type AcquireStart struct {
	Names []string // in order; not to be changed
	Mode  Mode
	Try   bool // it does not wait
}

// An AcquireEnd is what came of a call: of Hold and Err, one is nil.
type AcquireEnd struct {
	Hold   *Hold // its Done or Context tells when it is over
	Queued bool  // it stood in line
	Err    error // what the caller is told
}

// traced is acquire, told to the node's tracer if it has one: on one session, or for
// nil on the node's own.
func (n *Node) traced(ctx context.Context, s *Session, r request, wait bool) (*Hold, error) {
	t := n.opts.Tracer
	if t == nil {
		h, _, err := n.acquire(ctx, s, r, wait)
		return h, err
	}
	names := r.names
	if names == nil {
		names = []string{r.name}
	}
	if own := t.AcquireStart(ctx, AcquireStart{Names: names, Mode: r.terms.mode, Try: !wait}); own != nil {
		ctx = own
	}
	h, queued, err := n.acquire(ctx, s, r, wait)
	t.AcquireEnd(ctx, AcquireEnd{Hold: h, Queued: queued, Err: err})
	return h, err
}
