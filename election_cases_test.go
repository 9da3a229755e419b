package quorumlock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/election"
	"github.com/quorumlock/quorumlock/fencing"
)

// The tests of this file are kinds of failures that users of other elections
// reported; the reports that stand for a kind are named at each. Four more kinds are
// tested in election_sim_test.go: leader switches while everything goes wrong
// (apache/curator#1168, #1169; Netflix/curator#216) by TestElectionUnderFaults, a
// stopping leader whose successor waits for the lease all the same
// (kubernetes/kubernetes#77585, kubernetes/client-go#448) by
// TestElectionCleanStopAndOrder, a release before the guarded work has finished
// (kubernetes/kubernetes#71490, #139504) by TestElectionReleasesAfterTheFunction, and
// candidates that nobody can see nor choose (kubernetes/kubernetes#16830) by
// TestElectionHandOver.

// Whatever takes the lead away, the function is told, and Run leads again: a hundred
// times, by a cut, a sleeping machine, a resignation and a restart in turn.
//
// docker-archive/classicswarm#1545; kubernetes/kubernetes#23731
func TestElectionIsLostAndRegainedAgainAndAgain(t *testing.T) {
	playing(t, func(t *testing.T, x *quorumlock.Sim, s *stage) {
		players := make(map[uint64]*player)
		for id := uint64(1); id <= 5; id++ {
			players[id] = s.run(x, id, until)
		}
		leads := make(map[uint64]int)
		for cycle := range 100 {
			last := s.last()
			leads[last.replica]++
			id := last.replica
			require.NoError(t, last.ctx.Err(), "cycle %d", cycle)
			switch cycle % 4 {
			case 0:
				x.Cut(id)
			case 1:
				x.Sleep(id, quorumlock.DefaultSessionTTL)
			case 2:
				require.NoError(t, last.term.Resign(t.Context()))
			case 3:
				x.Restart(id)
				require.ErrorIs(t, <-players[id].done, quorumlock.ErrClosed)
				players[id] = s.run(x, id, until)
			}
			quorumlock.Elapse(quorumlock.DefaultSessionTTL + 2*time.Second)
			x.Heal()
			quorumlock.Elapse(3 * time.Second)
			s.mu.Lock()
			require.False(t, last.running, "cycle %d: the function of %d was told", cycle, id)
			s.mu.Unlock()
		}
		require.Len(t, leads, 5, "all have led: %v", leads)
		for _, p := range players {
			require.ErrorIs(t, p.stop(t), context.Canceled)
		}
		require.GreaterOrEqual(t, s.begun, 100)
		x.Settled()
	})
}

// A thousand candidates, of whom many lose their sessions while they wait: no two
// terms overlap, and every one of the candidates leads once.
//
// kubernetes/kubernetes#67651
func TestElectionWithManyCandidates(t *testing.T) {
	playing(t, func(t *testing.T, x *quorumlock.Sim, s *stage) {
		const candidates = 1000
		var all sync.WaitGroup
		for i := range candidates {
			id := uint64(1 + i%5)
			all.Go(func() {
				err := election.Run(t.Context(), x.Node(id), "lead", func(ctx context.Context, term *election.Term) error {
					p := s.begin(id, ctx, term)
					defer s.end(p)
					quorumlock.Elapse(20 * time.Millisecond)
					if ctx.Err() != nil {
						return ctx.Err()
					}
					return election.ErrStop
				})
				require.NoError(t, err)
			})
		}
		for k := range uint64(10) {
			quorumlock.Elapse(time.Second)
			x.Cut(1+k%5, 1+(k+2)%5)
			x.MoveLeader()
			quorumlock.Elapse(quorumlock.DefaultSessionTTL * 3 / 4)
			x.Heal()
		}
		all.Wait()
		require.GreaterOrEqual(t, s.begun, candidates)
		x.Settled()
	})
}

// A process that comes back finds the hold of its own former session, which the
// cluster has not ended yet, and does not take it for its own: it waits in line, and
// leads by a new grant.
//
// apache/curator#1211
func TestElectionOldSessionElectsNobody(t *testing.T) {
	playing(t, func(t *testing.T, x *quorumlock.Sim, s *stage) {
		p := s.run(x, 1, until)
		next := s.run(x, 2, until)
		first := s.nth(0).term
		x.Cut(1)
		<-first.Done() // by its own clock, and nobody else knows
		require.Equal(t, uint64(1), leader(t, x, 3))
		x.Heal()
		quorumlock.Elapse(time.Second)
		require.ErrorIs(t, first.Err(), quorumlock.ErrLost, "what is given up stays given up")
		require.Equal(t, uint64(2), leader(t, x, 3))
		candidates, err := election.Candidates(quorumlock.Soon(t), x.Node(3), "lead")
		require.NoError(t, err)
		require.Len(t, candidates, 1)
		require.NotEqual(t, first.Session(), candidates[0].Session)
		require.ErrorIs(t, next.stop(t), context.Canceled)
		synctest.Wait()
		require.Greater(t, s.last().term.Token(), first.Token())
		require.ErrorIs(t, p.stop(t), context.Canceled)
	})
}

// A candidate whose session is over is not elected when its turn comes, and those who
// observe are told that nobody leads.
//
// cagriekin/charts#326 (etcd)
func TestElectionZombieCandidate(t *testing.T) {
	playing(t, func(t *testing.T, x *quorumlock.Sim, s *stage) {
		p := s.run(x, 1, until)
		elected := make(chan error, 1)
		go func() {
			_, err := election.Campaign(t.Context(), x.Node(2), "lead")
			elected <- err
		}()
		synctest.Wait()
		told := make(chan election.Leader, 10)
		watch, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			for l, err := range election.Observe(watch, x.Node(3), "lead") {
				if err != nil {
					close(told)
					return
				}
				told <- l
			}
		}()
		synctest.Wait()
		require.Equal(t, uint64(1), (<-told).Replica)
		x.Sleep(2, quorumlock.DefaultSessionTTL)
		require.ErrorIs(t, p.stop(t), context.Canceled)
		require.ErrorIs(t, <-elected, quorumlock.ErrSessionExpired)
		synctest.Wait()
		var last election.Leader
		for len(told) > 0 {
			last = <-told
		}
		require.True(t, last.None(), "%+v", last)
		require.Zero(t, leader(t, x, 3))
	})
}

// A leader that is cut off, and led the Raft group besides, stops by its own clock,
// before the others have another leader; and does so within the TTL.
//
// belaban/jgroups-raft#79
func TestElectionPartitionedLeaderStops(t *testing.T) {
	playing(t, func(t *testing.T, x *quorumlock.Sim, s *stage) {
		id := x.RaftLeader()
		p := s.run(x, id, until)
		next := s.run(x, id%5+1, until)
		cut := time.Now()
		x.Cut(id)
		<-s.nth(0).ctx.Done()
		stopped := time.Since(cut)
		s.mu.Lock()
		require.Len(t, s.terms, 1)
		s.mu.Unlock()
		require.ErrorIs(t, s.nth(0).term.Err(), quorumlock.ErrNoQuorum)
		for {
			s.mu.Lock()
			begun := len(s.terms)
			s.mu.Unlock()
			if begun == 2 {
				break
			}
			quorumlock.Elapse(10 * time.Millisecond)
		}
		led := time.Since(cut)
		t.Logf("stopped after %v, the next led after %v of a TTL of %v", stopped, led, quorumlock.DefaultSessionTTL)
		require.Less(t, led, quorumlock.DefaultSessionTTL+500*time.Millisecond)
		x.Heal()
		require.ErrorIs(t, p.stop(t), context.Canceled)
		require.ErrorIs(t, next.stop(t), context.Canceled)
	})
}

// A leader that stops while its cluster cannot be reached leaves its lock to be given
// back when it can, and with a ctx that has ended gives it back at once.
//
// google/trillian#3789; etcd-io/etcd#18082
func TestElectionResignsOnAnEndedContext(t *testing.T) {
	playing(t, func(t *testing.T, x *quorumlock.Sim, s *stage) {
		ended, cancel := context.WithCancel(t.Context())
		term, err := election.Campaign(t.Context(), x.Node(1), "lead")
		require.NoError(t, err)
		next := s.run(x, 2, until)
		cancel()
		begun := time.Now()
		require.NoError(t, term.Resign(ended))
		synctest.Wait()
		require.Less(t, time.Since(begun), 100*time.Millisecond)
		require.Equal(t, uint64(2), leader(t, x, 3))

		again := s.run(x, 1, until)
		x.Cut(2)
		begun = time.Now()
		require.ErrorIs(t, next.stop(t), context.Canceled)
		require.LessOrEqual(t, time.Since(begun), 6*time.Second, "Run does not wait for ever")
		x.Heal()
		quorumlock.Elapse(time.Second)
		require.Equal(t, uint64(1), leader(t, x, 3), "the release went on")
		require.Less(t, time.Since(begun), quorumlock.DefaultSessionTTL)
		require.ErrorIs(t, again.stop(t), context.Canceled)
	})
}

// However a campaign ends, it leaves no candidate.
//
// etcd-io/etcd#21128
func TestElectionLeavesNoCandidate(t *testing.T) {
	playing(t, func(t *testing.T, x *quorumlock.Sim, s *stage) {
		p := s.run(x, 1, until)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := election.Campaign(ctx, x.Node(2), "lead")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, quorumlock.ErrHeld)
		waits := s.run(x, 3, until, election.WithHealth(func(ctx context.Context) error {
			if quorumlock.Elapse(time.Second); ctx.Err() != nil {
				return errors.New("slow")
			}
			return nil
		}, 2*time.Second))
		require.ErrorIs(t, waits.stop(t), context.Canceled)
		synctest.Wait()
		candidates, err := election.Candidates(quorumlock.Soon(t), x.Node(4), "lead")
		require.NoError(t, err)
		require.Empty(t, candidates)
		require.ErrorIs(t, p.stop(t), context.Canceled)
		x.Settled()
	})
}

// The one case in which a leader may learn it late: somebody ended its term by force
// while its replica lagged. Both believe in their terms for a moment; the store
// refuses the older one.
//
// hashicorp/vault#23013
func TestElectionForcedEndIsFenced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := quorumlock.NewSim(t, 1, false)
		defer x.Close()
		var store fencing.MemGuard
		write := func(term *election.Term) error { return store.Admit(t.Context(), "lead", term.Token()) }
		old, err := election.Campaign(quorumlock.Soon(t), x.Node(1), "lead")
		require.NoError(t, err)
		require.NoError(t, write(old))
		x.Pause(1, true)
		require.NoError(t, x.Node(2).ForceRelease(quorumlock.Soon(t), "lead", old.Token(), "ops", "stuck"))
		next, err := election.Campaign(quorumlock.Soon(t), x.Node(2), "lead")
		require.NoError(t, err)
		require.NoError(t, write(next))
		require.NoError(t, old.Err(), "it does not know yet")
		require.ErrorIs(t, write(old), fencing.ErrStale)
		x.Pause(1, false)
		quorumlock.Elapse(time.Second)
		require.ErrorIs(t, old.Err(), quorumlock.ErrRevoked)
		require.ErrorContains(t, old.Err(), "stuck")
		require.NoError(t, next.Resign(quorumlock.Soon(t)))
		require.Error(t, old.Resign(quorumlock.Soon(t)))
		require.NoError(t, write(next), "a token that was admitted is admitted again")
	})
}
