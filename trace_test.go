package quorumlock

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/fencing"
)

// A recorder is a tracer that keeps what it is told.
type recorder struct {
	started []AcquireStart
	ended   []AcquireEnd
	numbers []any // what the ctx of each end has of its start
	drop    bool  // return no context
}

func (r *recorder) AcquireStart(ctx context.Context, a AcquireStart) context.Context {
	r.started = append(r.started, a)
	if r.drop {
		return nil
	}
	return context.WithValue(ctx, r, len(r.started))
}

func (r *recorder) AcquireEnd(ctx context.Context, a AcquireEnd) {
	r.ended = append(r.ended, a)
	r.numbers = append(r.numbers, ctx.Value(r))
}

// Every way to acquire is told to the tracer, once, with what the caller is told.
func TestTracerIsToldOfEachAcquire(t *testing.T) {
	r := new(recorder)
	inSimWith(t, func(o *Options, _ func() time.Duration) {
		if o.ReplicaID == 2 {
			o.Tracer = r
		}
	}, func(t *testing.T, _ *sim, nodes map[uint64]*Node, _ func(time.Duration)) {
		n := nodes[2]
		s, err := n.OpenSession(soon(t))
		require.NoError(t, err)
		require.Empty(t, r.started)
		nothing := func(context.Context, fencing.Token) error { return nil }
		var holds []*Hold
		var errs []error
		got := func(h *Hold, err error) {
			holds, errs = append(holds, h), append(errs, err)
		}
		got(n.Acquire(soon(t), "a"))
		got(s.TryAcquire(soon(t), "a"))
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		got(s.Acquire(short, "a", Share()))
		got(s.AcquireAll(soon(t), "c", "b"))
		got(n.TryAcquireAll(soon(t), "d", "a"))
		_, err = n.Acquire(soon(t), "")
		require.ErrorIs(t, err, ErrName)
		r.drop = true
		require.NoError(t, n.Do(soon(t), "e", nothing))

		require.Equal(t, []AcquireStart{
			{Names: []string{"a"}, Mode: Exclusive},
			{Names: []string{"a"}, Mode: Exclusive, Try: true},
			{Names: []string{"a"}, Mode: Shared},
			{Names: []string{"b", "c"}, Mode: Exclusive},
			{Names: []string{"a", "d"}, Mode: Exclusive, Try: true},
			{Names: []string{"e"}, Mode: Exclusive},
		}, r.started)
		require.Equal(t, []any{1, 2, 3, 4, 5, nil}, r.numbers)
		for i, err := range errs {
			require.Same(t, holds[i], r.ended[i].Hold)
			require.Equal(t, err, r.ended[i].Err)
			require.NotEqual(t, err == nil, r.ended[i].Hold == nil)
			require.Equal(t, i == 2, r.ended[i].Queued, "call %d", i)
		}
		require.NotNil(t, r.ended[5].Hold)
	})
}
