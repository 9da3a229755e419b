package quorumlock

import (
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every replica claims every tick of a job in order, as schedulers do, while the
// leader dies twice and the dead are opened again: each tick is won once, and those
// that nobody won went down with a node that had asked for them.
func TestTicksAcrossLeaderChangesAndRestarts(t *testing.T) {
	t.Parallel()
	const ticks = 180
	c := newCluster(t, brisk)
	var mu sync.Mutex
	won := map[int64]int{}
	lost := map[int64]bool{}
	come := map[int64]chan struct{}{ticks / 3: make(chan struct{}), 2 * ticks / 3: make(chan struct{})} // closed when that tick was claimed
	once := map[int64]*sync.Once{ticks / 3: new(sync.Once), 2 * ticks / 3: new(sync.Once)}
	claim := func(id uint64, n *Node, from int64) {
		for tick := from; tick < ticks; tick++ {
			ok, err := n.ClaimTick(soon(t), "nightly", tick)
			mu.Lock()
			switch {
			case err != nil:
				lost[tick] = true
			case ok:
				won[tick]++
			}
			mu.Unlock()
			if err != nil {
				if !errors.Is(err, ErrClosed) {
					t.Errorf("replica %d, tick %d: %v", id, tick, err)
				}
				return
			}
			if ok && come[tick] != nil {
				once[tick].Do(func() { close(come[tick]) })
			}
		}
	}
	var wg sync.WaitGroup
	for _, id := range c.ids() {
		wg.Go(func() { claim(id, c.node(id), 0) })
	}
	<-come[ticks/3]
	dead := c.leader()
	c.closeNodes(dead)
	<-come[2*ticks/3]
	second := c.leader()
	c.closeNodes(second)
	c.openNodes(dead, second)
	for _, id := range []uint64{dead, second} {
		wg.Go(func() { claim(id, c.node(id), 0) }) // a restarted one begins anew
	}
	wg.Wait()
	for tick := range int64(ticks) {
		require.LessOrEqual(t, won[tick], 1, "tick %d", tick)
		require.True(t, won[tick] == 1 || lost[tick], "tick %d was won by nobody, and no node died with it", tick)
	}
	for _, id := range c.ids() {
		jobs, err := c.node(id).Jobs(soon(t), "")
		require.NoError(t, err)
		require.Len(t, jobs, 1)
		require.EqualValues(t, ticks-1, jobs[0].Tick, "on replica %d", id)
	}
	ok, err := c.node(dead).ClaimTick(soon(t), "nightly", ticks-1)
	require.NoError(t, err)
	require.False(t, ok)
}
