package main

import (
	"context"
	"errors"
	"runtime"
	"time"

	"github.com/quorumlock/quorumlock"
)

// A member is one replica in a process of its own.
type member struct {
	node    *quorumlock.Node
	session *quorumlock.Session // if the last order opened one
	others  int                 // goroutines that are not the replica's
	empty   float64             // bytes resident before it was opened
}

// memberOrders are the orders to one replica, by name.
var memberOrders = map[string]func(m *member, ctx context.Context, o order, values map[string]float64) error{
	"open":    (*member).open,
	"status":  (*member).status,
	"idle":    (*member).idle,
	"weigh":   (*member).weigh,
	"acquire": (*member).acquire,
	"line":    (*member).line,
	"hold":    (*member).hold,
	"free":    (*member).free,
}

// open opens the replica with default options, and returns when it is ready.
func (m *member) open(ctx context.Context, o order, _ map[string]float64) (err error) {
	m.empty, _ = residentBytes()
	m.others = runtime.NumGoroutine()
	if m.node, err = openNode(o.Dir, o.With, o.ID, o.Members, 1); err != nil {
		return err
	}
	return m.node.Ready(ctx)
}

func (m *member) status(_ context.Context, _ order, values map[string]float64) error {
	s := m.node.Status()
	values["leader"], values["locks"] = float64(s.Leader), float64(s.Locks)
	return s.Err
}

// idle opens a session, and measures the process while nothing happens.
func (m *member) idle(ctx context.Context, o order, values map[string]float64) (err error) {
	if m.session, err = m.node.OpenSession(ctx); err != nil {
		return err
	}
	defer m.session.Close(ctx)
	if percent, ok := restingPercent(ctx, o); ok {
		values["cpu_percent"] = percent
	}
	if rss, ok := residentBytes(); ok {
		values["rss_mb"], values["rss_without_node_mb"] = rss/1e6, m.empty/1e6
	}
	values["goroutines"] = float64(runtime.NumGoroutine() - m.others)
	values["heap_mb"] = heapInUse() / 1e6
	return nil
}

// restingPercent measures what this process takes of one processor while nothing is asked
// of it; ok is false where the system does not tell.
func restingPercent(ctx context.Context, o order) (percent float64, ok bool) {
	wait(ctx, o.Warm)
	before, ok := processorTime()
	began := time.Now()
	wait(ctx, o.For)
	after, _ := processorTime()
	return 100 * (after - before).Seconds() / time.Since(began).Seconds(), ok
}

func (m *member) weigh(_ context.Context, _ order, values map[string]float64) error {
	values["heap_bytes"] = heapInUse()
	return nil
}

// acquire takes one lock and keeps it: on a session of its own with that TTL, if
// there is one.
func (m *member) acquire(ctx context.Context, o order, _ map[string]float64) (err error) {
	var a acquirer = m.node
	if o.TTL > 0 {
		if m.session, err = m.node.OpenSession(ctx, quorumlock.WithTTL(o.TTL)); err != nil {
			return err
		}
		a = m.session
	}
	_, err = a.Acquire(ctx, o.Name)
	return err
}

// line tells how many wait for a lock.
func (m *member) line(ctx context.Context, o order, values map[string]float64) error {
	info, err := m.node.Describe(ctx, o.Name)
	values["waiters"] = float64(len(info.Waiters))
	return err
}

// hold takes many locks on a session of its own, which free closes.
func (m *member) hold(ctx context.Context, o order, _ map[string]float64) (err error) {
	if m.session, err = m.node.OpenSession(ctx); err != nil {
		return err
	}
	return fill(ctx, func(int) acquirer { return m.session }, 0, o.Locks)
}

func (m *member) free(ctx context.Context, _ order, _ map[string]float64) error {
	if m.session == nil {
		return errors.New("there is no session")
	}
	return m.session.Close(ctx)
}
