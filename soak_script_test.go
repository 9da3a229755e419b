package quorumlock

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
)

// A script is a whole run of the simulation: what clients do and what befalls them,
// and when. It is made from a seed, and can be made shorter.
type script struct {
	Seed     uint64 `json:"seed"`
	Replicas int    `json:"replicas"`
	Groups   int    `json:"groups,omitempty"` // 0 stands for 1
	Rates    []int  `json:"rates"`            // of their clocks, in thousandths
	steps    []step
}

// A step is one thing that is done at a moment. Times are in milliseconds; a step that
// has to do with another names it by id, and does nothing if that did nothing.
type step struct {
	At      int      `json:"at"`
	Do      string   `json:"do"`
	ID      int      `json:"id,omitempty"` // of the session or the hold
	On      uint64   `json:"on,omitempty"` // replica
	Session int      `json:"session,omitempty"`
	Names   []string `json:"names,omitempty"`
	Mode    string   `json:"mode,omitempty"`
	N       int      `json:"n,omitempty"`
	Of      int      `json:"of,omitempty"`
	MaxHold int      `json:"maxHold,omitempty"`
	MinHold int      `json:"minHold,omitempty"`
	Delay   int      `json:"delay,omitempty"` // lock delay; of weather, the longest of a message
	Try     bool     `json:"try,omitempty"`
	For     int      `json:"for,omitempty"`  // how long it may take; 0 for a ctx that has ended
	Keep    int      `json:"keep,omitempty"` // how long the hold is kept; 0 until a step ends it
	Drop    int      `json:"drop,omitempty"` // percent, as the following
	Twice   int      `json:"twice,omitempty"`
	Late    int      `json:"late,omitempty"`
	Skip    int      `json:"skip,omitempty"`
}

// String is a line of a script.
func (s step) String() string {
	text, _ := json.Marshal(s)
	return string(text)
}

// String is a script as parseScript reads it: a line for all, and one for each step.
func (s *script) String() string {
	head, _ := json.Marshal(s)
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s\n", head)
	for _, x := range s.steps {
		fmt.Fprintf(&b, "%s\n", x)
	}
	return b.String()
}

func parseScript(text []byte) (*script, error) {
	s := new(script)
	var into any = s
	lines := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		d := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		d.DisallowUnknownFields()
		if err := d.Decode(into); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if x, ok := into.(*step); ok {
			s.steps = append(s.steps, *x)
		}
		into = new(step)
	}
	return s, lines.Err()
}

// A writer writes a script from a seed.
type writer struct {
	*script
	rng      *rand.Rand
	at       int
	sessions []int
	holds    []int
	down     map[uint64]bool
	base     int // the slowest rate, in thousandths
}

// longest is how long a script goes on.
const longest = 15_000

// newScript writes the script of a seed. Rates are as far apart as the trust window
// allows: the slowest clock is slower by one eighth than the fastest at most.
func newScript(seed uint64) *script {
	w := &writer{script: &script{Seed: seed}, rng: rand.New(rand.NewPCG(seed, 0)), down: map[uint64]bool{}}
	w.Replicas = 3 + w.rng.IntN(5)
	if w.Seed%3 == 0 {
		w.Groups = 3
	}
	w.base = 500 + w.rng.IntN(2000*7/8-500)
	for range w.Replicas {
		w.Rates = append(w.Rates, w.rate())
	}
	calm, busy := 20+w.rng.IntN(200), 20+w.rng.IntN(120)
	nextFault := w.rng.IntN(2 * calm)
	for w.at < longest {
		w.at += w.rng.IntN(2 * busy)
		if nextFault -= busy; nextFault <= 0 {
			nextFault = w.rng.IntN(4 * calm)
			w.fault()
			continue
		}
		w.call()
	}
	slices.SortStableFunc(w.steps, func(a, b step) int { return a.At - b.At })
	return w.script
}

func (w *writer) rate() int { return w.base + w.rng.IntN(w.base/8+1) }

func (w *writer) add(s step) {
	s.At += w.at
	w.steps = append(w.steps, s)
}

func (w *writer) replica() uint64 { return 1 + w.rng.Uint64N(uint64(w.Replicas)) }

// some is a number from least on, mostly small ones.
func (w *writer) some(least, most int) int {
	if w.rng.IntN(3) == 0 {
		return least + w.rng.IntN(most-least)
	}
	return least + w.rng.IntN((most-least)/4+1)
}

// one is one of those, a late one rather than an early one.
func one(rng *rand.Rand, of []int) int {
	if len(of) == 0 {
		return 0
	}
	return of[len(of)-1-min(rng.IntN(len(of)), rng.IntN(len(of)))]
}

var soakNames = []string{"a", "b", "c", "doc", "pool", "wide"}

func (w *writer) call() {
	hold := one(w.rng, w.holds)
	switch w.rng.IntN(24) {
	case 0, 1:
		id := len(w.sessions) + 1
		w.sessions = append(w.sessions, id)
		w.add(step{Do: "open", ID: id, On: w.replica(), N: 1500 + w.some(0, 4000), For: w.some(50, 2000)})
	case 2:
		w.add(step{Do: "close", ID: one(w.rng, w.sessions), For: w.rng.IntN(2) * w.some(1, 1000)})
	case 3, 4:
		w.add(step{Do: "describe", On: w.replica(), Names: []string{soakNames[w.rng.IntN(len(soakNames))]}, For: w.some(50, 1500)})
	case 5:
		w.add(step{Do: "release", ID: hold, For: w.rng.IntN(2) * w.some(1, 1000)})
	case 6:
		w.add(step{Do: "downgrade", ID: hold, For: w.some(1, 1000)})
	case 7:
		w.add(step{Do: []string{"value", "validate", "hand over"}[w.rng.IntN(3)], ID: hold, N: w.rng.IntN(3), For: w.some(10, 1000)})
	case 8:
		w.add(step{Do: "resize", On: w.replica(), Names: []string{"pool"}, N: 1 + w.rng.IntN(5), For: w.some(10, 1000)})
	case 9:
		w.add(step{Do: "claim", On: w.replica(), Names: []string{"nightly"}, N: w.at / 500, For: w.some(10, 1000)})
	case 10:
		switch w.rng.IntN(4) {
		case 0:
			w.add(step{Do: "evict", ID: one(w.rng, w.sessions), On: w.replica(), For: w.some(10, 1000)})
		case 1:
			w.add(step{Do: "yield", On: w.replica(), Names: []string{"doc"}, For: w.some(10, 1000)})
		default:
			w.add(step{Do: "force", ID: hold, On: w.replica(), For: w.some(10, 1000)})
		}
	default:
		w.acquire()
	}
}

func (w *writer) acquire() {
	id := len(w.holds) + 1
	w.holds = append(w.holds, id)
	s := step{Do: "acquire", ID: id, On: w.replica(), Names: []string{"doc"}, Try: w.rng.IntN(4) == 0,
		For: w.some(1, 4000), Keep: w.rng.IntN(5) * w.some(1, 1500)}
	if w.rng.IntN(2) == 0 {
		s.Session = one(w.rng, w.sessions)
	}
	switch w.rng.IntN(8) {
	case 0, 1:
		s.Mode = "shared"
	case 2:
		s.Names, s.Mode, s.N, s.Of = []string{"pool"}, "counted", 1+w.rng.IntN(3), 4
	case 3:
		s.Names = []string{"a", "b", "c", "doc"}
		w.rng.Shuffle(4, func(i, k int) { s.Names[i], s.Names[k] = s.Names[k], s.Names[i] })
		s.Names = s.Names[:2+w.rng.IntN(2)]
		w.add(s)
		return
	case 4:
		s.Names = []string{soakNames[w.rng.IntN(3)]}
	}
	if w.rng.IntN(3) == 0 {
		s.MaxHold = 300 + w.some(0, 1500)
	}
	if w.rng.IntN(6) == 0 && s.MaxHold == 0 {
		s.MinHold = 300 + w.some(0, 1000)
	}
	if w.rng.IntN(6) == 0 {
		s.Delay = 300 + w.some(0, 1000)
	}
	w.add(s)
}

func (w *writer) fault() {
	on, lasts := w.replica(), w.some(50, 3000)
	after := func(s step) {
		s.At, s.On = lasts, on
		w.add(s)
	}
	switch w.rng.IntN(16) {
	case 0, 1:
		w.add(step{Do: "lead", On: on})
	case 2, 3:
		w.add(step{Do: "cut", On: on})
		after(step{Do: "join"})
	case 4:
		w.add(step{Do: "mute", On: on})
		after(step{Do: "join"})
	case 5, 6:
		w.add(step{Do: "pause", On: on})
		if w.rng.IntN(2) == 0 { // its renewals are applied, it sees that late, and can send no more
			w.add(step{At: lasts / 2, Do: "mute", On: on})
		}
		after(step{Do: "join"})
	case 7, 8:
		w.add(step{Do: "freeze", On: on})
		after(step{Do: "thaw"})
	case 9:
		w.add(step{Do: "crash", On: on})
		after(step{Do: "start"})
	case 10:
		w.add(step{Do: "crash", On: on})
		w.add(step{Do: "start", On: on})
	case 11:
		w.add(step{Do: "sleep", On: on, For: w.some(10, 4000)})
	case 12:
		w.add(step{Do: "rate", On: on, N: w.rate()})
	case 13:
		w.add(step{Do: "wall", On: on, N: []int{-3600_000, 3600_000, 0}[w.rng.IntN(3)]})
	default:
		w.add(step{Do: "weather", Drop: w.some(0, 20), Twice: w.some(0, 40), Late: w.some(0, 40), Skip: w.some(0, 60),
			Delay: w.some(1, 300)})
	}
}
