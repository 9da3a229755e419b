package quorumlock

import (
	"hash/crc32"
	"maps"
	"slices"
	"strings"
	"unsafe"

	"github.com/quorumlock/quorumlock/queue"
	"github.com/quorumlock/quorumlock/sessions"
)

// pages is how many pages the table has. It sets the order of lines in a snapshot,
// so it is part of the format.
const pages = 1 << 12

// A table is every lock that somebody holds or waits for. One that is held alone
// and has no waiter is a record in a page; any other is a queue.Line. Which of the
// two a lock is shows nowhere: not in an effect, not in a snapshot.
type table struct {
	page [pages]*page // nil for one that had nothing on it yet: most of an idle group's
	n    int

	captures []*capture

	members []member // of sessions; the first is nobody
	byID    map[sessions.ID]uint32
	vacant  []uint32
	recent  uint32 // the member that was looked up last: a batch is mostly of one session
	warmth  uint32
}

// A spot is where a name is in the table, or would be.
type spot struct {
	hash uint32
	page int
	name string      // valid for as long as the caller's
	slot int         // of its record, or -1
	line *queue.Line // or nil
}

var hashTable = crc32.MakeTable(crc32.Castagnoli)

// hashOf is a hash of a name that is the same everywhere and for ever.
func hashOf(name string) uint32 {
	b := unsafe.Slice(unsafe.StringData(name), len(name)) // only read, and not kept
	return crc32.Update(0, hashTable, b)
}

func pageOf(hash uint32) int { return int(hash % pages) }

// spotOf tells where a name is to be looked for.
func spotOf(hash uint32, name string) spot {
	return spot{hash: hash, page: pageOf(hash), name: name, slot: -1}
}

// seek finds a name whose hash this is.
func (t *table) seek(hash uint32, name string) spot {
	s := spotOf(hash, name)
	p := t.page[s.page]
	if p == nil {
		return s
	}
	s.line = p.lines[name]
	if s.line == nil {
		s.slot = p.find(s.hash, name)
	}
	return s
}

// begun returns page i, for what is to be put on it.
func (t *table) begun(i int) *page {
	if t.page[i] == nil {
		t.page[i] = new(page)
	}
	return t.page[i]
}

// free reports whether nobody holds or waits for the name.
func (s *spot) free() bool { return s.line == nil && s.slot < 0 }

// full reports whether page i has no room for so many more locks. It has room for a
// million, of four thousand million in all, so names would have to be chosen for it.
func (t *table) full(i, more int) bool {
	p := t.page[i]
	return p != nil && p.live+len(p.lines)+more > maxSlots
}

// inUse reports whether anybody holds or waits for the name.
func (s *spot) inUse() bool { return s.slot >= 0 || s.line != nil && s.line.InUse() }

// counted reports whether the name is in use as a counted lock.
func (s *spot) counted() bool { return s.line != nil && s.line.InUse() && s.line.Limit() > 0 }

// grantable reports whether the name, which is not free, can be granted at once to
// a claim that fits its mode.
func (s *spot) grantable(c *queue.Claim) bool { return s.line != nil && s.line.Free(c) }

// waiting returns how many wait for the name.
func (s *spot) waiting() uint64 {
	if s.line == nil {
		return 0
	}
	return uint64(s.line.Waiting())
}

// warm reads, for locks with these hashes, what will be looked at when their turn
// comes, and nothing comes of it. In a large table each look is a wait for memory;
// here none depends on the one before, so the processor has many under way at once.
func (t *table) warm(hashes []uint32) {
	var sum uint32
	for _, h := range hashes {
		if p := t.page[pageOf(h)]; p != nil && len(p.index) > 0 {
			sum += p.index[p.home(h)]
		}
	}
	for _, h := range hashes {
		if r := t.page[pageOf(h)].likely(h); r != nil {
			sum += r.hash + uint32(r.next)
		}
	}
	for _, h := range hashes {
		p := t.page[pageOf(h)]
		if r := p.likely(h); r != nil && int(r.name) < len(p.names) {
			sum += uint32(p.names[r.name])
		}
	}
	t.warmth = sum // so that the reads are not thought idle
}

// wait puts a session's claim at the end of a line.
func (t *table) wait(l *queue.Line, c *queue.Claim) {
	t.place(l, c)
	t.index(c)
}

// place is wait for a claim that is indexed together with others.
func (t *table) place(l *queue.Line, c *queue.Claim) {
	l.Wait(c)
	t.members[t.member(c.Session)].places++
}

// served notes that a claim's wait is over.
func (t *table) served(c *queue.Claim) { t.members[t.member(c.Session)].places-- }

// leave takes a claim out of its line, which is to be looked after.
func (t *table) leave(c *queue.Claim) {
	t.touchLine(c.Line())
	if !c.Holds() {
		t.served(c)
	}
	c.Leave()
}

// hold stores a lock that is held alone at a spot that is free. Who holds it is in
// the record, the rest is filled in.
func (t *table) hold(s spot, x record) {
	t.touch(s.page, s.name)
	p, own := t.begun(s.page), &t.members[x.member]
	x.hash, x.next = s.hash, own.first
	slot := p.add(x, s.name)
	r := refOf(s.page, slot)
	if own.first != 0 {
		t.at(own.first).prev = r
	}
	own.first = r
	own.alone++
	t.n++
}

func (t *table) at(r ref) *record { return &t.page[r.page()].records[r.slot()] }

// held returns the record of a claim, or 0.
func (t *table) held(m, hash uint32, seq uint64) ref {
	i := pageOf(hash)
	if slot := t.page[i].claimed(hash, m, seq); slot >= 0 {
		return refOf(i, slot)
	}
	return 0
}

// drop forgets a record, and with it the lock.
func (t *table) drop(r ref) {
	i := r.page()
	p := t.page[i]
	t.touch(i, t.nameAt(r))
	t.unchain(r)
	p.remove(r.slot())
	if len(p.records) >= 64 && 4*p.live < len(p.records) {
		t.squeeze(i)
	}
	t.n--
}

func (t *table) unchain(r ref) {
	x := t.at(r)
	t.members[x.member].alone--
	if x.prev != 0 {
		t.at(x.prev).next = x.next
	} else {
		t.members[x.member].first = x.next
	}
	if x.next != 0 {
		t.at(x.next).prev = x.prev
	}
}

// squeeze gives back the room of a page's better days: its records move up.
func (t *table) squeeze(i int) {
	p := t.page[i]
	to := 0
	for slot := range p.records {
		x := p.records[slot]
		if x.member == 0 {
			continue
		}
		p.records[to] = x
		r := refOf(i, to)
		if x.prev != 0 {
			t.at(x.prev).next = r
		} else {
			t.members[x.member].first = r
		}
		if x.next != 0 {
			t.at(x.next).prev = r
		}
		to++
	}
	p.records = slices.Clone(p.records[:to])
	p.free = 0
	p.reindex(to + 1)
	p.repack()
}

// nameAt returns the name of a record, good until the next change.
func (t *table) nameAt(r ref) string { return t.page[r.page()].name(t.at(r)) }

// has reports whether a line is in the table.
func (t *table) has(l *queue.Line) bool {
	p := t.page[pageOf(hashOf(l.Name))]
	return p != nil && p.lines[l.Name] == l
}

// claimOf returns a record's claim.
func (t *table) claimOf(x *record) queue.Claim {
	return queue.Claim{Session: t.members[x.member].id, Seq: x.seq, Mode: queue.Exclusive, At: x.at}
}

// edit returns the line at a spot that is not free, for a change: somebody is to
// wait behind its holder.
func (t *table) edit(s spot) *queue.Line {
	t.touch(s.page, s.name)
	if s.line != nil {
		return s.line
	}
	p := t.page[s.page]
	x := p.records[s.slot]
	c := t.claimOf(&x)
	l := &queue.Line{Name: strings.Clone(p.name(&x))}
	t.addLine(s.page, l)
	t.unchain(refOf(s.page, s.slot))
	p.remove(s.slot)
	l.Hold(&c, x.token)
	t.index(&c)
	return l
}

// open is edit for a spot that may be free.
func (t *table) open(s spot) *queue.Line {
	if !s.free() {
		return t.edit(s)
	}
	t.touch(s.page, s.name)
	l := &queue.Line{Name: strings.Clone(s.name)}
	t.addLine(s.page, l)
	t.n++
	return l
}

// addLine adds a line whose name is not among the lines.
func (t *table) addLine(i int, l *queue.Line) {
	p := t.begun(i)
	if p.lines == nil {
		p.lines = make(map[string]*queue.Line)
	}
	p.lines[l.Name] = l
}

func (t *table) removeLine(i int, l *queue.Line) {
	p := t.page[i]
	delete(p.lines, l.Name)
	if len(p.lines) == 0 {
		p.lines = nil // a map keeps the room of its best days
	}
}

// settle puts a line that has changed where it belongs: a line that nobody holds is
// forgotten, and one that is held alone becomes a record again.
func (t *table) settle(l *queue.Line) {
	s := spotOf(hashOf(l.Name), l.Name)
	c := l.Alone()
	if c == nil && !l.Empty() {
		return
	}
	t.removeLine(s.page, l)
	t.n--
	if c != nil {
		t.unindex(c)
		t.holdClaim(s, c)
	}
}

// holdClaim stores what a claim holds alone.
func (t *table) holdClaim(s spot, c *queue.Claim) {
	t.hold(s, record{seq: c.Seq, token: c.Token, at: c.At, member: t.member(c.Session)})
}

// allLines yields the lines: every lock that is not a record.
func (t *table) allLines(yield func(*queue.Line) bool) {
	for _, p := range t.page[:] {
		if p == nil {
			continue
		}
		for _, l := range p.lines {
			if !yield(l) {
				return
			}
		}
	}
}

// line returns a name's line, for a look and not for a change, or nil if nobody
// holds or waits for it.
func (t *table) line(name string) *queue.Line {
	s := t.seek(hashOf(name), name)
	if s.slot < 0 {
		return s.line
	}
	return new(recordView).of(t, t.page[s.page], s.slot)
}

// claim returns the claim that a live session has on a name, for a look, or nil.
func (t *table) claim(id sessions.ID, name string, seq uint64) *queue.Claim {
	m := t.byID[id] // not member, which notes what it found: looks may run side by side
	if m == 0 {
		return nil
	}
	if r := t.held(m, hashOf(name), seq); r != 0 {
		c := t.claimOf(t.at(r))
		c.Token = t.at(r).token
		return &c
	}
	return t.members[m].claims[seq]
}

// lineNames returns the names on page i, in no order, good until the next change.
func (t *table) lineNames(i int) []string {
	p := t.page[i]
	if p.empty() {
		return nil
	}
	names := slices.Collect(maps.Keys(p.lines))
	for slot := range p.records {
		if x := &p.records[slot]; x.member != 0 {
			names = append(names, p.name(x))
		}
	}
	return names
}
