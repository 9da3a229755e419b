package quorumlock

import (
	"context"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/sessions"
)

// An EventKind says what an Event tells.
type EventKind uint8

const (
	EventPicture    EventKind = iota + 1 // how some locks are, in Locks
	EventSynced                          // every lock was shown: from here on the picture is whole
	EventMissed                          // the reader was too slow: forget the picture, a new one follows
	EventGranted                         // a lock was granted
	EventReleased                        // its holder gave it back
	EventKept                            // its holder gave it back, and MinHold keeps it for now
	EventLost                            // its holder lost it: see Cause
	EventQueued                          // somebody took a place in line
	EventLeft                            // somebody left the line without the lock
	EventDowngraded                      // an exclusive hold is a shared one now
	EventResized                         // a counted lock has another number of permits: Limit
	EventValue                           // a hold has another value: Value
)

// String returns the kind's name in lower case.
func (k EventKind) String() string {
	names := [...]string{EventPicture: "picture", EventSynced: "synced", EventMissed: "missed", EventGranted: "granted",
		EventReleased: "released", EventKept: "kept", EventLost: "lost", EventQueued: "queued", EventLeft: "left",
		EventDowngraded: "downgraded", EventResized: "resized", EventValue: "value"}
	if int(k) < len(names) && names[k] != "" {
		return names[k]
	}
	return "event?"
}

// An Event is one change, or a piece of the picture that changes go on from. All who
// watch on a node are told the same events: nobody may change one, and who keeps one
// for long keeps a copy, as it lies among some hundred others.
type Event struct {
	Kind    EventKind
	Name    string        // the lock
	Session sessions.ID   // whose hold or wait it is
	Hold    uint64        // which one of that session's process, as in Holder and Waiter
	Owner   string        // of that session, if it is still there
	Token   fencing.Token // of the hold
	Mode    Mode          // EventGranted
	Slots   []int         // EventGranted, of a counted lock
	Limit   int           // EventResized
	Value   string        // EventGranted, EventValue: what the holder publishes
	Cause   error         // EventLost, and EventLeft if it was not the waiter's wish: ErrSessionExpired, ErrMaxHold, ErrRevoked, ErrPermits, ...
	Locks   []LockInfo    // EventPicture
}

// Watch yields every change of the locks whose names begin with prefix, in the
// order of the log, as this node's own replica applies it; an empty prefix stands
// for all. With several groups (Options.Groups) there are as many logs: the changes of
// one name come in their order, and so do all of names of one group; those of
// different groups come in no particular one.
//
// It starts with a picture: events of kind EventPicture show the locks that are in
// use, a few at a time, each followed by its changes; EventSynced says that all were
// shown. A reader that falls behind by more than the changes that are kept, some
// ten thousand for all readers of a node together, is told so by EventMissed and
// gets a new picture, and so is one whose replica was sent a snapshot. Nothing is
// ever left out without a word. While nobody watches it costs nothing.
//
// It ends, with an error and no event as its last pair, when ctx ends (ctx's error, and
// ErrNoQuorum if the picture could not be begun) or the node closes (ErrClosed).
func (n *Node) Watch(ctx context.Context, prefix string) iter.Seq2[*Event, error] {
	return func(yield func(*Event, error) bool) {
		if err := n.consult(ctx); err != nil {
			yield(nil, err)
			return
		}
		w := watcher{n: n, prefix: prefix, yield: yield}
		for _, g := range n.groups {
			g.watched(+1)
			defer g.watched(-1)
			w.readers = append(w.readers, logReader{g: g})
		}
		w.restart()
		for w.step(ctx) {
		}
	}
}

// watched counts those who watch.
func (g *group) watched(by int) {
	g.changes.telling.Lock()
	defer g.changes.telling.Unlock()
	g.machine.mu.Lock()
	defer g.machine.mu.Unlock()
	g.machine.fsm.watched = g.changes.count(by) > 0
}

const (
	// readPace is how long a reader waits for company of a change when changes come
	// in a stream: it then reads many at a time, and the log is not slowed by its
	// waking up for each. promptReads is after how many reads that follow each other
	// faster it takes them for a stream.
	readPace    = 10 * time.Millisecond
	promptReads = 64
)

// A watcher is one who watches. It reads the changes in its caller's goroutine.
type watcher struct {
	n       *Node
	prefix  string
	yield   func(*Event, error) bool
	readers []logReader // of all groups
	shown   int         // how many groups were shown whole
	read    time.Time   // when it read last
	hasty   int         // how many reads were less than a pace after the one before
}

// A logReader reads the changes of one group.
type logReader struct {
	g    *group
	next uint64 // the change to be read next
	page int    // the page of the table to be shown next; pages once all were
}

func (w *watcher) restart() {
	w.shown = 0
	for i := range w.readers {
		r := &w.readers[i]
		r.page, r.next = 0, r.g.changes.end()
	}
}

// step shows a page, or the changes of those that were shown, and reports whether
// it goes on.
func (w *watcher) step(ctx context.Context) bool {
	var more <-chan struct{} = alreadyClosed
	showing := w.shown < len(w.readers)
	if !showing {
		more = w.news()
	}
	select {
	case <-more:
	case <-w.n.ctx.Done():
	case <-ctx.Done():
	}
	switch { // a reader with always more to read ends too
	case w.n.ctx.Err() != nil:
		return w.last(w.n.err())
	case ctx.Err() != nil:
		return w.last(ctx.Err())
	case showing:
		return w.show(&w.readers[w.shown])
	}
	w.gather(ctx)
	goesOn, _ := w.follow()
	return goesOn
}

// news returns a channel that is closed once there is a change to be read.
func (w *watcher) news() <-chan struct{} {
	behind := func() bool {
		return slices.ContainsFunc(w.readers, func(r logReader) bool { return r.next < r.g.changes.end() })
	}
	if behind() {
		return alreadyClosed
	}
	rung := w.n.bell.hear()
	if behind() {
		return alreadyClosed
	}
	return rung
}

// follow tells what changed in the groups that were shown whole.
func (w *watcher) follow() (goesOn, whole bool) {
	for i := range w.readers[:w.shown] {
		r := &w.readers[i]
		if goesOn, whole := w.catchUp(r, r.g.changes.end()); !goesOn || !whole {
			return goesOn, whole
		}
	}
	return true, true
}

// gather lets changes gather when they come in a stream.
func (w *watcher) gather(ctx context.Context) {
	now := w.n.clk.Now()
	passed := now.Sub(w.read)
	if passed >= readPace {
		w.hasty = max(0, w.hasty-int(min(passed/readPace, promptReads)))
	} else if w.hasty < promptReads {
		w.hasty++
	} else {
		w.n.later(readPace-passed, ctx.Done())
		now = w.n.clk.Now()
	}
	w.read = now
}

func (w *watcher) last(err error) bool {
	w.yield(nil, err)
	return false
}

// show reads a page of the table. What changed on it before is in it, and what
// changed on earlier pages is told first.
func (w *watcher) show(r *logReader) bool {
	if goesOn, whole := w.follow(); !goesOn || !whole {
		return goesOn
	}
	var locks []LockInfo
	var end uint64
	r.g.machine.read(func(f *lockFSM) {
		end = r.g.changes.end() // no entry is applied meanwhile
		for _, name := range f.table.lineNames(r.page) {
			if strings.HasPrefix(name, w.prefix) {
				locks = append(locks, r.g.describe(f, f.table.line(name)))
			}
		}
	})
	if goesOn, whole := w.catchUp(r, end); !goesOn || !whole {
		return goesOn
	}
	if r.page++; r.page == pages {
		w.shown++
	}
	if len(locks) > 0 {
		slices.SortFunc(locks, func(a, b LockInfo) int { return strings.Compare(a.Name, b.Name) })
		if !w.yield(&Event{Kind: EventPicture, Locks: locks}, nil) {
			return false
		}
	}
	return w.shown < len(w.readers) || w.yield(&Event{Kind: EventSynced}, nil)
}

// catchUp tells a group's changes before end on the pages that were shown. If some of
// them are kept no more, the picture is not whole, and begins anew.
func (w *watcher) catchUp(r *logReader, end uint64) (goesOn, whole bool) {
	for r.next < end {
		events, onPages, missed := r.g.changes.read(r.next, end, r.g.nameOwners)
		if missed {
			w.restart()
			return w.yield(&Event{Kind: EventMissed}, nil), false
		}
		r.next += uint64(len(events))
		for i := range events {
			e := &events[i]
			if int(onPages[i]) < r.page && strings.HasPrefix(e.Name, w.prefix) && !w.yield(e, nil) {
				return false, true
			}
		}
	}
	return true, true
}

// nameOwners fills in whose sessions some events are about.
func (g *group) nameOwners(events []Event) {
	owners := ownersOf(events)
	g.machine.read(func(f *lockFSM) {
		for id := range owners {
			owners[id] = strings.Clone(f.owner(id))
		}
	})
	for i := range events {
		events[i].Owner = owners[events[i].Session]
	}
}

// notice notes what an entry did that watchers are told. The state machine's lock
// is held.
func (g *group) notice(effects []effect) {
	g.changes.begin()
	defer g.changes.done()
	for i := range effects {
		e := &effects[i]
		kind := e.event()
		if kind == 0 {
			continue
		}
		var slots []int
		var value string
		if (kind == EventGranted || kind == EventValue) && !e.plain {
			slots, value = g.machine.fsm.publicOf(e.session, e.name, e.hold)
		}
		g.changes.add(kind, e, slots, value)
	}
}

// event returns the kind of event that tells an effect, or 0 if none does.
func (e *effect) event() EventKind {
	switch e.kind {
	case refused:
		if e.n > 0 {
			return EventLeft
		}
	case granted:
		return EventGranted
	case released:
		return EventReleased
	case lingers:
		return EventKept
	case lost:
		return EventLost
	case queued:
		return EventQueued
	case left:
		return EventLeft
	case downgraded:
		return EventDowngraded
	case resized:
		return EventResized
	case published:
		return EventValue
	}
	return 0
}
