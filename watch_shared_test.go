package quorumlock

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// Readers share what was read once. Each is told everything, in order, however far
// apart they are.
func TestManyReadersAreToldTheSame(t *testing.T) {
	const readers, rounds = 8, 3 * toldAtOnce
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var mu sync.Mutex
		told := make([][]string, readers)
		var all sync.WaitGroup
		for i := range readers {
			all.Go(func() {
				for e, err := range nodes[2].Watch(ctx, "") {
					if err != nil {
						return
					}
					if e.Kind == EventSynced {
						continue
					}
					mu.Lock()
					told[i] = append(told[i], fmt.Sprint(e.Kind, e.Name, e.Token, e.Owner))
					mu.Unlock()
				}
			})
		}
		synctest.Wait()
		var want []string
		for i := range rounds {
			h, err := nodes[1].Acquire(soon(t), fmt.Sprint("job/", i%7))
			require.NoError(t, err)
			require.NoError(t, h.Release(soon(t)))
			want = append(want, fmt.Sprint(EventGranted, h.Name(), h.Token(), "owner-1"), fmt.Sprint(EventReleased, h.Name(), h.Token(), "owner-1"))
		}
		require.Eventually(t, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return !slices.ContainsFunc(told, func(x []string) bool { return len(x) < len(want) })
		}, 1000*readPace, readPace)
		cancel()
		all.Wait()
		for i := range readers {
			require.Equal(t, want, told[i])
		}
		require.Nil(t, nodes[2].groups[0].changes.ring, "nothing is kept when nobody watches")
	})
}

// A reader who is behind by more than is kept is told so; one who is not, is not.
func TestWhatIsKept(t *testing.T) {
	c := changes{bell: new(bell), kept: keptChanges}
	c.count(+1)
	own := func([]Event) {}
	first := c.end()
	add := func(n int) {
		c.begin()
		for range n {
			c.add(EventReleased, &effect{name: fmt.Sprint(c.now.first + uint64(len(c.now.notes)))}, nil, "")
		}
		c.done()
	}
	add(100)
	early, _, missed := c.read(first+10, c.end(), own)
	require.False(t, missed)
	require.Len(t, early, 90)
	add(keptChanges - 100)
	for next := first; next < c.end(); {
		events, onPages, missed := c.read(next, c.end(), own)
		require.False(t, missed)
		require.Len(t, onPages, len(events))
		for _, e := range events {
			require.Equal(t, fmt.Sprint(next), e.Name)
			next++
		}
	}
	require.Equal(t, fmt.Sprint(first+10), early[0].Name, "what was handed out stays")
	add(1)
	_, _, missed = c.read(first, c.end(), own)
	require.True(t, missed)
	events, _, missed := c.read(first+1, c.end(), own)
	require.False(t, missed)
	require.Equal(t, fmt.Sprint(first+1), events[0].Name)
	before := c.end()
	c.skip()
	_, _, missed = c.read(before, c.end(), own)
	require.True(t, missed)
	add(1)
	events, _, missed = c.read(c.end()-1, c.end(), own)
	require.False(t, missed)
	require.Len(t, events, 1)
	c.count(-1)
	require.Nil(t, c.ring)
}

// Who stood in line for more permits than there are any more has left it.
func TestWatchTellsWhoLeavesOverAResize(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		h, err := nodes[1].Acquire(soon(t), "pool", Permits(3, 3))
		require.NoError(t, err)
		events := watching(t, nodes[2], "")
		synctest.Wait() // the picture was shown
		got := make(chan error, 1)
		go func() {
			_, err := nodes[3].Acquire(t.Context(), "pool", Permits(3, 3))
			got <- err
		}()
		synctest.Wait()
		require.NoError(t, nodes[1].Resize(soon(t), "pool", 2))
		require.ErrorIs(t, <-got, ErrPermits)
		require.Equal(t, []string{"picture  pool=" + h.Token().String(), "synced ", "queued pool", "resized pool",
			"left pool: " + ErrPermits.Error()}, texts(events))
	})
}
