package quorumlock

import (
	"maps"
	"slices"
	"strings"

	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/queue"
)

// A capture is the table as it was at one moment, while the table goes on changing:
// of each line that changes before its page was taken, it keeps what the line was.
type capture struct {
	was   [pages]map[string][]byte // lines that changed since, as they were; nil for none
	taken [pages]bool
	table *table // nil once it was dropped
}

// mark begins a capture. There are few at a time: the engine's, and those of backups.
func (t *table) mark() *capture {
	c := &capture{table: t}
	t.captures = append(t.captures, c)
	return c
}

// touch announces that the line of a name on page i is about to change.
func (t *table) touch(i int, name string) {
	for _, c := range t.captures {
		c.keep(i, name)
	}
}

// keep keeps what the line of a name on page i is.
func (c *capture) keep(i int, name string) {
	if c.taken[i] {
		return
	}
	if _, kept := c.was[i][name]; kept {
		return
	}
	if c.was[i] == nil {
		c.was[i] = make(map[string][]byte)
	}
	name = strings.Clone(name) // it may be a view of what is about to change
	var was []byte
	if l := c.table.line(name); l != nil {
		was = wire.AppendLine(nil, l)
	}
	c.was[i][name] = was
}

// touchLine announces that a line that is among the lines is about to change.
func (t *table) touchLine(l *queue.Line) { t.touch(pageOf(hashOf(l.Name)), l.Name) }

// take appends page i as it was at the mark to b, in the order of names. Each page
// is taken once, under the same lock as every change of the table.
func (c *capture) take(b []byte, i int) []byte {
	if c.table == nil {
		panic("quorumlock: page taken of a capture that has ended") // the table has moved on unsaved
	}
	was := c.was[i]
	c.taken[i], c.was[i] = true, nil
	if len(was) == 0 {
		return c.table.encode(b, i)
	}
	now := c.table.lineNames(i)
	names := slices.AppendSeq(now, maps.Keys(was))
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if line, changed := was[name]; changed {
			b = append(b, line...)
		} else {
			b = wire.AppendLine(b, c.table.line(name))
		}
	}
	return b
}

// drop ends the capture.
func (c *capture) drop() {
	if c.table != nil {
		c.table.captures = slices.DeleteFunc(c.table.captures, func(other *capture) bool { return other == c })
		c.table = nil
	}
}

// encode appends page i to b, in the order of names.
func (t *table) encode(b []byte, i int) []byte {
	p := t.page[i]
	if p.empty() {
		return b
	}
	slots := p.sorted()
	var view recordView
	for _, name := range slices.Sorted(maps.Keys(p.lines)) {
		for len(slots) > 0 && p.name(&p.records[slots[0]]) < name {
			b = wire.AppendLine(b, view.of(t, p, slots[0]))
			slots = slots[1:]
		}
		b = wire.AppendLine(b, p.lines[name])
	}
	for _, slot := range slots {
		b = wire.AppendLine(b, view.of(t, p, slot))
	}
	return b
}

// A recordView shows one record after the other as a line.
type recordView struct {
	line  queue.Line
	claim queue.Claim
}

// of is good until the next call.
func (v *recordView) of(t *table, p *page, slot int) *queue.Line {
	x := &p.records[slot]
	v.line, v.claim = queue.Line{Name: p.name(x)}, t.claimOf(x)
	v.line.Hold(&v.claim, x.token)
	return &v.line
}
