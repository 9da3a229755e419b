package raftlog

import (
	"slices"

	"github.com/lni/dragonboat/v4/raftio"
	"github.com/lni/dragonboat/v4/raftpb"
)

// A location is where the bytes of an entry are. That of an entry which no record was seen
// of yet, while the log is read, has segment 0.
type location struct{ segment, at, length, sum uint32 }

// A node is what is known of one replica of one group.
type node struct {
	bootstrap []byte
	state     raftpb.State // the newest
	saved     raftpb.State // as on the disk: the newest but for its commit index
	snapshot  snapshot

	// log says which entries there are; the one with index i is at where[i-log.first]. The
	// log of a replica that never had one is the zero extent.
	log   extent
	where []location
}

// An index is what is known of all replicas.
type index map[raftio.NodeInfo]*node

// usage counts what the entries of each segment take.
type usage interface{ count(at location, n int) }

// apply does what a record says. Its payload is at base in this segment.
func (x index) apply(kind byte, changes []change, segment uint32, base uint32, u usage) {
	for i := range changes {
		c := &changes[i]
		n := x[c.id]
		if n != nil && c.parts&partRemoved != 0 {
			n.resize(extent{}, u)
			n = nil
			delete(x, c.id)
		}
		if n == nil && (kind == kindCheckpoint || c.parts&^partRemoved != 0) {
			n = &node{}
			x[c.id] = n
		}
		if n != nil {
			n.apply(kind, c, segment, base, u)
		}
	}
	if kind == kindCheckpoint && len(x) > len(changes) {
		x.keep(changes, u)
	}
}

// keep forgets all that changes are not about.
func (x index) keep(changes []change, u usage) {
	named := make(map[raftio.NodeInfo]bool, len(changes))
	for i := range changes {
		named[changes[i].id] = true
	}
	for id, n := range x {
		if !named[id] {
			n.resize(extent{}, u)
			delete(x, id)
		}
	}
}

func (n *node) apply(kind byte, c *change, segment uint32, base uint32, u usage) {
	if kind == kindCheckpoint {
		n.bootstrap, n.state, n.saved, n.snapshot = nil, raftpb.State{}, raftpb.State{}, snapshot{}
	}
	if c.parts&partBootstrap != 0 {
		n.bootstrap = c.bootstrap
	}
	if c.parts&partState != 0 {
		n.state, n.saved = c.state, c.state
	}
	if c.parts&partSnapshot != 0 {
		n.snapshot = c.snapshot
	}
	if c.parts&partExtent != 0 || kind == kindCheckpoint {
		n.resize(c.extent, u)
	}
	for i := range c.runs {
		r := &c.runs[i]
		if kind == kindUpdate {
			n.extend(r.first, len(r.found), u)
		}
		for j, s := range r.found {
			n.put(r.first+uint64(j), location{segment, base + s.at, s.length, s.sum}, u)
		}
	}
}

// extend makes room for count entries from first on, in place of those that were there.
func (n *node) extend(first uint64, count int, u usage) {
	keep := extent{n.log.first, first - 1}
	if n.log == (extent{}) || first <= n.log.first || first > n.log.last+1 {
		keep.first = first
	}
	n.resize(keep, u)
	n.log.last += uint64(count)
	n.where = append(n.where, make([]location, count)...)
}

// resize keeps what is in e. What was not in the log before is at no known place.
func (n *node) resize(e extent, u usage) {
	if e == n.log {
		return
	}
	for i, at := range n.where {
		if k := n.log.first + uint64(i); k < e.first || k > e.last {
			u.count(at, -1)
		}
	}
	if e.first == n.log.first && e.last < n.log.last {
		n.where = n.where[:e.length()] // the tail is replaced: it will grow again
		n.log = e
		return
	}
	where := make([]location, e.length())
	for k := max(e.first, n.log.first); k <= min(e.last, n.log.last) && len(n.where) > 0; k++ {
		where[k-e.first] = n.where[k-n.log.first]
	}
	n.log, n.where = e, where
}

func (e extent) length() int {
	if e == (extent{}) {
		return 0
	}
	return int(e.last + 1 - e.first)
}

func (n *node) put(k uint64, at location, u usage) {
	if k < n.log.first || k > n.log.last {
		return
	}
	old := &n.where[k-n.log.first]
	u.count(*old, -1)
	u.count(at, 1)
	*old = at
}

// between returns where the entries of [low, high) are, as far as there are any from low on.
func (n *node) between(low, high uint64) []location {
	if len(n.where) == 0 || low < n.log.first || low > n.log.last {
		return nil
	}
	high = min(high, n.log.last+1)
	if high <= low {
		return nil
	}
	return n.where[low-n.log.first : high-n.log.first]
}

// missing returns an entry of which no record was found, if there is any.
func (n *node) missing() (uint64, bool) {
	i := slices.IndexFunc(n.where, func(at location) bool { return at.segment == 0 })
	return n.log.first + uint64(i), i >= 0
}
