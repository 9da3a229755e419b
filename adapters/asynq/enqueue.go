package asynqlock

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/hibiken/asynq"
)

// pause is how long Redis is left alone after it did not take a task.
const pause = 50 * time.Millisecond

// fired is told that asynq would enqueue a task.
func (s *Scheduler) fired(standIn *asynq.Task) {
	s.mu.Lock()
	e := s.entries[standIn]
	s.mu.Unlock()
	if e != nil {
		s.work(e)
	}
}

// catchUp goes through all tasks when this replica begins to lead: what the leader
// before it did not come to, nobody did.
func (s *Scheduler) catchUp() {
	s.mu.Lock()
	var entries []*entry
	for _, e := range s.entries {
		entries = append(entries, e)
	}
	s.mu.Unlock()
	for _, e := range entries {
		s.work(e)
	}
}

// work enqueues what has come for a task, if this replica leads. Otherwise the times
// stay in the diary, for when it does.
func (s *Scheduler) work(e *entry) {
	if e.wanted.Add(1) > 1 {
		return // whoever is at it looks once more
	}
	for seen := int64(1); seen > 0; seen = e.wanted.Add(-seen) {
		seen = e.wanted.Load()
		s.enqueueDue(e)
	}
}

func (s *Scheduler) enqueueDue(e *entry) {
	if s.leading() != nil {
		return
	}
	for _, planned := range e.diary.Due(s.now()) {
		if s.ctx.Err() != nil {
			return
		}
		won, err := e.claims.Claim(s.ctx, planned)
		var info *asynq.TaskInfo
		if err == nil && !won {
			continue
		}
		if err == nil {
			info, err = s.enqueue(e, planned)
		}
		if f := s.o.Scheduler.PostEnqueueFunc; f != nil {
			f(info, err)
		}
	}
}

// leading returns nil if this replica leads now.
func (s *Scheduler) leading() error {
	s.mu.Lock()
	leader := s.leader
	s.mu.Unlock()
	if leader == nil {
		return errors.New("not started")
	}
	return leader.Err()
}

// enqueue enqueues the task for a planned time that was claimed. The id names that
// time, so a try whose answer was lost does no harm when it is repeated: the second
// finds the task there.
func (s *Scheduler) enqueue(e *entry, planned time.Time) (*asynq.TaskInfo, error) {
	ctx, cancel := context.WithTimeout(s.ctx, s.o.Patience)
	defer cancel()
	opts := append(slices.Clone(e.opts), asynq.TaskID(TaskID(e.name, planned)))
	for tried := false; ; tried = true {
		info, err := s.client.EnqueueContext(ctx, e.task, opts...)
		switch {
		case err == nil:
			return info, nil
		case tried && errors.Is(err, asynq.ErrTaskIDConflict):
			return nil, nil
		case errors.Is(err, asynq.ErrTaskIDConflict), errors.Is(err, asynq.ErrDuplicateTask), ctx.Err() != nil:
			return nil, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, err
		}
	}
}
