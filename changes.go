package quorumlock

import (
	"sync"
	"sync/atomic"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/sessions"
)

const (
	// keptChanges is how many changes are kept for those who watch: at the rate of a
	// busy cluster, about a tenth of a second's.
	keptChanges = 1 << 14
	// toldAtOnce is how many of them are made events at once.
	toldAtOnce = 1 << 9
	// usualName is for how long a name room is made at first, in bytes.
	usualName = 64
)

// changes are the latest changes of locks, numbered, for those who watch. The log
// notes each of them once, in few bytes, which costs it the same however many
// watch. The first reader who comes to one makes an event of it, which all others
// share, so that a reader costs little more than its own looks.
type changes struct {
	kept     uint64 // how many changes, a multiple of toldAtOnce
	bell     *bell  // is rung when there is another one
	watchers atomic.Int32
	next     atomic.Uint64 // number of the next one; it grows with mu held

	mu   sync.Mutex // taken after the state machine's lock
	ring []stretch  // by number divided by toldAtOnce; nil while nobody watches
	now  *stretch   // the one that grows

	telling sync.Mutex // taken before the state machine's lock, and before mu
	told    []told     // as ring
	raw     stretch    // a copy of a part of one
}

// keeps returns how many changes each of so many groups keeps: together as many as one,
// but for what they work with.
func keeps(groups int) uint64 {
	return max(keptChanges/toldAtOnce/uint64(groups), 4) * toldAtOnce
}

// at is the place of a stretch in the ring, by the number of its first change: it has
// room for what is kept and for the one that grows.
func (c *changes) at(first uint64) uint64 { return first / toldAtOnce % (c.kept/toldAtOnce + 1) }

// A stretch is toldAtOnce changes as the log notes them.
type stretch struct {
	first uint64 // number of the first one, a multiple of toldAtOnce
	notes []note
	names []byte        // one behind the other
	whose []sessions.ID // of the changes, without repetitions in a row
	more  []noteMore
}

// A note is a change before anybody looked at it.
type note struct {
	token   fencing.Token
	hold    uint64
	nameEnd uint32 // in the stretch's names
	whose   uint16 // in the stretch's sessions
	kind    EventKind
	mode    Mode
	cause   cause
}

// noteMore is what few changes have.
type noteMore struct {
	at    int // which note
	n     uint64
	note  string
	slots []int
	value string
}

// told are the changes of a stretch that were made events. It only grows, so what
// was handed out stays as it is.
type told struct {
	first  uint64
	events []Event
	pages  []int32 // of their locks
}

// count counts those who watch. The ring is there while there are any. c.telling is
// held, and the state machine's lock.
func (c *changes) count(by int) (watchers int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	watchers = c.watchers.Add(int32(by))
	if watchers == 0 {
		c.ring, c.now, c.told, c.raw = nil, nil, nil, stretch{}
	} else if c.ring == nil {
		c.ring, c.told = make([]stretch, c.kept/toldAtOnce+1), make([]told, c.kept/toldAtOnce+1)
		c.turn(c.next.Load())
	}
	return watchers
}

// turn begins a stretch with a change that has at least this number.
func (c *changes) turn(number uint64) {
	k := (number + toldAtOnce - 1) / toldAtOnce
	c.now = &c.ring[c.at(k*toldAtOnce)]
	clear(c.now.more)
	if c.now.notes == nil {
		c.now.notes, c.now.names = make([]note, 0, toldAtOnce), make([]byte, 0, toldAtOnce*usualName)
	}
	*c.now = stretch{k * toldAtOnce, c.now.notes[:0], c.now.names[:0], c.now.whose[:0], c.now.more[:0]}
	c.next.Store(c.now.first)
}

// begin and done stand around the adding of one entry's changes.
func (c *changes) begin() { c.mu.Lock() }

func (c *changes) done() {
	c.next.Store(c.now.first + uint64(len(c.now.notes)))
	c.mu.Unlock()
	c.bell.ring()
}

// add notes what an effect did, as a change of this kind.
func (c *changes) add(kind EventKind, e *effect, slots []int, value string) {
	if len(c.now.notes) == toldAtOnce {
		c.turn(c.now.first + toldAtOnce)
	}
	s := c.now
	if k := len(s.whose); k == 0 || s.whose[k-1] != e.session {
		s.whose = append(s.whose, e.session)
	}
	if len(slots) > 0 || value != "" || e.note != "" || kind == EventResized {
		s.more = append(s.more, noteMore{len(s.notes), e.n, e.note, slots, value})
	}
	s.names = append(s.names, e.name...)
	s.notes = append(s.notes, note{e.token, e.hold, uint32(len(s.names)), uint16(len(s.whose) - 1), kind, e.mode, e.cause})
}

// skip makes every reader miss something: the state was replaced.
func (c *changes) skip() {
	c.mu.Lock()
	c.turn(c.next.Load() + c.kept + 1)
	c.done()
}

// end returns the number of the next change.
func (c *changes) end() uint64 { return c.next.Load() }

// A bell rings for all who wait for a change in any group. The zero bell is ready.
type bell struct{ rung atomic.Pointer[chan struct{}] } // nil while nobody waits

// hear returns a channel that is closed at the next ring.
func (b *bell) hear() <-chan struct{} {
	for {
		if c := b.rung.Load(); c != nil {
			return *c
		}
		if c := make(chan struct{}); b.rung.CompareAndSwap(nil, &c) {
			return c
		}
	}
}

func (b *bell) ring() {
	if b.rung.Load() != nil {
		if c := b.rung.Swap(nil); c != nil {
			close(*c)
		}
	}
}

var alreadyClosed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// read returns events from number next on, one at least, and none from end on, with
// the pages of their locks. Nobody may change them. It reports instead that some are
// kept no more. The owners of what nobody read before are filled in by own, which
// takes the state machine's lock.
func (c *changes) read(next, end uint64, own func([]Event)) (events []Event, pages []int32, missed bool) {
	c.telling.Lock()
	defer c.telling.Unlock()
	first := next - next%toldAtOnce
	from, to := next-first, min(end-first, toldAtOnce)
	t := &c.told[c.at(first)]
	if t.first != first || uint64(len(t.events)) < to {
		c.tell(t, first, own)
	}
	if c.next.Load()-next > c.kept || t.first != first || uint64(len(t.events)) < to {
		return nil, nil, true
	}
	return t.events[from:to], t.pages[from:to], false
}

// tell makes events of what has come of a stretch.
func (c *changes) tell(t *told, first uint64, own func([]Event)) {
	if t.first != first || t.events == nil {
		*t = told{first, make([]Event, 0, toldAtOnce), make([]int32, 0, toldAtOnce)}
	}
	at := len(t.events)
	nameEnd := c.copy(first, at)
	raw := &c.raw
	for i := range raw.notes {
		m := &raw.notes[i]
		e := Event{Kind: m.kind, Name: string(raw.names[nameEnd:m.nameEnd]), Session: raw.whose[m.whose], Hold: m.hold, Token: m.token}
		nameEnd = m.nameEnd
		var more noteMore
		if len(raw.more) > 0 && raw.more[0].at == at+i {
			more, raw.more = raw.more[0], raw.more[1:]
		}
		e.Slots, e.Value = more.slots, more.value
		switch {
		case e.Kind == EventGranted, e.Kind == EventValue:
			e.Mode = m.mode
		case e.Kind == EventLost, e.Kind == EventLeft && m.cause != 0:
			e.Cause = (&effect{cause: m.cause, note: more.note}).err()
		case e.Kind == EventResized:
			e.Limit = int(more.n)
		}
		t.events = append(t.events, e)
		t.pages = append(t.pages, int32(pageOf(hashOf(e.Name))))
	}
	own(t.events[at:])
}

// copy copies what a stretch has from a note on, since the log waits meanwhile, and
// returns where the name before ends. Of one that is kept no more it has nothing.
func (c *changes) copy(first uint64, at int) (nameEnd uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	raw := &c.raw
	raw.notes, raw.names = raw.notes[:0], raw.names[:0]
	raw.whose, raw.more = raw.whose[:0], nil
	s := &c.ring[c.at(first)]
	if s.first != first {
		return 0
	}
	if at > 0 {
		nameEnd = s.notes[at-1].nameEnd
	}
	raw.notes = append(raw.notes, s.notes[at:]...)
	raw.names = append(raw.names, s.names...)
	raw.whose = append(raw.whose, s.whose...)
	for _, m := range s.more {
		if m.at >= at {
			raw.more = append(raw.more, m)
		}
	}
	return nameEnd
}

// ownersOf returns the sessions that some events are about, each once.
func ownersOf(events []Event) map[sessions.ID]string {
	owners := make(map[sessions.ID]string)
	for i := range events {
		if i == 0 || events[i].Session != events[i-1].Session {
			owners[events[i].Session] = ""
		}
	}
	return owners
}
