package quorumlock

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// watching collects what a watch tells.
func watching(t *testing.T, n *Node, prefix string) (events chan Event) {
	events = make(chan Event, 1000)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		for e, err := range n.Watch(ctx, prefix) {
			if err != nil {
				return
			}
			events <- *e
		}
	}()
	return events
}

func texts(events chan Event) (all []string) {
	synctest.Wait()
	for len(events) > 0 {
		e := <-events
		s := fmt.Sprintf("%s %s", e.Kind, e.Name)
		if e.Token != 0 {
			s += fmt.Sprint(" ", e.Token)
		}
		for _, l := range e.Locks {
			s += fmt.Sprintf(" %s=%s", l.Name, l.Holders[0].Token)
		}
		if e.Cause != nil {
			s += ": " + e.Cause.Error()
		}
		all = append(all, s)
	}
	return all
}

func TestWatch(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		a, err := nodes[1].Acquire(soon(t), "jobs/a")
		require.NoError(t, err)
		other, err := nodes[1].Acquire(soon(t), "other")
		require.NoError(t, err)
		events := watching(t, nodes[3], "jobs/")
		require.Equal(t, []string{"picture  jobs/a=1", "synced "}, texts(events))
		require.NoError(t, other.Release(soon(t)))
		s, err := nodes[2].OpenSession(soon(t))
		require.NoError(t, err)
		got := make(chan error, 1)
		go func() {
			_, err := s.Acquire(t.Context(), "jobs/a")
			got <- err
		}()
		synctest.Wait()
		require.NoError(t, a.Release(soon(t)))
		require.NoError(t, <-got)
		require.NoError(t, nodes[4].ForceClose(soon(t), s.ID(), "ops", "gone mad"))
		require.Equal(t, []string{"queued jobs/a", "released jobs/a 1", "granted jobs/a 3",
			"lost jobs/a 3: quorumlock: revoked by ops: gone mad"}, texts(events))
	})
}
