// Package tracing shows acquires and holds as spans of OpenTelemetry.
//
//	quorumlock.Options{
//		Tracer: tracing.New(otel.GetTracerProvider()),
//		...
//	}
//
// An acquire is a span "quorumlock acquire", a child of the span in the caller's ctx,
// from the call to its answer: that is the wait for the lock. One that is granted has a
// child "quorumlock hold", from the grant until the lock is released or lost. Spans that
// are not recorded cost next to nothing. The attributes are in docs/NUMBERS.md.
//
// It is a module of its own, so that who does not want OpenTelemetry does not link it. Of
// OpenTelemetry it uses the API alone: which SDK is behind the provider is up to the
// program.
package tracing
