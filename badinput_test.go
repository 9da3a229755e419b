package quorumlock

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/sessions"
)

// manyNames returns so many different names.
func manyNames(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprint("name ", i))
	}
	return names
}

// What can be seen to be wrong without asking anybody is refused without asking
// anybody, each with its own error, whichever replica is asked.
func TestBadInputProposesNothing(t *testing.T) {
	acquire := func(opts ...AcquireOption) func(*Node, context.Context) error {
		return func(n *Node, ctx context.Context) error {
			_, err := n.Acquire(ctx, "job", opts...)
			_, tried := n.TryAcquire(ctx, "job", opts...)
			if fmt.Sprint(err) != fmt.Sprint(tried) {
				return fmt.Errorf("acquire says %w, and try says %w", err, tried)
			}
			return err
		}
	}
	all := func(names ...string) func(*Node, context.Context) error {
		return func(n *Node, ctx context.Context) error {
			_, err := n.AcquireAll(ctx, names...)
			_, tried := n.TryAcquireAll(ctx, names...)
			if fmt.Sprint(err) != fmt.Sprint(tried) {
				return fmt.Errorf("acquire says %w, and try says %w", err, tried)
			}
			return err
		}
	}
	force := func(name, by, reason string) func(*Node, context.Context) error {
		return func(n *Node, ctx context.Context) error {
			err := n.ForceRelease(ctx, name, 1, by, reason)
			yield := n.RequestYield(ctx, name, by, reason)
			if fmt.Sprint(err) != fmt.Sprint(yield) {
				return fmt.Errorf("release says %w, and yield says %w", err, yield)
			}
			return err
		}
	}
	long := strings.Repeat("x", MaxNameLen+1)
	cases := []struct {
		name string
		call func(*Node, context.Context) error
		want error
		text string
	}{
		{"no permits", acquire(Permits(0, 3)), ErrPermits, "0 permits of 3"},
		{"negative permits", acquire(Permits(-1, 3)), ErrPermits, "-1 permits of 3"},
		{"permits above the limit", acquire(Permits(4, 3)), ErrPermits, "4 permits of 3"},
		{"no limit", acquire(Permits(1, 0)), ErrPermits, "a limit of 0"},
		{"negative limit", acquire(Permits(1, -5)), ErrPermits, "a limit of -5"},
		{"limit above MaxPermits", acquire(Permits(1, MaxPermits+1)), ErrPermits, "a limit of 65537: must be 1 to 65536"},
		{"shared and counted", acquire(Share(), Permits(1, 3)), ErrMode, "both"},
		{"counted and shared", acquire(Permits(1, 3), Share()), ErrMode, "both"},
		{"negative MaxHold", acquire(MaxHold(-time.Second)), ErrDuration, "MaxHold of -1s"},
		{"negative MinHold", acquire(MinHold(-1)), ErrDuration, "MinHold of -1ns"},
		{"negative LockDelay", acquire(LockDelay(-time.Hour)), ErrDuration, "LockDelay of -1h"},
		{"short MaxHold", acquire(MaxHold(999 * time.Millisecond)), ErrDuration, "shorter than the election timeout, 1s"},
		{"short MinHold", acquire(MinHold(1)), ErrDuration, "shorter than the election timeout, 1s"},
		{"short LockDelay", acquire(LockDelay(time.Millisecond)), ErrDuration, "shorter than the election timeout, 1s"},
		{"long MaxHold", acquire(MaxHold(367 * 24 * time.Hour)), ErrDuration, "must be 0 to 8784h0m0s"},
		{"long MinHold", acquire(MinHold(367 * 24 * time.Hour)), ErrDuration, "must be 0 to 8784h0m0s"},
		{"long LockDelay", acquire(LockDelay(1 << 62)), ErrDuration, "must be 0 to 8784h0m0s"},
		{"MinHold against MaxHold", acquire(MaxHold(8*time.Second), MinHold(7*time.Second+1)), ErrDuration, "MinHold of 7.000000001s is longer"},
		{"no name", all(), ErrName, "no name given"},
		{"a name twice", all("a", "b", "a"), ErrNameTwice, `"a"`},
		{"too many names", all(manyNames(MaxNames + 1)...), ErrTooManyNames, "65, and at most 64"},
		{"an empty name", all("a", ""), ErrName, "it is empty"},
		{"a long name", all("a", long), ErrName, "has 513 bytes"},
		{"not UTF-8", all("\xff", "a"), ErrName, "not UTF-8"},
		{"a bad name alone", all("\xff"), ErrName, "not UTF-8"},
		{"forced by nobody", force("job", "", "why"), ErrReason, "by"},
		{"forced for nothing", force("job", "ops", ""), ErrReason, "reason"},
		{"forced by a long name", force("job", strings.Repeat("x", MaxReasonLen+1), "why"), ErrReason, "1 to 256 bytes"},
		{"forced with a zero", force("job", "ops", "a\x00b"), ErrReason, "none of them zero"},
		{"forced, not UTF-8", force("job", "ops", "\xff"), ErrReason, "UTF-8"},
		{"forced without a name", force("", "ops", "why"), ErrName, "it is empty"},
		{"closed by nobody", func(n *Node, ctx context.Context) error {
			return n.ForceClose(ctx, sessions.ID{Replica: 1, Epoch: 1, Seq: 1}, "", "why")
		}, ErrReason, "by"},
		{"resized to nothing", func(n *Node, ctx context.Context) error { return n.Resize(ctx, "job", 0) }, ErrPermits, "a limit of 0"},
		{"resized too far", func(n *Node, ctx context.Context) error { return n.Resize(ctx, "job", MaxPermits+1) }, ErrPermits, "65537"},
		{"resized without a name", func(n *Node, ctx context.Context) error { return n.Resize(ctx, "", 1) }, ErrName, "it is empty"},
	}
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		before := s.length()
		for _, c := range cases {
			var texts []string
			for _, id := range []uint64{1, 2, 5} {
				err := c.call(nodes[id], soon(t))
				require.ErrorIs(t, err, c.want, c.name)
				require.ErrorContains(t, err, c.text, c.name)
				texts = append(texts, err.Error())
			}
			require.Equal(t, []string{texts[0], texts[0], texts[0]}, texts, c.name)
		}
		synctest.Wait()
		require.Equal(t, before, s.length())
	})
}

// What depends on who holds what is judged by the cluster, and the answer is the
// same on every replica.
func TestBadInputIsTheSameOnEveryReplica(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		pool, err := nodes[1].Acquire(soon(t), "pool", Permits(2, 3))
		require.NoError(t, err)
		doc, err := nodes[1].Acquire(soon(t), "doc", Share())
		require.NoError(t, err)
		_, err = nodes[1].Acquire(soon(t), "job")
		require.NoError(t, err)
		var gone []*Hold
		for range 2 {
			h, err := nodes[1].Acquire(soon(t), "gone")
			require.NoError(t, err)
			require.NoError(t, h.Release(soon(t)))
			gone = append(gone, h)
		}
		acquire := func(name string, opts ...AcquireOption) func(*Node) error {
			return func(n *Node) error {
				_, err := n.Acquire(soon(t), name, opts...)
				_, tried := n.TryAcquire(soon(t), name, opts...)
				require.Equal(t, err.Error(), tried.Error())
				return err
			}
		}
		for _, c := range []struct {
			call func(*Node) error
			want error
			text string
		}{
			{acquire("pool", Permits(1, 4)), ErrMode, `"pool" is in use as counted with a limit of 3, and was asked for as counted with a limit of 4`},
			{acquire("pool"), ErrMode, `"pool" is in use as counted with a limit of 3, and was asked for as exclusive`},
			{acquire("pool", Share()), ErrMode, `counted with a limit of 3, and was asked for as shared`},
			{acquire("doc", Permits(1, 4)), ErrMode, `"doc" is in use as shared, and was asked for as counted with a limit of 4`},
			{acquire("job", Permits(1, 4)), ErrMode, `"job" is in use as exclusive, and was asked for as counted with a limit of 4`},
			{func(n *Node) error { _, err := n.AcquireAll(soon(t), "free", "pool"); return err }, ErrMode, `"pool" is in use as counted`},
			{func(n *Node) error { return n.ForceRelease(soon(t), "gone", gone[0].Token(), "ops", "x") }, ErrNotHeld, `revoke "gone"`},
			{func(n *Node) error { return n.ForceRelease(soon(t), "pool", pool.Token()+100, "ops", "x") }, ErrNotHeld, `revoke "pool"`},
			{func(n *Node) error { return n.ForceRelease(soon(t), "doc", 0, "ops", "x") }, ErrNotHeld, `revoke "doc"`},
			{func(n *Node) error { return n.ForceRelease(soon(t), "free", doc.Token(), "ops", "x") }, ErrNotHeld, `revoke "free"`},
			{func(n *Node) error {
				return n.ForceClose(soon(t), sessions.ID{Replica: 9, Epoch: 1, Seq: 1}, "ops", "x")
			}, ErrNotHeld, `session 9`},
			{func(n *Node) error { return n.ForceClose(soon(t), sessions.ID{}, "ops", "x") }, ErrNotHeld, `session`},
			{func(n *Node) error { return n.RequestYield(soon(t), "free", "ops", "x") }, ErrNotHeld, `ask "free"`},
			{func(n *Node) error { return n.Resize(soon(t), "free", 3) }, ErrNotHeld, `resize "free"`},
			{func(n *Node) error { return n.Resize(soon(t), "doc", 3) }, ErrMode, `resize "doc"`},
			{func(n *Node) error { return n.Resize(soon(t), "job", 3) }, ErrMode, `resize "job"`},
		} {
			var texts []string
			for _, id := range []uint64{1, 2, 5} {
				err := c.call(nodes[id])
				require.ErrorIs(t, err, c.want)
				require.ErrorContains(t, err, c.text)
				texts = append(texts, err.Error())
			}
			require.Equal(t, []string{texts[0], texts[0], texts[0]}, texts)
		}
		require.NoError(t, doc.Err())
		require.NoError(t, pool.Err())
	})
}

// A ModeError names what is in use and what was asked for, also when it was a
// waiter who brought the mode.
func TestModeErrorNamesBoth(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		h, err := nodes[1].Acquire(soon(t), "job", LockDelay(20*time.Second))
		require.NoError(t, err)
		require.NoError(t, nodes[2].ForceRelease(soon(t), "job", h.Token(), "ops", "test"))
		waiting := inBackground(func() (*Hold, error) { return nodes[1].Acquire(soon(t), "job", Permits(1, 3)) })
		_, err = nodes[2].Acquire(soon(t), "job", Permits(1, 2))
		var mode *ModeError
		require.ErrorAs(t, err, &mode)
		require.Equal(t, ModeError{"job", Counted, 3, Counted, 2}, *mode)
		require.NoError(t, (<-waiting).err, "nobody is of a mode while the delay runs")
	})
}

// Every call says at once what is wrong with its ctx, and after Close that the node
// is closed.
func TestEveryCallLooksAtItsContext(t *testing.T) {
	calls := map[string]func(*Node, *Hold, context.Context) error{
		"AcquireAll": func(n *Node, _ *Hold, ctx context.Context) error { _, err := n.AcquireAll(ctx, "a", "b"); return err },
		"TryAcquireAll": func(n *Node, _ *Hold, ctx context.Context) error {
			_, err := n.TryAcquireAll(ctx, "a", "b")
			return err
		},
		"session's": func(n *Node, h *Hold, ctx context.Context) error {
			_, err := h.Session().AcquireAll(ctx, "a", "b")
			return err
		},
		"session's try": func(n *Node, h *Hold, ctx context.Context) error {
			_, err := h.Session().TryAcquireAll(ctx, "a", "b")
			return err
		},
		"Share": func(n *Node, _ *Hold, ctx context.Context) error { _, err := n.Acquire(ctx, "a", Share()); return err },
		"Permits": func(n *Node, _ *Hold, ctx context.Context) error {
			_, err := n.TryAcquire(ctx, "a", Permits(1, 2))
			return err
		},
		"ForceRelease": func(n *Node, _ *Hold, ctx context.Context) error {
			return n.ForceRelease(ctx, "a", 1, "ops", "test")
		},
		"ForceClose": func(n *Node, h *Hold, ctx context.Context) error {
			return n.ForceClose(ctx, h.Session().ID(), "ops", "test")
		},
		"RequestYield": func(n *Node, _ *Hold, ctx context.Context) error { return n.RequestYield(ctx, "a", "ops", "test") },
		"Resize":       func(n *Node, _ *Hold, ctx context.Context) error { return n.Resize(ctx, "a", 2) },
		"Downgrade":    func(_ *Node, h *Hold, ctx context.Context) error { return h.Downgrade(ctx) },
		"Upgrade":      func(_ *Node, h *Hold, ctx context.Context) error { return h.Upgrade(ctx) },
		"Sessions":     func(n *Node, _ *Hold, ctx context.Context) error { _, err := n.Sessions(ctx); return err },
		"Watch": func(n *Node, _ *Hold, ctx context.Context) error {
			for e, err := range n.Watch(ctx, "") {
				if err != nil {
					return err
				}
				_ = e
			}
			return nil
		},
	}
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		h, err := nodes[1].Acquire(soon(t), "held")
		require.NoError(t, err)
		over, cancel := context.WithCancel(t.Context())
		cancel()
		var none context.Context // nil on purpose
		before := s.length()
		for name, call := range calls {
			require.ErrorIs(t, call(nodes[1], h, none), ErrNilContext, name)
			require.ErrorIs(t, call(nodes[1], h, over), context.Canceled, name)
		}
		synctest.Wait()
		require.Equal(t, before, s.length())
		require.NoError(t, h.Err())

		require.NoError(t, nodes[1].Close())
		for name, call := range calls {
			err := call(nodes[1], h, t.Context())
			require.ErrorIs(t, err, ErrClosed, name)
			require.NotErrorIs(t, err, context.Canceled, name)
		}
	})
}
