package tracing_test

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/tracing"
)

// A traced is a cluster of one whose spans end up in a list.
type traced struct {
	*quorumlock.Node
	provider *sdktrace.TracerProvider
	ended    chan sdktrace.ReadOnlySpan
}

func open(t *testing.T, sampler sdktrace.Sampler, opts ...tracing.Option) *traced {
	t.Helper()
	c := &traced{ended: make(chan sdktrace.ReadOnlySpan, 1000)}
	c.provider = sdktrace.NewTracerProvider(sdktrace.WithSampler(sampler), sdktrace.WithSpanProcessor(ends(c.ended)))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	c.Node, err = quorumlock.Open(quorumlock.Options{ReplicaID: 1, Address: addr, Dir: t.TempDir(), Members: map[uint64]string{1: addr},
		ElectionTimeout: 300 * time.Millisecond, Tracer: tracing.New(c.provider, opts...),
		Quotas: []quorumlock.Quota{{Prefix: "quota/", Holds: 1}}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	require.NoError(t, c.Ready(soon(t)))
	return c
}

func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// ends is a span processor that passes on what has ended.
type ends chan sdktrace.ReadOnlySpan

func (e ends) OnStart(context.Context, sdktrace.ReadWriteSpan) {}
func (e ends) OnEnd(s sdktrace.ReadOnlySpan)                   { e <- s }
func (e ends) Shutdown(context.Context) error                  { return nil }
func (e ends) ForceFlush(context.Context) error                { return nil }

// next returns the next span that ends.
func (c *traced) next(t *testing.T, name string) tracetest.SpanStub {
	t.Helper()
	select {
	case s := <-c.ended:
		require.Equal(t, name, s.Name())
		return tracetest.SpanStubFromReadOnlySpan(s)
	case <-soon(t).Done():
		require.Fail(t, "no span ended")
		return tracetest.SpanStub{}
	}
}

func attributes(s tracetest.SpanStub) map[string]any {
	m := map[string]any{}
	for _, kv := range s.Attributes {
		m[string(kv.Key)] = kv.Value.AsInterface()
	}
	return m
}

const (
	acquire = "quorumlock acquire"
	hold    = "quorumlock hold"
)

func TestSpansOfAGrant(t *testing.T) {
	c := open(t, sdktrace.AlwaysSample())
	ctx, caller := c.provider.Tracer("test").Start(soon(t), "caller")
	var token fencing.Token
	require.NoError(t, c.Do(ctx, "a", func(ctx context.Context, token1 fencing.Token) error {
		token = token1
		require.Equal(t, caller.SpanContext(), trace.SpanContextFromContext(ctx), "what is done with the lock is the caller's")
		return nil
	}))
	asked := c.next(t, acquire)
	require.Equal(t, caller.SpanContext().SpanID(), asked.Parent.SpanID())
	own := attributes(asked)["quorumlock.session"]
	require.NotEmpty(t, own)
	require.Equal(t, map[string]any{"quorumlock.names": []string{"a"}, "quorumlock.mode": "exclusive", "quorumlock.try": false,
		"quorumlock.queued": false, "quorumlock.outcome": "granted", "quorumlock.token": int64(token), "quorumlock.session": own}, attributes(asked))
	require.Equal(t, codes.Unset, asked.Status.Code)

	held := c.next(t, hold)
	require.Equal(t, asked.SpanContext.SpanID(), held.Parent.SpanID())
	require.Equal(t, caller.SpanContext().TraceID(), held.SpanContext.TraceID())
	require.False(t, held.StartTime.Before(asked.StartTime))
	require.Equal(t, map[string]any{"quorumlock.names": []string{"a"}, "quorumlock.outcome": "released",
		"quorumlock.token": int64(token), "quorumlock.session": own}, attributes(held))
	require.Equal(t, codes.Unset, held.Status.Code)
}

func TestSpanOfAWaitAndALoss(t *testing.T) {
	c := open(t, sdktrace.AlwaysSample())
	s, err := c.OpenSession(soon(t))
	require.NoError(t, err)
	first, err := s.Acquire(soon(t), "a")
	require.NoError(t, err)
	c.next(t, acquire)
	granted := make(chan *quorumlock.Hold, 1)
	go func() {
		h, _ := c.Acquire(soon(t), "a", quorumlock.Share())
		granted <- h
	}()
	require.Eventually(t, func() bool {
		info, err := c.Describe(soon(t), "a")
		return err == nil && len(info.Waiters) == 1
	}, 20*time.Second, time.Millisecond)
	require.NoError(t, c.ForceRelease(soon(t), "a", first.Token(), "somebody", "a test"))
	second := <-granted
	require.NotNil(t, second)
	for range 2 {
		// In either order.
		span := <-c.ended
		stub := tracetest.SpanStubFromReadOnlySpan(span)
		if span.Name() == hold {
			require.Equal(t, "lost", attributes(stub)["quorumlock.outcome"])
			require.Equal(t, codes.Error, stub.Status.Code)
			require.Contains(t, stub.Status.Description, "revoked by somebody: a test")
			continue
		}
		require.Equal(t, true, attributes(stub)["quorumlock.queued"])
		require.Equal(t, "shared", attributes(stub)["quorumlock.mode"])
		require.Equal(t, int64(second.Token()), attributes(stub)["quorumlock.token"])
	}
}

func TestSpansOfRefusals(t *testing.T) {
	c := open(t, sdktrace.AlwaysSample(), tracing.WithoutHolds())
	_, err := c.AcquireAll(soon(t), "quota/a", "b")
	require.NoError(t, err)
	require.Equal(t, []string{"b", "quota/a"}, attributes(c.next(t, acquire))["quorumlock.names"])
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	for _, x := range []struct {
		outcome string
		queued  bool
		code    codes.Code
		call    func() error
	}{
		{"held", false, codes.Unset, func() error { _, err := c.TryAcquire(soon(t), "b"); return err }},
		{"quota", false, codes.Error, func() error { _, err := c.Acquire(soon(t), "quota/b"); return err }},
		{"mode", false, codes.Error, func() error { _, err := c.Acquire(soon(t), "b", quorumlock.Permits(1, 2)); return err }},
		{"queue_full", false, codes.Error, func() error { _, err := c.Acquire(soon(t), "b", quorumlock.MaxWaiters(0)); return err }},
		{"gave_up", true, codes.Error, func() error { _, err := c.Acquire(short, "b"); return err }},
		{"session", false, codes.Error, func() error {
			s, err := c.OpenSession(soon(t))
			require.NoError(t, err)
			require.NoError(t, s.Close(soon(t)))
			_, err = s.Acquire(soon(t), "b")
			return err
		}},
	} {
		err := x.call()
		require.Error(t, err, x.outcome)
		span := c.next(t, acquire)
		require.Equal(t, x.outcome, attributes(span)["quorumlock.outcome"])
		require.Equal(t, x.queued, attributes(span)["quorumlock.queued"], x.outcome)
		require.Equal(t, x.code, span.Status.Code, x.outcome)
		if x.code == codes.Error {
			require.Equal(t, err.Error(), span.Status.Description)
		}
		require.NotContains(t, attributes(span), "quorumlock.token")
	}
	_, err = c.Acquire(soon(t), "")
	require.ErrorIs(t, err, quorumlock.ErrName)
	require.Empty(t, c.ended, "a call that cannot be made is none, and no hold is traced")
}

// However many locks are held, no goroutine waits for their spans to end; what is not
// sampled has no span.
func TestNoGoroutineForAHold(t *testing.T) {
	c := open(t, sdktrace.AlwaysSample())
	_, err := c.Acquire(soon(t), "first")
	require.NoError(t, err)
	before := runtime.NumGoroutine()
	s, err := c.OpenSession(soon(t))
	require.NoError(t, err)
	const holds = 200
	for i := range holds {
		_, err := s.Acquire(soon(t), fmt.Sprint("name ", i))
		require.NoError(t, err)
	}
	require.Less(t, runtime.NumGoroutine(), before+holds/2)
	require.NoError(t, s.Close(soon(t)))
	seen := map[string]int{}
	for range 2*holds + 1 {
		seen[(<-c.ended).Name()]++
	}
	require.Equal(t, map[string]int{acquire: holds + 1, hold: holds}, seen)
}

func TestUnsampledAndNilProviderMakeNoSpan(t *testing.T) {
	c := open(t, sdktrace.NeverSample())
	require.NoError(t, c.Do(soon(t), "a", func(context.Context, fencing.Token) error { return nil }))
	require.Empty(t, c.ended)
	ctx := tracing.New(nil).AcquireStart(t.Context(), quorumlock.AcquireStart{Names: []string{"a"}})
	tracing.New(nil).AcquireEnd(ctx, quorumlock.AcquireEnd{Err: quorumlock.ErrBusy})
	require.False(t, trace.SpanFromContext(ctx).IsRecording())
}
