package quorumlock

import (
	"container/heap"
	"time"
)

// An agenda is when the times that run are over, as this replica counts: from when
// it applied what began them. Every replica keeps one; the leader's is acted on.
type agenda struct {
	at   map[timeID]*appointment
	next appointments
}

type appointment struct {
	id    timeID
	at    time.Time
	place int // in the heap
}

// begin notes that a time is over at a moment. Once noted it stays as it is.
func (a *agenda) begin(id timeID, at time.Time) {
	if a.at == nil {
		a.at = make(map[timeID]*appointment)
	}
	if a.at[id] == nil {
		x := &appointment{id: id, at: at}
		a.at[id] = x
		heap.Push(&a.next, x)
	}
}

// end forgets a time.
func (a *agenda) end(id timeID) {
	if x := a.at[id]; x != nil {
		heap.Remove(&a.next, x.place)
		delete(a.at, id)
	}
}

// keep makes the agenda that of a state whose making was not seen: what runs there
// and was not noted begins now, which is late and never early.
func (a *agenda) keep(running map[timeID]runningTime, now time.Time) {
	for id := range a.at {
		if _, ok := running[id]; !ok {
			a.end(id)
		}
	}
	for id, t := range running {
		a.begin(id, now.Add(t.d))
	}
}

// due returns what is over, at most so many. It stays noted until the log says that
// it ended.
func (a *agenda) due(now time.Time, most int) (over []timeID) {
	// A heap's children are no earlier than their parent.
	look := []int{0}
	for len(look) > 0 && len(over) < most {
		i := look[0]
		look = look[1:]
		if i < len(a.next) && !now.Before(a.next[i].at) {
			over = append(over, a.next[i].id)
			look = append(look, 2*i+1, 2*i+2)
		}
	}
	return over
}

// when tells when a time is over.
func (a *agenda) when(id timeID) (at time.Time, ok bool) {
	if x := a.at[id]; x != nil {
		return x.at, true
	}
	return time.Time{}, false
}

// appointments is a heap of them, the earliest first.
type appointments []*appointment

func (a appointments) Len() int           { return len(a) }
func (a appointments) Less(i, j int) bool { return a[i].at.Before(a[j].at) }
func (a appointments) Swap(i, j int) {
	a[i], a[j] = a[j], a[i]
	a[i].place, a[j].place = i, j
}

func (a *appointments) Push(x any) {
	p := x.(*appointment)
	p.place = len(*a)
	*a = append(*a, p)
}

func (a *appointments) Pop() any {
	old := *a
	x := old[len(old)-1]
	old[len(old)-1] = nil
	*a = old[:len(old)-1]
	return x
}
