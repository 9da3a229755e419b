package quorumlock

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// joins opens a replica of the simulation that is added later.
func (s *sim) joins(t testing.TB, id uint64, change func(*Options)) *Node {
	o := s.options(id)
	change(&o)
	return s.open(t, o)
}

func (s *sim) movesMade() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.moves
}

// What cannot be is refused, says why, and changes nothing.
func TestMembersChangeRefused(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		ctx := soon(t)
		n := nodes[1]
		var moves uint64 // that were made
		made := func(err error) {
			t.Helper()
			require.NoError(t, err)
			moves = s.movesMade()
		}
		refused := func(why error, err error) {
			t.Helper()
			require.ErrorIs(t, err, why)
			require.Equal(t, moves, s.movesMade())
		}
		refused(ErrMember, n.AddReplica(ctx, 0, "sim:9"))
		refused(ErrMember, n.AddReplica(ctx, 9, ""))
		refused(ErrMember, n.AddReplica(ctx, 9, "no port"))
		refused(ErrMember, n.AddReplica(ctx, 9, "sim:2"))
		refused(ErrNotMember, n.RemoveReplica(ctx, 9))
		refused(ErrNotMember, n.ReplaceReplica(ctx, 9, 10, "sim:10"))
		alive := n.ReplaceReplica(ctx, 2, 10, "sim:10")
		refused(ErrReplicaAlive, alive)
		require.ErrorContains(t, alive, "2 was heard within the last 2s")
		refused(ErrUsedReplica, n.ReplaceReplica(ctx, 2, 2, "sim:10"))
		refused(ErrMember, n.ReplaceReplica(ctx, 2, 10, "sim:3"))
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		for _, err := range []error{n.AddReplica(gone, 9, "sim:9"), n.RemoveReplica(gone, 2), n.ReplaceReplica(gone, 2, 9, "sim:9")} {
			refused(context.Canceled, err)
		}
		//lint:ignore SA1012 that is what is tested
		refused(ErrNilContext, n.RemoveReplica(nil, 2)) //nolint

		// With two of five cut off, three are left, and all are needed.
		s.cut(4, 5)
		refused(ErrMajority, n.RemoveReplica(ctx, 3))
		refused(ErrMajority, n.RemoveReplica(ctx, 1))
		short, stop := context.WithTimeout(ctx, time.Second)
		defer stop()
		err := nodes[4].RemoveReplica(short, 1)
		refused(ErrNoQuorum, err)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		// What is wrong with the new one is found before the dead one is gone.
		refused(ErrMember, n.ReplaceReplica(ctx, 4, 3, "sim:3"))
		refused(ErrMember, n.ReplaceReplica(ctx, 4, 3, "sim:9"))
		made(n.RemoveReplica(ctx, 4)) // the dead may go
		made(n.RemoveReplica(ctx, 4)) // it is gone
		refused(ErrUsedReplica, n.AddReplica(ctx, 4, "sim:9"))
		refused(ErrMember, n.AddReplica(ctx, 4, "sim:9"))
		refused(ErrUsedReplica, n.ReplaceReplica(ctx, 5, 4, "sim:9"))

		for _, id := range []uint64{5, 3, 2} {
			made(n.RemoveReplica(ctx, id))
		}
		err = n.RemoveReplica(ctx, 1)
		refused(ErrLastVoter, err)
		require.ErrorContains(t, err, "1; of the members [1] nobody else votes")
		require.ErrorIs(t, nodes[2].Status().Err, ErrRemoved)
	})
}

// A replica that joins has no vote while five have one, takes one that comes free, and
// takes none if its options say so.
func TestMembersTakeVotes(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		ctx := soon(t)
		for id := uint64(6); id <= 7; id++ {
			require.NoError(t, nodes[1].AddReplica(ctx, id, fmt.Sprint("sim:", id)))
		}
		nodes[6] = s.joins(t, 6, func(o *Options) { o.NonVoting = true })
		nodes[7] = s.joins(t, 7, func(*Options) {})
		require.NoError(t, nodes[7].Ready(ctx))
		require.NoError(t, nodes[6].Ready(ctx))
		elapse(3 * memberPause)
		require.Len(t, nodes[1].Status().Members, 5)
		require.NoError(t, nodes[1].RemoveReplica(ctx, 2))
		elapse(time.Second)
		require.Contains(t, nodes[1].Status().Members, uint64(7))
		require.NoError(t, nodes[1].RemoveReplica(ctx, 3))
		elapse(3 * memberPause)
		require.Len(t, nodes[1].Status().Members, 4)
		require.NotContains(t, nodes[1].Status().Members, uint64(6))
	})
}

// Whatever is asked at the same time, and whatever the log loses or does later, never
// more than five have a vote, never none, and whoever answers at the end agrees.
func TestMembersChangedAtOnce(t *testing.T) {
	for _, seed := range seeds(t, 20) {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(seed, 5)
			nodes := s.openAll(t)
			defer func() {
				if t.Failed() {
					t.Logf("%s=%d", seedVar, seed)
				}
				for _, n := range nodes {
					require.NoError(t, n.Close())
				}
			}()
			var most, least = 5, 5
			s.altered = func(memberChange) {
				most, least = max(most, len(s.voters())), min(least, len(s.voters()))
			}
			s.alter(func() { s.faults = simFaults{drop: 0.2, late: 0.2, duplicate: 0.1, delay: 20 * time.Millisecond} })
			for id := uint64(6); id <= 11; id++ {
				nodes[id] = s.joins(t, id, func(*Options) {})
			}
			var asking sync.WaitGroup
			for i := range uint64(3) {
				rng := rand.New(rand.NewPCG(seed, i))
				asking.Go(func() {
					for range 4 {
						ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
						n := nodes[1+rng.Uint64N(5)]
						switch id := 6 + rng.Uint64N(6); rng.IntN(3) {
						case 0:
							_ = n.RemoveReplica(ctx, 1+rng.Uint64N(11))
						default:
							_ = n.AddReplica(ctx, id, fmt.Sprint("sim:", id))
						}
						cancel()
					}
				})
			}
			asking.Wait()
			s.alter(func() { s.faults = simFaults{} })
			elapse(3 * memberPause)
			s.mu.Lock()
			gone, votes, voters := maps.Clone(s.gone), maps.Clone(s.votes), s.voters()
			s.mu.Unlock()
			require.LessOrEqual(t, most, MaxVoters)
			require.Positive(t, least)
			for id, n := range nodes {
				if gone[id] {
					require.ErrorIs(t, n.Status().Err, ErrRemoved)
				} else if _, member := votes[id]; member {
					m, err := n.groups[0].membership(soon(t))
					require.NoError(t, err)
					require.Equal(t, voters, m.voters())
					require.Len(t, m.voters(), min(len(m.members), MaxVoters), "all that may vote do")
				}
			}
		})
	}
}

// A warning names the zone whose loss would take the majority: 2-2-1 is right.
func TestZoneRisk(t *testing.T) {
	tests := map[string]string{ // the zones of replicas 1, 2, …
		"aabbc":   "",
		"abcde":   "",
		"-----":   "",
		"aa---":   "",
		"aaa--":   `zone "a" has 3 of 5 votes`,
		"aaabb":   `zone "a" has 3 of 5 votes`,
		"aaaaa":   `zone "a" has 5 of 5 votes`,
		"aabb":    `zone "a" has 2 of 4 votes`,
		"abb":     `zone "b" has 2 of 3 votes`,
		"abc":     "",
		"aa":      "",
		"a":       "",
		"aabbcc-": "",
	}
	for zones, want := range tests {
		n := &Node{host: zoned{zones: zones}}
		voters := make(map[uint64]string)
		for i := range zones {
			voters[uint64(i+1)] = ""
		}
		risk := n.zoneRisk(voters)
		if want == "" {
			require.Empty(t, risk, zones)
			continue
		}
		require.Contains(t, risk, want, zones)
	}
}

// zoned is a host of which only the zones are asked.
type zoned struct {
	engineHost
	zones string
}

func (z zoned) zone(replica uint64) string {
	if zone := z.zones[replica-1 : replica]; zone != "-" {
		return zone
	}
	return ""
}

// The log says so when a change of the members puts the majority in one zone, once, and
// Status for as long as it lasts.
func TestZoneWarning(t *testing.T) {
	var out lines
	inSimWith(t, func(o *Options, _ func() time.Duration) {
		o.Zone = string(" aabbc"[o.ReplicaID])
		if o.ReplicaID == 1 {
			o.Logger = out.logger()
		}
	}, func(t *testing.T, s *sim, nodes map[uint64]*Node, _ func(time.Duration)) {
		elapse(3 * memberPause)
		require.Empty(t, nodes[1].Status().Warnings)
		require.False(t, out.has("msg=zones"))
		require.NoError(t, nodes[2].RemoveReplica(soon(t), 5))
		elapse(3 * memberPause)
		require.Len(t, nodes[1].Status().Warnings, 1)
		require.True(t, out.has("msg=zones", "has 2 of 4 votes"))
		require.NoError(t, nodes[2].RemoveReplica(soon(t), 4))
		require.NoError(t, nodes[1].RemoveReplica(soon(t), 2))
		elapse(3 * memberPause)
		require.Empty(t, nodes[1].Status().Warnings)
	})
}

// outOfTheFirst has replicas removed from the first group only, as calls do that are cut
// short.
func outOfTheFirst(t *testing.T, n *Node, ids ...uint64) {
	first := n.groups[0]
	for _, id := range ids {
		m, err := first.membership(soon(t))
		require.NoError(t, err)
		require.NoError(t, first.engine.change(soon(t), m.last, memberChange{removeMember, id}))
	}
}

// allMoves is how many changes of the members were made in each group.
func (s *sim) allMoves(groups int) (all []uint64) {
	for _, own := range s.all(groups) {
		all = append(all, own.movesMade())
	}
	return all
}

// Calls that were cut short have left the groups with other members: in the first one
// 3 can be spared, and the address of 5 is free; in the others neither is so. What is refused
// there is not begun in the first.
func TestMembersRefusedByALaterGroup(t *testing.T) {
	inGroups(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		ctx := soon(t)
		outOfTheFirst(t, nodes[1], 4, 5)
		s.cut(4, 5)
		require.Equal(t, []uint64{2, 0, 0}, s.allMoves(3))
		require.ErrorIs(t, nodes[1].RemoveReplica(ctx, 3), ErrMajority)
		require.ErrorIs(t, nodes[3].RemoveReplica(ctx, 3), ErrMajority, "by itself")
		require.ErrorIs(t, nodes[1].AddReplica(ctx, 6, "sim:5"), ErrMember)
		require.ErrorIs(t, nodes[1].ReplaceReplica(ctx, 4, 6, "sim:5"), ErrMember)
		require.Equal(t, []uint64{2, 0, 0}, s.allMoves(3), "nothing was changed")

		for i, id := range []uint64{4, 5, 3} { // the dead first
			require.NoError(t, nodes[1].RemoveReplica(ctx, id))
			require.Equal(t, []uint64{max(2, uint64(i+1)), uint64(i + 1), uint64(i + 1)}, s.allMoves(3))
		}
	})
}

// The look at all groups is no promise: what is lost behind it is seen at the turn of each
// group, and the same call goes on once it can.
func TestMembersLostBetweenGroups(t *testing.T) {
	inGroups(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		outOfTheFirst(t, nodes[1], 4, 5)
		s.alter(func() {
			s.altered = func(memberChange) { s.replicas[4].cut, s.replicas[5].cut = true, true }
		})
		require.ErrorIs(t, nodes[1].RemoveReplica(soon(t), 3), ErrMajority)
		require.Equal(t, []uint64{3, 0, 0}, s.allMoves(3))
		s.alter(func() { s.altered = nil })
		s.heal()
		require.NoError(t, nodes[1].RemoveReplica(soon(t), 3))
		require.Equal(t, []uint64{3, 1, 1}, s.allMoves(3))
		require.ErrorIs(t, nodes[3].Status().Err, ErrRemoved)
	})
}
