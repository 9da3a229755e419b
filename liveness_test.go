package quorumlock

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/sessions"
)

// However long a ttl is, a lease is found to be over soon enough: the leader may have
// died together with the holder, and the next one counts a whole lease. And however
// late a look is in an ordinary process, it is not taken for a stall.
func TestLookEvery(t *testing.T) {
	for _, election := range []time.Duration{minElectionTimeout, DefaultElectionTimeout, 7 * time.Second} {
		require.Equal(t, election/5, lookEvery(election, 0))
		require.Equal(t, election/10, lookEvery(election, ttlElections*election))
		for ttl := ttlElections * election; ttl <= maxTTL; ttl += ttl / 8 {
			every := lookEvery(election, ttl)
			if every < election/10 || every > election/5 {
				t.Fatalf("ttl %v, election timeout %v: a look each %v", ttl, election, every)
			}
			if every > max(sessions.Lease(ttl)/40, election/10) {
				t.Fatalf("ttl %v, election timeout %v: a look each %v", ttl, election, every)
			}
			// At the shortest ttl, election and lease are all of it.
			if free := election + sessions.Lease(ttl) + every; free > ttl+election/10 {
				t.Fatalf("ttl %v, election timeout %v: free after %v", ttl, election, free)
			}
		}
	}
}

// A crashed holder's locks come free a lease and a look after its last renewal.
func TestCrashedHolderIsFoundAtTheNextLook(t *testing.T) {
	for _, ttl := range []time.Duration{5 * time.Second, DefaultSessionTTL, time.Minute} {
		inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
			leader, _ := nodes[1].groups[0].engine.leader()
			holder, next := nodes[leader%5+1], nodes[(leader+1)%5+1]
			s, err := holder.OpenSession(soon(t), WithTTL(ttl))
			require.NoError(t, err)
			_, err = s.Acquire(soon(t), "job")
			require.NoError(t, err)
			require.NoError(t, holder.Close())
			synctest.Wait()
			closed := time.Now()
			_, err = next.Acquire(soon(t), "job")
			require.NoError(t, err)
			require.Less(t, time.Since(closed), sessions.Lease(ttl)+lookEvery(DefaultElectionTimeout, ttl)+100*time.Millisecond)
			require.Greater(t, time.Since(closed), sessions.Trust(ttl)-time.Second)
		})
	}
}
