package queue

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/sessions"
)

// dice returns a source that a failed test can be repeated with.
func dice(t *testing.T) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("QUORUMLOCK_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("QUORUMLOCK_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

func newClaim(seq uint64) *Claim {
	return &Claim{Session: sessions.ID{Replica: 1, Epoch: 1, Seq: 1}, Seq: seq, Mode: Exclusive}
}

func seqs(claims func(func(*Claim) bool)) []uint64 {
	out := []uint64{}
	for c := range claims {
		out = append(out, c.Seq)
	}
	return out
}

func TestNewLineIsFree(t *testing.T) {
	var l Line
	require.True(t, l.Free(newClaim(0)))
	require.True(t, l.Empty())
	require.Nil(t, l.Next())
	require.Zero(t, l.Holding())
	require.Zero(t, l.Waiting())
}

func TestLineServesInOrderOfArrival(t *testing.T) {
	var l Line
	a, b, c := newClaim(1), newClaim(2), newClaim(3)

	l.Hold(a, 7)
	require.True(t, a.Holds())
	require.Equal(t, fencing.Token(7), a.Token)
	require.Same(t, &l, a.Line())
	require.False(t, l.Free(newClaim(0)))

	l.Wait(b)
	l.Wait(c)
	require.False(t, b.Holds())
	require.Nil(t, l.Next(), "nobody is next while the lock is held")
	require.Equal(t, []uint64{2, 3}, seqs(l.Waiters()))
	require.Equal(t, []int{0, 0, 1}, []int{a.Ahead(), b.Ahead(), c.Ahead()})

	a.Leave()
	require.Nil(t, a.Line())
	require.False(t, l.Free(newClaim(0)), "a newcomer may not overtake those who wait")
	require.Same(t, b, l.Next())
	l.Hold(b, 8)
	require.Nil(t, l.Next())
	require.Equal(t, []uint64{2}, seqs(l.Holders()))
	require.Equal(t, []uint64{3}, seqs(l.Waiters()))

	b.Leave()
	l.Hold(l.Next(), 9)
	c.Leave()
	require.True(t, l.Empty())
	require.True(t, l.Free(newClaim(0)))
}

func TestLeaveFromAnyPlace(t *testing.T) {
	for n := 1; n <= 4; n++ {
		for gone := range n {
			var l Line
			l.Hold(newClaim(0), 1)
			want := []uint64{}
			var leaver *Claim
			for i := range n {
				c := newClaim(uint64(i + 1))
				l.Wait(c)
				if i == gone {
					leaver = c
				} else {
					want = append(want, c.Seq)
				}
			}
			leaver.Leave()
			leaver.Leave() // a second time takes nobody else's place
			require.Equal(t, want, seqs(l.Waiters()))
			require.Equal(t, n-1, l.Waiting())
			l.Wait(newClaim(99)) // the ends of the list are still right
			require.Equal(t, append(want, 99), seqs(l.Waiters()))
			require.Zero(t, leaver.Ahead())
		}
	}
}

// Whoever is preferred goes before all others, from any place; they keep theirs.
func TestPreferFromAnyPlace(t *testing.T) {
	for n := 1; n <= 4; n++ {
		for chosen := range n {
			var l Line
			holder := newClaim(0)
			l.Hold(holder, 1)
			want := []uint64{uint64(chosen + 1)}
			var heir *Claim
			for i := range n {
				c := newClaim(uint64(i + 1))
				l.Wait(c)
				if i == chosen {
					heir = c
				} else {
					want = append(want, c.Seq)
				}
			}
			l.Prefer(heir)
			require.Equal(t, want, seqs(l.Waiters()))
			require.Equal(t, n, l.Waiting())
			require.Nil(t, l.Next(), "the lock is held yet")
			require.Zero(t, heir.Ahead())
			l.Wait(newClaim(99)) // the ends of the list are still right
			require.Equal(t, append(want, 99), seqs(l.Waiters()))
			holder.Leave()
			require.Same(t, heir, l.Next())
		}
	}
}

func TestClaimMayLeaveWhileItIsLookedAt(t *testing.T) {
	var l Line
	l.Hold(newClaim(0), 1)
	for i := range uint64(5) {
		l.Wait(newClaim(i + 1))
	}
	var met []uint64
	for c := range l.Waiters() {
		met = append(met, c.Seq)
		if c.Seq%2 == 1 {
			c.Leave()
		}
	}
	require.Equal(t, []uint64{1, 2, 3, 4, 5}, met)
	require.Equal(t, []uint64{2, 4}, seqs(l.Waiters()))
	for c := range l.Waiters() {
		require.Equal(t, uint64(2), c.Seq)
		break
	}
}

func TestModes(t *testing.T) {
	require.Equal(t, "exclusive", Exclusive.String())
	require.Equal(t, "shared", Shared.String())
	require.Equal(t, "counted", Counted.String())
	require.Equal(t, "mode?", Mode(9).String())
	for m := range Mode(255) {
		require.Equal(t, m >= 1 && m <= 3, m.Valid())
		require.NotEmpty(t, m.String())
	}
}
