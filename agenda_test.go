package quorumlock

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A naiveAgenda is a list, and nothing else.
type naiveAgenda []appointment

func (a *naiveAgenda) begin(id timeID, at time.Time) {
	if !slices.ContainsFunc(*a, func(x appointment) bool { return x.id == id }) {
		*a = append(*a, appointment{id: id, at: at})
	}
}

func (a *naiveAgenda) end(id timeID) {
	*a = slices.DeleteFunc(*a, func(x appointment) bool { return x.id == id })
}

func (a *naiveAgenda) due(now time.Time) (over []timeID) {
	for _, x := range *a {
		if !now.Before(x.at) {
			over = append(over, x.id)
		}
	}
	return over
}

func byID(a, b timeID) int { return cmp.Compare(a.hold, b.hold) }

// Random times that begin, end, begin once more and are kept, against the list.
func TestAgendaAgainstNaive(t *testing.T) {
	rng := dice(t)
	var a agenda
	var naive naiveAgenda
	now := time.Now()
	for range 5_000 {
		id := timeID{hold: rng.Uint64N(60), what: maxHold}
		switch rng.IntN(40) {
		default:
			at := now.Add(time.Duration(rng.IntN(100)) * time.Second)
			a.begin(id, at)
			naive.begin(id, at)
		case 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19:
			a.end(id)
			naive.end(id)
		case 20, 21, 22, 23, 24:
			now = now.Add(time.Duration(rng.IntN(10)) * time.Second)
		case 25:
			running := make(map[timeID]runningTime)
			for range 20 {
				d := time.Duration(rng.IntN(100)) * time.Second
				running[timeID{hold: rng.Uint64N(60), what: maxHold}] = runningTime{d: d}
			}
			a.keep(running, now)
			naive = slices.DeleteFunc(naive, func(x appointment) bool { _, ok := running[x.id]; return !ok })
			for id, r := range running {
				naive.begin(id, now.Add(r.d))
			}
		}
		want := naive.due(now)
		got := a.due(now, 1000)
		few := a.due(now, 3)
		require.Len(t, few, min(3, len(want)))
		require.Subset(t, want, few)
		slices.SortFunc(want, byID)
		slices.SortFunc(got, byID)
		require.Equal(t, want, got)
		require.Len(t, a.at, len(naive))
		require.Len(t, a.next, len(naive))
		for _, x := range naive {
			at, ok := a.when(x.id)
			require.True(t, ok)
			require.Equal(t, x.at, at)
		}
		_, ok := a.when(timeID{hold: 99})
		require.False(t, ok)
	}
}

// What is noted once stays as it is: who says it again does not put it off, and a
// snapshot neither.
func TestAgendaIsNotPutOff(t *testing.T) {
	var a agenda
	now := time.Now()
	id, other := timeID{hold: 1, what: minHold}, timeID{hold: 1, what: maxHold}
	a.begin(id, now.Add(time.Second))
	a.begin(other, now.Add(2*time.Second))
	a.begin(id, now.Add(time.Hour))
	a.keep(map[timeID]runningTime{id: {d: time.Hour}}, now)
	require.Equal(t, []timeID{id}, a.due(now.Add(time.Second), 9), "at the very moment, and it stays noted")
	require.Equal(t, []timeID{id}, a.due(now.Add(time.Hour), 9), "the other does not run")
	require.Empty(t, a.due(now.Add(time.Second-1), 9))
	a.end(id)
	a.end(id)
	require.Empty(t, a.due(now.Add(time.Hour), 9))
	require.Empty(t, a.due(now.Add(time.Hour), 0))
}
