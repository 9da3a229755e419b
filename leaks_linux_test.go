package quorumlock

import (
	"os"
	"path/filepath"
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
			ctx := shortly(t, 20*time.Millisecond)
			_, _ = c.node(leader).Describe(ctx, "job") // it cannot be asked
			c.faults.Heal()
			if i%5 == 0 {
				to := c.followers()[0]
				_ = c.node(to).TransferLeadership(shortly(t, time.Second), to) // it may well fail
			}
		}
		for i := range restarts {
			id := uint64(i%5) + 1
			c.closeNodes(id)
			c.openNodes(id)
		}
		goesOn(t, c.nodes)
	}
	// A start begins a segment of the log; those of the last starts are kept open, up to
	// 64 MiB of them (internal/raftlog), and are no loss's.
	count := func() (descriptors, goroutines int) {
		open, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		for _, d := range open {
			if to, err := os.Readlink("/proc/self/fd/" + d.Name()); err == nil && filepath.Ext(to) != ".log" {
				descriptors++
			}
		}
		return descriptors, runtime.NumGoroutine()
	}
	losses(10, 5)
	descriptors, goroutines := count()
	losses(sized(100, 20), 5)
	var nowD, nowG int
	// Between each two there may be a connection each way, which ends here twice.
	eventually(t, "no more than before, but for connections", func() bool {
		nowD, nowG = count()
		return nowD <= descriptors+20 && nowG <= goroutines+20
	})
	t.Logf("descriptors %d, then %d; goroutines %d, then %d", descriptors, nowD, goroutines, nowG)
}
