package quorumlock

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/quorumlock/quorumlock/queue"
	"github.com/quorumlock/quorumlock/sessions"
)

// A member is a live session, and the way to all its claims.
type member struct {
	id     sessions.ID
	first  ref                     // of its records
	alone  int                     // how many records it has
	claims map[uint64]*queue.Claim // those in lines, by acquisition number; of those on several names, the first
	places uint64                  // in lines, waiting
}

func (t *table) init() {
	if t.byID == nil {
		t.byID = make(map[sessions.ID]uint32)
		t.members = make([]member, 1)
	}
}

// enroll makes a session known.
func (t *table) enroll(id sessions.ID) {
	if t.member(id) != 0 {
		return
	}
	t.init()
	m := uint32(len(t.members))
	if k := len(t.vacant); k > 0 {
		m, t.vacant = t.vacant[k-1], t.vacant[:k-1]
		t.members[m] = member{id: id}
	} else {
		t.members = append(t.members, member{id: id})
	}
	t.byID[id] = m
}

// dismiss forgets a session with all its claims, and returns the lines that they
// left, which are to be looked after. What it held alone is free. A claim of which
// stays says so stays in line.
func (t *table) dismiss(id sessions.ID, stays func(*queue.Claim) bool) (lines []*queue.Line) {
	m := t.member(id)
	if m == 0 {
		return nil
	}
	for t.members[m].first != 0 {
		t.drop(t.members[m].first)
	}
	own := t.members[m].claims
	for _, seq := range slices.Sorted(maps.Keys(own)) {
		if stays(own[seq]) {
			continue
		}
		for _, c := range own[seq].Parts() {
			lines = append(lines, c.Line())
			t.touchLine(c.Line())
			c.Leave()
		}
	}
	t.members[m] = member{}
	t.vacant = append(t.vacant, m)
	delete(t.byID, id)
	return lines
}

// waits returns how many places in lines a session has.
func (t *table) waits(id sessions.ID) uint64 { return t.members[t.member(id)].places }

// counts returns how many locks a session holds, and for how many it waits.
func (t *table) counts(id sessions.ID) (holds, waits int) {
	m := &t.members[t.byID[id]]
	for _, c := range m.claims {
		if c.Holds() {
			holds += len(c.Parts())
		}
	}
	return m.alone + holds, int(m.places)
}

// each shows every claim of a session in the order in which they were asked for,
// which is the same on every replica; each of several names by itself.
func (t *table) each(id sessions.ID, f func(c *queue.Claim, name string)) {
	m := t.member(id)
	if m == 0 {
		return
	}
	var records []ref
	for r := t.members[m].first; r != 0; r = t.at(r).next {
		records = append(records, r)
	}
	slices.SortFunc(records, func(a, b ref) int { return cmp.Compare(t.at(a).seq, t.at(b).seq) })
	show := func(upTo uint64) {
		for ; len(records) > 0 && t.at(records[0]).seq <= upTo; records = records[1:] {
			c := t.claimOf(t.at(records[0]))
			c.Token = t.at(records[0]).token
			f(&c, t.nameAt(records[0]))
		}
	}
	own := t.members[m].claims
	for _, seq := range slices.Sorted(maps.Keys(own)) {
		show(seq)
		for _, c := range own[seq].Parts() {
			f(c, c.Line().Name)
		}
	}
	show(math.MaxUint64)
}

// member returns a live session's number, or 0.
func (t *table) member(id sessions.ID) uint32 {
	if len(t.members) > 0 && t.members[t.recent].id == id && !id.IsZero() {
		return t.recent
	}
	m := t.byID[id]
	if m != 0 {
		t.recent = m
	}
	return m
}

func (t *table) index(c *queue.Claim) {
	own := &t.members[t.member(c.Session)]
	if own.claims == nil {
		own.claims = make(map[uint64]*queue.Claim)
	}
	own.claims[c.Seq] = c
}

// unindex forgets whose a claim is, if it is anybody's.
func (t *table) unindex(c *queue.Claim) {
	own := &t.members[t.member(c.Session)]
	delete(own.claims, c.Seq)
	if len(own.claims) == 0 {
		own.claims = nil // a map keeps the room of its best days
	}
}
