package tracing

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/quorumlock/quorumlock"
)

// The keys of the spans' attributes.
const (
	keyNames   = "quorumlock.names"
	keyMode    = "quorumlock.mode"
	keyTry     = "quorumlock.try"
	keyQueued  = "quorumlock.queued"
	keyOutcome = "quorumlock.outcome"
	keyToken   = "quorumlock.token"
	keySession = "quorumlock.session"
)

// What came of an acquire that was granted, and of a hold.
const (
	outcomeGranted  = "granted"
	outcomeReleased = "released"
	outcomeLost     = "lost"
)

// An Option changes one thing about a tracer.
type Option func(*tracer)

// WithoutHolds leaves the spans of holds out, for programs whose holds last for days: a
// span is shown when it has ended.
func WithoutHolds() Option {
	return func(t *tracer) { t.holds = false }
}

// New returns a tracer for quorumlock.Options.Tracer that makes spans of a provider's.
// With nil it makes none.
func New(provider trace.TracerProvider, opts ...Option) quorumlock.Tracer {
	if provider == nil {
		provider = noop.NewTracerProvider()
	}
	t := &tracer{spans: provider.Tracer("github.com/quorumlock/quorumlock/tracing"), holds: true}
	for _, o := range opts {
		o(t)
	}
	return t
}

type tracer struct {
	spans trace.Tracer
	holds bool
}

// AcquireStart implements quorumlock.Tracer.
func (t *tracer) AcquireStart(ctx context.Context, a quorumlock.AcquireStart) context.Context {
	ctx, span := t.spans.Start(ctx, "quorumlock acquire")
	if span.IsRecording() {
		span.SetAttributes(attribute.StringSlice(keyNames, a.Names), attribute.String(keyMode, a.Mode.String()), attribute.Bool(keyTry, a.Try))
	}
	return ctx
}

// AcquireEnd implements quorumlock.Tracer.
func (t *tracer) AcquireEnd(ctx context.Context, a quorumlock.AcquireEnd) {
	span := trace.SpanFromContext(ctx)
	defer span.End()
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(attribute.Bool(keyQueued, a.Queued))
	if a.Err != nil {
		why := outcome(a.Err)
		span.SetAttributes(attribute.String(keyOutcome, why))
		if why != quorumlock.RefusalHeld { // which is an answer, and no failure
			span.SetStatus(codes.Error, a.Err.Error())
		}
		return
	}
	span.SetAttributes(append(about(a.Hold), attribute.String(keyOutcome, outcomeGranted))...)
	if t.holds {
		t.follow(ctx, a.Hold)
	}
}

func about(h *quorumlock.Hold) []attribute.KeyValue {
	kvs := []attribute.KeyValue{attribute.String(keySession, h.Session().ID().String())}
	if t := h.Token(); !t.IsZero() { // as that of a hold in several groups is
		kvs = append(kvs, attribute.Int64(keyToken, int64(t)))
	}
	return kvs
}

// follow makes the span of a hold. No goroutine waits for its end.
func (t *tracer) follow(ctx context.Context, h *quorumlock.Hold) {
	_, span := t.spans.Start(ctx, "quorumlock hold", trace.WithAttributes(about(h)...),
		trace.WithAttributes(attribute.StringSlice(keyNames, h.Names())))
	held, cancel := h.Context(context.Background())
	context.AfterFunc(held, func() {
		cancel()
		how := outcomeReleased
		if err := context.Cause(held); !errors.Is(err, quorumlock.ErrNotHeld) {
			how = outcomeLost
			span.SetStatus(codes.Error, err.Error())
		}
		span.SetAttributes(attribute.String(keyOutcome, how))
		span.End()
	})
}

// outcomes are those of acquires that were not granted, by the names that Stats has for
// them.
var outcomes = []struct {
	err  error
	name string
}{
	{context.Canceled, quorumlock.RefusalGaveUp},
	{context.DeadlineExceeded, quorumlock.RefusalGaveUp},
	{quorumlock.ErrHeld, quorumlock.RefusalHeld},
	{quorumlock.ErrQueueFull, quorumlock.RefusalQueueFull},
	{quorumlock.ErrMode, quorumlock.RefusalMode},
	{quorumlock.ErrPermits, quorumlock.RefusalPermits},
	{quorumlock.ErrBusy, quorumlock.RefusalBusy},
	{quorumlock.ErrQuota, quorumlock.RefusalQuota},
}

func outcome(err error) string {
	for _, o := range outcomes {
		if errors.Is(err, o.err) {
			return o.name
		}
	}
	return quorumlock.RefusalSession
}
