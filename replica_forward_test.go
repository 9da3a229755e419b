package quorumlock

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/peer"
)

func TestTagIsKnownAgain(t *testing.T) {
	f := newForwarder()
	tagged, number, applied := f.tag([]byte("entry"))
	again, cmd := untag(tagged)
	require.Equal(t, number, again)
	require.Equal(t, "entry", string(cmd))

	f.seen([]uint64{number + 1, number - 1})
	select {
	case <-applied:
		t.Fatal("another's number")
	default:
	}
	f.seen([]uint64{number})
	<-applied
	f.seen([]uint64{number}) // applied twice
	f.forget(number)
	require.Empty(t, f.waiting)

	for _, short := range [][]byte{nil, {}, {1, 2, 3, 4, 5, 6, 7}} {
		_, cmd := untag(short)
		require.Empty(t, cmd)
	}
}

// TestReplicaFollowerForwards: what a follower is given is in the log although its engine
// had no part in it, and a leader that cannot be reached is said to be so at once.
func TestReplicaFollowerForwards(t *testing.T) {
	faults := peer.NewFaults(1)
	c := newReplicas(t, 3)
	c.faults(faults)
	c.openAll()
	leader := c.leader()
	follower := leader%3 + 1
	require.Eventually(t, func() bool { // a majority knows who leads, and perhaps not this one
		known, _ := c.running[follower].leader()
		return known == leader
	}, enough, 5*time.Millisecond)
	c.propose(follower, "by way of the leader")
	r := c.running[follower].host.(*replica)
	require.NotNil(t, r.forwarder.links[leader], "it went by the forwarder")
	require.Empty(t, r.forwarder.waiting)

	faults.Cut(leader, follower)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	err := r.shards[0].propose(ctx, []byte("lost"))
	require.Error(t, err)
	require.Empty(t, r.forwarder.waiting, "nobody waits any more")
	faults.Heal()
	c.propose(follower, "found again")
	require.Len(t, c.converge(2), 2)
}
