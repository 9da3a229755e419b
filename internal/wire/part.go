package wire

import (
	"time"

	"github.com/quorumlock/quorumlock/fencing"
)

// sumLen is how long the name of a backup is: its SHA-256, in hex.
const sumLen = 64

// An Origin says which backup a cluster was founded from, and how much of it is there.
// It is zero for a cluster that was founded empty.
type Origin struct {
	Sum  string
	Done uint64 // parts that were restored
	Of   uint64 // parts that there are
}

// A Part is a piece of what is restored from a backup. The parts are applied in their
// order, each once.
type Part struct {
	Origin               // Done says how many parts come before this one
	Token  fencing.Token // what no token is to be below
	Ticks  []Tick
	Bars   []NamedBar
}

// A Tick is the last tick of a job that was claimed.
type Tick struct {
	Job  string
	Tick int64
	At   int64 // Unix milliseconds, for display
}

// A NamedBar keeps a name from being granted for a time.
type NamedBar struct {
	Name string
	For  time.Duration
}

func (w writer) origin(o Origin) {
	w.string(o.Sum)
	w.uint(o.Done)
	w.uint(o.Of)
}

func (r *reader) origin() Origin {
	o := Origin{Sum: r.text(sumLen, "sum"), Done: r.uint(), Of: r.uint()}
	if r.err == nil && (len(o.Sum) != sumLen || o.Done > o.Of || o.Of == 0) {
		r.fail("origin %q, %d of %d", o.Sum, o.Done, o.Of)
	}
	return o
}

func (w writer) part(p *Part) {
	w.origin(p.Origin)
	w.uint(uint64(p.Token))
	w.array(len(p.Ticks))
	for _, t := range p.Ticks {
		w.array(3)
		w.string(t.Job)
		w.int(t.Tick)
		w.int(t.At)
	}
	w.array(len(p.Bars))
	for _, b := range p.Bars {
		w.array(2)
		w.string(b.Name)
		w.duration(b.For)
	}
}

func (r *reader) part() *Part {
	p := &Part{Origin: r.origin(), Token: fencing.Token(r.uint())}
	n := r.arrayLen(MaxJobs, "ticks")
	for i := 0; i < n && r.err == nil; i++ {
		r.array(3, "tick")
		p.Ticks = append(p.Ticks, Tick{r.name(), r.int(), r.int()})
	}
	n = r.arrayLen(MaxCommands, "bars")
	for i := 0; i < n && r.err == nil; i++ {
		r.array(2, "bar")
		p.Bars = append(p.Bars, NamedBar{r.name(), r.term()})
	}
	return p
}
