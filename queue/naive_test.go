package queue

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/fencing"
)

// A visitor is one acquisition, as the naive lines have it.
type visitor struct {
	parts []*Claim // in the lines of the same place
	lines []int
	mode  Mode
	n     uint32 // permits
	holds bool
	slots []uint32
}

// naiveLines are lines without lines: a list of visitors in the order in which they
// came, searched from the front.
type naiveLines struct {
	visitors []*visitor
	limits   [4]uint32
	bars     [4][]uint64
}

// on lists who is in a line.
func (n *naiveLines) on(line int) (list []*visitor) {
	for _, v := range n.visitors {
		if slices.Contains(v.lines, line) {
			list = append(list, v)
		}
	}
	return list
}

// fits reports whether v may hold in all its lines: nobody came to one earlier and
// waits, none is barred, and it may be beside who holds.
func (n *naiveLines) fits(v *visitor) bool {
	for _, line := range v.lines {
		if len(n.bars[line]) > 0 {
			return false
		}
		sum := v.n
		for _, other := range n.on(line) {
			if other == v {
				break
			}
			if !other.holds || other.mode != v.mode || v.mode == Exclusive {
				return false
			}
			sum += other.n
		}
		if v.mode == Counted && sum > n.limits[line] {
			return false
		}
	}
	return true
}

// next is who is to be granted in a line, or nil.
func (n *naiveLines) next(line int) *visitor {
	for _, v := range n.on(line) {
		if !v.holds {
			if n.fits(v) {
				return v
			}
			return nil
		}
	}
	return nil
}

// lowest are the lowest free slots for v.
func (n *naiveLines) lowest(v *visitor) (slots []uint32) {
	for k := uint32(0); uint32(len(slots)) < v.n; k++ {
		taken := slices.ContainsFunc(n.on(v.lines[0]), func(o *visitor) bool { return slices.Contains(o.slots, k) })
		if !taken {
			slots = append(slots, k)
		}
	}
	return slots
}

// A pair is the lines and the naive ones.
type pair struct {
	t     *testing.T
	rnd   *rand.Rand
	lines [4]Line
	naive naiveLines
	token fencing.Token
	seq   uint64
	bar   uint64
	met   map[string]int
}

// arrive makes a visitor that may be where it wants to be.
func (p *pair) arrive() {
	p.seq++
	v := &visitor{lines: p.rnd.Perm(len(p.lines))[:1], mode: Mode(1 + p.rnd.IntN(3))}
	i := v.lines[0]
	used := p.naive.on(i)
	switch {
	case len(used) > 0 && used[0].mode == Counted:
		v.mode = Counted
	case len(used) > 0 && v.mode == Counted:
		v.mode = Shared
	}
	switch v.mode {
	case Counted:
		if len(used) == 0 {
			p.setLimit(i, 1+p.rnd.Uint32N(5))
		}
		v.n = 1 + p.rnd.Uint32N(max(1, p.naive.limits[i]))
	case Exclusive:
		v.lines = v.lines[:0]
		for _, k := range p.rnd.Perm(len(p.lines))[:1+p.rnd.IntN(3)] {
			if there := p.naive.on(k); len(there) == 0 || there[0].mode != Counted {
				v.lines = append(v.lines, k)
			}
		}
	}
	if len(v.lines) == 0 {
		return
	}
	for _, k := range v.lines {
		if len(p.naive.on(k)) == 0 && v.mode != Counted {
			p.setLimit(k, 0)
		}
		c := newClaim(p.seq)
		c.Mode, c.Permits = v.mode, v.n
		alone := *v
		alone.lines = []int{k}
		require.Equal(p.t, p.naive.fits(&alone), p.lines[k].Free(c))
		p.lines[k].Wait(c)
		v.parts = append(v.parts, c)
	}
	if len(v.parts) > 1 {
		Join(v.parts)
	}
	p.naive.visitors = append(p.naive.visitors, v)
}

// prefer puts somebody who waits in one line before all others who wait there.
func (p *pair) prefer(i int) {
	there := p.naive.on(i)
	first := slices.IndexFunc(there, func(v *visitor) bool { return !v.holds })
	if first < 0 {
		return
	}
	v := there[first+p.rnd.IntN(len(there)-first)]
	if len(v.lines) > 1 {
		return
	}
	if v != there[first] {
		p.met["preferred"]++
		p.naive.visitors = slices.DeleteFunc(p.naive.visitors, func(o *visitor) bool { return o == v })
		p.naive.visitors = slices.Insert(p.naive.visitors, slices.Index(p.naive.visitors, there[first]), v)
	}
	p.lines[i].Prefer(v.parts[0])
}

func (p *pair) setLimit(i int, permits uint32) {
	p.lines[i].SetLimit(permits)
	p.naive.limits[i] = permits
}

func (p *pair) leave(v *visitor) {
	for _, c := range v.parts {
		c.Leave()
	}
	p.naive.visitors = slices.DeleteFunc(p.naive.visitors, func(o *visitor) bool { return o == v })
}

// settle grants whoever is next, as the naive lines would.
func (p *pair) settle() {
	for again := true; again; {
		again = false
		for i := range p.lines {
			l := &p.lines[i]
			want := p.naive.next(i)
			if want == nil {
				require.Nil(p.t, l.Next())
				continue
			}
			require.Same(p.t, want.parts[slices.Index(want.lines, i)], l.Next())
			again = true
			p.grant(want)
		}
	}
}

func (p *pair) grant(v *visitor) {
	if len(v.parts) > 1 {
		p.met["several"]++
	}
	for k, c := range v.parts {
		l := &p.lines[v.lines[k]]
		token := l.Generation(c.Mode)
		for _, o := range p.naive.on(v.lines[k]) {
			if o.holds {
				require.Equal(p.t, v.mode == Shared, token == o.parts[0].Token, "a generation of readers has one token")
				p.met["beside in mode "+v.mode.String()]++
			}
		}
		if token.IsZero() {
			p.token++
			token = p.token
		}
		v.slots = p.naive.lowest(v)
		l.Hold(c, token)
		require.True(p.t, slices.Equal(v.slots, c.Slots), "slots %v, and the lowest are %v", c.Slots, v.slots)
	}
	v.holds = true
}

// same compares every line with the naive ones.
func (p *pair) same() {
	p.t.Helper()
	for i := range p.lines {
		l := &p.lines[i]
		var holders, waiters []*Claim
		for _, v := range p.naive.on(i) {
			c := v.parts[slices.Index(v.lines, i)]
			if v.holds {
				holders = append(holders, c)
			} else {
				waiters = append(waiters, c)
			}
		}
		if !slices.Equal(slices.Collect(l.Holders()), holders) || !slices.Equal(slices.Collect(l.Waiters()), waiters) {
			p.t.Fatalf("holders %v, waiters %v, want %v, %v", seqs(l.Holders()), seqs(l.Waiters()), holders, waiters)
		}
		inUse, barred := len(holders)+len(waiters) > 0, len(p.naive.bars[i]) > 0
		if l.Holding() != len(holders) || l.Waiting() != len(waiters) || l.InUse() != inUse || l.Empty() != (!inUse && !barred) {
			p.t.Fatalf("%d holding, %d waiting, empty %v", l.Holding(), l.Waiting(), l.Empty())
		}
		taken := uint32(0)
		for _, c := range holders {
			taken += c.Permits
		}
		require.Equal(p.t, taken, l.Taken())
		alone := len(holders) == 1 && len(waiters) == 0 && !barred && holders[0].Mode == Exclusive && len(holders[0].Parts()) == 1
		require.Equal(p.t, alone, l.Alone() != nil)
		for k, c := range waiters {
			if c.Ahead() != k || c.Line() != l || c.Holds() {
				p.t.Fatalf("waiter %d: %d ahead, holds %v", k, c.Ahead(), c.Holds())
			}
		}
	}
}

// restored puts every line together anew, as after a snapshot.
func (p *pair) restored() {
	var lines [4]Line
	for i := range p.lines {
		l := &p.lines[i]
		holders, waiters := slices.Collect(l.Holders()), slices.Collect(l.Waiters())
		lines[i].SetLimit(l.Limit())
		for _, b := range l.Bars() {
			lines[i].Bar(b)
		}
		for _, c := range holders {
			c.Leave()
			require.True(p.t, lines[i].Restore(c))
		}
		for _, c := range waiters {
			c.Leave()
			lines[i].Wait(c)
		}
	}
	p.lines = lines
	for i := range p.lines { // the claims point to the lines
		for _, side := range []func(func(*Claim) bool){p.lines[i].Holders(), p.lines[i].Waiters()} {
			for c := range side {
				c.line = &p.lines[i]
			}
		}
	}
}

// step lets one thing happen.
func (p *pair) step() {
	i := p.rnd.IntN(len(p.lines))
	there := p.naive.on(i)
	switch k := p.rnd.IntN(20); {
	case k < 9 && len(p.naive.visitors) < 30:
		p.arrive()
	case k < 16 && len(p.naive.visitors) > 0:
		// From anywhere, but more often from the front: that is where holders are.
		at := min(p.rnd.IntN(len(p.naive.visitors)), p.rnd.IntN(len(p.naive.visitors)))
		p.leave(p.naive.visitors[at])
	case k == 16 && len(there) > 0 && there[0].mode == Counted:
		p.setLimit(i, 1+p.rnd.Uint32N(6))
		p.met["limit"]++
	case k == 17 && len(there) > 0 && there[0].holds && there[0].mode == Exclusive && len(there[0].lines) == 1:
		there[0].parts[0].Downgrade()
		there[0].mode = Shared
		p.met["downgrade"]++
	case k == 18 && len(p.naive.bars[i]) < 3:
		p.bar++
		p.lines[i].Bar(Bar{ID: p.bar})
		p.naive.bars[i] = append(p.naive.bars[i], p.bar)
		p.met["bar"]++
	case k == 19 && p.rnd.IntN(4) == 0:
		p.prefer(i)
	case len(p.naive.bars[i]) > 0:
		which := p.rnd.IntN(len(p.naive.bars[i]))
		p.lines[i].Lift(p.naive.bars[i][which])
		p.naive.bars[i] = slices.Delete(p.naive.bars[i], which, which+1)
	}
}

// Random visitors of four lines, against the naive ones: in every mode, in several
// lines at once, with limits that change and bars that come and go.
func TestLinesAgainstNaive(t *testing.T) {
	p := &pair{t: t, rnd: dice(t), met: map[string]int{}}
	rare := []string{"several", "limit", "downgrade", "bar", "preferred", "beside in mode shared", "beside in mode counted"}
	missing := func() bool {
		return slices.ContainsFunc(rare, func(what string) bool { return p.met[what] == 0 })
	}
	for step := 0; step < 30_000 || missing() && step < 1_000_000; step++ {
		p.step()
		p.settle()
		p.same()
		if p.rnd.IntN(200) == 0 {
			p.restored()
			p.same()
		}
		if p.rnd.IntN(1000) == 0 { // only a line that is empty becomes a counted one
			for len(p.naive.visitors) > 0 {
				p.leave(p.naive.visitors[0])
			}
		}
	}
	require.False(t, missing(), "%v", p.met)

	// However they wait for each other, once nothing bars them and those who hold
	// leave, all are served.
	for i := range p.lines {
		for _, id := range p.naive.bars[i] {
			p.lines[i].Lift(id)
		}
		p.naive.bars[i] = nil
		if p.lines[i].Limit() > 0 {
			p.setLimit(i, 10)
		}
	}
	for len(p.naive.visitors) > 0 {
		p.settle()
		at := slices.IndexFunc(p.naive.visitors, func(v *visitor) bool { return v.holds })
		require.GreaterOrEqual(t, at, 0, "%d wait for each other", len(p.naive.visitors))
		p.leave(p.naive.visitors[at])
	}
	for i := range p.lines {
		require.True(t, p.lines[i].Empty())
	}
}
