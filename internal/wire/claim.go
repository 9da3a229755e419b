package wire

import (
	"time"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/queue"
)

func (s *SnapshotReader) claims(limit int, what string) []*queue.Claim {
	r := &s.r
	n := r.arrayLen(limit, what)
	var list []*queue.Claim
	for i := 0; i < n && r.err == nil; i++ {
		c := s.claim()
		if r.err == nil && !c.Mode.Valid() {
			r.fail("claim in mode %d", c.Mode)
		}
		list = append(list, c)
	}
	return list
}

func (s *SnapshotReader) claim() *queue.Claim {
	r := &s.r
	fields := r.arrayLen(15, "claim")
	if r.err == nil && fields != 7 && (fields != 15 || s.version < 2) {
		r.fail("claim with %d fields", fields)
	}
	c := &queue.Claim{
		Session: r.session(),
		Seq:     r.uint(),
		Mode:    queue.Mode(r.uint8()),
		Token:   fencing.Token(r.uint()),
		At:      r.int(),
	}
	if fields == 7 {
		if r.err == nil && c.Mode != queue.Exclusive {
			r.fail("claim in mode %d with %d fields", c.Mode, fields)
		}
		return c
	}
	permits := r.uint()
	n := r.arrayLen(MaxPermits, "slots")
	for i := 0; i < n && r.err == nil; i++ {
		c.Slots = append(c.Slots, r.uint32())
		if c.Slots[i] >= MaxPermits {
			r.fail("slot %d", c.Slots[i])
		}
	}
	if permits > MaxPermits || (permits > 0) != (c.Mode == queue.Counted) {
		r.fail("%d permits in mode %s", permits, c.Mode)
	}
	c.Permits = uint32(permits)
	if terms := (queue.Terms{MaxHold: r.term(), MinHold: r.term(), Delay: r.term()}); terms != (queue.Terms{}) {
		c.Terms = &terms
	}
	c.State = queue.State(r.uint8())
	if !possible(c.State, termsOf(c)) {
		r.fail("claim in state %d with terms %v", c.State, termsOf(c))
	}
	s.join(c, r.uint())
	c.Value = r.text(MaxValue, "value")
	if r.err == nil && c.Plain() {
		r.fail("a plain claim that is written as another")
	}
	return c
}

// possible reports whether what has such terms can be in this state. A hold that is
// leaving is one that only the end of its MinHold ends.
func possible(s queue.State, t queue.Terms) bool {
	is := func(which queue.State) bool { return s&which != 0 }
	switch {
	case is(^(queue.Started | queue.Matured | queue.Leaving)):
		return false
	case is(queue.Started) && t.MaxHold == 0, is(queue.Matured|queue.Leaving) && t.MinHold == 0:
		return false
	}
	return !is(queue.Matured) || !is(queue.Leaving)
}

// join notes a claim that is one of so many of an acquisition.
func (s *SnapshotReader) join(c *queue.Claim, parts uint64) {
	if parts < 2 || parts > MaxNames || s.r.err != nil {
		if parts != 1 {
			s.r.fail("claim on %d names", parts)
		}
		return
	}
	queue.Join([]*queue.Claim{c}) // it is not one by itself, though the others are yet to come
	id := claimID{c.Session, c.Seq}
	p := s.parts[id]
	if p == nil {
		p = &partsOf{want: int(parts)}
		s.parts[id] = p
	}
	if p.claims = append(p.claims, c); len(p.claims) > p.want || int(parts) != p.want {
		s.r.fail("claim %s/%d stands too often", c.Session, c.Seq)
	}
}

func (r *reader) term() time.Duration {
	ms := r.uint()
	if ms > uint64(MaxTerm/time.Millisecond) {
		r.fail("a time of %d ms", ms)
		return 0
	}
	return time.Duration(ms) * time.Millisecond
}
