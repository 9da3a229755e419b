package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/quorumlock/quorumlock"
)

// The jobs of locks that are not just exclusive measure lock+unlock pairs a second,
// with callers on all replicas. Who has no such lock takes no part.
const (
	sharedJob  = "shared"  // readers of a name for each few callers, and no writer
	countedJob = "counted" // permits of a name for each many callers
	severalJob = "several" // sets of names that overlap, each taken at once
)

const (
	readersPerName   = 8
	countedPerName   = 64
	countedLimit     = 16
	namesAtOnce      = 4
	namesOfTheirNext = 2 // how many of a caller's names are its neighbour's too
)

// A kinder is a system that has other locks than exclusive ones.
type kinder interface {
	// kindLockers is lockers for the locks of a job.
	kindLockers(ctx context.Context, job string, n int) ([]locker, error)
}

// kindsOf tells which of these jobs a system can do, as its own clients offer them.
// etcd has a lock for readers among its recipes, and neither of the others; the
// Redis locks are exclusive.
var kindsOf = map[string][]string{
	quorumlockName: {sharedJob, countedJob, severalJob},
	etcdName:       {sharedJob},
}

func (b *bench) shared(ctx context.Context)  { b.kind(ctx, sharedJob) }
func (b *bench) counted(ctx context.Context) { b.kind(ctx, countedJob) }
func (b *bench) several(ctx context.Context) { b.kind(ctx, severalJob) }

func (b *bench) kind(ctx context.Context, job string) {
	for range b.plan.kindRounds {
		for _, name := range b.systems {
			if !slices.Contains(kindsOf[name], job) {
				continue
			}
			b.turn(ctx, row{Job: job, System: name, Callers: b.plan.kindCallers, Where: everywhere},
				order{Do: "kind", Name: job, Callers: b.plan.kindCallers, Warm: b.plan.warm(b.plan.kindCallers), For: b.plan.turn})
		}
	}
}

func kindTurn(ctx context.Context, s system, o order, values map[string]float64) error {
	k, ok := s.(kinder)
	if !ok {
		return fmt.Errorf("%s has no such lock", s.about())
	}
	lockers, err := k.kindLockers(ctx, o.Name, o.Callers)
	if err != nil {
		return err
	}
	l := &load{}
	r := l.run(ctx, lockers, func(i int) string { return kindName(o.Name, i) }, o.Warm, o.For)
	return r.into(values)
}

// kindName returns the name that the i-th caller asks for, or the first of several.
func kindName(job string, i int) string {
	switch job {
	case sharedJob:
		i /= readersPerName
	case countedJob:
		i /= countedPerName
	}
	return lockName(job, i)
}

func (s *quorumlockSystem) kindLockers(_ context.Context, job string, n int) ([]locker, error) {
	nodes, err := s.at(everywhere)
	if err != nil {
		return nil, err
	}
	ls := make([]locker, n)
	for i := range ls {
		node := nodes[i%len(nodes)]
		switch job {
		case sharedJob:
			ls[i] = optionLocker{node, []quorumlock.AcquireOption{quorumlock.Share()}}
		case countedJob:
			ls[i] = optionLocker{node, []quorumlock.AcquireOption{quorumlock.Permits(1, countedLimit)}}
		default:
			// The callers stand in a ring, and each shares names with both neighbours.
			names := make([]string, namesAtOnce)
			for k := range names {
				names[k] = lockName(job, (i*namesOfTheirNext+k)%(n*namesOfTheirNext))
			}
			ls[i] = severalLocker{node, names}
		}
	}
	return ls, nil
}

type optionLocker struct {
	node    *quorumlock.Node
	options []quorumlock.AcquireOption
}

func (l optionLocker) lock(ctx context.Context, name string) (func(context.Context) error, error) {
	h, err := l.node.Acquire(ctx, name, l.options...)
	if err != nil {
		return nil, err
	}
	return h.Release, nil
}

type severalLocker struct {
	node  *quorumlock.Node
	names []string
}

func (l severalLocker) lock(ctx context.Context, _ string) (func(context.Context) error, error) {
	h, err := l.node.AcquireAll(ctx, l.names...)
	if err != nil {
		return nil, err
	}
	return h.Release, nil
}
