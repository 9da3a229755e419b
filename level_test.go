package quorumlock

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// inOldSim runs five nodes that speak only the lowest level over a simulated log. open
// starts a replica anew, as one that speaks a level.
func inOldSim(t *testing.T, test func(t *testing.T, s *sim, nodes map[uint64]*Node, open func(id uint64, level byte) *Node)) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(1, 5)
		nodes := make(map[uint64]*Node)
		open := func(id uint64, level byte) *Node {
			if n := nodes[id]; n != nil {
				require.NoError(t, n.Close())
			}
			o := s.options(id)
			o.level = level
			nodes[id] = s.open(t, o)
			return nodes[id]
		}
		for id := range s.replicas {
			open(id, 2)
		}
		defer func() {
			for _, n := range nodes {
				require.NoError(t, n.Close())
			}
		}()
		for _, n := range nodes {
			require.NoError(t, n.Ready(soon(t)))
		}
		test(t, s, nodes, open)
	})
}

func levelsInForce(nodes map[uint64]*Node) (levels []int) {
	for _, n := range nodes {
		levels = append(levels, n.Status().Level)
	}
	slices.Sort(levels)
	return slices.Compact(levels)
}

// Five replicas are upgraded one by one under load. The level rises with the last of
// them and not before, and until then nobody writes what an older one does not know.
func TestLevelRisesWithTheLastReplica(t *testing.T) {
	inOldSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node, open func(uint64, byte) *Node) {
		var mu sync.Mutex
		versions := make(map[byte]int) // how many entries the log got of each, since the last look
		s.alter(func() {
			s.committed = func(entry []byte) {
				mu.Lock()
				defer mu.Unlock()
				versions[wire.VersionOf(entry)]++
			}
		})
		look := func() map[byte]int {
			mu.Lock()
			defer mu.Unlock()
			was := versions
			versions = make(map[byte]int)
			return was
		}
		var last fencing.Token
		load := func() {
			for _, n := range nodes {
				require.NoError(t, n.Do(soon(t), "job", func(_ context.Context, token fencing.Token) error {
					require.Greater(t, token, last)
					last = token
					return nil
				}, MaxWaiters(9)))
			}
		}
		for id := uint64(1); id <= 5; id++ {
			load()
			elapse(10 * DefaultElectionTimeout)
			require.Equal(t, []int{2}, levelsInForce(nodes), "replica %d is of the old version", id)
			require.Zero(t, look()[3])
			require.EqualValues(t, 2, snapshotOf(t, nodes[id])[0], "an old one could be sent it")
			require.NoError(t, open(id, 3).Ready(soon(t)))
			require.Equal(t, 3, nodes[id].Status().MaxLevel)
			all, err := nodes[1].Members(soon(t))
			require.NoError(t, err)
			for _, m := range all {
				require.Equal(t, m.ID <= id, m.MaxLevel == 3, "replica %d speaks %d", m.ID, m.MaxLevel)
			}
		}
		elapse(3 * DefaultElectionTimeout)
		synctest.Wait()
		require.Equal(t, []int{3}, levelsInForce(nodes))
		require.Equal(t, 1, look()[3], "one entry says so")
		require.EqualValues(t, 3, snapshotOf(t, nodes[1])[0])
		load()
		settled(t, nodes)

		// One that is started as what it was stops there, and nobody else is harmed.
		old := open(4, 2)
		require.ErrorIs(t, old.Ready(soon(t)), ErrFormat)
		require.ErrorContains(t, old.Ready(soon(t)), "level 3, and this version knows no more than 2")
		_, err := old.Acquire(soon(t), "other")
		require.ErrorIs(t, err, ErrFormat)
		for id, n := range nodes {
			if id != 4 {
				require.NoError(t, n.Do(soon(t), "job", func(context.Context, fencing.Token) error { return nil }))
			}
		}
		require.NoError(t, open(4, 3).Ready(soon(t)))
		load()
		settled(t, nodes)
	})
}

// A replica that is down, or cut off, may come back as what it was: it holds the level
// back, whatever it spoke before.
func TestAReplicaThatIsDownHoldsTheLevelBack(t *testing.T) {
	inOldSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node, open func(uint64, byte) *Node) {
		s.cut(5)
		for id := uint64(1); id <= 5; id++ {
			n := open(id, 3)
			if id != 5 {
				require.NoError(t, n.Ready(soon(t)))
			}
		}
		elapse(10 * DefaultElectionTimeout)
		require.Equal(t, []int{2}, levelsInForce(nodes))
		s.heal()
		require.NoError(t, nodes[5].Ready(soon(t)))
		elapse(3 * DefaultElectionTimeout)
		synctest.Wait()
		require.Equal(t, []int{3}, levelsInForce(nodes))
	})
}

// One that was down while the level was raised and the log was cut is sent a snapshot that
// it does not know. It stops as one that meets an entry does, its process lives, and as a
// new version it goes on from there.
func TestOldReplicaIsSentANewerSnapshot(t *testing.T) {
	before := tuning
	tuning.snapshotEntries, tuning.compactionOverhead = 30, 5
	defer func() { tuning = before }()
	c := newCluster(t, brisk)
	eventually(t, "the level rises", func() bool { return slices.Equal(levelsInForce(c.nodes), []int{3}) })
	c.closeNodes(5)
	for range 40 {
		goesOn(t, c.nodes)
	}
	o := c.options[5]
	o.level = 2
	old, err := Open(o)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.ErrorIs(t, old.Ready(ctx), ErrFormat)
	require.ErrorContains(t, old.Ready(ctx), "level 3, and this version knows no more than 2")
	goesOn(t, c.nodes)
	require.NoError(t, old.Close())
	c.openNodes(5)
	goesOn(t, c.nodes)
	settled(t, c.nodes)
}

// The level is raised to what all speak, though some speak more.
func TestLevelIsThatOfTheLeast(t *testing.T) {
	inOldSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node, open func(uint64, byte) *Node) {
		for id := uint64(1); id <= 5; id++ {
			require.NoError(t, open(id, 3+byte(id%2)).Ready(soon(t)))
		}
		elapse(5 * DefaultElectionTimeout)
		require.Equal(t, []int{3}, levelsInForce(nodes))
		for _, n := range nodes {
			require.NoError(t, n.Status().Err)
		}
	})
}

// One that has stopped at a level that it does not know does not keep the lead, in which it
// would end nobody's session.
func TestStoppedReplicaDoesNotLead(t *testing.T) {
	inOldSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node, open func(uint64, byte) *Node) {
		for id := uint64(1); id <= 5; id++ {
			require.NoError(t, open(id, 3).Ready(soon(t)))
		}
		elapse(3 * DefaultElectionTimeout)
		require.Equal(t, []int{3}, levelsInForce(nodes))
		require.ErrorIs(t, open(4, 2).Ready(soon(t)), ErrFormat)
		_, err := nodes[5].Acquire(soon(t), "job")
		require.NoError(t, err)
		for range 3 {
			s.alter(func() { s.lead(4) })
			elapse(DefaultElectionTimeout)
			leader, _ := nodes[1].groups[0].engine.leader()
			require.NotEqual(t, uint64(4), leader)
		}
		require.NoError(t, nodes[5].Close())
		h, err := nodes[1].Acquire(soon(t), "job")
		require.NoError(t, err, "the dead holder's session is ended")
		require.NoError(t, h.Release(soon(t)))
	})
}
