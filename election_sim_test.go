package quorumlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sort"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/election"
	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/sessions"
)

// The tests of package election over the simulated log stand here, where the
// simulation is; those on real nodes and processes stand in election.

// A stage is where terms are played: it knows them all, and what must be true of them.
type stage struct {
	t *testing.T

	mu     sync.Mutex
	terms  []*played
	begun  int
	ended  int
	newest fencing.Token
	told   map[uint64]fencing.Token // the newest that each observer was told of
	wrong  []string
}

// A played term is one that a function has begun.
type played struct {
	replica uint64
	term    *election.Term
	ctx     context.Context
	running bool
}

func (s *stage) complain(format string, args ...any) {
	s.wrong = append(s.wrong, fmt.Sprintf(format, args...))
}

// begin is called first in the function of a term.
func (s *stage) begin(replica uint64, ctx context.Context, term *election.Term) *played {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &played{replica: replica, term: term, ctx: ctx, running: true}
	s.begun++
	if live := ctx.Err() == nil; live && term.Token() <= s.newest {
		s.complain("token %s of %d begins after %s", term.Token(), replica, s.newest)
	} else if live {
		// It was granted after all that came before had ended.
		for _, other := range s.terms {
			if other.ctx.Err() == nil {
				s.complain("%d begins with token %s while %d leads with %s", replica, term.Token(), other.replica, other.term.Token())
			}
			// Resign of a term that has ended tells whether the lock was lost.
			if other.running && !errors.Is(other.term.Resign(s.t.Context()), quorumlock.ErrLost) {
				s.complain("%d begins with token %s and the function of %d with %s has not returned", replica, term.Token(), other.replica, other.term.Token())
			}
		}
	}
	s.newest = max(s.newest, term.Token())
	s.terms = append(s.terms, p)
	return p
}

func (s *stage) end(p *played) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.running = false
	s.ended++
}

// believers looks who leads, from the newest term on: if one was live, then all older
// ones had ended before.
func (s *stage) believers() {
	s.mu.Lock()
	defer s.mu.Unlock()
	terms := append([]*played(nil), s.terms...)
	sort.Slice(terms, func(i, j int) bool { return terms[i].term.Token() > terms[j].term.Token() })
	var leads *played
	for _, p := range terms {
		switch live := p.ctx.Err() == nil; {
		case live && leads != nil:
			s.complain("%d with %s believes beside %d with %s", p.replica, p.term.Token(), leads.replica, leads.term.Token())
		case live:
			leads = p
		}
	}
}

func (s *stage) check() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Empty(s.t, s.wrong)
	require.Equal(s.t, s.begun, s.ended, "every start has one stop")
}

// nth is the term that was the nth to begin, from 0.
func (s *stage) nth(n int) *played {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.terms[n]
}

func (s *stage) last() *played {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.terms[len(s.terms)-1]
}

// playing runs a test with five candidates-to-be over the simulated log.
func playing(t *testing.T, test func(t *testing.T, x *quorumlock.Sim, s *stage)) {
	synctest.Test(t, func(t *testing.T) {
		x := quorumlock.NewSim(t, 1, false)
		defer x.Close()
		s := &stage{t: t, told: make(map[uint64]fencing.Token)}
		test(t, x, s)
		s.check()
	})
}

// A player runs for an election until it is stopped.
type player struct {
	cancel context.CancelFunc
	done   chan error
}

func (p *player) stop(t *testing.T) error {
	t.Helper()
	p.cancel()
	select {
	case err := <-p.done:
		p.done <- err
		return err
	case <-time.After(time.Minute):
		t.Fatal("Run does not return")
		return nil
	}
}

// until is a function that leads until its context ends.
func until(ctx context.Context, _ *election.Term) error {
	<-ctx.Done()
	return ctx.Err()
}

// run lets a replica run for "lead". It is stopped after the test, if not before.
func (s *stage) run(x *quorumlock.Sim, id uint64, lead func(context.Context, *election.Term) error, opts ...election.Option) *player {
	ctx, cancel := context.WithCancel(s.t.Context())
	p := &player{cancel: cancel, done: make(chan error, 1)}
	go func() {
		p.done <- election.Run(ctx, x.Node(id), "lead", func(ctx context.Context, term *election.Term) error {
			pl := s.begin(id, ctx, term)
			defer s.end(pl)
			return lead(ctx, term)
		}, opts...)
	}()
	synctest.Wait()
	return p
}

// leader tells which replica leads, or 0.
func leader(t *testing.T, x *quorumlock.Sim, on uint64) uint64 {
	t.Helper()
	l, err := election.LeaderOf(quorumlock.Soon(t), x.Node(on), "lead")
	if errors.Is(err, election.ErrNoLeader) {
		return 0
	}
	require.NoError(t, err)
	return l.Replica
}

func TestElectionUnderFaults(t *testing.T) {
	start := time.Now()
	runs, terms := 0, 0
	for _, seed := range quorumlock.SimSeeds(t, 60) {
		ok := t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { terms += electionSim(t, seed) })
		})
		if !ok {
			t.Fatalf("replay with %s=%d", quorumlock.SimSeedVar, seed)
		}
		runs++
		if time.Since(start) > 6*time.Second {
			break
		}
	}
	t.Logf("%d runs, %d terms", runs, terms)
}

func electionSim(t *testing.T, seed uint64) (terms int) {
	x := quorumlock.NewSim(t, seed, true)
	defer x.Close()
	s := &stage{t: t, told: make(map[uint64]fencing.Token)}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for id := uint64(1); id <= 5; id++ {
		for k := range uint64(2) {
			rng := rand.New(rand.NewPCG(seed, 10*id+k))
			all.Go(func() { s.perform(ctx, x, id, rng) })
		}
		all.Go(func() { s.observe(ctx, x, id) })
	}
	all.Go(func() {
		for ctx.Err() == nil {
			time.Sleep(7 * time.Millisecond)
			s.believers()
		}
	})
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 60 {
		time.Sleep(time.Duration(rng.IntN(400)) * time.Millisecond)
		if id := uint64(1 + rng.IntN(5)); rng.IntN(8) == 0 {
			x.Sleep(id, time.Duration(rng.IntN(2000))*time.Millisecond)
		} else {
			x.Trouble(rng)
		}
	}
	x.CalmDown()
	s.mu.Lock()
	before := s.begun
	s.mu.Unlock()
	time.Sleep(30 * time.Second)
	s.mu.Lock()
	after := s.begun
	s.mu.Unlock()
	require.Greater(t, after, before, "somebody leads again")
	cancel()
	all.Wait()
	s.check()
	x.Settled()
	return s.begun
}

// perform runs for election as clumsy programs do, until ctx ends.
func (s *stage) perform(ctx context.Context, x *quorumlock.Sim, id uint64, rng *rand.Rand) {
	failure := errors.New("no luck")
	running := false
	lead := func(ctx context.Context, term *election.Term) error {
		require.False(s.t, running, "one function at a time")
		running = true
		defer func() { running = false }()
		p := s.begin(id, ctx, term)
		defer s.end(p)
		switch rng.IntN(8) {
		case 0:
			return nil
		case 1:
			return failure
		case 2:
			panic(failure)
		case 3:
			candidates, err := election.Candidates(ctx, x.Node(id), "lead")
			if err == nil && len(candidates) > 0 {
				_ = term.HandOver(ctx, candidates[rng.IntN(len(candidates))].Session)
			}
		case 4:
			_ = term.SetValue(ctx, "new")
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(rng.IntN(3000)) * time.Millisecond):
			_ = term.Resign(ctx)
		}
		if rng.IntN(3) == 0 {
			time.Sleep(time.Duration(rng.IntN(1000)) * time.Millisecond) // slow to see it
		}
		return ctx.Err()
	}
	for ctx.Err() == nil {
		err := func() (err error) {
			defer func() {
				if p := recover(); p != nil {
					require.Equal(s.t, failure, p)
					err = failure
				}
			}()
			return election.Run(ctx, x.Node(id), "lead", lead, election.WithValue("old"))
		}()
		require.False(s.t, running, "Run has returned")
		switch {
		case errors.Is(err, failure), ctx.Err() != nil && errors.Is(err, ctx.Err()):
		case errors.Is(err, quorumlock.ErrClosed):
			time.Sleep(10 * time.Millisecond) // its replica is restarted
		default:
			s.t.Errorf("replica %d: Run returned %v", id, err)
		}
	}
}

// observe checks that what an observer is told never goes back.
func (s *stage) observe(ctx context.Context, x *quorumlock.Sim, id uint64) {
	for ctx.Err() == nil {
		var last election.Leader
		first := true
		for l, err := range election.Observe(ctx, x.Node(id), "lead") {
			if err != nil {
				break
			}
			if !first && l == last {
				s.t.Errorf("observer %d is told twice: %+v", id, l)
			}
			if !l.None() && l.Token < s.seen(id, l.Token) {
				s.t.Errorf("observer %d is told of %+v after %+v", id, l, last)
			}
			last, first = l, false
		}
		time.Sleep(10 * time.Millisecond) // its replica is restarted
	}
}

// seen notes that an observer was told of a token, and returns the newest one that it
// was told of before.
func (s *stage) seen(observer uint64, token fencing.Token) (before fencing.Token) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before = s.told[observer]
	s.told[observer] = max(before, token)
	return before
}

// A leader that stops is followed at once, and in the order in which the others came.
func TestElectionCleanStopAndOrder(t *testing.T) {
	playing(t, func(t *testing.T, x *quorumlock.Sim, s *stage) {
		players := make(map[uint64]*player)
		for _, id := range []uint64{3, 1, 5, 2} {
			players[id] = s.run(x, id, until, election.WithValue(fmt.Sprint("at ", id)))
		}
		candidates, err := election.Candidates(quorumlock.Soon(t), x.Node(4), "lead")
		require.NoError(t, err)
		require.Len(t, candidates, 3)
		for i, id := range []uint64{1, 5, 2} {
			require.Equal(t, id, candidates[i].Replica)
			require.Equal(t, fmt.Sprint("at ", id), candidates[i].Value)
			require.Equal(t, fmt.Sprint("owner-", id), candidates[i].Owner)
		}
		for _, id := range []uint64{3, 1, 5, 2} {
			l, err := election.LeaderOf(quorumlock.Soon(t), x.Node(4), "lead")
			require.NoError(t, err)
			require.Equal(t, id, l.Replica)
			require.Equal(t, fmt.Sprint("at ", id), l.Value)
			begun := time.Now()
			require.ErrorIs(t, players[id].stop(t), context.Canceled)
			synctest.Wait()
			require.Less(t, time.Since(begun), 100*time.Millisecond)
		}
		require.Zero(t, leader(t, x, 4))
		_, err = election.LeaderOf(quorumlock.Soon(t), x.Node(4), "lead")
		require.ErrorIs(t, err, election.ErrNoLeader)
	})
}

// The lock is given up only after the function has returned, also when it was ctx
// that ended.
func TestElectionReleasesAfterTheFunction(t *testing.T) {
	playing(t, func(t *testing.T, x *quorumlock.Sim, s *stage) {
		for name, end := range map[string]func(*player, *election.Term){
			"ctx":    func(p *player, _ *election.Term) { p.cancel() },
			"resign": func(_ *player, term *election.Term) { require.NoError(t, term.Resign(t.Context())) },
		} {
			terms := make(chan *election.Term, 1)
			returned := false
			slow := s.run(x, 1, func(ctx context.Context, term *election.Term) error {
				terms <- term
				<-ctx.Done()
				quorumlock.Elapse(3 * time.Second)
				returned = true
				return election.ErrStop
			})
			term := <-terms
			next := s.run(x, 2, func(ctx context.Context, _ *election.Term) error {
				require.True(t, returned, name)
				return election.ErrStop
			})
			begun := time.Now()
			end(slow, term)
			require.Error(t, term.Err())
			require.Equal(t, uint64(1), leader(t, x, 3), "the lock is still held")
			require.NoError(t, <-next.done)
			require.Equal(t, 3*time.Second, time.Since(begun).Truncate(10*time.Millisecond))
			require.NoError(t, <-slow.done)
		}
	})
}

func TestElectionFunctionsWord(t *testing.T) {
	playing(t, func(t *testing.T, x *quorumlock.Sim, s *stage) {
		oops := errors.New("oops")
		// ErrStop, wrapped too.
		p := s.run(x, 1, func(context.Context, *election.Term) error { return fmt.Errorf("all done: %w", election.ErrStop) })
		require.NoError(t, <-p.done)
		require.Zero(t, leader(t, x, 2))
		// An error ends Run.
		p = s.run(x, 1, func(context.Context, *election.Term) error { return oops })
		require.Equal(t, oops, <-p.done)
		require.Zero(t, leader(t, x, 2))
		// nil: again, after the others.
		runs := 0
		p = s.run(x, 1, func(context.Context, *election.Term) error {
			if runs++; runs == 5 {
				return election.ErrStop
			}
			return nil
		})
		begun := time.Now()
		require.NoError(t, <-p.done)
		require.Equal(t, 5, runs)
		require.Greater(t, time.Since(begun), 100*time.Millisecond, "it pauses")
		require.Less(t, time.Since(begun), 500*time.Millisecond)
		// An error with WithRetry: again, after pauses that grow.
		runs = 0
		begun = time.Now()
		p = s.run(x, 1, func(context.Context, *election.Term) error {
			if runs++; runs == 12 {
				return election.ErrStop
			}
			return oops
		}, election.WithRetry(time.Second))
		require.NoError(t, <-p.done)
		require.Greater(t, time.Since(begun), 3*time.Second)
		require.Less(t, time.Since(begun), 15*time.Second)
		// A store that refuses the token has seen a newer leader.
		runs = 0
		p = s.run(x, 1, func(context.Context, *election.Term) error {
			if runs++; runs == 2 {
				return election.ErrStop
			}
			return fmt.Errorf("write: %w", fencing.ErrStale)
		})
		require.NoError(t, <-p.done)
		// The function's own last word is told beside ctx's.
		p = s.run(x, 1, func(ctx context.Context, _ *election.Term) error { <-ctx.Done(); return oops })
		err := p.stop(t)
		require.ErrorIs(t, err, oops)
		require.ErrorIs(t, err, context.Canceled)
		p = s.run(x, 1, func(ctx context.Context, _ *election.Term) error { <-ctx.Done(); return nil })
		require.ErrorIs(t, p.stop(t), context.Canceled)
	})
}

func TestElectionMistakes(t *testing.T) {
	playing(t, func(t *testing.T, x *quorumlock.Sim, s *stage) {
		n, ctx := x.Node(1), quorumlock.Soon(t)
		require.ErrorIs(t, election.Run(ctx, n, "", until), quorumlock.ErrName)
		require.ErrorIs(t, election.Run(ctx, n, "lead", until, election.WithValue("\xff")), quorumlock.ErrValue)
		//lint:ignore SA1012 that is what is tested
		require.ErrorIs(t, election.Run(nil, n, "lead", until), quorumlock.ErrNilContext) //nolint
		_, err := election.Campaign(ctx, n, "")
		require.ErrorIs(t, err, quorumlock.ErrName)
		_, err = election.LeaderOf(ctx, n, "")
		require.ErrorIs(t, err, quorumlock.ErrName)
		for _, err := range election.Observe(ctx, n, "") {
			require.ErrorIs(t, err, quorumlock.ErrName)
		}
		h, err := n.Acquire(ctx, "lead", quorumlock.Share())
		require.NoError(t, err)
		_, err = election.LeaderOf(ctx, n, "lead")
		require.ErrorIs(t, err, election.ErrNoLeader, "who shares it does not lead")
		require.NoError(t, h.Release(ctx))
		ended, cancel := context.WithCancel(ctx)
		cancel()
		require.ErrorIs(t, election.Run(ended, n, "lead", until), context.Canceled)
		p := s.run(x, 1, until)
		waits := s.run(x, 1, until)
		err = waits.stop(t)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, quorumlock.ErrHeld)
		require.NoError(t, n.Close())
		require.ErrorIs(t, <-p.done, quorumlock.ErrClosed)
		x.Open(1)
	})
}

func TestElectionPanicReleases(t *testing.T) {
	playing(t, func(t *testing.T, x *quorumlock.Sim, s *stage) {
		var follower *player
		require.PanicsWithValue(t, "boom", func() {
			_ = election.Run(t.Context(), x.Node(1), "lead", func(context.Context, *election.Term) error {
				follower = s.run(x, 2, until)
				panic("boom")
			})
		})
		synctest.Wait()
		require.Equal(t, uint64(2), leader(t, x, 3))
		require.ErrorIs(t, follower.stop(t), context.Canceled)
	})
}

// A function that ignores the end of its context is reported once, Run waits for it,
// and the next leader comes when the session ends.
func TestElectionIgnoringFunctionIsReported(t *testing.T) {
	playing(t, func(t *testing.T, x *quorumlock.Sim, s *stage) {
		var reported []*election.Term
		goOn := make(chan struct{})
		p := s.run(x, 1, func(context.Context, *election.Term) error { <-goOn; return nil },
			election.WithGrace(2*time.Second), election.OnIgnored(func(term *election.Term) { reported = append(reported, term) }))
		next := s.run(x, 2, until)
		x.Cut(1)
		quorumlock.Elapse(quorumlock.DefaultSessionTTL)
		require.Equal(t, uint64(2), leader(t, x, 3), "although the function goes on")
		quorumlock.Elapse(time.Minute)
		synctest.Wait()
		require.Len(t, reported, 1)
		require.ErrorIs(t, reported[0].Err(), quorumlock.ErrLost)
		x.Heal()
		p.cancel()
		synctest.Wait()
		require.Empty(t, p.done, "Run waits")
		close(goOn)
		require.ErrorIs(t, p.stop(t), context.Canceled)
		require.ErrorIs(t, next.stop(t), context.Canceled)
		require.Len(t, reported, 1)
	})
}

func TestElectionHealth(t *testing.T) {
	playing(t, func(t *testing.T, x *quorumlock.Sim, s *stage) {
		sick := errors.New("sick")
		var mu sync.Mutex
		ill := map[uint64]error{}
		be := func(id uint64, err error) {
			mu.Lock()
			ill[id] = err
			mu.Unlock()
		}
		hang := errors.New("hang")
		check := func(id uint64) election.Option {
			return election.WithHealth(func(ctx context.Context) error {
				mu.Lock()
				err := ill[id]
				mu.Unlock()
				if err == hang {
					<-ctx.Done()
					quorumlock.Elapse(5 * time.Second) // it does not even heed its ctx
					return nil
				}
				return err
			}, time.Second)
		}
		be(1, sick)
		one := s.run(x, 1, until, check(1))
		quorumlock.Elapse(time.Minute)
		require.Zero(t, leader(t, x, 4), "it does not campaign")
		be(1, nil)
		quorumlock.Elapse(2 * time.Second)
		require.Equal(t, uint64(1), leader(t, x, 4))
		two := s.run(x, 2, until, check(2))
		three := s.run(x, 3, until, check(3))
		be(2, sick) // while it waits
		quorumlock.Elapse(2 * time.Second)
		candidates, err := election.Candidates(quorumlock.Soon(t), x.Node(4), "lead")
		require.NoError(t, err)
		require.Len(t, candidates, 1)
		be(1, sick)
		quorumlock.Elapse(2 * time.Second)
		require.Equal(t, uint64(3), leader(t, x, 4))
		first := s.nth(0)
		require.ErrorIs(t, first.term.Err(), election.ErrUnhealthy)
		require.ErrorIs(t, context.Cause(first.ctx), sick)
		be(1, nil)
		quorumlock.Elapse(2 * time.Second)
		be(3, hang)
		quorumlock.Elapse(3 * time.Second)
		require.Equal(t, uint64(1), leader(t, x, 4), "no answer is no health")
		for _, p := range []*player{one, two, three} {
			require.ErrorIs(t, p.stop(t), context.Canceled)
		}
	})
}

func TestElectionHandOver(t *testing.T) {
	playing(t, func(t *testing.T, x *quorumlock.Sim, s *stage) {
		terms := make(chan *election.Term, 10)
		lead := func(ctx context.Context, term *election.Term) error {
			terms <- term
			<-ctx.Done()
			quorumlock.Elapse(time.Second)
			return ctx.Err()
		}
		var players []*player
		for id := uint64(1); id <= 4; id++ {
			players = append(players, s.run(x, id, lead))
		}
		term := <-terms
		candidates, err := election.Candidates(quorumlock.Soon(t), x.Node(5), "lead")
		require.NoError(t, err)
		err = term.HandOver(quorumlock.Soon(t), sessions.ID{Replica: 5, Epoch: 1, Seq: 1})
		require.ErrorIs(t, err, quorumlock.ErrNoWaiter)
		require.NoError(t, term.Err())
		require.NoError(t, term.HandOver(quorumlock.Soon(t), candidates[1].Session))
		require.ErrorIs(t, term.Err(), election.ErrResigned)
		require.ErrorIs(t, term.HandOver(quorumlock.Soon(t), candidates[1].Session), election.ErrResigned)
		next := <-terms
		require.Equal(t, candidates[1].Session, next.Session())
		require.Greater(t, next.Token(), term.Token())

		// The chosen one leaves meanwhile: the next in line leads.
		require.NoError(t, next.HandOver(quorumlock.Soon(t), candidates[2].Session))
		require.ErrorIs(t, players[3].stop(t), context.Canceled)
		third := <-terms
		require.Equal(t, candidates[0].Session, third.Session())

		// It is handed over although ctx ends before the function has returned.
		again := s.run(x, 4, lead)
		candidates, err = election.Candidates(quorumlock.Soon(t), x.Node(5), "lead")
		require.NoError(t, err)
		require.Equal(t, uint64(4), candidates[len(candidates)-1].Replica)
		require.NoError(t, third.HandOver(quorumlock.Soon(t), candidates[len(candidates)-1].Session))
		require.ErrorIs(t, players[1].stop(t), context.Canceled)
		require.NoError(t, third.Resign(t.Context()), "once more does no harm")
		require.Equal(t, uint64(4), leader(t, x, 5))
		require.ErrorIs(t, again.stop(t), context.Canceled)
		for _, p := range players {
			require.ErrorIs(t, p.stop(t), context.Canceled)
		}
	})
}

func TestElectionYield(t *testing.T) {
	playing(t, func(t *testing.T, x *quorumlock.Sim, s *stage) {
		deaf := s.run(x, 1, until)
		require.NoError(t, x.Node(3).RequestYield(quorumlock.Soon(t), "lead", "ops", "upgrade"))
		quorumlock.Elapse(time.Minute)
		require.Equal(t, uint64(1), leader(t, x, 3))
		choosy := s.run(x, 2, until, election.WithYield(func(r quorumlock.YieldRequest) bool { return r.Reason == "upgrade" }))
		polite := s.run(x, 4, until, election.WithYield(nil))
		require.ErrorIs(t, deaf.stop(t), context.Canceled)
		require.NoError(t, x.Node(3).RequestYield(quorumlock.Soon(t), "lead", "ops", "for fun"))
		synctest.Wait()
		require.Equal(t, uint64(2), leader(t, x, 3))
		require.NoError(t, x.Node(3).RequestYield(quorumlock.Soon(t), "lead", "ops", "upgrade"))
		synctest.Wait()
		require.Equal(t, uint64(4), leader(t, x, 3))
		quorumlock.Elapse(time.Second) // the one that yielded stands in line again
		require.NoError(t, x.Node(3).RequestYield(quorumlock.Soon(t), "lead", "ops", "for fun"))
		quorumlock.Elapse(time.Second)
		require.Equal(t, uint64(2), leader(t, x, 3))
		require.ErrorContains(t, s.nth(1).term.Err(), "asked by ops: upgrade")
		require.ErrorIs(t, choosy.stop(t), context.Canceled)
		require.ErrorIs(t, polite.stop(t), context.Canceled)
	})
}

// A term that is lost is none of Run's errors: it campaigns again.
func TestElectionCampaignsAgainAfterALoss(t *testing.T) {
	playing(t, func(t *testing.T, x *quorumlock.Sim, s *stage) {
		p := s.run(x, 1, func(ctx context.Context, _ *election.Term) error {
			<-ctx.Done()
			return errors.New("the driver says: interrupted")
		})
		require.NoError(t, x.Node(2).ForceRelease(quorumlock.Soon(t), "lead", s.nth(0).term.Token(), "ops", "stuck"))
		quorumlock.Elapse(time.Second)
		require.Equal(t, uint64(1), leader(t, x, 3))
		require.ErrorIs(t, s.nth(0).term.Err(), quorumlock.ErrRevoked)
		require.NoError(t, x.Node(2).ForceClose(quorumlock.Soon(t), s.nth(1).term.Session(), "ops", "stuck"))
		quorumlock.Elapse(time.Second)
		require.Equal(t, uint64(1), leader(t, x, 3))
		require.Equal(t, s.nth(2), s.last())
		// Those who wait are revoked too, and come again.
		waits := s.run(x, 2, until)
		candidates, err := election.Candidates(quorumlock.Soon(t), x.Node(3), "lead")
		require.NoError(t, err)
		require.NoError(t, x.Node(3).ForceClose(quorumlock.Soon(t), candidates[0].Session, "ops", "stuck"))
		quorumlock.Elapse(time.Second)
		candidates, err = election.Candidates(quorumlock.Soon(t), x.Node(3), "lead")
		require.NoError(t, err)
		require.Len(t, candidates, 1)
		require.ErrorIs(t, p.stop(t), context.Canceled)
		require.ErrorIs(t, waits.stop(t), context.Canceled)
	})
}

// Campaign is the lower form.
func TestElectionCampaign(t *testing.T) {
	playing(t, func(t *testing.T, x *quorumlock.Sim, s *stage) {
		campaign, cancel := context.WithCancel(t.Context())
		term, err := election.Campaign(campaign, x.Node(1), "lead", election.WithValue("here"))
		require.NoError(t, err)
		cancel()
		require.NoError(t, term.Err(), "ctx was for the campaign")
		require.Equal(t, "lead", term.Name())
		require.NoError(t, term.SetValue(quorumlock.Soon(t), "there"))
		l, err := election.LeaderOf(quorumlock.Soon(t), x.Node(2), "lead")
		require.NoError(t, err)
		require.Equal(t, election.Leader{Session: term.Session(), Owner: "owner-1", Replica: 1, Token: term.Token(), Value: "there"}, l)
		other, stopOther := term.Context(t.Context())
		defer stopOther()
		require.NoError(t, other.Err())

		// Resign that fails can be tried again.
		x.Cut(1)
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err = term.Resign(short)
		require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, term.Err(), election.ErrResigned)
		require.ErrorIs(t, context.Cause(other), election.ErrResigned)
		<-term.Done()
		require.ErrorIs(t, term.SetValue(quorumlock.Soon(t), "nowhere"), election.ErrResigned)
		require.Equal(t, uint64(1), leader(t, x, 2))
		x.Heal()
		require.NoError(t, term.Resign(quorumlock.Soon(t)))
		require.NoError(t, term.Resign(quorumlock.Soon(t)), "and once more does no harm")
		require.Zero(t, leader(t, x, 2))
		late, stopLate := term.Context(t.Context())
		defer stopLate()
		require.ErrorIs(t, context.Cause(late), election.ErrResigned)

		// HandOver, and a Resign behind it.
		term, err = election.Campaign(quorumlock.Soon(t), x.Node(1), "lead")
		require.NoError(t, err)
		first, second := s.run(x, 2, until), s.run(x, 3, until)
		candidates, err := election.Candidates(quorumlock.Soon(t), x.Node(4), "lead")
		require.NoError(t, err)
		require.NoError(t, term.HandOver(quorumlock.Soon(t), candidates[1].Session))
		synctest.Wait()
		require.Equal(t, uint64(3), leader(t, x, 4))
		require.NoError(t, term.Resign(quorumlock.Soon(t)))
		require.ErrorIs(t, first.stop(t), context.Canceled)
		require.ErrorIs(t, second.stop(t), context.Canceled)

		// Lost: Resign says so.
		term, err = election.Campaign(quorumlock.Soon(t), x.Node(1), "lead")
		require.NoError(t, err)
		x.Sleep(1, quorumlock.DefaultSessionTTL)
		require.ErrorIs(t, term.Err(), quorumlock.ErrLost, "seen before any timer has run")
		require.ErrorIs(t, term.Resign(quorumlock.Soon(t)), quorumlock.ErrLost)
	})
}

// Observe tells everything in order, and of "lead" only.
func TestElectionObserve(t *testing.T) {
	playing(t, func(t *testing.T, x *quorumlock.Sim, s *stage) {
		told := make(chan string, 100)
		watch, cancel := context.WithCancel(t.Context())
		var end error
		done := make(chan struct{})
		go func() {
			defer close(done)
			for l, err := range election.Observe(watch, x.Node(5), "lead") {
				switch {
				case err != nil:
					end = err
				case l.None():
					require.Equal(t, election.Leader{}, l)
					told <- "nobody"
				default:
					told <- fmt.Sprint(l.Replica, " ", l.Value)
				}
			}
		}()
		synctest.Wait()
		other, err := x.Node(1).Acquire(quorumlock.Soon(t), "leads to confusion")
		require.NoError(t, err)
		one := s.run(x, 1, until, election.WithValue("a"))
		two := s.run(x, 2, until, election.WithValue("b"))
		require.NoError(t, s.nth(0).term.SetValue(quorumlock.Soon(t), "c"))
		require.NoError(t, s.nth(0).term.SetValue(quorumlock.Soon(t), "c"))
		require.NoError(t, other.Release(quorumlock.Soon(t)))
		require.ErrorIs(t, one.stop(t), context.Canceled)
		x.Cut(2)
		quorumlock.Elapse(quorumlock.DefaultSessionTTL)
		x.Heal()
		quorumlock.Elapse(time.Second)
		require.ErrorIs(t, two.stop(t), context.Canceled)
		kept, err := x.Node(1).Acquire(quorumlock.Soon(t), "lead", quorumlock.MinHold(10*time.Second))
		require.NoError(t, err)
		require.NoError(t, kept.Release(quorumlock.Soon(t)))
		synctest.Wait()
		var all []string
		for len(told) > 0 {
			all = append(all, <-told)
		}
		require.Equal(t, []string{"nobody", "1 a", "1 c", "nobody", "2 b", "nobody", "2 b", "nobody", "1 ", "nobody"}, all)
		cancel()
		<-done
		require.ErrorIs(t, end, context.Canceled)
		for l, err := range election.Observe(t.Context(), x.Node(5), "lead") {
			require.NoError(t, err)
			require.True(t, l.None(), "kept for nobody")
			break
		}
	})
}
