package main

import (
	"testing"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/locktest"
)

// Who was granted the locks of its probe was granted one of each group: else a worker
// would count as recovered that a group grants nothing.
func TestProbesAreOfAllGroups(t *testing.T) {
	for groups := 2; groups <= maxGroups; groups++ {
		n := locktest.New(t, locktest.Config{Replicas: 1, Options: func(o *quorumlock.Options) { o.Groups = groups }}).Node(1)
		for worker := uint64(1); worker <= workers; worker++ {
			hold, err := n.AcquireAll(t.Context(), probeNames(worker, groups)...)
			if err != nil {
				t.Fatal(err)
			}
			for i, g := range n.Status().Groups {
				if g.Locks == 0 {
					t.Errorf("worker %d has no probe of group %d of %d", worker, i, groups)
				}
			}
			if err := hold.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}
