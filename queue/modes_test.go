package queue

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/fencing"
)

func shared(seq uint64) *Claim {
	c := newClaim(seq)
	c.Mode = Shared
	return c
}

func counted(seq uint64, permits uint32) *Claim {
	c := newClaim(seq)
	c.Mode, c.Permits = Counted, permits
	return c
}

// grantAll does what a caller does after a change: it grants whoever is next, with
// the token of its generation or the next one, and returns who that was.
func grantAll(l *Line, token *fencing.Token) []uint64 {
	got := []uint64{}
	for c := l.Next(); c != nil; c = l.Next() {
		for _, p := range c.Parts() {
			t := p.Line().Generation(p.Mode)
			if t.IsZero() {
				*token++
				t = *token
			}
			p.Line().Hold(p, t)
		}
		got = append(got, c.Seq)
	}
	return got
}

func TestReadersTogether(t *testing.T) {
	var l Line
	token := fencing.Token(4)
	l.Hold(newClaim(1), token)
	writer := newClaim(4)
	for _, c := range []*Claim{shared(2), shared(3), writer, shared(5), shared(6), newClaim(7)} {
		require.False(t, l.Free(c))
		l.Wait(c)
	}
	require.Nil(t, l.Next())
	for c := range l.Holders() {
		c.Leave()
	}
	require.Equal(t, []uint64{2, 3}, grantAll(&l, &token), "contiguous readers, and none from behind the writer")
	require.Equal(t, fencing.Token(5), token, "one generation, one token")
	require.Equal(t, token, l.Generation(Shared))
	require.Zero(t, l.Generation(Exclusive))
	require.False(t, l.Free(shared(8)), "a reader behind a waiting writer waits")
	require.Nil(t, l.Alone())

	writer.Leave()
	require.Equal(t, []uint64{5, 6}, grantAll(&l, &token), "those behind a writer that has left join those before it")
	require.Equal(t, fencing.Token(5), token)
	require.Equal(t, 4, l.Holding())
	for c := range l.Holders() {
		require.Empty(t, grantAll(&l, &token), "a writer waits until the last reader is gone")
		c.Leave()
	}
	require.Equal(t, []uint64{7}, grantAll(&l, &token))
	require.Equal(t, fencing.Token(6), token)
}

func TestLowestFreeSlots(t *testing.T) {
	var l Line
	l.SetLimit(70)
	a, b, c := counted(1, 3), counted(2, 2), counted(3, 64)
	for i, x := range []*Claim{a, b, c} {
		require.True(t, l.Free(x))
		l.Hold(x, fencing.Token(i+1))
	}
	require.Equal(t, []uint32{0, 1, 2}, a.Slots)
	require.Equal(t, []uint32{3, 4}, b.Slots)
	require.Equal(t, uint32(5), c.Slots[0])
	require.Equal(t, uint32(68), c.Slots[63])
	require.Equal(t, uint32(69), l.Taken())
	require.True(t, l.Free(counted(4, 1)))
	require.False(t, l.Free(counted(4, 2)), "there is one")

	a.Leave()
	d := counted(4, 4)
	l.Hold(d, 4)
	require.Equal(t, []uint32{0, 1, 2, 69}, d.Slots, "the lowest, over the border of a word")
	require.False(t, l.Free(counted(5, 1)))
	require.Equal(t, uint32(70), l.Taken())
}

func TestLimitUpAndDown(t *testing.T) {
	var l Line
	var token fencing.Token
	l.SetLimit(1)
	for i := range uint64(6) {
		l.Wait(counted(i, 1))
	}
	require.Equal(t, []uint64{0}, grantAll(&l, &token))
	l.SetLimit(4)
	require.Equal(t, []uint64{1, 2, 3}, grantAll(&l, &token), "more permits are granted at once")
	l.SetLimit(2)
	require.Equal(t, uint32(4), l.Taken(), "nobody loses one")
	left := 0
	for c := range l.Holders() {
		c.Leave()
		if left++; left < 3 {
			require.Empty(t, grantAll(&l, &token), "not before enough have come back")
		} else {
			require.Equal(t, []uint64{4}, grantAll(&l, &token))
			break
		}
	}
	// Slot 3 is taken yet, and no longer one of the two: the other one is the lowest.
	require.Equal(t, []uint64{3, 4}, seqs(l.Holders()))
	for c := range l.Holders() {
		require.Equal(t, []uint32{map[uint64]uint32{3: 3, 4: 0}[c.Seq]}, c.Slots)
	}
	// Who is first and wants more than there are keeps those behind it waiting.
	l.SetLimit(10)
	require.Equal(t, []uint64{5}, grantAll(&l, &token))
	l.Wait(counted(7, 8))
	l.Wait(counted(8, 1))
	require.Empty(t, grantAll(&l, &token))
	l.SetLimit(11)
	require.Equal(t, []uint64{7}, grantAll(&l, &token))
	l.SetLimit(12)
	require.Equal(t, []uint64{8}, grantAll(&l, &token))
}

func TestBars(t *testing.T) {
	var l Line
	var token fencing.Token
	require.True(t, l.Empty())
	l.Bar(Bar{ID: 1, For: time.Second})
	require.False(t, l.Empty())
	require.False(t, l.InUse())
	require.False(t, l.Free(newClaim(1)))
	require.False(t, l.Free(shared(1)))
	require.False(t, l.Free(counted(1, 1)))
	l.Wait(newClaim(1))
	l.Bar(Bar{ID: 2, For: 2 * time.Second})
	l.Lift(1)
	l.Lift(7)
	require.Equal(t, []Bar{{2, 2 * time.Second}}, l.Bars())
	require.Empty(t, grantAll(&l, &token), "until the last one is lifted")
	l.Lift(2)
	require.Equal(t, []uint64{1}, grantAll(&l, &token))
	require.NotNil(t, l.Alone())
	l.Bar(Bar{ID: 3})
	require.Nil(t, l.Alone(), "there is more to say of it than who holds")
}

func TestDowngrade(t *testing.T) {
	var l Line
	token := fencing.Token(9)
	c := newClaim(1)
	l.Hold(c, token)
	for _, w := range []*Claim{shared(2), newClaim(3), shared(4)} {
		l.Wait(w)
	}
	c.Downgrade()
	require.Equal(t, fencing.Token(9), c.Token, "its token stays")
	require.Equal(t, []uint64{2}, grantAll(&l, &token))
	require.Equal(t, fencing.Token(9), token, "and is that of those who join it")
	require.Equal(t, []uint64{1, 2}, seqs(l.Holders()))
}

// joined puts one acquisition of several names into these lines.
func joined(seq uint64, lines ...*Line) *Claim {
	var parts []*Claim
	for _, l := range lines {
		c := newClaim(seq)
		l.Wait(c)
		parts = append(parts, c)
	}
	Join(parts)
	return parts[0]
}

func TestJoinedAreGrantedWhenFirstInEveryLine(t *testing.T) {
	var a, b Line
	var token fencing.Token
	h := newClaim(1)
	token++
	b.Hold(h, token)
	c := joined(2, &a, &b)
	require.True(t, c.Joint())
	require.False(t, c.Plain())
	require.Nil(t, a.Next(), "first in a, and b is held")
	require.False(t, a.Free(newClaim(3)), "nobody overtakes it where it is first")
	before := newClaim(4) // comes later, so it waits behind in b
	b.Wait(before)
	a.Wait(newClaim(5))

	h.Leave()
	require.Same(t, c.Parts()[1], b.Next())
	require.Same(t, c, a.Next(), "either line tells")
	require.Equal(t, []uint64{2}, grantAll(&b, &token))
	require.Equal(t, []fencing.Token{2, 3}, []fencing.Token{c.Token, c.Parts()[1].Token}, "a token for each name")
	require.Nil(t, a.Next())
	require.Nil(t, a.Alone())
	c.Leave()
	c.Parts()[1].Leave()
	require.Equal(t, []uint64{5}, grantAll(&a, &token))
	require.Equal(t, []uint64{4}, grantAll(&b, &token))
}

// First everywhere is not enough if one line is barred, nor is every name being free
// if somebody came to one of them earlier.
func TestJoinedWaitForEachLine(t *testing.T) {
	var a, b Line
	var token fencing.Token
	b.Bar(Bar{ID: 1})
	w := newClaim(1)
	b.Wait(w)
	joined(2, &a, &b)
	require.Nil(t, a.Next())
	b.Lift(1)
	require.Equal(t, []uint64{1}, grantAll(&b, &token))
	b.Bar(Bar{ID: 2})
	w.Leave()
	require.Nil(t, a.Next())
	require.Nil(t, b.Next())
	b.Lift(2)
	require.Equal(t, []uint64{2}, grantAll(&a, &token))
}

// A part whose place in another line is not known yet, as while a snapshot is read,
// is nobody's turn.
func TestPartWithoutTheOthersIsNotNext(t *testing.T) {
	var a Line
	c := newClaim(1)
	a.Wait(c)
	Join([]*Claim{c, newClaim(1)})
	require.Nil(t, a.Next())
}

// Two that want the same names in different orders: their places are taken in one
// step each, so one of them is first in both lines.
func TestJoinsInDifferentOrdersNeverDeadlock(t *testing.T) {
	var a, b Line
	var token fencing.Token
	h, k := newClaim(1), newClaim(2)
	a.Hold(h, 1)
	b.Hold(k, 2)
	token = 2
	first, second := joined(3, &a, &b), joined(4, &b, &a)
	k.Leave()
	require.Empty(t, grantAll(&b, &token))
	h.Leave()
	require.Equal(t, []uint64{3}, grantAll(&a, &token))
	for _, p := range first.Parts() {
		p.Leave()
	}
	require.Equal(t, []uint64{4}, grantAll(&a, &token))
	require.True(t, second.Holds() && second.Parts()[1].Holds())
}

func TestRestoreTakesWhatMayBe(t *testing.T) {
	held := func(c *Claim, slots ...uint32) *Claim {
		c.Token, c.Slots = 5, slots
		return c
	}
	for what, x := range map[string]struct {
		limit  uint32
		claims []*Claim
		ok     bool
	}{
		"one":                        {0, []*Claim{held(newClaim(1))}, true},
		"readers":                    {0, []*Claim{held(shared(1)), held(shared(2))}, true},
		"permits":                    {4, []*Claim{held(counted(1, 1), 3), held(counted(2, 2), 0, 2)}, true},
		"permits beyond the limit":   {1, []*Claim{held(counted(1, 1), 3), held(counted(2, 1), 0)}, true}, // it shrank
		"two":                        {0, []*Claim{held(newClaim(1)), held(newClaim(2))}, false},
		"a reader beside a writer":   {0, []*Claim{held(newClaim(1)), held(shared(2))}, false},
		"a writer beside a reader":   {0, []*Claim{held(shared(1)), held(newClaim(2))}, false},
		"permits of no counted lock": {0, []*Claim{held(counted(1, 1), 0)}, false},
		"a writer of a counted lock": {2, []*Claim{held(newClaim(1))}, false},
		"a slot taken twice":         {4, []*Claim{held(counted(1, 1), 3), held(counted(2, 2), 2, 3)}, false},
		"a slot twice in one":        {4, []*Claim{held(counted(1, 2), 3, 3)}, false},
		"slots out of order":         {4, []*Claim{held(counted(1, 2), 3, 1)}, false},
		"fewer slots than permits":   {4, []*Claim{held(counted(1, 2), 3)}, false},
		"a reader with a slot":       {0, []*Claim{held(shared(1), 0)}, false},
	} {
		var l Line
		l.SetLimit(x.limit)
		ok := true
		for _, c := range x.claims {
			ok = l.Restore(c) && ok
		}
		require.Equal(t, x.ok, ok, what)
	}
}
