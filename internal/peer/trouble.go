package peer

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"
)

const (
	// troubleTime is how long a failure to reach a replica is remembered: whoever
	// needs the replica tries again much sooner.
	troubleTime = time.Minute

	// sayPause is how often the same complaint is logged, and maxSaid how many
	// different ones are in that time.
	sayPause = time.Minute
	maxSaid  = 64
)

// trouble is why a replica could not be reached, and when that was.
type trouble struct {
	err error
	at  time.Time
}

// troubles are kept for those who look for the cause when a replica is missing.
type troubles struct {
	mu   sync.Mutex
	with map[uint64]trouble
	said map[string]time.Time
}

func newTroubles() *troubles {
	return &troubles{with: make(map[uint64]trouble), said: make(map[string]time.Time)}
}

// note remembers how the last try to reach a replica ended.
func (t *troubles) note(replica uint64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err == nil {
		delete(t.with, replica)
	} else if !errors.Is(err, context.Canceled) {
		t.with[replica] = trouble{err, time.Now()}
	}
}

// recent returns what was noted of late.
func (t *troubles) recent() map[uint64]error {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make(map[uint64]error)
	for replica, trouble := range t.with {
		if time.Since(trouble.at) < troubleTime {
			all[replica] = trouble.err
		}
	}
	return all
}

// first tells whether a complaint is to be logged. Strangers can cause them, so
// that there may be any number.
func (t *troubles) first(complaint string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.said, func(_ string, at time.Time) bool { return time.Since(at) >= sayPause })
	if _, ok := t.said[complaint]; ok || len(t.said) >= maxSaid {
		return false
	}
	t.said[complaint] = time.Now()
	return true
}
