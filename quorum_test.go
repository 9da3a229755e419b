package quorumlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/fencing"
)

// With two of five replicas closed, the leader among them, locking goes on.
func TestTwoOfFiveDown(t *testing.T) {
	t.Parallel()
	c := newCluster(t, brisk)
	ctx := soon(t)
	leader := c.leader()
	other := c.followers()[0]
	held, err := c.node(c.followers()[1]).Acquire(ctx, "held throughout")
	require.NoError(t, err)

	c.closeNodes(leader, other)
	goesOn(t, c.nodes)
	require.NoError(t, held.Err())
	_, err = c.node(c.ids()[0]).TryAcquire(ctx, "held throughout")
	require.ErrorIs(t, err, ErrHeld)

	c.openNodes(leader, other)
	goesOn(t, c.nodes)
	require.NoError(t, held.Err())
	require.NoError(t, held.Release(ctx))
	settled(t, c.nodes)
}

// With three of five down, every kind of call fails by its deadline and says why,
// and nothing is granted. With them back it goes on by itself.
func TestThreeOfFiveDown(t *testing.T) {
	t.Parallel()
	c := newCluster(t, func(o *Options) { o.ElectionTimeout = 300 * time.Millisecond })
	leader := c.leader()
	rest := c.followers()
	down, up := []uint64{leader, rest[0], rest[1]}, rest[2:]
	holds := make(map[uint64]*Hold)
	for _, id := range up {
		h, err := c.node(id).Acquire(soon(t), fmt.Sprint("held by ", id))
		require.NoError(t, err)
		holds[id] = h
	}
	token := holds[up[1]].Token()

	c.closeNodes(down...)
	var calls sync.WaitGroup
	for _, id := range up {
		for name, call := range everyCall(c.node(id), holds[id]) {
			calls.Go(func() { c.failsInTime(fmt.Sprintf("%s on %d", name, id), call) })
		}
	}
	calls.Wait()

	c.openNodes(down...)
	for _, id := range c.ids() {
		info, err := c.node(id).Describe(soon(t), "new")
		require.NoError(t, err)
		require.Empty(t, info.Holders)
		require.Equal(t, token, c.node(id).Status().Token, "something was granted")
	}
	for _, id := range up {
		// Its release went on in the background.
		h, err := c.node(leader).Acquire(soon(t), fmt.Sprint("held by ", id))
		require.NoError(t, err)
		require.NoError(t, h.Release(soon(t)))
	}
	goesOn(t, c.nodes)
	settled(t, c.nodes)
}

// everyCall is every kind of call that asks the cluster.
func everyCall(n *Node, h *Hold) map[string]func(ctx context.Context) error {
	return map[string]func(ctx context.Context) error{
		"Acquire":    func(ctx context.Context) error { _, err := n.Acquire(ctx, "new"); return err },
		"TryAcquire": func(ctx context.Context) error { _, err := n.TryAcquire(ctx, "new"); return err },
		"Do": func(ctx context.Context) error {
			return n.Do(ctx, "new", func(context.Context, fencing.Token) error { panic("it was granted") })
		},
		"OpenSession": func(ctx context.Context) error { _, err := n.OpenSession(ctx); return err },
		"Describe":    func(ctx context.Context) error { _, err := n.Describe(ctx, "new"); return err },
		"List":        func(ctx context.Context) error { _, err := n.List(ctx, ""); return err },
		"Validate and Release": func(ctx context.Context) error {
			if err := h.Validate(ctx); err == nil {
				return err
			}
			return h.Release(ctx)
		},
	}
}

func (c *cluster) failsInTime(name string, call func(ctx context.Context) error) {
	const limit = time.Second
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	start := time.Now()
	err := call(ctx)
	took := time.Since(start)
	for _, want := range []error{ErrNoQuorum, context.DeadlineExceeded} {
		if err == nil || !errors.Is(err, want) {
			c.t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
	if most := limit + 500*time.Millisecond; took > most {
		c.t.Errorf("%s took %v of at most %v", name, took, limit)
	}
}

// A holder that is cut off with a minority loses its hold by its own clock before
// the majority grants it to the next.
func TestMinorityHolderLosesFirst(t *testing.T) {
	t.Parallel()
	for _, leads := range []bool{false, true} {
		t.Run(fmt.Sprintf("leads %v", leads), func(t *testing.T) {
			c := newCluster(t, brisk)
			ctx := soon(t)
			minority := c.followers()[:2]
			if leads {
				minority[0] = c.leader()
			}
			majority := c.followers()[3]
			hold, err := c.node(minority[0]).Acquire(ctx, "job")
			require.NoError(t, err)

			cut := time.Now()
			for _, in := range minority {
				for _, out := range c.ids() {
					if out != minority[0] && out != minority[1] {
						c.faults.Cut(in, out)
					}
				}
			}
			var lost time.Time
			var watch sync.WaitGroup
			watch.Go(func() {
				<-hold.Done()
				lost = time.Now()
			})
			next, err := c.node(majority).Acquire(ctx, "job")
			granted := time.Now()
			require.Error(t, hold.Err())
			require.NoError(t, err)
			watch.Wait()
			t.Logf("lost after %v, granted to the next after %v", lost.Sub(cut), granted.Sub(cut))
			require.True(t, lost.Before(granted))
			require.Greater(t, next.Token(), hold.Token())
			require.ErrorIs(t, hold.Err(), ErrLost)
			require.ErrorIs(t, hold.Err(), ErrNoQuorum)

			_, err = c.node(minority[1]).TryAcquire(shortly(t, 500*time.Millisecond), "other")
			require.ErrorIs(t, err, ErrNoQuorum)

			c.faults.Heal()
			require.ErrorIs(t, hold.Release(ctx), ErrLost)
			require.NoError(t, next.Validate(ctx))
			require.NoError(t, next.Release(ctx))
			goesOn(t, c.nodes)
			settled(t, c.nodes)
		})
	}
}

// shortly is a ctx that ends soon.
func shortly(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
