package quorumlock

import (
	"cmp"
	"slices"
)

const (
	// busiestNames is how many names are counted at once. Whatever is asked for more
	// often than one call in so many is among them.
	busiestNames = 128
	// busiestHalf is after how many calls all counts are halved.
	busiestHalf = 1 << 17
)

// busiest counts the names that are asked for most, in memory that does not grow
// with the number of names: the space-saving algorithm of Metwally, Agrawal and El
// Abbadi. A name that is not counted takes the place and the count of the one with
// the smallest count, and remembers by how much it may be counted too high.
type busiest struct {
	place map[string]int // of a name in heap
	heap  []NameCount    // the smallest count first
	calls int
}

// add counts one call. It keeps name itself, of at most busiestNames names, and so
// takes no memory.
func (b *busiest) add(name string) {
	if b.place == nil {
		b.place = make(map[string]int, busiestNames)
		b.heap = make([]NameCount, 0, busiestNames)
	}
	if b.calls++; b.calls >= busiestHalf {
		b.halve()
	}
	i, counted := b.place[name]
	switch {
	case counted:
	case len(b.heap) < busiestNames:
		// 0 calls: no count is smaller, so it belongs at the top. The others are
		// in order without it.
		i = len(b.heap)
		b.heap = append(b.heap, NameCount{Name: name})
		b.place[name] = i
		i = b.up(i)
	default:
		least := &b.heap[0]
		delete(b.place, least.Name)
		least.Name, least.Over = name, least.Calls
		b.place[name] = 0
		i = 0
	}
	b.heap[i].Calls++
	b.down(i)
}

func (b *busiest) up(i int) int {
	for i > 0 && b.heap[i].Calls < b.heap[(i-1)/2].Calls {
		b.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
	return i
}

func (b *busiest) down(i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(b.heap); child++ {
			if b.heap[child].Calls < b.heap[least].Calls {
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
	b.place[b.heap[i].Name], b.place[b.heap[j].Name] = i, j
}

// halve makes what was long ago count for less. What was in order stays so.
func (b *busiest) halve() {
	b.calls = 0
	for i := range b.heap {
		b.heap[i].Calls /= 2
		b.heap[i].Over /= 2
	}
}

func (b *busiest) list() []NameCount {
	list := slices.Clone(b.heap)
	slices.SortFunc(list, func(x, y NameCount) int {
		return cmp.Or(cmp.Compare(y.Calls, x.Calls), cmp.Compare(x.Name, y.Name))
	})
	return list
}
