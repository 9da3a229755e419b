package once

import (
	"sync"
	"time"
)

// A Schedule says when a job is to run next after t, and the zero time for never. It
// must give every replica the same times.
type Schedule interface {
	Next(t time.Time) time.Time
}

// Every is the schedule of the multiples of an interval since 1970. Schedulers count
// an interval from their own start, which is another moment on every replica; each
// of them fires once between two of these times all the same.
type Every time.Duration

// Next returns the first multiple after t.
func (e Every) Next(t time.Time) time.Time { return Floor(t, time.Duration(e)).Add(time.Duration(e)) }

// Floor returns the last multiple of d since 1970 that is not after t.
func Floor(t time.Time, d time.Duration) time.Time {
	rest := t.UnixNano() % int64(d)
	if rest < 0 {
		rest += int64(d)
	}
	return time.Unix(0, t.UnixNano()-rest).In(t.Location())
}

// A Diary tells which times of a schedule have come, each of them once. The times
// come from the schedule, never from the clock, which is only asked which of them are
// past: so replicas whose clocks differ have the same ones. It is safe for
// concurrent use.
type Diary struct {
	schedule Schedule
	recent   time.Duration

	mu   sync.Mutex
	last time.Time // every time up to this one was told, or was before the start
}

// NewDiary begins a diary at start: what was scheduled until then is none of it. Times
// that are older than recent when somebody looks are left out, but for the latest.
func NewDiary(s Schedule, start time.Time, recent time.Duration) *Diary {
	return &Diary{schedule: s, recent: recent, last: start}
}

// Due returns the times that have come since the last look. There are several if
// the one who looks was late.
func (d *Diary) Due(now time.Time) (due []time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	come := func(t time.Time) bool { return !t.IsZero() && !t.After(now) }
	t := d.schedule.Next(d.last)
	if !come(t) {
		return nil
	}
	if old := now.Add(-d.recent); !t.After(old) {
		if r := d.schedule.Next(old); come(r) {
			t = r
		} else {
			for n := d.schedule.Next(t); come(n); n = d.schedule.Next(t) {
				t = n
			}
		}
	}
	for ; come(t); t = d.schedule.Next(t) {
		due = append(due, t)
		d.last = t
	}
	return due
}
