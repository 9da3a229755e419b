package quorumlock

import (
	"hash/crc32"
	"maps"
	"slices"
	"unsafe"

	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/queue"
)

// pages is how many pages the table has. It sets the order of lines in a snapshot,
// so it is part of the format.
const pages = 1 << 12

// A table finds a line by its name, and can be captured in constant time while it
// goes on changing: a page that is about to change while a capture has not saved
// it yet is saved first. Only lines that somebody holds or waits for are in it.
type table struct {
	page    [pages]map[string]*queue.Line
	n       int
	capture *capture
}

// A capture is the table as it was at one moment.
type capture struct {
	lines int           // how many there were
	saved [pages][]byte // pages that changed since, as they were
	done  [pages]bool   // pages that have been saved or handed out
	table *table        // nil once it was dropped
}

var pageTable = crc32.MakeTable(crc32.Castagnoli)

// pageOf tells the page of a name: a hash that is the same everywhere and for ever.
func pageOf(name string) int {
	b := unsafe.Slice(unsafe.StringData(name), len(name)) // only read, and not kept
	return int(crc32.Update(0, pageTable, b) % pages)
}

// find returns the line of a name, or nil if nobody holds or waits for it.
func (t *table) find(name string) *queue.Line { return t.page[pageOf(name)][name] }

// edit returns the line of a name, made if need be, for a change.
func (t *table) edit(name string) *queue.Line {
	i := pageOf(name)
	t.touch(i)
	l := t.page[i][name]
	if l == nil {
		l = &queue.Line{Name: name}
		t.put(l)
	}
	return l
}

// put adds a line whose name is not in the table.
func (t *table) put(l *queue.Line) {
	i := pageOf(l.Name)
	if t.page[i] == nil {
		t.page[i] = make(map[string]*queue.Line)
	}
	t.page[i][l.Name] = l
	t.n++
}

// touchLine announces a change of a line that is in the table.
func (t *table) touchLine(l *queue.Line) { t.touch(pageOf(l.Name)) }

// tidy forgets a line that nobody holds or waits for any more.
func (t *table) tidy(l *queue.Line) {
	if !l.Empty() {
		return
	}
	i := pageOf(l.Name)
	delete(t.page[i], l.Name)
	t.n--
	if len(t.page[i]) == 0 {
		t.page[i] = nil // a map keeps the room of its best days; an idle name costs nothing
	}
}

func (t *table) touch(i int) {
	if c := t.capture; c != nil && !c.done[i] {
		c.done[i] = true
		c.saved[i] = t.encode(nil, i)
	}
}

// encode appends page i to b, in the order of names.
func (t *table) encode(b []byte, i int) []byte {
	for _, name := range slices.Sorted(maps.Keys(t.page[i])) {
		b = wire.AppendLine(b, t.page[i][name])
	}
	return b
}

// mark begins a capture. There is one at a time.
func (t *table) mark() *capture {
	c := &capture{lines: t.n, table: t}
	t.capture = c
	return c
}

// take appends page i as it was at the mark to b, and lets go of it. Each page is
// taken once, under the same lock as every change of the table.
func (c *capture) take(b []byte, i int) []byte {
	if c.table == nil || c.table.capture != c {
		panic("quorumlock: page taken of a capture that has ended") // the table has moved on unsaved
	}
	if c.done[i] {
		b = append(b, c.saved[i]...)
		c.saved[i] = nil
		return b
	}
	c.done[i] = true
	return c.table.encode(b, i)
}

// drop ends the capture.
func (c *capture) drop() {
	if c.table != nil && c.table.capture == c {
		c.table.capture = nil
	}
	c.table = nil
}
