package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"regexp"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"

	"github.com/google/pprof/profile"

	"github.com/quorumlock/quorumlock"
)

// costJob measures what a pair costs more when the replicas count, and when there are
// quotas. It does so twice. By turns of clusters that have them and that do not, which
// follow each other closely: what they take of the processor outside of the kernel. That
// shows all, and is right to as much as the first two differ. And by a profile of the
// cluster that has both: which part of the samples is in their functions. That leaves
// out what they cost others, such as a wait for a lock, and is disturbed by nobody.
const costJob = "cost"

// What clusters that are measured in turns have. The first two have the same: what they
// differ in is the measurement's own.
const (
	withNothing = "nothing"
	withNoMore  = "nothing, once more"
	withCounts  = "counting"
	withQuotas  = "quotas"
	withBoth    = "counting and quotas"
)

var costly = []string{withNothing, withNoMore, withCounts, withQuotas, withBoth}

func (b *bench) cost(ctx context.Context) {
	if !b.has(quorumlockName) {
		return
	}
	with := slices.Clone(costly)
	if b.plan.short {
		with = []string{withNothing, withBoth}
	}
	var own, all float64
	for life := range b.plan.costLives {
		if err := b.costLife(ctx, life, with, &own, &all); err != nil {
			b.miss(costJob, quorumlockName, err)
			return
		}
	}
	if all > 0 {
		b.note(row{Job: costJob, System: quorumlockName, Callers: b.plan.costCallers, Where: profiled,
			Values: map[string]float64{"share": own / all, "samples": all}}, nil)
	}
}

// profiled is where the share of the profiles is noted.
const profiled = "with " + withBoth + ", profiled"

// costLife starts the clusters anew, since two that are alike differ by where they
// happen to lie in memory and who happens to lead, and gives them their turns.
func (b *bench) costLife(ctx context.Context, life int, with []string, own, all *float64) error {
	clusters := make(map[string]*child)
	defer func() {
		var ends sync.WaitGroup
		for _, c := range clusters {
			ends.Go(c.end)
		}
		ends.Wait()
	}()
	for i, w := range with {
		c, err := b.launch(ctx, quorumlockName, fmt.Sprintf("cost-%d-%d", life, i), order{With: w})
		if err != nil {
			return err
		}
		clusters[w] = c
	}
	for range b.plan.costRounds {
		spent := make(map[string]row)
		for _, w := range with {
			r := row{Job: costJob, System: quorumlockName, Callers: b.plan.costCallers, Where: "with " + w}
			o := order{Do: "cost", Where: everywhere, Callers: r.Callers, Warm: b.plan.costTurn / 4, For: b.plan.costTurn}
			if b.profiles != "" {
				o.Profile = filepath.Join(b.profiles, fmt.Sprintf("%s-%s.pprof", costJob, strings.ReplaceAll(w, " ", "-")))
			}
			got, err := clusters[w].ask(ctx, o)
			if err != nil {
				return err
			}
			if w == withBoth {
				*own += got.Values[ownSamples]
				*all += got.Values[allSamples]
			}
			delete(got.Values, ownSamples)
			delete(got.Values, allSamples)
			r.Values = got.Values
			spent[w] = r
		}
		for _, w := range with {
			r := spent[w]
			if w != withNothing {
				r.Values["ratio"] = r.Values["user_us_per_pair"] / spent[withNothing].Values["user_us_per_pair"]
			}
			b.note(r, nil)
		}
		rand.Shuffle(len(with), func(i, j int) { with[i], with[j] = with[j], with[i] }) // what came before has its effect
	}
	return nil
}

// costTurn is pairsTurn with what it takes of the processor.
func costTurn(ctx context.Context, s system, o order, values map[string]float64) error {
	lockers, err := s.lockers(ctx, o.Callers, o.Where, false)
	if err != nil {
		return err
	}
	var p bytes.Buffer
	profiling := pprof.StartCPUProfile(&p) == nil // unless the whole turn is profiled already
	l := &load{}
	r := l.run(ctx, lockers, func(i int) string { return lockName(o.Do, i) }, o.Warm, o.For)
	if profiling {
		pprof.StopCPUProfile()
		if err := countSamples(&p, values); err != nil {
			return err
		}
	}
	if r.spent == 0 {
		return errors.New("no processor time is told here")
	}
	values["user_us_per_pair"] = float64(r.spent.Nanoseconds()) / 1e3 / r.pairsDone
	values["pairs_per_s"] = r.perSecond
	return nil
}

// The samples of a profile: all, and those in what is measured.
const allSamples, ownSamples = "all_samples", "own_samples"

// counters are whose methods count, or keep to quotas, and the clock that is read for it.
var counters = regexp.MustCompile(`/quorumlock\.\(\*((stats|busiest|stopwatch|Histogram|quotas|hit)\)\.|Node\)\.(asked|age)$)`)

func countSamples(from io.Reader, values map[string]float64) error {
	p, err := profile.Parse(from)
	if err != nil {
		return err
	}
	for _, s := range p.Sample {
		n := float64(s.Value[0])
		values[allSamples] += n
		if slices.ContainsFunc(s.Location, func(l *profile.Location) bool {
			return slices.ContainsFunc(l.Line, func(l profile.Line) bool { return counters.MatchString(l.Function.Name) })
		}) {
			values[ownSamples] += n
		}
	}
	return nil
}

// provide makes options have what a cluster is to be measured with.
func provide(with string, o *quorumlock.Options) {
	if with != withQuotas && with != withBoth {
		return
	}
	o.Quotas = []quorumlock.Quota{ // none of them is ever reached
		{Rate: 1e6, Burst: 1e6, Holds: 1e6, Waiters: 1e6},
		{PerSession: true, Holds: 1e6, Waiters: 1e6},
		{Prefix: "bench/" + costJob + "/", Rate: 1e6, Burst: 1e6, Holds: 1e6},
		{Prefix: "other/", Holds: 1},
	}
}
