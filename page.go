package quorumlock

import (
	"math/bits"
	"slices"
	"strings"
	"unsafe"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/queue"
)

// A ref names a record: its page and its slot in it. Zero names none.
type ref uint32

const (
	slotBits = 32 - 12         // what pages leaves of a ref
	maxSlots = 1<<slotBits - 1 // a constant of the format: it decides what is refused
)

func refOf(page, slot int) ref { return ref(page<<slotBits|slot) + 1 }

func (r ref) page() int { return int(r-1) >> slotBits }
func (r ref) slot() int { return int(r-1) & (1<<slotBits - 1) }

// A record is a lock that one claim holds alone and nobody waits for, which is what
// nearly all locks are at any moment: a line and a claim in 48 bytes without a
// pointer, so that two million of them are nothing to the garbage collector. The
// idea is that of thin locks (Bacon et al., PLDI 1998).
type record struct {
	seq        uint64
	token      fencing.Token
	at         int64
	member     uint32 // whose it is; 0 for a free slot
	hash       uint32 // of the name
	name       uint32 // where it begins in the page's names
	length     uint16 // of the name
	room       uint16 // what there is for it; a free slot keeps it for the next name
	prev, next ref    // the others of this member; in a free slot, next is the next free one
}

// A page is a part of the table: its lines, and records, their names one behind the
// other, and an open-addressing index with linear probing over them.
//
// An entry of the index, which is 0 if it is empty, has slot+1 in the bits of low and
// the same bits as the record's hash in the others. Where low is no wider than the
// bits that chose the page, and so are the same for all of it, that is the whole
// hash: a search that goes past an entry need not look at its record, and nor need
// one that moves it. A page of 4,096 entries and more knows less, and is right too.
type page struct {
	lines   map[string]*queue.Line // nil for none
	index   []uint32
	records []record
	names   []byte
	low     uint32 // 2^n-1: what of an entry is slot+1
	free    ref    // first free slot
	live    int
	garbage int // bytes of names that are no record's
}

// empty reports whether there is nothing on a page. One that is nil never had anything.
func (p *page) empty() bool { return p == nil || p.live == 0 && p.lines == nil }

// name returns the name of a record without copying it. It is good until the next
// change of the page.
func (p *page) name(r *record) string {
	return unsafe.String(unsafe.SliceData(p.names[r.name:]), r.length)
}

// home is where the search for a hash, or for an entry's, begins: as far into the
// index as the hash is into all that there are.
func (p *page) home(hash uint32) int {
	return int(uint64(hash&^p.low) * uint64(len(p.index)) >> 32)
}

// after is the place behind place i of the index, which is a ring.
func (p *page) after(i int) int {
	if i++; i < len(p.index) {
		return i
	}
	return 0
}

// apart is how far place j is behind place i.
func (p *page) apart(i, j int) int {
	if j >= i {
		return j - i
	}
	return j - i + len(p.index)
}

// find returns the slot of a name's record, or -1.
func (p *page) find(hash uint32, name string) int {
	return p.search(hash, func(r *record) bool { return p.name(r) == name })
}

// claimed returns the slot of the record that is held by this claim, or -1.
func (p *page) claimed(hash, member uint32, seq uint64) int {
	return p.search(hash, func(r *record) bool { return r.member == member && r.seq == seq })
}

func (p *page) search(hash uint32, is func(*record) bool) int {
	if p == nil || p.live == 0 {
		return -1
	}
	for i := p.home(hash); ; i = p.after(i) {
		e := p.index[i]
		if e == 0 {
			return -1
		}
		if (e^hash)&^p.low == 0 && is(&p.records[e&p.low-1]) {
			return int(e&p.low) - 1
		}
	}
}

// likely returns the record at which a search for a hash is likely to end, or the
// free one that the next acquire takes, or nil.
func (p *page) likely(hash uint32) *record {
	if p == nil || len(p.index) == 0 {
		return nil
	}
	if e := p.index[p.home(hash)]; e != 0 && (e^hash)&^p.low == 0 {
		return &p.records[e&p.low-1]
	}
	if p.free != 0 {
		return &p.records[p.free.slot()]
	}
	return nil
}

// add stores a record under a name that is not there and returns its slot.
func (p *page) add(r record, name string) int {
	if 8*(p.live+1) > 5*len(p.index) {
		p.reindex(p.live + 1)
	}
	slot := len(p.records)
	if p.free != 0 {
		slot = p.free.slot()
		old := &p.records[slot]
		p.free = old.next
		r.name, r.room = old.name, old.room
		p.garbage -= int(old.room)
		*old = r
	} else {
		p.records = append(grown(p.records, 1), r)
	}
	p.write(&p.records[slot], name)
	p.live++
	p.enter(slot)
	return slot
}

// write gives a record its name, in the room that it has if that is enough.
func (p *page) write(r *record, name string) {
	r.length = uint16(len(name))
	if int(r.room) < len(name) {
		p.garbage += int(r.room)
		r.name, r.room = uint32(len(p.names)), r.length
		p.names = append(grown(p.names, len(name)), name...)
		return
	}
	copy(p.names[r.name:], name)
}

// grown returns s with room for n more. A large one grows by an eighth at a time, and
// so has half as much to spare as append would leave it with.
func grown[E any](s []E, n int) []E {
	const small = 64
	if len(s) < small || cap(s)-len(s) >= n {
		return slices.Grow(s, n)
	}
	n += len(s)
	return append(slices.Grow([]E(nil), n+n/8), s...)
}

func (p *page) enter(slot int) {
	hash := p.records[slot].hash
	i := p.home(hash)
	for p.index[i] != 0 {
		i = p.after(i)
	}
	p.index[i] = hash&^p.low | uint32(slot+1)
}

// reindex makes the index anew, for n records, which take half of it, and a quarter
// more: when five of eight entries are used, searches begin to be long.
func (p *page) reindex(n int) {
	p.index = slices.Grow([]uint32(nil), max(8, 2*n))
	p.index = p.index[:cap(p.index)]
	clear(p.index)
	p.low = 1<<bits.Len(uint(max(pages-1, len(p.index)))) - 1
	for slot := range p.records {
		if p.records[slot].member != 0 {
			p.enter(slot)
		}
	}
}

// remove forgets the record in a slot.
func (p *page) remove(slot int) {
	r := &p.records[slot]
	p.unlink(slot, r.hash)
	p.garbage += int(r.room)
	*r = record{name: r.name, room: r.room, next: p.free}
	p.free = refOf(0, slot)
	p.live--
	switch {
	case p.live == 0:
		p.clear()
	case p.garbage > 1024 && 2*p.garbage > len(p.names):
		p.repack()
	}
}

// clear makes the page empty. Of a small one it keeps the room: in a table with few
// locks nearly every release empties a page, and the next acquire fills it again.
func (p *page) clear() {
	if len(p.index) > 8 || cap(p.records) > 2 || cap(p.names) > 128 {
		*p = page{lines: p.lines} // an idle name costs nothing
		return
	}
	clear(p.index)
	p.records, p.names = p.records[:0], p.names[:0]
	p.free, p.garbage = 0, 0
}

// unlink takes a slot out of the index, and moves those behind it up, so that no
// search ends too early at the gap.
func (p *page) unlink(slot int, hash uint32) {
	i := p.home(hash)
	for p.index[i]&p.low != uint32(slot+1) {
		i = p.after(i)
	}
	for j := p.after(i); p.index[j] != 0; j = p.after(j) {
		if p.apart(p.home(p.index[j]), j) >= p.apart(i, j) {
			p.index[i] = p.index[j]
			i = j
		}
	}
	p.index[i] = 0
}

// repack writes the names anew, without the garbage.
func (p *page) repack() {
	names := make([]byte, 0, len(p.names)-p.garbage+len(p.names)/8)
	for slot := range p.records {
		r := &p.records[slot]
		if r.member == 0 {
			r.name, r.room = 0, 0
			continue
		}
		at := uint32(len(names))
		names = append(names, p.name(r)...)
		r.name, r.room = at, r.length
	}
	p.names, p.garbage = names, 0
}

// sorted returns the slots in the order of their names.
func (p *page) sorted() []int {
	slots := make([]int, 0, p.live)
	for slot := range p.records {
		if p.records[slot].member != 0 {
			slots = append(slots, slot)
		}
	}
	slices.SortFunc(slots, func(a, b int) int {
		return strings.Compare(p.name(&p.records[a]), p.name(&p.records[b]))
	})
	return slots
}
