package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/quorumlock/quorumlock"
)

// overloadJob measures what ten times the load that can be sustained does: to the
// rate, and to the sessions.
const overloadJob = "overload"

const (
	sustainable = 8000
	overloaded  = 10 * sustainable
)

func (b *bench) overload(ctx context.Context) {
	if !b.has(quorumlockName) {
		return
	}
	for _, callers := range []int{sustainable, overloaded} {
		b.turn(ctx, row{Job: overloadJob, System: quorumlockName, Callers: callers, Where: everywhere},
			order{Do: "overload", Callers: callers, Warm: b.plan.warm(callers), For: b.plan.overload})
	}
}

// overloadTurn has callers work on one session a replica, and counts those that
// ended.
func overloadTurn(ctx context.Context, s system, o order, values map[string]float64) error {
	q, ok := s.(*quorumlockSystem)
	if !ok {
		return errors.New("only for quorumlock")
	}
	var open []*quorumlock.Session
	for _, n := range q.nodes {
		session, err := n.OpenSession(ctx)
		if err != nil {
			return err
		}
		open = append(open, session)
	}
	lockers := make([]locker, o.Callers)
	for i := range lockers {
		lockers[i] = nodeLocker{open[i%len(open)]}
	}
	l := &load{busy: func(err error) bool { return errors.Is(err, quorumlock.ErrBusy) }}
	r := l.run(ctx, lockers, func(i int) string { return lockName(o.Do, i) }, o.Warm, o.For)
	if err := r.into(values); err != nil {
		return err
	}
	values["busy"] = float64(r.busy)
	expired := 0
	for _, session := range open {
		if session.Err() != nil {
			expired++
		}
		if err := session.Close(ctx); err != nil {
			return fmt.Errorf("close a session: %w", err)
		}
	}
	values["sessions_expired"] = float64(expired)
	return nil
}
