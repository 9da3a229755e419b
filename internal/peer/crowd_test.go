package peer

import (
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// standing is what a crowd might leave behind.
type standing struct{ goroutines, heap, files int }

func stand(t *testing.T) standing {
	t.Helper()
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	s := standing{goroutines: runtime.NumGoroutine(), heap: int(m.HeapAlloc)}
	if runtime.GOOS == "linux" {
		all, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		s.files = len(all)
	}
	return s
}

// Ten thousand senders of garbage, of which every fourth then just stays, have never more
// than a bounded number of goroutines, and leave nothing.
func TestCrowdLeavesNothing(t *testing.T) {
	b := setup{id: Identity{Replica: 2}}.start(t)
	crowd := 10_000
	if testing.Short() {
		crowd = 1_000
	}
	const senders = 8
	before, most := stand(t), 0
	var busy sync.WaitGroup
	for s := range senders {
		busy.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(s), 1))
			junk := make([]byte, 4096)
			var stay net.Conn
			for i := range crowd / senders {
				conn, err := net.Dial("tcp", b.addr)
				if err != nil {
					t.Error(err)
					return
				}
				for j := range junk {
					junk[j] = byte(rng.Uint32())
				}
				if i%2 == 0 { // framed as it should be, and a lie about the rest
					copy(junk, frameWith(kindHello, rng.Uint32(), rng.Uint32(), nil))
				}
				_, _ = conn.Write(junk[:rng.IntN(len(junk))])
				if i%4 != 0 {
					_ = conn.Close()
					continue
				}
				if stay != nil {
					_ = stay.Close()
				}
				stay = conn
			}
			if stay != nil {
				_ = stay.Close()
			}
		})
	}
	done := make(chan struct{})
	go func() { busy.Wait(); close(done) }()
	for look := time.NewTicker(time.Millisecond); ; {
		select {
		case <-look.C:
			most = max(most, runtime.NumGoroutine())
			continue
		case <-done:
			look.Stop()
		}
		break
	}
	a := setup{id: Identity{Replica: 1}}.start(t)
	_, err := a.dial(t, 2, b)
	require.NoError(t, err)
	require.NoError(t, a.Close())
	after := stand(t)
	for late := time.Now().Add(enough); after.goroutines > before.goroutines || after.files > before.files; after = stand(t) {
		require.False(t, time.Now().After(late), "before: %+v, after: %+v", before, after)
	}
	t.Logf("before: %+v, after %d: %+v, at most %d goroutines", before, crowd, after, most)
	require.Less(t, after.heap-before.heap, 1<<20)
	// On a busy machine some have given their seat back and have yet to end.
	require.Less(t, most, before.goroutines+6*maxStrangers)
}
