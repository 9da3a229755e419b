package quorumlock

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/quorumlock/quorumlock/internal/wire"
)

// A set is a hold on names of several groups: it has a hold in each of them, which has
// it as its whole. It is held while all of them are. It has no token of its own: those of
// different groups are counted apart, so the largest of them would be too large for the
// other names, and a store that had seen it would refuse their next holders.

// split divides a request among the groups that its names belong to, in the order of
// the groups.
func (n *Node) split(r request) (byGroup []request) {
	names := make([][]string, len(n.groups))
	for _, name := range r.names {
		g := n.groupOf(name)
		names[g.index] = append(names[g.index], name)
	}
	for _, some := range names {
		switch len(some) {
		case 0:
		case 1:
			byGroup = append(byGroup, request{name: some[0], terms: r.terms})
		default:
			byGroup = append(byGroup, request{name: some[0], names: some, terms: r.terms})
		}
	}
	return byGroup
}

// acquireSet takes what is asked for of one group after the other. Everyone takes them
// in the same order, so two callers do not wait for each other; what is had already is
// held while it waits for the rest. If something of it is lost meanwhile, or the rest
// cannot be had, all is given back.
func (s *Session) acquireSet(ctx context.Context, r request, byGroup []request, wait bool) (_ *Hold, queued bool, err error) {
	var parts []*Hold
	inner := ctx // ends when a part is lost, too
	for _, some := range byGroup {
		h, stood, err := s.acquireIn(inner, some, wait)
		queued = queued || stood
		if err != nil {
			return nil, queued, s.giveUp(ctx, r, parts, err)
		}
		parts = append(parts, h)
		var cancel context.CancelFunc
		inner, cancel = h.Context(inner)
		defer cancel()
	}
	h, err := s.join(r, parts)
	if err != nil {
		return nil, queued, s.giveUp(ctx, r, parts, err)
	}
	return h, queued, nil
}

// giveUp gives back what was had of a set, and returns why the set could not be had.
// What a caller waited for that was lost meanwhile comes before what that led to.
func (s *Session) giveUp(ctx context.Context, r request, parts []*Hold, why error) error {
	n := s.n
	for _, p := range parts {
		if err := p.Err(); err != nil {
			why = fmt.Errorf("acquire %s: %w", r.what(), err)
			break
		}
	}
	n.mu.Lock()
	for _, p := range parts {
		_ = p.release()
	}
	n.mu.Unlock()
	for _, p := range parts {
		if ctx.Err() == nil {
			_ = p.Release(ctx)
		}
	}
	return why
}

// join makes one hold of those in several groups, or returns which one was lost.
func (s *Session) join(r request, parts []*Hold) (*Hold, error) {
	n := s.n
	n.mu.Lock()
	defer n.mu.Unlock()
	m := newHoldMore(r)
	m.missing, m.parts = 0, parts
	h := &Hold{part: parts[0].part, name: r.name, answered: true}
	for _, p := range parts {
		if p.err != nil {
			return nil, fmt.Errorf("acquire %s: %w", r.what(), p.err)
		}
		own := p.moreOf()
		own.whole = h
		for i, name := range own.names {
			at, _ := slices.BinarySearch(m.names, name)
			m.tokens[at] = own.tokens[i]
		}
	}
	h.more.Store(m)
	return h, nil
}

// parts returns the holds of a set, or nil for a hold in one group.
func (h *Hold) parts() []*Hold {
	if m := h.more.Load(); m != nil {
		return m.parts
	}
	return nil
}

// whole returns the set that the hold is a part of, or nil. n.mu is held.
func (h *Hold) whole() *Hold {
	if m := h.more.Load(); m != nil {
		return m.whole
	}
	return nil
}

// finishParts ends what is left of a set. n.mu is held.
func (h *Hold) finishParts() {
	for _, p := range h.parts() {
		if p.err != nil {
			continue
		}
		p.finish(ErrNotHeld)
		if p.part.state != sessionOver { // with the session it is given back anyhow
			p.giveBack()
		}
	}
}

// partLost ends a set of which a part was lost. n.mu is held.
func (h *Hold) partLost(why error) {
	if h.err == nil {
		h.finish(why)
		h.finishParts()
	}
}

// partFreed notes that nothing is left of a part of a set, or that no answer comes any
// more. n.mu is held.
func (h *Hold) partFreed() {
	h.forgotten = !slices.ContainsFunc(h.parts(), func(p *Hold) bool { return !p.forgotten })
	if h.forgotten || h.part.n.failed != nil {
		h.wake()
	}
}

// validateParts is Validate for a set.
func (h *Hold) validateParts(ctx context.Context) error {
	for _, p := range h.parts() {
		if err := p.Validate(ctx); err != nil {
			if over := h.Err(); over != nil {
				return over
			}
			return err
		}
	}
	return h.Err()
}

// changeParts is change for a set.
func (h *Hold) changeParts(ctx context.Context, c wire.Command) error {
	if c.Op != wire.Publish {
		return fmt.Errorf("%s %q: %w", c.Op, h.Names(), ErrMode)
	}
	for _, p := range h.parts() {
		each := c
		each.More = &wire.More{Value: strings.Clone(c.More.Value)}
		if err := p.change(ctx, each); err != nil {
			if over := h.Err(); over != nil {
				return over
			}
			return err
		}
	}
	return h.Err()
}
