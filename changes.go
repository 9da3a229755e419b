package quorumlock

import (
	"bytes"
	"sync"
	"sync/atomic"
)

// keptChanges is how many changes are kept for those who watch: at the rate of a
// busy cluster, about a tenth of a second's.
const keptChanges = 1 << 14

// changes are the latest changes of locks, numbered, for those who watch. One ring
// serves all of them, so that a change costs the log the same however many there
// are.
type changes struct {
	watchers atomic.Int32

	mu   sync.RWMutex
	ring []change
	next uint64        // number of the next one
	wait chan struct{} // closed when there is another one; nil if nobody waits
}

// A change is an event whose name is kept in room of its own, which is used again.
type change struct {
	Event
	name []byte
	page int
}

// count counts those who watch. The ring is there while there are any.
func (c *changes) count(by int) (watchers int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	watchers = c.watchers.Add(int32(by))
	if watchers == 0 {
		c.ring = nil
	} else if c.ring == nil {
		c.ring = make([]change, keptChanges)
	}
	return watchers
}

// begin and done stand around the adding of one entry's changes.
func (c *changes) begin() { c.mu.Lock() }

func (c *changes) done() {
	if c.wait != nil {
		close(c.wait)
		c.wait = nil
	}
	c.mu.Unlock()
}

func (c *changes) add(e Event) {
	x := &c.ring[c.next%keptChanges]
	x.name = append(x.name[:0], e.Name...)
	x.page = pageOf(hashOf(e.Name))
	e.Name = ""
	x.Event = e
	c.next++
}

// skip makes every reader miss something: the state was replaced.
func (c *changes) skip() {
	c.begin()
	defer c.done()
	c.next += keptChanges + 1
}

// end returns the number of the next change.
func (c *changes) end() uint64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.next
}

// after returns a channel that is closed once there is a change from next on.
func (c *changes) after(next uint64) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if next < c.next {
		return alreadyClosed
	}
	if c.wait == nil {
		c.wait = make(chan struct{})
	}
	return c.wait
}

var alreadyClosed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// readAtOnce is how many changes a reader looks at before it lets the log go on.
const readAtOnce = 512

// read appends to found those changes from next on, and before end, that are about
// names with a prefix on a page below one, and returns up to where it came. It
// reports whether some are kept no more.
func (c *changes) read(found []Event, next, end uint64, prefix []byte, below int) (_ []Event, upTo uint64, missed bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.next-next > keptChanges {
		return found, next, true
	}
	upTo = min(end, next+readAtOnce)
	for ; next < upTo; next++ {
		x := &c.ring[next%keptChanges]
		if x.page < below && bytes.HasPrefix(x.name, prefix) {
			e := x.Event
			e.Name = string(x.name)
			found = append(found, e)
		}
	}
	return found, upTo, false
}
