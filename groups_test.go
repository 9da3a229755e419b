package quorumlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/sessions"
)

// inGroups is inSim with three groups.
func inGroups(t *testing.T, test func(t *testing.T, s *sim, nodes map[uint64]*Node)) {
	inSimWith(t, func(o *Options, _ func() time.Duration) { o.Groups = 3 },
		func(t *testing.T, s *sim, nodes map[uint64]*Node, _ func(time.Duration)) { test(t, s, nodes) })
}

// nameIn returns a name of a group that begins with a prefix.
func nameIn(n *Node, group int, prefix string) string {
	for i := 0; ; i++ {
		if name := fmt.Sprint(prefix, i); n.groupOf(name) == n.groups[group] {
			return name
		}
	}
}

// Which group a name belongs to is for ever, and each of them gets its part, also in
// each page of its table.
func TestGroupOfAName(t *testing.T) {
	n := new(Node)
	for i := range 8 {
		n.groups = append(n.groups, &group{index: i})
	}
	for name, want := range map[string]int{"a": 4, "job": 4, "invoice/4711": 0, "orders/eu/17": 3, "名前": 6} {
		require.Equal(t, want, n.groupOf(name).index, name)
	}
	const names = 80_000
	for _, pattern := range []string{"lock-%d", "order/%08d/lines", "%d"} {
		counts, used, places := make([]int, 8), make([]map[int]bool, 8), make([]map[uint32]bool, 8)
		for i := range names {
			name := fmt.Sprintf(pattern, i)
			g := n.groupOf(name).index
			if counts[g]++; used[g] == nil {
				used[g], places[g] = make(map[int]bool), make(map[uint32]bool)
			}
			used[g][pageOf(hashOf(name))] = true
			places[g][hashOf(name)>>24] = true
		}
		for g, count := range counts {
			require.InDelta(t, names/8, count, names/80, "%s in group %d", pattern, g)
			require.Greater(t, len(used[g]), pages*3/4, "%s: pages of group %d", pattern, g)
			require.Len(t, places[g], 1<<8, "%s: places in the pages of group %d", pattern, g)
		}
	}
}

// All calls work on names of all groups, and what is about all names is about all
// groups.
func TestGroupsAreOneCluster(t *testing.T) {
	inGroups(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		ctx := soon(t)
		var names []string
		held := make(map[string]*Hold)
		for i := range 60 {
			name := fmt.Sprintf("job/%02d", i)
			names = append(names, name)
			h, err := nodes[uint64(i%5+1)].Acquire(ctx, name)
			require.NoError(t, err)
			held[name] = h
			_, err = nodes[3].TryAcquire(ctx, name)
			require.ErrorIs(t, err, ErrHeld)
		}
		for page, after := names, ""; len(page) > 0; page = page[min(7, len(page)):] {
			infos, err := nodes[2].List(ctx, "job/", After(after), Limit(7))
			require.NoError(t, err)
			for i, info := range infos {
				require.Equal(t, page[i], info.Name)
				require.Equal(t, held[info.Name].Token(), info.Holders[0].Token)
			}
			require.Len(t, infos, min(7, len(page)))
			after = infos[len(infos)-1].Name
		}
		sessions, err := nodes[2].Sessions(ctx)
		require.NoError(t, err)
		require.Len(t, sessions, 5, "one of each node, whatever the number of groups")
		for i, s := range sessions {
			require.Equal(t, nodes[uint64(i+1)].own.Load().id, s.ID)
			require.Equal(t, 12, s.Holds)
			require.False(t, s.LeaseUntil.IsZero())
		}
		status := nodes[2].Status() // it has just been asked, and so has applied all
		require.Len(t, status.Groups, 3)
		require.Equal(t, 60, status.Locks)
		for _, g := range status.Groups {
			require.NotZero(t, g.Leader)
			require.Positive(t, g.Locks)
		}
		for _, name := range names {
			require.NoError(t, held[name].Validate(ctx))
			require.NoError(t, held[name].Release(ctx))
		}
		for tick := range int64(3) {
			won, err := nodes[1].ClaimTick(ctx, "nightly", tick)
			require.NoError(t, err)
			require.True(t, won)
			won, err = nodes[2].ClaimTick(ctx, "nightly", tick)
			require.NoError(t, err)
			require.False(t, won)
		}
		_, err = nodes[1].ClaimTick(ctx, nameIn(nodes[1], 2, "hourly"), 1)
		require.NoError(t, err)
		jobs, err := nodes[4].Jobs(ctx, "")
		require.NoError(t, err)
		require.Len(t, jobs, 2)
		settled(t, nodes)
	})
}

// A session is opened in a group when it is first needed there, in the entry that asks
// for the lock, and renewed only where it is open.
func TestSessionIsOpenedWhereItIsNeeded(t *testing.T) {
	inGroups(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		elapse(2 * DefaultElectionTimeout) // the feature level is raised
		n := nodes[1]
		session, err := n.OpenSession(soon(t))
		require.NoError(t, err)
		home := int((session.id.Replica + session.id.Seq) % 3)
		other, idle := (home+1)%3, (home+2)%3
		lengths := func() (l []int) {
			for _, own := range s.all(3) {
				l = append(l, own.length())
			}
			return l
		}
		before := lengths()
		h, err := session.Acquire(soon(t), nameIn(n, other, "job"))
		require.NoError(t, err)
		after := lengths()
		require.Equal(t, 1, after[other]-before[other], "one entry opens the session and takes the lock")
		require.Equal(t, before[home], after[home])
		elapse(time.Minute)
		later := lengths()
		require.Equal(t, after[idle], later[idle], "nothing is renewed where there is nothing")
		for _, g := range []int{home, other} {
			renewals := later[g] - after[g]
			require.InDelta(t, float64(time.Minute/(DefaultSessionTTL*7/30)), float64(renewals), 5)
		}
		require.NoError(t, h.Err())
		require.NoError(t, session.Close(soon(t)))
		require.ErrorIs(t, h.Err(), ErrSessionClosed)
		settled(t, nodes)
	})
}

// When a process is cut off from one group only, its session is over in all: its holds
// are lost before anybody else is granted one, by its own clock; those of the other
// groups are free at once.
func TestSessionLostInOneGroupIsLostInAll(t *testing.T) {
	inGroups(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		n := nodes[1]
		var holds []*Hold
		for g := range 3 {
			h, err := n.Acquire(soon(t), nameIn(n, g, "job"))
			require.NoError(t, err)
			holds = append(holds, h)
		}
		s.all(3)[1].alter(func() { s.others[0].replicas[1].cut = true })
		start := time.Now()
		var wg sync.WaitGroup
		var granted [3]time.Time
		for g, h := range holds {
			wg.Go(func() {
				next, err := nodes[2].Acquire(soon(t), h.Name())
				require.NoError(t, err)
				granted[g] = time.Now()
				require.ErrorIs(t, h.Err(), ErrSessionExpired, "whoever is next, the former holder knows that it is over")
				require.NoError(t, next.Release(soon(t)))
			})
		}
		late := soon(t)
		for _, h := range holds {
			select {
			case <-h.Done():
			case <-late.Done():
				t.Fatal("a hold is still relied on: ", h.Name())
			}
		}
		lost := time.Now()
		require.LessOrEqual(t, lost.Sub(start), DefaultSessionTTL*7/10)
		wg.Wait()
		for g := range 3 {
			require.False(t, granted[g].Before(lost), "group %d", g)
		}
		require.Less(t, granted[0].Sub(lost), time.Second, "where it could be told")
		require.Less(t, granted[2].Sub(lost), time.Second, "where it could be told")
		require.Greater(t, granted[1].Sub(lost), time.Second/2, "where it is cut off the lease runs out")
		s.heal()
		goesOn(t, nodes)
		settled(t, nodes)
	})
}

// A session is forced to end in all groups; where that cannot be told, its own process
// tells it when it hears, and what LockDelay is for is kept.
func TestForceCloseOverGroups(t *testing.T) {
	inGroups(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		n := nodes[1]
		var holds []*Hold
		for g := range 3 {
			h, err := n.Acquire(soon(t), nameIn(n, g, "job"), LockDelay(5*time.Second))
			require.NoError(t, err)
			holds = append(holds, h)
		}
		id := holds[0].Session().ID()
		require.ErrorIs(t, nodes[2].ForceClose(soon(t), sessions.ID{Replica: 1, Epoch: 1, Seq: 99}, "ops", "test"), ErrNotHeld)
		s.others[0].alter(func() { s.others[0].replicas[2].cut = true })
		require.ErrorIs(t, nodes[2].ForceClose(canceled(t, 100*time.Millisecond), id, "ops", "test"), ErrNoQuorum)
		start := time.Now()
		for _, h := range holds {
			<-h.Done()
			var revoked *RevokedError
			require.ErrorAs(t, h.Err(), &revoked)
			require.Equal(t, "ops", revoked.By)
		}
		var wg sync.WaitGroup
		for g, h := range holds {
			wg.Go(func() {
				next, err := nodes[3].Acquire(soon(t), h.Name())
				require.NoError(t, err)
				require.Greater(t, time.Since(start), 4*time.Second, "group %d", g)
				require.NoError(t, next.Release(soon(t)))
			})
		}
		wg.Wait()
		s.heal()
		settled(t, nodes)
	})
}

// A set of names of several groups is one hold.
func TestAcquireAllOverGroups(t *testing.T) {
	inGroups(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		ctx := soon(t)
		n := nodes[1]
		names := []string{nameIn(n, 2, "x"), nameIn(n, 0, "y"), nameIn(n, 0, "z"), nameIn(n, 1, "w")}
		all, err := n.AcquireAll(ctx, names...)
		require.NoError(t, err)
		sorted := slices.Sorted(slices.Values(names))
		require.Equal(t, sorted, all.Names())
		require.Zero(t, all.Token(), "no number is right for all")
		require.Equal(t, Exclusive, all.Mode())
		require.Positive(t, all.Remaining())
		require.NoError(t, all.Validate(ctx))
		require.NoError(t, all.SetValue(ctx, "busy"))
		for _, name := range names {
			info, err := nodes[2].Describe(ctx, name)
			require.NoError(t, err)
			require.Equal(t, info.Holders[0].Token, all.TokenFor(name))
			require.Equal(t, "busy", info.Holders[0].Value)
			_, err = nodes[2].TryAcquire(ctx, name)
			require.ErrorIs(t, err, ErrHeld)
		}
		require.ErrorIs(t, all.Downgrade(ctx), ErrMode)
		require.ErrorIs(t, all.HandOver(ctx, nodes[2].self), ErrMode)
		require.NoError(t, nodes[2].RequestYield(ctx, names[3], "somebody", "please"))
		require.Equal(t, YieldRequest{"somebody", "please"}, <-all.YieldRequests())

		// One that is in the way leaves nothing of the others.
		_, err = nodes[3].TryAcquireAll(ctx, names[1], names[0], "free")
		require.ErrorIs(t, err, ErrHeld)
		for _, g := range []int{0, 1} {
			h, err := nodes[4].TryAcquire(ctx, nameIn(n, g, "other"))
			require.NoError(t, err)
			_, err = nodes[3].TryAcquireAll(ctx, nameIn(n, g, "other"), names[0])
			require.ErrorIs(t, err, ErrHeld)
			require.NoError(t, h.Release(ctx))
		}
		require.Zero(t, nodes[3].claims())

		require.NoError(t, all.Release(ctx))
		require.NoError(t, all.Release(ctx))
		require.ErrorIs(t, all.Err(), ErrNotHeld)
		again, err := nodes[2].TryAcquireAll(ctx, names...)
		require.NoError(t, err)
		for _, name := range names {
			require.Greater(t, again.TokenFor(name), all.TokenFor(name))
		}
		require.NoError(t, again.Release(ctx))
		settled(t, nodes)
	})
}

// claims is how many acquisitions of the process there are.
func (n *Node) claims() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.claimCount()
}

// A set is lost with any of its parts, and what is left of it is given back; so it is
// while the set still waits for the rest.
func TestSetOverGroupsIsLostWhole(t *testing.T) {
	inGroups(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		ctx := soon(t)
		n := nodes[1]
		names := []string{nameIn(n, 0, "a"), nameIn(n, 1, "b"), nameIn(n, 2, "c")}
		for _, lost := range names {
			all, err := n.AcquireAll(ctx, names...)
			require.NoError(t, err)
			held, cancel := all.Context(ctx)
			defer cancel()
			require.NoError(t, nodes[2].ForceRelease(ctx, lost, all.TokenFor(lost), "ops", "test"))
			<-held.Done()
			require.ErrorIs(t, context.Cause(held), ErrRevoked)
			<-all.Done()
			var is *LostError
			require.ErrorAs(t, all.Err(), &is)
			require.Equal(t, lost, is.Name)
			require.ErrorIs(t, all.Release(ctx), ErrRevoked)
			next, err := nodes[3].AcquireAll(ctx, names...)
			require.NoError(t, err)
			require.NoError(t, next.Release(ctx))
		}

		busy, err := nodes[2].Acquire(ctx, names[1])
		require.NoError(t, err)
		got := make(chan error)
		go func() {
			_, err := n.AcquireAll(ctx, names...)
			got <- err
		}()
		synctest.Wait()
		info, err := nodes[2].Describe(ctx, names[0])
		require.NoError(t, err)
		require.Len(t, info.Holders, 1, "the first is held while it waits for the second")
		free, err := nodes[3].TryAcquire(ctx, names[2])
		require.NoError(t, err, "and the third is not taken yet")
		require.NoError(t, nodes[2].ForceRelease(ctx, names[0], info.Holders[0].Token, "ops", "test"))
		err = <-got
		require.ErrorIs(t, err, ErrLost)
		require.ErrorIs(t, err, ErrRevoked)
		require.NotErrorIs(t, err, context.Canceled)
		require.NoError(t, busy.Release(ctx))
		require.NoError(t, free.Release(ctx))

		// The session's end takes all of it; so does the node's.
		all, err := n.AcquireAll(ctx, names...)
		require.NoError(t, err)
		require.NoError(t, all.Session().Close(ctx))
		require.ErrorIs(t, all.Err(), ErrSessionClosed)
		settled(t, nodes)
		all, err = n.AcquireAll(ctx, names...)
		require.NoError(t, err)
		require.NoError(t, n.Shutdown(ctx))
		require.ErrorIs(t, all.Err(), ErrClosed)
		require.ErrorIs(t, all.Release(ctx), ErrClosed)
		next, err := nodes[3].TryAcquireAll(ctx, names...)
		require.NoError(t, err)
		require.NoError(t, next.Release(ctx))
	})
}

// A caller of a set whose ctx ends leaves nothing, in whichever group it waited.
func TestSetOverGroupsGivesUp(t *testing.T) {
	inGroups(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		n := nodes[1]
		names := []string{nameIn(n, 0, "a"), nameIn(n, 1, "b"), nameIn(n, 2, "c")}
		for _, name := range names {
			busy, err := nodes[2].Acquire(soon(t), name)
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			start := time.Now()
			_, err = n.AcquireAll(ctx, names...)
			cancel()
			require.ErrorIs(t, err, ErrHeld)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Equal(t, time.Second, time.Since(start))
			require.NoError(t, busy.Release(soon(t)))
			settled(t, nodes)
		}
	})
}

// Who waits for the release of a set when its node is closed is told so, once.
func TestSetOverGroupsIsReleasedAtTheEnd(t *testing.T) {
	inGroups(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		n := nodes[1]
		h, err := n.AcquireAll(soon(t), nameIn(n, 0, "a"), nameIn(n, 1, "b"), nameIn(n, 2, "c"))
		require.NoError(t, err)
		s.cut(1)
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() { require.ErrorIs(t, h.Release(soon(t)), ErrClosed) })
		}
		synctest.Wait()
		require.NoError(t, n.Close())
		wg.Wait()
	})
}

// Whatever sets are asked for, in whatever order their names are given, nobody waits for
// ever, and no two hold one name.
func TestSetsOverGroupsCannotDeadlock(t *testing.T) {
	seed := seeds(t, 1)[0]
	inGroups(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		s.alterAll(func(s *sim) { s.faults = simFaults{drop: 0.05, duplicate: 0.1, delay: 5 * time.Millisecond} })
		ctx := soon(t)
		var mu sync.Mutex
		owner := make(map[string]int)
		var wg sync.WaitGroup
		for k := range 20 {
			rng := rand.New(rand.NewPCG(seed, uint64(k)))
			n := nodes[uint64(k%5+1)]
			wg.Go(func() {
				for range 5 {
					names := manyNames(10)
					rng.Shuffle(10, func(i, j int) { names[i], names[j] = names[j], names[i] })
					names = names[:1+rng.IntN(5)]
					all, err := n.AcquireAll(ctx, names...)
					require.NoError(t, err, "seed %d", seed)
					mu.Lock()
					for _, name := range names {
						require.Zero(t, owner[name], "seed %d", seed)
						owner[name] = k + 1
					}
					mu.Unlock()
					elapse(time.Duration(rng.IntN(20)) * time.Millisecond)
					require.NoError(t, all.Err())
					mu.Lock()
					for _, name := range names {
						owner[name] = 0
					}
					mu.Unlock()
					require.NoError(t, all.Release(ctx))
				}
			})
		}
		wg.Wait()
		settled(t, nodes)
	})
}

// Who watches sees every group, whole before it is told that it is, and the changes of
// each name in their order.
func TestWatchOverGroups(t *testing.T) {
	inGroups(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		ctx := soon(t)
		n := nodes[1]
		var names []string
		for g := range 3 {
			names = append(names, nameIn(n, g, "before"), nameIn(n, g, "after"))
		}
		for i := 0; i < len(names); i += 2 {
			_, err := n.Acquire(ctx, names[i])
			require.NoError(t, err)
		}
		tokens := make(map[string]uint64)
		kinds := make(map[string][]EventKind)
		watching, stop := context.WithCancel(ctx)
		synced := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for e, err := range nodes[2].Watch(watching, "") {
				if err != nil {
					require.ErrorIs(t, err, context.Canceled)
					return
				}
				switch e.Kind {
				case EventPicture:
					for _, l := range e.Locks {
						tokens[l.Name] = uint64(l.Holders[0].Token)
					}
				case EventSynced:
					require.Len(t, tokens, 3)
					close(synced)
				default:
					kinds[e.Name] = append(kinds[e.Name], e.Kind)
				}
			}
		})
		<-synced
		for range 20 {
			for i := 1; i < len(names); i += 2 {
				h, err := n.Acquire(ctx, names[i])
				require.NoError(t, err)
				require.NoError(t, h.Release(ctx))
			}
		}
		synctest.Wait()
		stop()
		wg.Wait()
		for i := 1; i < len(names); i += 2 {
			require.Len(t, kinds[names[i]], 40)
			for k, kind := range kinds[names[i]] {
				require.Equal(t, []EventKind{EventGranted, EventReleased}[k%2], kind)
			}
		}
		for _, g := range nodes[2].groups {
			require.Nil(t, g.changes.ring, "nothing is kept when nobody watches")
		}
	})
}

// A reader that falls behind in one group is told, and is shown all groups again.
func TestWatchOverGroupsMissed(t *testing.T) {
	inGroups(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		ctx := soon(t)
		n := nodes[1]
		require.EqualValues(t, 10*toldAtOnce, n.groups[1].changes.kept)
		name := nameIn(n, 0, "held")
		_, err := n.Acquire(ctx, name)
		require.NoError(t, err)
		var wg sync.WaitGroup
		var kinds []EventKind
		missing := make(chan struct{})
		wg.Go(func() {
			for e, err := range n.Watch(ctx, "held") {
				require.NoError(t, err)
				kinds = append(kinds, e.Kind)
				if len(kinds) == 2 {
					missing <- struct{}{}
					<-missing
				}
				if len(kinds) == 5 {
					return
				}
			}
		})
		<-missing
		other := nameIn(n, 1, "churn")
		for range n.groups[1].changes.kept/2 + 2*toldAtOnce {
			require.NoError(t, n.Do(ctx, other, func(context.Context, fencing.Token) error { return nil }))
		}
		missing <- struct{}{}
		wg.Wait()
		require.Equal(t, []EventKind{EventPicture, EventSynced, EventMissed, EventPicture, EventSynced}, kinds)
	})
}

// A replica that falls behind in one group is brought up there by a snapshot, and a
// restart frees what was held in all groups.
func TestGroupsAreRestoredAndRestarted(t *testing.T) {
	inGroups(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		ctx := soon(t)
		var holds []*Hold
		for g := range 3 {
			h, err := nodes[1].Acquire(ctx, nameIn(nodes[1], g, "job"))
			require.NoError(t, err)
			holds = append(holds, h)
		}
		s.alterAll(func(s *sim) { s.faults.snapshot = 1 })
		s.pause(3, true)
		for i := range 30 {
			require.NoError(t, nodes[2].Do(ctx, fmt.Sprint("other", i), func(context.Context, fencing.Token) error { return nil }))
		}
		s.pause(3, false)
		for _, h := range holds {
			info, err := nodes[3].Describe(ctx, h.Name())
			require.NoError(t, err)
			require.Equal(t, h.Token(), info.Holders[0].Token)
		}
		s.alterAll(func(s *sim) { s.faults.snapshot = 0 })
		require.NoError(t, nodes[1].Close())
		o := s.options(1)
		o.Groups = 3
		nodes[1] = s.open(t, o)
		require.NoError(t, nodes[1].Ready(ctx))
		for _, h := range holds {
			next, err := nodes[2].TryAcquire(ctx, h.Name())
			require.NoError(t, err)
			require.Greater(t, next.Token(), h.Token())
			require.NoError(t, next.Release(ctx))
		}
		settled(t, nodes)
	})
}

// Leadership of all groups moves together when it is asked to, and goes when the
// leader goes.
func TestLeadershipOfAllGroups(t *testing.T) {
	inGroups(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		require.NoError(t, nodes[2].TransferLeadership(soon(t), 4))
		for _, g := range nodes[1].Status().Groups {
			require.EqualValues(t, 4, g.Leader)
		}
		require.NoError(t, nodes[2].TransferLeadership(soon(t), 5, 2, 0))
		require.ErrorIs(t, nodes[2].TransferLeadership(soon(t), 1, 0, 3), ErrGroups)
		require.ErrorIs(t, nodes[2].TransferLeadership(soon(t), 1, -1), ErrGroups)
		require.ErrorIs(t, nodes[2].TransferLeadership(soon(t), 6, 1), ErrNotMember)
		for i, leader := range []uint64{5, 4, 5} {
			require.Equal(t, leader, nodes[1].Status().Groups[i].Leader)
		}
		require.NoError(t, nodes[4].Shutdown(soon(t)))
		for _, g := range nodes[1].Status().Groups {
			require.NotEqualValues(t, 4, g.Leader)
		}
		delete(nodes, 4)
		goesOn(t, nodes)
	})
}

// What one group does not answer does not hold up the others' renewals or calls.
func TestGroupWithoutLeader(t *testing.T) {
	inGroups(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		n := nodes[1]
		h, err := n.Acquire(soon(t), nameIn(n, 0, "job"))
		require.NoError(t, err)
		s.others[0].alter(func() {
			for _, r := range s.others[0].replicas {
				r.cut = true
			}
		})
		short, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		_, err = n.Acquire(short, nameIn(n, 1, "job"))
		require.ErrorIs(t, err, ErrNoQuorum)
		some, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		answers := n.Quorum(some)
		require.Len(t, answers, 3)
		require.NoError(t, errors.Join(answers[0], answers[2]))
		require.ErrorIs(t, answers[1], ErrNoQuorum)
		require.ErrorIs(t, answers[1], context.DeadlineExceeded)
		elapse(time.Minute)
		require.NoError(t, h.Err(), "the session was not open there yet")
		require.NoError(t, n.Do(soon(t), nameIn(n, 2, "job"), func(context.Context, fencing.Token) error { return nil }))
		require.True(t, errors.Is(func() error {
			_, err := n.List(short, "")
			return err
		}(), context.DeadlineExceeded), "a list is of all groups")
		s.heal()
		goesOn(t, nodes)
		require.NoError(t, h.Release(soon(t)))
		settled(t, nodes)
	})
}

// A session that was opened late in a group, by an entry that a snapshot took the place of,
// is relied on from the renewal that travelled with it: what was held before is not lost.
func TestSessionOpenedInAGroupBySnapshot(t *testing.T) {
	inGroups(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		n := nodes[1]
		elapse(time.Minute)
		h, err := n.Acquire(soon(t), nameIn(n, 0, "job"))
		require.NoError(t, err)
		fresh := slices.IndexFunc(n.groups, func(g *group) bool { return g.parts[h.Session().id.Seq] == nil })
		late := s.all(3)[fresh]
		late.alter(func() { late.replicas[1].paused = true })
		granted := make(chan error, 1)
		go func() {
			_, err := n.Acquire(soon(t), nameIn(n, fresh, "job"))
			granted <- err
		}()
		elapse(time.Second)
		late.catchUp(1)
		require.NoError(t, <-granted)
		require.NoError(t, h.Err())
		elapse(time.Minute)
		require.NoError(t, h.Err())
	})
}
