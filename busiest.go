package quorumlock

import (
	"cmp"
	"math/rand/v2"
	"slices"
)

const (
	// busiestNames is how many names are counted at once. Whatever is asked for more
	// often than one call in so many is among them.
	busiestNames = 128
	// busiestHalf is after how many calls all counts are halved.
	busiestHalf = 1 << 17
	// busiestExact is how many calls are each counted, before one in busiestStep stands
	// for all: it is names by the thousand that cost, and they need no exact numbers.
	busiestExact = 1 << 13
	busiestStep  = 16
)

// busiest counts the names that are asked for most, in memory that does not grow
// with the number of names: the space-saving algorithm of Metwally, Agrawal and El
// Abbadi. A name that is not counted takes the place and the count of the one with
// the smallest count, and remembers by how much it may be counted too high.
type busiest struct {
	slot  map[string]int // of a name in names: a name keeps its slot while it is counted
	names []NameCount
	heap  []int // slots, that with the smallest count first
	at    []int // where in heap a slot is
	calls int
	skip  int // how many calls are let pass before the next is counted
}

// add counts one call, or lets it pass. It keeps name itself, of at most busiestNames names, and so
// takes no memory.
func (b *busiest) add(name string) {
	if b.calls++; b.calls >= busiestHalf {
		b.halve()
	}
	weight := uint64(1)
	if b.calls > busiestExact {
		if b.skip > 0 {
			b.skip--
			return
		}
		// At random, since calls may have an order that a fixed step falls in with.
		weight, b.skip = busiestStep, rand.IntN(2*busiestStep-1)
	}
	if b.slot == nil {
		b.slot = make(map[string]int, busiestNames)
	}
	i, counted := b.slot[name]
	switch {
	case counted:
	case len(b.names) < busiestNames:
		i = len(b.names)
		b.names = append(b.names, NameCount{Name: name})
		b.heap, b.at = append(b.heap, i), append(b.at, i)
		b.slot[name] = i
		b.up(i)
	default:
		i = b.heap[0]
		least := &b.names[i]
		delete(b.slot, least.Name)
		least.Name, least.Over = name, least.Calls
		b.slot[name] = i
	}
	b.names[i].Calls += weight
	b.down(b.at[i])
}

// count is that of a place in the heap.
func (b *busiest) count(place int) uint64 { return b.names[b.heap[place]].Calls }

func (b *busiest) up(i int) {
	for i > 0 && b.count(i) < b.count((i-1)/2) {
		b.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
}

func (b *busiest) down(i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(b.heap); child++ {
			if b.count(child) < b.count(least) {
				least = child
			}
		}
		if least == i {
			return
		}
		b.swap(i, least)
		i = least
	}
}

func (b *busiest) swap(i, j int) {
	b.heap[i], b.heap[j] = b.heap[j], b.heap[i]
	b.at[b.heap[i]], b.at[b.heap[j]] = i, j
}

// halve makes what was long ago count for less. What was in order stays so.
func (b *busiest) halve() {
	b.calls = 0
	for i := range b.names {
		b.names[i].Calls /= 2
		b.names[i].Over /= 2
	}
}

func (b *busiest) list() []NameCount {
	list := slices.Clone(b.names)
	slices.SortFunc(list, func(x, y NameCount) int {
		return cmp.Or(cmp.Compare(y.Calls, x.Calls), cmp.Compare(x.Name, y.Name))
	})
	return list
}
