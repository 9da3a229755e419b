package main

import (
	"strings"
	"testing"

	"github.com/anishathalye/porcupine"

	"github.com/quorumlock/quorumlock/fencing"
)

func ask(at int64) event { return event{Kind: eventAsk, At: at} }

func granted(at int64, token fencing.Token, slots ...int) event {
	e := event{Kind: eventGrant, At: at, Token: token}
	for _, slot := range slots {
		e.Slots |= 1 << slot
	}
	return e
}

func look(at int64) event { return event{Kind: eventLook, At: at, Till: at + 1} }

func free(at int64) []event {
	return []event{{Kind: eventFree, At: at}, {Kind: eventFreed, At: at + 1}}
}

// held is a whole acquisition: granted at once, looked at, and given back.
func held(from, to int64, token fencing.Token, slots ...int) []event {
	return append([]event{ask(from), granted(from+1, token, slots...), look(from + 2), look(to - 2)}, free(to)...)
}

func reader(events []event) []event {
	events[0].Shared = true
	return events
}

// historyOf is what was seen of one name; each client is one acquisition.
func historyOf(name string, clients ...[]event) *history {
	h := newHistory()
	for i, events := range clients {
		for _, e := range events {
			e.Op = 1
			if e.Kind == eventAsk {
				e.Name = name
			}
			h.add(uint64(i+1), 1, &e)
		}
	}
	return h
}

// The checks are worth something: they find what must not be, and say what it is.
func TestBadHistories(t *testing.T) {
	for what, c := range map[string]struct {
		h    *history
		want string
	}{
		"two live holders": {historyOf("fenced/1", held(10, 50, 1), held(40, 90, 2)), "two live holders"},
		"a frozen holder's successor is let in before the lease is over": {
			historyOf("mutex/1", []event{ask(1), granted(2, 1), look(3), look(60)}, held(30, 40, 2)), "two live holders"},
		"a second grant that nobody looked at": {
			historyOf("mutex/1", append([]event{ask(1), granted(2, 1)}, free(50)...), append([]event{ask(10), granted(11, 2)}, free(20)...)), "not linearizable"},
		"a token that repeats":          {historyOf("fenced/1", held(10, 20, 7), held(30, 40, 7)), "not linearizable"},
		"a token that goes back":        {historyOf("fenced/1", held(10, 20, 7), held(30, 40, 6)), "not linearizable"},
		"a set's token that goes back":  {historyOf("fenced-set/1", held(10, 20, 7), held(30, 40, 6)), "not linearizable"},
		"refused although nobody holds": {historyOf("mutex/1", held(10, 20, 1), []event{ask(30), {Kind: eventRefused, At: 31}}), "not linearizable"},
		"a reader beside a writer":      {historyOf("shared/1", held(10, 50, 1), reader(held(20, 40, 2))), "two live holders"},
		"readers with two tokens":       {historyOf("shared/1", reader(held(10, 50, 1)), reader(held(20, 40, 2))), "two live holders"},
		"a reader with a spent token":   {historyOf("shared/1", reader(held(10, 20, 1)), reader(held(30, 40, 1))), "not linearizable"},
		"one permit twice":              {historyOf("permits/1", held(10, 50, 1, 0, 1), held(20, 40, 2, 1)), "two live holders"},
		"a permit that there is not":    {historyOf("permits/1", held(10, 50, 1, permitLimit)), "not linearizable"},
		"given back before it was had":  {historyOf("mutex/1", append([]event{ask(45), granted(70, 1)}, free(12)...)), "not linearizable"},
	} {
		c.h.judgeBefore(1000)
		if got := strings.Join(c.h.result().Wrong, "\n"); !strings.Contains(got, c.want) {
			t.Errorf("%s: want %q, got %q", what, c.want, got)
		}
	}
}

// What may be is not called wrong: not even what a client cannot know.
func TestGoodHistories(t *testing.T) {
	for what, h := range map[string]*history{
		"one after the other":         historyOf("fenced/1", held(10, 20, 1), held(21, 40, 2)),
		"a holder that was killed":    historyOf("fenced/1", []event{ask(1), granted(2, 1), look(3)}, held(30, 40, 2)),
		"killed before it could look": historyOf("mutex/1", []event{ask(1), granted(2, 1)}, held(3, 40, 2)),
		"an acquire without answer":   historyOf("fenced/1", []event{ask(1), {Kind: eventUnknown, At: 9}}, held(30, 40, 2), []event{ask(50), {Kind: eventRefused, At: 51}}),
		"a call that never returned":  historyOf("fenced/1", []event{ask(1)}, held(30, 40, 2), []event{ask(50), {Kind: eventRefused, At: 51}}),
		"a release without answer":    historyOf("fenced/1", []event{ask(1), granted(2, 1), look(3), {Kind: eventFree, At: 8}, {Kind: eventLost, At: 9}}, held(10, 40, 2)),
		"readers together":            historyOf("shared/1", reader(held(10, 50, 1)), reader(held(20, 60, 1)), held(70, 80, 2)),
		"permits":                     historyOf("permits/1", held(10, 50, 1, 0, 1), held(20, 60, 2, 2, 3), held(55, 70, 3, 0)),
	} {
		h.judgeBefore(1000)
		if wrong := h.result().Wrong; len(wrong) > 0 {
			t.Errorf("%s: %q", what, wrong)
		}
	}
}

// A name is judged once nobody has asked for it for a while, and not before.
func TestJudgedInTime(t *testing.T) {
	h := historyOf("fenced/1", held(10, 20, 7), held(30, 40, 7))
	h.judgeBefore(30)
	if r := h.result(); r.Names != 0 || len(r.Wrong) > 0 {
		t.Errorf("judged too early: %+v", r)
	}
	h.judgeBefore(31)
	r := h.result()
	if r.Names != 1 || len(r.Wrong) != 1 || r.Asked != 2 || r.Granted != 2 || len(h.attempts) > 0 || len(h.names) > 0 {
		t.Errorf("%+v, and %d attempts are kept", r, len(h.attempts))
	}
	h.add(1, 1, &event{Kind: eventLook, Op: 1, At: 50})
	if r := h.result(); r.Late != 1 {
		t.Errorf("%d late", r.Late)
	}
}

func TestProbesTokensGrow(t *testing.T) {
	h := newHistory()
	one, other := []fencing.Token{5, 3}, []fencing.Token{6, 4}
	h.probe(1, one)
	h.probe(2, one)
	h.probe(1, other)
	if r := h.result(); len(r.Wrong) > 0 {
		t.Errorf("%q", r.Wrong)
	}
	h.probe(1, []fencing.Token{7, 4})
	if r := h.result(); len(r.Wrong) != 1 {
		t.Errorf("%q", r.Wrong)
	}
}

// States that differ in what holds are told apart, or the search would be cut short.
func TestStatesDiffer(t *testing.T) {
	m := model(permitsKind)
	step := func(state any, slots uint8, token fencing.Token) any {
		ok, next := m.Step(state, operation{opGrant, claim{owner: owner{1, 1, uint64(token)}, token: token, slots: slots}}, nil)
		if !ok {
			t.Fatal("refused")
		}
		return next
	}
	a, b := step(m.Init(), 1, 1), step(m.Init(), 2, 1)
	if m.Equal(a, b) || !m.Equal(a, a) {
		t.Error("states are not told apart")
	}
	if m.Equal(m.Init(), a) || len(m.Init().(lockState).claims) > 0 {
		t.Error("a step changed the state it began with")
	}
	var _ porcupine.Model = m
}
