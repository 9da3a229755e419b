package quorumlock

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// descriptors is how many files this process has open, but for the segments of logs: each
// start leaves one, up to a bound of which package raftlog has a test.
func descriptors(t *testing.T) int {
	t.Helper()
	const all = "/proc/self/fd"
	names, err := os.ReadDir(all)
	require.NoError(t, err)
	n := 0
	for _, name := range names {
		file, err := os.Readlink(filepath.Join(all, name.Name()))
		if err == nil && filepath.Ext(file) != ".log" {
			n++
		}
	}
	return n
}

// Losses and recoveries on the real engine leave no descriptor and no goroutine: of the
// holders on all five replicas when three are cut off, and of a replica that goes and comes
// back. With longVar set there are a hundred losses, which take half a minute.
func TestLossesLeaveNoDescriptors(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for leases to end")
	}
	files, goroutines := descriptors(t), runtime.NumGoroutine()
	c := newCluster(t, brisk)
	losses := func(rounds int) {
		for i := range rounds {
			var held []*Hold
			for _, id := range c.ids() {
				h, err := c.node(id).Acquire(soon(t), fmt.Sprint("of ", id))
				require.NoError(t, err)
				held = append(held, h)
			}
			for _, id := range []uint64{1, 2, 3} {
				c.faults.Isolate(id)
			}
			for _, h := range held {
				<-h.Done()
				require.ErrorIs(t, h.Err(), ErrLost)
			}
			c.faults.Heal()
			again := uint64(i%5) + 1
			c.closeNodes(again)
			c.openNodes(again)
		}
		goesOn(t, c.nodes)
	}
	losses(1)
	opened, running := descriptors(t), runtime.NumGoroutine()
	rounds := 2
	if os.Getenv(longVar) != "" {
		rounds = 20
	}
	began := time.Now()
	losses(rounds)
	t.Logf("descriptors: %d of none, %d of five replicas, %d after %d losses in %v; goroutines: %d, %d, %d",
		files, opened, descriptors(t), 5*rounds, time.Since(began), goroutines, running, runtime.NumGoroutine())
	// Each of the ten pairs has from one to four connections, of two descriptors each, and
	// two goroutines.
	eventually(t, "no more than connections explain", func() bool {
		return descriptors(t) <= opened+60 && runtime.NumGoroutine() <= running+80
	})
	c.closeNodes(c.ids()...)
	eventually(t, "nothing left", func() bool {
		return descriptors(t) <= files && runtime.NumGoroutine() <= goroutines
	})
}
