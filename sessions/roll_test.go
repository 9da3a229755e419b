package sessions

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestBatchesAreAppliedOnceAndInOrder(t *testing.T) {
	var r Roll
	require.Equal(t, Stranger, r.Admit(1, 1, 1), "it has not begun its life")
	_, ok := r.Boot(1, 1)
	require.True(t, ok)
	for _, step := range []struct {
		n    uint64
		want Verdict
	}{
		{2, Gap}, {1, Fresh}, {1, Duplicate}, {3, Gap}, {2, Fresh}, {1, Duplicate}, {2, Duplicate},
		{3, Fresh}, {0, Duplicate}, {1<<64 - 1, Gap}, {4, Fresh},
	} {
		require.Equal(t, step.want, r.Admit(1, 1, step.n), "batch %d", step.n)
	}
	require.Equal(t, Stranger, r.Admit(1, 2, 5))
	require.Equal(t, Stranger, r.Admit(2, 1, 1))

	_, ok = r.Boot(1, 2)
	require.True(t, ok)
	require.Equal(t, Stranger, r.Admit(1, 1, 5), "of a life that is over")
	require.Equal(t, Fresh, r.Admit(1, 2, 1), "numbers begin anew")
}

func TestVerdictsHaveNames(t *testing.T) {
	names := []string{}
	for v := Fresh; v <= Stranger+1; v++ {
		names = append(names, v.String())
	}
	require.Equal(t, []string{"fresh", "duplicate", "gap", "stranger", "verdict?"}, names)
}

func TestBootEndsTheFormerLife(t *testing.T) {
	var r Roll
	ended, ok := r.Boot(1, 3)
	require.True(t, ok)
	require.Empty(t, ended)
	for _, seq := range []uint64{9, 2, 5} {
		require.True(t, r.Open(Session{ID: ID{1, 3, seq}}))
	}

	ended, ok = r.Boot(1, 3) // it may come twice
	require.True(t, ok)
	require.Empty(t, ended)
	ended, ok = r.Boot(1, 2) // or from a life that is over
	require.False(t, ok)
	require.Empty(t, ended)
	require.Equal(t, 3, r.Process(1, 3).Len())

	ended, ok = r.Boot(1, 4)
	require.True(t, ok)
	require.Equal(t, []uint64{2, 5, 9}, sessionSeqs(ended), "in the order in which they were opened")
	require.Nil(t, r.Process(1, 3))
	require.Nil(t, r.Session(ID{1, 3, 2}))
	require.False(t, r.Open(Session{ID: ID{1, 3, 10}}), "of a life that is over")
	require.Nil(t, r.Close(ID{1, 3, 2}))
	require.Zero(t, r.Process(1, 4).Renewal)
}

func sessionSeqs(list []*Session) []uint64 {
	var seqs []uint64
	for _, s := range list {
		seqs = append(seqs, s.ID.Seq)
	}
	return seqs
}

func TestOnlyAHigherRenewalIsNews(t *testing.T) {
	var r Roll
	require.False(t, r.Renew(1, 1, 1))
	r.Boot(1, 1)
	require.False(t, r.Renew(1, 1, 0), "no renewal")
	require.True(t, r.Renew(1, 1, 5))
	require.False(t, r.Renew(1, 1, 5))
	require.False(t, r.Renew(1, 1, 4))
	require.True(t, r.Renew(1, 1, 6))
	require.False(t, r.Renew(1, 2, 7))
	require.Equal(t, uint64(6), r.Process(1, 1).Renewal)
}

func TestExpireIsConditional(t *testing.T) {
	var r Roll
	r.Boot(1, 1)
	r.Renew(1, 1, 4)
	for seq, ttl := range []time.Duration{5, 10, 5, 20} {
		r.Open(Session{ID: ID{1, 1, uint64(seq + 1)}, TTL: ttl * time.Second})
	}
	require.Empty(t, r.Expire(1, 1, 3, time.Hour), "another renewal has come")
	require.Empty(t, r.Expire(1, 1, 5, time.Hour), "the judge knows more than the log")
	require.Empty(t, r.Expire(1, 2, 4, time.Hour))
	require.Empty(t, r.Expire(2, 1, 4, time.Hour))
	require.Equal(t, 4, r.Process(1, 1).Len())

	require.Equal(t, []uint64{1, 3}, sessionSeqs(r.Expire(1, 1, 4, 5*time.Second)))
	require.Equal(t, []uint64{2}, sessionSeqs(r.Expire(1, 1, 4, 19*time.Second)))
	require.Empty(t, r.Expire(1, 1, 4, 19*time.Second))
	require.NotNil(t, r.Process(1, 1), "the process is still known: it may only have been slow")
	require.True(t, r.Open(Session{ID: ID{1, 1, 9}}))
}

func TestRestore(t *testing.T) {
	var r Roll
	p := Process{Replica: 1, Epoch: 2, Renewal: 3, Batch: 4}
	require.True(t, r.Restore(p))
	require.False(t, r.Restore(p))
	require.Equal(t, Fresh, r.Admit(1, 2, 5))
	require.True(t, r.Renew(1, 2, 4))
}

func TestYieldMayStop(t *testing.T) {
	var r Roll
	for i := range uint64(3) {
		r.Boot(i+1, 1)
		r.Open(Session{ID: ID{1, 1, i + 1}})
	}
	for p := range r.Processes() {
		require.Equal(t, uint64(1), p.Replica)
		break
	}
	for s := range r.Process(1, 1).Sessions() {
		require.Equal(t, uint64(1), s.ID.Seq)
		break
	}
}

// A naive roll: one list of everything that was ever opened.
type naiveRoll struct {
	epoch, renewal, batch map[uint64]uint64
	alive                 []Session
}

func (n *naiveRoll) take(which func(Session) bool) []ID {
	var taken []ID
	n.alive = slices.DeleteFunc(n.alive, func(s Session) bool {
		if which(s) {
			taken = append(taken, s.ID)
			return true
		}
		return false
	})
	slices.SortFunc(taken, ID.Compare)
	return taken
}

func idsOf(list []*Session) []ID {
	var ids []ID
	for _, s := range list {
		ids = append(ids, s.ID)
	}
	return ids
}

func TestRollAgainstNaive(t *testing.T) {
	rnd := dice(t)
	var r Roll
	n := naiveRoll{map[uint64]uint64{}, map[uint64]uint64{}, map[uint64]uint64{}, nil}
	for range 50_000 {
		replica, epoch, seq := 1+rnd.Uint64N(3), 1+rnd.Uint64N(40), 1+rnd.Uint64N(5)
		if rnd.IntN(10) > 0 {
			epoch = max(n.epoch[replica], 1)
		}
		known := n.epoch[replica] == epoch
		id := ID{replica, epoch, seq}
		switch rnd.IntN(12) {
		case 0:
			if rnd.IntN(20) > 0 {
				continue // lives are long
			}
			var want []ID
			if epoch > n.epoch[replica] {
				want = n.take(func(s Session) bool { return s.ID.Replica == replica })
				n.epoch[replica], n.renewal[replica], n.batch[replica] = epoch, 0, 0
			}
			ended, ok := r.Boot(replica, epoch)
			require.Equal(t, epoch == n.epoch[replica], ok)
			require.Equal(t, want, idsOf(ended))
		case 1, 2:
			k := n.renewal[replica] + rnd.Uint64N(4) - min(1, n.renewal[replica])
			news := known && k > n.renewal[replica]
			require.Equal(t, news, r.Renew(replica, epoch, k))
			if news {
				n.renewal[replica] = k
			}
		case 3, 4:
			k := n.batch[replica] + rnd.Uint64N(3)
			want := Duplicate
			switch {
			case !known:
				want = Stranger
			case k == n.batch[replica]+1:
				want = Fresh
				n.batch[replica]++
			case k > n.batch[replica]:
				want = Gap
			}
			require.Equal(t, want, r.Admit(replica, epoch, k))
		case 5, 6, 7, 8:
			s := Session{ID: id, TTL: time.Duration(1 + rnd.IntN(5))}
			require.Equal(t, known, r.Open(s))
			if known {
				n.take(func(old Session) bool { return old.ID == id })
				n.alive = append(n.alive, s)
			}
		case 9, 10:
			taken := n.take(func(s Session) bool { return s.ID == id })
			require.Equal(t, len(taken) > 0, r.Close(id) != nil)
		case 11:
			renewal, ttl := n.renewal[replica]-min(n.renewal[replica], rnd.Uint64N(2)), time.Duration(rnd.IntN(6))
			var want []ID
			if known && renewal == n.renewal[replica] {
				want = n.take(func(s Session) bool { return s.ID.Replica == replica && s.TTL <= ttl })
			}
			require.Equal(t, want, idsOf(r.Expire(replica, epoch, renewal, ttl)))
		}
		requireRoll(t, &r, &n)
	}
}

func requireRoll(t *testing.T, r *Roll, n *naiveRoll) {
	t.Helper()
	var got []ID
	last := uint64(0)
	for p := range r.Processes() {
		require.Less(t, last, p.Replica)
		last = p.Replica
		if p.Epoch != n.epoch[p.Replica] || p.Renewal != n.renewal[p.Replica] || p.Batch != n.batch[p.Replica] {
			t.Fatalf("%+v, want epoch %d, renewal %d, batch %d", p, n.epoch[p.Replica], n.renewal[p.Replica], n.batch[p.Replica])
		}
		for s := range p.Sessions() {
			got = append(got, s.ID)
		}
	}
	var want []ID
	for _, s := range n.alive {
		want = append(want, s.ID)
	}
	slices.SortFunc(want, ID.Compare)
	require.Equal(t, want, got)
}

func TestShortestTTL(t *testing.T) {
	var r Roll
	require.Zero(t, r.ShortestTTL())
	r.Boot(1, 1)
	r.Boot(2, 1)
	require.Zero(t, r.ShortestTTL(), "a process without sessions has no say")
	for i, ttl := range []time.Duration{8, 5, 9} {
		require.True(t, r.Open(Session{ID: ID{uint64(i%2 + 1), 1, uint64(i)}, TTL: ttl * time.Second}))
	}
	require.Equal(t, 5*time.Second, r.ShortestTTL())
	r.Close(ID{2, 1, 1})
	require.Equal(t, 8*time.Second, r.ShortestTTL())
}
