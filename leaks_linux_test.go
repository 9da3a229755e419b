package quorumlock

import (
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Links that are lost for a moment, leaders that change and replicas that restart leave
// no descriptor and no goroutine, on the real engine.
func TestLossesLeaveNoDescriptor(t *testing.T) {
	c := newCluster(t, brisk)
	losses := func(links, restarts int) {
		for i := range links {
			leader := c.leader()
			c.faults.Isolate(leader)
			ctx := shortly(t, 50*time.Millisecond)
			_, _ = c.node(leader).Describe(ctx, "job") // it cannot be asked
			c.faults.Heal()
			to := uint64(i%5) + 1
			_ = c.node(to).TransferLeadership(shortly(t, time.Second), to) // it may well fail
		}
		for i := range restarts {
			id := uint64(i%5) + 1
			c.closeNodes(id)
			c.openNodes(id)
		}
		goesOn(t, c.nodes)
	}
	count := func() (descriptors, goroutines int) {
		open, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return len(open), runtime.NumGoroutine()
	}
	losses(10, 5)
	descriptors, goroutines := count()
	losses(sized(100, 20), sized(20, 5))
	var nowD, nowG int
	eventually(t, "as few as before, but for one spare connection each way between each two", func() bool {
		nowD, nowG = count()
		return nowD <= descriptors+20 && nowG <= goroutines+20
	})
	t.Logf("descriptors %d, then %d; goroutines %d, then %d", descriptors, nowD, goroutines, nowG)
}
