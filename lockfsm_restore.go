package quorumlock

import (
	"strings"

	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/queue"
	"github.com/quorumlock/quorumlock/sessions"
)

// A cluster that is founded from a backup gets what is restored as entries of its log,
// so every replica has the same. The parts come in order, each may come twice, and
// none of the founders asks for anything before the last one is there.

// restorePart brings back the next part of a backup.
func (f *lockFSM) restorePart(p *wire.Part) {
	next := p.Origin
	next.Done++
	switch {
	case p.Done == 0 && f.untouched():
		next.Sum = strings.Clone(next.Sum)
	case p.Origin != f.origin || p.Done == p.Of:
		f.emit(effect{kind: restored, cause: causeRestored}) // it is there, or another one is
		return
	default:
		next.Sum = f.origin.Sum
	}
	f.origin = next
	f.token = max(f.token, p.Token)
	for _, t := range p.Ticks {
		f.restoreTick(t)
	}
	for _, b := range p.Bars {
		f.restoreBar(b)
	}
	f.emit(effect{kind: restored, n: next.Done})
}

// untouched reports whether nobody has had anything of this cluster yet.
func (f *lockFSM) untouched() bool {
	if f.origin.Of > 0 || !f.token.IsZero() || len(f.jobs) > 0 {
		return false
	}
	for p := range f.roll.Processes() {
		if p.Batch > 0 {
			return false
		}
	}
	return true
}

// restoreTick notes that a tick was claimed, by no call that could come once more.
func (f *lockFSM) restoreTick(t wire.Tick) {
	if len(f.jobs) >= wire.MaxJobs {
		return // what does not fit is refused by founders: see restoration.fits
	}
	name := strings.Clone(t.Job)
	f.jobs[name] = &wire.Job{Name: name, Tick: t.Tick, By: sessions.ID{Replica: f.entry.Replica, Epoch: f.entry.Epoch}, At: t.At}
}

// restoreBar keeps a name from being granted for as long as its holder asked for. Tokens do
// not hang on it: they begin beyond all that were granted with the first part.
func (f *lockFSM) restoreBar(b wire.NamedBar) {
	s := f.table.seek(hashOf(b.Name), b.Name)
	if f.table.full(s.page, 1) {
		return // as restoreTick: not from founders, see restoration.fits
	}
	f.token++ // a number that no other bar has
	l := f.table.open(s)
	l.Bar(queue.Bar{ID: uint64(f.token), For: b.For})
	f.run(timeID{hold: uint64(f.token), what: lockDelay}, runningTime{line: l, d: b.For})
}
