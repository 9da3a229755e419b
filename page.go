package quorumlock

import (
	"slices"
	"strings"
	"unsafe"

	"github.com/quorumlock/quorumlock/fencing"
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

// An entry of a page's index: the hash, so that a search that goes past it need not
// look at its record, and slot+1; 0 for empty.
type entry struct{ hash, slot uint32 }

// A page is a part of the table: records, their names one behind the other, and an
// open-addressing index with linear probing over them.
type page struct {
	index   []entry // its length is a power of two
	records []record
	names   []byte
	free    ref // first free slot
	live    int
	garbage int // bytes of names that are no record's
}

// name returns the name of a record without copying it. It is good until the next
// change of the page.
func (p *page) name(r *record) string {
	return unsafe.String(unsafe.SliceData(p.names[r.name:]), r.length)
}

// home is where the search for a hash begins. The low bits chose the page.
func (p *page) home(hash uint32) int { return int(hash>>12) & (len(p.index) - 1) }

// find returns the slot of a name's record, or -1.
func (p *page) find(hash uint32, name string) int {
	return p.search(hash, func(r *record) bool { return p.name(r) == name })
}

// claimed returns the slot of the record that is held by this claim, or -1.
func (p *page) claimed(hash, member uint32, seq uint64) int {
	return p.search(hash, func(r *record) bool { return r.member == member && r.seq == seq })
}

func (p *page) search(hash uint32, is func(*record) bool) int {
	if p.live == 0 {
		return -1
	}
	for i := p.home(hash); ; i = (i + 1) & (len(p.index) - 1) {
		e := p.index[i]
		if e.slot == 0 {
			return -1
		}
		if e.hash == hash && is(&p.records[e.slot-1]) {
			return int(e.slot) - 1
		}
	}
}

// likely returns the record at which a search for a hash is likely to end, or the
// free one that the next acquire takes, or nil.
func (p *page) likely(hash uint32) *record {
	if len(p.index) == 0 {
		return nil
	}
	switch e := p.index[p.home(hash)]; {
	case e.hash == hash && e.slot != 0:
		return &p.records[e.slot-1]
	case p.free != 0:
		return &p.records[p.free.slot()]
	}
	return nil
}

// add stores a record under a name that is not there and returns its slot.
func (p *page) add(r record, name string) int {
	if 4*(p.live+1) > 3*len(p.index) {
		p.reindex(max(8, 2*len(p.index)))
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
		p.records = append(p.records, r)
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
		p.names = append(p.names, name...)
		return
	}
	copy(p.names[r.name:], name)
}

func (p *page) enter(slot int) {
	hash := p.records[slot].hash
	i := p.home(hash)
	for p.index[i].slot != 0 {
		i = (i + 1) & (len(p.index) - 1)
	}
	p.index[i] = entry{hash, uint32(slot) + 1}
}

func (p *page) reindex(size int) {
	p.index = make([]entry, size)
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
		*p = page{} // an idle name costs nothing
		return
	}
	clear(p.index)
	p.records, p.names = p.records[:0], p.names[:0]
	p.free, p.garbage = 0, 0
}

// unlink takes a slot out of the index, and moves those behind it up, so that no
// search ends too early at the gap.
func (p *page) unlink(slot int, hash uint32) {
	mask := len(p.index) - 1
	i := p.home(hash)
	for p.index[i].slot != uint32(slot)+1 {
		i = (i + 1) & mask
	}
	for j := (i + 1) & mask; p.index[j].slot != 0; j = (j + 1) & mask {
		if (j-p.home(p.index[j].hash))&mask >= (j-i)&mask {
			p.index[i] = p.index[j]
			i = j
		}
	}
	p.index[i] = entry{}
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
