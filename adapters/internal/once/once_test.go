package once

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
)

func at(seconds float64) time.Time {
	return time.Unix(1_700_000_000, 0).Add(time.Duration(seconds * float64(time.Second)))
}

func due(d *Diary, seconds float64) (got []float64) {
	for _, t := range d.Due(at(seconds)) {
		got = append(got, t.Sub(at(0)).Seconds())
	}
	return got
}

func TestDiaryTellsEachPlannedTimeOnce(t *testing.T) {
	d := NewDiary(Every(2*time.Second), at(1), 5*time.Second)
	require.Empty(t, due(d, 1.9), "it is not time yet")
	require.Equal(t, []float64{2}, due(d, 2.7), "what is planned, not what the clock shows")
	require.Empty(t, due(d, 2.8), "once")
	require.Empty(t, due(d, 0), "a clock that is set back")
	require.Empty(t, due(d, 3.9999))
	require.Equal(t, []float64{4}, due(d, 4), "the very moment")
	require.Equal(t, []float64{6, 8}, due(d, 8.5), "late")
	require.Equal(t, []float64{96, 98, 100}, due(d, 100.9), "the recent ones")
	require.Equal(t, []float64{102}, due(d, 103))
}

func TestDiaryOfALazySchedule(t *testing.T) {
	d := NewDiary(Every(10*time.Second), at(1), 3*time.Second)
	require.Equal(t, []float64{20}, due(d, 27), "the latest, however old it is")
	require.Equal(t, []float64{30}, due(d, 30))
	require.Empty(t, NewDiary(never{}, at(0), time.Second).Due(at(1e9)))
}

type never struct{}

func (never) Next(time.Time) time.Time { return time.Time{} }

func TestFloor(t *testing.T) {
	require.Equal(t, int64(-3000), Floor(time.UnixMilli(-2500), 3*time.Second).UnixMilli())
	require.Equal(t, int64(0), Floor(time.UnixMilli(2999), 3*time.Second).UnixMilli())
	require.Equal(t, int64(3000), Floor(time.UnixMilli(3000), 3*time.Second).UnixMilli())
	require.Equal(t, time.UTC, Floor(time.Now().UTC(), time.Hour).Location())
}

// A register answers as it is told to.
type register func(ctx context.Context, tick int64) (bool, error)

func (r register) ClaimTick(ctx context.Context, _ string, tick int64) (bool, error) {
	return r(ctx, tick)
}

// A claim waits for the answer to the one before it: the other way round, the later
// one would take the earlier one's tick with it.
func TestClaimsAreAnsweredInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []int64
		var wg sync.WaitGroup
		answer := make(chan bool)
		c := NewClaims(register(func(_ context.Context, tick int64) (bool, error) {
			asked = append(asked, tick)
			return <-answer, nil
		}), "job", time.Minute)
		for i := range 5 {
			wg.Go(func() {
				won, err := c.Claim(t.Context(), at(float64(i)))
				require.NoError(t, err)
				require.Equal(t, i%2 == 0, won)
			})
			synctest.Wait()
		}
		for i := range 5 {
			require.Len(t, asked, i+1)
			require.Equal(t, Tick(at(float64(i))), asked[i])
			answer <- i%2 == 0
			synctest.Wait()
		}
		wg.Wait()
	})
}

func TestAClaimWithoutAnAnswerIsNotWon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		c := NewClaims(register(func(ctx context.Context, _ int64) (bool, error) {
			<-ctx.Done()
			return true, ctx.Err() // no node says this; were it said, it would be no yes
		}), "job", 3*time.Second)
		won, err := c.Claim(t.Context(), at(0))
		require.Error(t, err)
		require.False(t, won)
		require.Equal(t, 3*time.Second, time.Since(began))
		ctx, cancel := context.WithCancel(t.Context())
		go c.Claim(t.Context(), at(1))
		synctest.Wait()
		cancel()
		_, err = c.Claim(ctx, at(2))
		require.ErrorIs(t, err, context.Canceled)
		time.Sleep(3 * time.Second) // in the bubble: the one before ends
	})
}

// A held lock as the leader sees it.
type held struct {
	mu   sync.Mutex
	err  error
	done chan struct{}
	free bool
}

func (h *held) Err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

func (h *held) Done() <-chan struct{} { return h.done }

func (h *held) Release(context.Context) error {
	h.free = true
	return nil
}

// A process that was stopped for long has lost its lock before anything in it has
// run: the answer must be the clock's, not that of a goroutine which waits for Done.
func TestLeaderAsksTheHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := &held{done: make(chan struct{})}, &held{done: make(chan struct{})}
		holds := make(chan *held, 2)
		fail := make(chan error)
		began := 0
		l := &Leader{name: "lead", began: func() { began++ }, pause: time.Second, done: make(chan struct{})}
		l.acquire = func(ctx context.Context) (hold, error) {
			select {
			case h := <-holds:
				return h, nil
			case err := <-fail:
				return nil, err
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		l.cancel = cancel
		go l.run(ctx)
		require.ErrorIs(t, l.Err(), ErrNotLeading)

		fail <- quorumlock.ErrSessionExpired
		synctest.Wait()
		require.ErrorIs(t, l.Err(), quorumlock.ErrSessionExpired)
		holds <- first
		time.Sleep(time.Second)
		synctest.Wait()
		require.NoError(t, l.Err())
		require.Equal(t, 1, began)

		lost := errors.New("lost")
		first.mu.Lock()
		first.err = lost
		first.mu.Unlock()
		require.ErrorIs(t, l.Err(), ErrNotLeading, "although Done has not been closed yet")
		require.ErrorIs(t, l.Err(), lost)
		close(first.done)
		holds <- second
		synctest.Wait()
		require.NoError(t, l.Err())
		require.Equal(t, 2, began)

		l.Stop()
		require.True(t, second.free)
	})
}
