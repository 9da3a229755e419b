package quorumlock

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkTLS takes and frees locks at the leader of five replicas in this process,
// with fsync, over plain TCP and over TLS: see docs/PERFORMANCE.md.
func BenchmarkTLS(b *testing.B) {
	ca := newCA(b, "ca")
	for _, callers := range []int{1, 2000} {
		for _, secure := range []bool{false, true} {
			b.Run(fmt.Sprintf("callers=%d/tls=%t", callers, secure), func(b *testing.B) {
				c := newCluster(b, func(o *Options) {
					o.faults = nil
					if secure {
						o.TLS = putTLS(b, b.TempDir(), []string{"127.0.0.1"}, ca, ca)
					}
				})
				leader := c.node(c.leader())
				pair := func(name string) {
					hold, err := leader.Acquire(b.Context(), name)
					if err == nil {
						err = hold.Release(b.Context())
					}
					require.NoError(b, err)
				}
				pair("warm")
				b.ResetTimer()
				var all sync.WaitGroup
				for i := range callers {
					all.Go(func() {
						for range b.N/callers + min(1, max(0, b.N%callers-i)) {
							pair(fmt.Sprint("a name of about sixty bytes, as the other benchmarks have ", i))
						}
					})
				}
				all.Wait()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pairs/s")
			})
		}
	}
}
