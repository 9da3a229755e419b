package main

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/quorumlock/quorumlock/fencing"
)

const (
	// roundLength is for how long a name is used before the next one takes its place:
	// so each history stays short enough to be judged. It is longer than a lease, so
	// that who is cut off meets a successor.
	roundLength = 3 * sessionTTL
	// setRounds is how many rounds a name of a set lasts: a holder that is stopped past
	// its lease must find that others have written meanwhile.
	setRounds = 3
	// judgeAfter is how long after its last call a name is judged: longer than any call
	// lasts, with the time for which its process is stopped.
	judgeAfter = 30 * time.Second
)

// nameOf returns the name of a kind that is used at a time of the machine's clock.
func nameOf(kind lockKind, at int64) string {
	round := at / int64(roundLength)
	if kind == lockSetKind || kind == fencedSetKind {
		round /= setRounds
	}
	return fmt.Sprintf("%s/%d", kind, round)
}

// An attempt is what is known of one acquisition.
type attempt struct {
	name      string
	claim     claim
	call, ret int64
	outcome   eventKind // eventGrant, eventRefused, or another for no answer
	first     int64     // after the first look at its context that found it alive; 0 if none did
	last      int64     // before the last one
	free      int64     // when it was given back
	freed     int64     // when that was confirmed; 0 if it was not
}

// operations returns what a model is told of the attempt.
func (a *attempt) operations() (ops []porcupine.Operation) {
	add := func(kind opKind, call, ret int64) {
		ops = append(ops, porcupine.Operation{Input: operation{kind, a.claim}, Call: call, Return: ret})
	}
	switch a.outcome {
	case eventGrant:
		add(opGrant, a.call, a.ret)
	case eventRefused:
		add(opRefused, a.call, a.ret)
		return ops
	default:
		add(opUnknown, a.call, a.call)
		return ops
	}
	switch {
	case a.freed > 0:
		add(opFree, a.free, a.freed)
	case a.last > a.ret:
		add(opSoften, a.last, a.last)
	default: // nobody looked: it may have been over when it was handed out
		add(opSoften, a.call, a.ret)
	}
	return ops
}

// A tally is what the table says of a history.
type tally struct {
	Asked, Granted, Refused, Unknown, Lost int
	Names, Late                            int
	Wrong                                  []string
}

// A history is what the clients of all workers saw, as far as it is not yet judged.
type history struct {
	mu       sync.Mutex
	attempts map[owner]*attempt
	names    map[string][]*attempt
	asked    map[string]int64 // when a name was last asked for
	probes   map[uint64][]fencing.Token
	tally    tally
}

func newHistory() *history {
	return &history{attempts: make(map[owner]*attempt), names: make(map[string][]*attempt),
		asked: make(map[string]int64), probes: make(map[uint64][]fencing.Token)}
}

// add takes an event of a worker's client.
func (h *history) add(worker uint64, life int, e *event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	id := owner{worker, life, e.Op}
	a := h.attempts[id]
	if e.Kind == eventAsk {
		a = &attempt{name: e.Name, claim: claim{owner: id, shared: e.Shared}, call: e.At}
		h.attempts[id] = a
		h.names[e.Name] = append(h.names[e.Name], a)
		h.asked[e.Name] = max(h.asked[e.Name], e.At)
		h.tally.Asked++
		return
	}
	if a == nil {
		h.tally.Late++ // its name was judged as if it had not come, which allows for more
		return
	}
	switch e.Kind {
	case eventGrant:
		a.outcome, a.ret = e.Kind, e.At
		a.claim.token, a.claim.slots = e.Token, e.Slots
	case eventRefused:
		a.outcome, a.ret = e.Kind, e.At
	case eventLook:
		if a.first == 0 {
			a.first = e.Till
		}
		a.last = e.At
	case eventFree:
		a.free = e.At
	case eventFreed:
		a.freed = e.At
	case eventLost:
		h.tally.Lost++
	}
}

// probe takes the tokens of a worker's own locks, which nobody else asks for: each is
// larger than the one before of the same lock, through all restarts.
func (h *history) probe(worker uint64, tokens []fencing.Token) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, before := range h.probes[worker] {
		if tokens[i] <= before {
			h.tally.Wrong = append(h.tally.Wrong, fmt.Sprintf("%s: token %s after %s", probeName(worker, i), tokens[i], before))
		}
	}
	h.probes[worker] = tokens
}

// wrong notes a violation.
func (h *history) wrong(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tally.Wrong = append(h.tally.Wrong, fmt.Sprintf(format, args...))
}

// judgeBefore judges the names that were last asked for before then, and forgets them.
func (h *history) judgeBefore(then int64) {
	h.mu.Lock()
	due := make(map[string][]*attempt)
	for name, at := range h.asked {
		if at >= then {
			continue
		}
		due[name] = h.names[name]
		h.tally.Names++
		for _, a := range due[name] {
			delete(h.attempts, a.claim.owner)
			h.count(a)
		}
		delete(h.names, name)
		delete(h.asked, name)
	}
	h.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(due)) {
		if err := judgeAttempts(name, due[name]); err != nil {
			h.wrong("%v", err)
		}
	}
}

func (h *history) count(a *attempt) {
	switch a.outcome {
	case eventGrant:
		h.tally.Granted++
	case eventRefused:
		h.tally.Refused++
	default:
		h.tally.Unknown++
	}
}

// judgeAttempts judges all attempts at one name. Those of the sets are known to the
// models as fenced mutexes.
func judgeAttempts(name string, attempts []*attempt) error {
	var ops []porcupine.Operation
	var lives []life
	for _, a := range attempts {
		for _, op := range a.operations() {
			op.ClientId = len(ops)
			ops = append(ops, op)
		}
		if a.first > 0 {
			lives = append(lives, life{a.claim, a.first, a.last})
		}
	}
	return judge(name, ops, lives)
}

// result returns the tally so far.
func (h *history) result() tally {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.tally
	t.Wrong = slices.Clone(t.Wrong)
	return t
}
