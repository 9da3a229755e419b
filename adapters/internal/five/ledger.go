package five

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// A Ledger notes which replica ran what, by the time for which the scheduler itself
// says that the run was planned.
type Ledger struct {
	mu   sync.Mutex
	runs map[string]map[time.Time][]int // job, planned time: replicas
	more chan struct{}                  // has one if something was noted since the last look
}

// NewLedger returns an empty ledger.
func NewLedger() *Ledger {
	return &Ledger{runs: make(map[string]map[time.Time][]int), more: make(chan struct{}, 1)}
}

// Ran notes a run.
func (l *Ledger) Ran(job string, planned time.Time, replica int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.runs[job] == nil {
		l.runs[job] = make(map[time.Time][]int)
	}
	planned = planned.UTC().Round(0) // equal times are equal keys
	l.runs[job][planned] = append(l.runs[job][planned], replica)
	select {
	case l.more <- struct{}{}:
	default:
	}
}

// span returns the first planned time of a job that replica 0 ran, whose clock is
// ahead, and the last that anybody did. What others came to before is the tail of
// what was planned before the start: once replica 0 has begun, that is past.
func (l *Ledger) span(job string) (first, last time.Time) {
	for t, ran := range l.runs[job] {
		if slices.Contains(ran, 0) && (first.IsZero() || t.Before(first)) {
			first = t
		}
		if t.After(last) {
			last = t
		}
	}
	return first, last
}

// Await waits until the n-th planned time of the job and one more were run. The
// times are step apart.
func (l *Ledger) Await(ctx context.Context, job string, n int, step time.Duration) error {
	for {
		l.mu.Lock()
		first, last := l.span(job)
		l.mu.Unlock()
		if !first.IsZero() && !last.Before(first.Add(time.Duration(n)*step)) {
			return nil
		}
		select {
		case <-l.more:
		case <-ctx.Done():
			return fmt.Errorf("%s: runs for %v to %v: %w", job, first, last, ctx.Err())
		}
	}
}

// Check returns what is wrong with the first n planned times of a job: each is to
// have one run. Those in lost need none.
func (l *Ledger) Check(job string, n int, step time.Duration, lost []int64) (wrong []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	excused := make(map[int64]bool)
	for _, tick := range lost {
		excused[tick] = true
	}
	first, _ := l.span(job)
	for i := range n {
		t := first.Add(time.Duration(i) * step)
		if len(l.runs[job][t]) == 0 && !excused[t.UnixMilli()] {
			wrong = append(wrong, fmt.Sprintf("%s at %v was not run", job, t))
		}
	}
	for t, ran := range l.runs[job] {
		if len(ran) > 1 {
			wrong = append(wrong, fmt.Sprintf("%s at %v was run by %v", job, t, ran))
		}
		if t.Sub(first)%step != 0 {
			wrong = append(wrong, fmt.Sprintf("%s at %v is no planned time, and was run by %v", job, t, ran))
		}
	}
	return wrong
}

// Share tells how many runs each replica had.
func (l *Ledger) Share() (share [Replicas]int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, times := range l.runs {
		for _, ran := range times {
			for _, replica := range ran {
				share[replica]++
			}
		}
	}
	return share
}
