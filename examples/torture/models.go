package main

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/quorumlock/quorumlock/fencing"
)

// A lockKind is what a name is used as, and which model its history is held against.
// It is the first part of the name.
type lockKind string

const (
	mutexKind     lockKind = "mutex"      // an owner-aware mutex: one owner at a time, and only it gives back
	fencedKind    lockKind = "fenced"     // the same, and each grant has a larger token
	sharedKind    lockKind = "shared"     // readers beside readers, under one token, and writers alone
	permitsKind   lockKind = "permits"    // as many as there are permits, each in slots of its own
	lockSetKind   lockKind = "lock-set"   // for the store: writes without the token
	fencedSetKind lockKind = "fenced-set" // for the store: writes with it
)

var modelled = []lockKind{mutexKind, fencedKind, sharedKind, permitsKind}

const permitLimit = 4

func kindOf(name string) lockKind {
	kind, _, _ := strings.Cut(name, "/")
	return lockKind(kind)
}

// An owner names one acquisition: of which process, and the how manieth.
type owner struct {
	Worker uint64
	Life   int
	Op     uint64
}

func (o owner) String() string { return fmt.Sprintf("%d.%d/%d", o.Worker, o.Life, o.Op) }

// A claim is what somebody holds.
type claim struct {
	owner  owner
	shared bool
	token  fencing.Token
	slots  uint8 // of permits: a bit for each
	soft   bool  // it may have gone
}

// beside reports whether both can be held at once.
func (c claim) beside(other claim) bool {
	switch {
	case c.slots != 0 || other.slots != 0:
		return c.slots&other.slots == 0 && c.slots != 0 && other.slots != 0
	case c.shared && other.shared:
		return c.token == other.token
	}
	return false
}

type opKind uint8

const (
	opGrant   opKind = iota // an acquire that returned a hold
	opFree                  // a release that was confirmed
	opSoften                // a hold that may be gone from now on
	opRefused               // a try that was refused because of a holder
	opUnknown               // an acquire without an answer
)

func (k opKind) String() string {
	return [...]string{"grant", "free", "may be gone", "refused", "unknown"}[k]
}

type operation struct {
	kind  opKind
	claim claim
}

func (o operation) String() string {
	return fmt.Sprintf("%s %s token %s shared %v slots %b", o.kind, o.claim.owner, o.claim.token, o.claim.shared, o.claim.slots)
}

// A lockState is what a model knows of one name.
//
// What a caller cannot know is taken as late as it can be, as Jepsen's checkers do
// with operations whose outcome is unknown: a hold whose end was not confirmed is
// soft, and has gone when something needs it gone; an acquire without an answer may
// have been granted at any later moment, and given back at any moment after that. So
// no step has two outcomes, and nothing right is called wrong.
type lockState struct {
	claims  []claim // by token
	last    fencing.Token
	unknown bool // an acquire had no answer
}

func (s lockState) equal(o lockState) bool {
	return s.last == o.last && s.unknown == o.unknown && slices.Equal(s.claims, o.claims)
}

// model returns the model of a kind of lock, for the history of one name.
func model(kind lockKind) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return lockState{} },
		Step: func(state, input, _ any) (bool, any) {
			s := state.(lockState)
			s.claims = slices.Clone(s.claims)
			ok := s.step(kind, input.(operation))
			return ok, s
		},
		Equal: func(a, b any) bool { return a.(lockState).equal(b.(lockState)) },
	}
}

func (s *lockState) step(kind lockKind, op operation) bool {
	i := slices.IndexFunc(s.claims, func(c claim) bool { return c.owner == op.claim.owner })
	switch op.kind {
	case opGrant:
		return i < 0 && s.grant(kind, op.claim)
	case opFree:
		if i < 0 {
			return false
		}
		s.claims = slices.Delete(s.claims, i, i+1)
	case opSoften:
		if i >= 0 {
			s.claims[i].soft = true
		}
	case opRefused:
		return len(s.claims) > 0 || s.unknown
	case opUnknown:
		s.unknown = true
	}
	return true
}

func (s *lockState) grant(kind lockKind, c claim) bool {
	s.claims = slices.DeleteFunc(s.claims, func(x claim) bool { return x.soft && !x.beside(c) })
	if slices.ContainsFunc(s.claims, func(x claim) bool { return !x.beside(c) }) {
		return false
	}
	switch joins := c.shared && c.token == s.last && (len(s.claims) > 0 || s.unknown); {
	case kind == mutexKind || joins:
	case c.token <= s.last:
		return false
	}
	if kind == permitsKind && (c.slots == 0 || bits.Len8(c.slots) > permitLimit) {
		return false
	}
	s.last = max(s.last, c.token)
	s.claims = append(s.claims, c)
	slices.SortFunc(s.claims, func(a, b claim) int {
		if a.token != b.token {
			return int(a.token) - int(b.token)
		}
		return strings.Compare(a.owner.String(), b.owner.String())
	})
	return true
}

// A life is a span of the machine's clock in which a holder's own context was alive,
// as it saw itself: from after its first look to before its last one.
type life struct {
	claim    claim
	from, to int64
}

// overlap looks for two who were alive at the same moment and exclude each other.
func overlap(lives []life) error {
	lives = slices.Clone(lives)
	slices.SortFunc(lives, func(a, b life) int { return int(a.from - b.from) })
	for i, a := range lives {
		for _, b := range lives[:i] {
			if b.to > a.from && a.to > a.from && !a.claim.beside(b.claim) {
				return fmt.Errorf("two live holders for %v: %s with token %s until %v, and %s with token %s from %v", time.Duration(min(a.to, b.to)-a.from),
					b.claim.owner, b.claim.token, time.Duration(b.to), a.claim.owner, a.claim.token, time.Duration(a.from))
			}
		}
	}
	return nil
}

// judgeLimit is how long the search for an order of one name's history may take.
const judgeLimit = 20 * time.Second

// judge returns what is wrong with the history of a name.
func judge(name string, ops []porcupine.Operation, lives []life) error {
	if err := overlap(lives); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	switch porcupine.CheckOperationsTimeout(model(kindOf(name)), ops, judgeLimit) {
	case porcupine.Illegal:
		return fmt.Errorf("%s: not linearizable:%s", name, inOrder(ops))
	case porcupine.Unknown:
		return fmt.Errorf("%s: its %d operations could not be judged in %v", name, len(ops), judgeLimit)
	}
	return nil
}

// inOrder shows what was done with a name, in the order in which it was begun.
func inOrder(ops []porcupine.Operation) string {
	ops = slices.Clone(ops)
	slices.SortFunc(ops, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
	var b strings.Builder
	for _, op := range ops {
		fmt.Fprintf(&b, "\n    %12v to %12v: %v", time.Duration(op.Call), time.Duration(op.Return), op.Input)
	}
	return b.String()
}
