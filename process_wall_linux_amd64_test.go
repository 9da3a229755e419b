package quorumlock

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/harm"
)

func init() {
	harms["set wall clock"] = func(o order) error {
		ahead, err := time.ParseDuration(o.Name)
		if err != nil {
			return err
		}
		return harm.SetWallClock(ahead)
	}
}

// Five processes hold a lock each while their wall clocks jump by hours and years, ahead
// and back, each to another time. Nobody loses a session, and nobody in line is granted
// anything. When the leader dies then, the next in line is granted its lock as late as
// always.
func TestProcessesWallClockJumps(t *testing.T) {
	if testing.Short() {
		t.Skip("starts five processes")
	}
	t.Parallel()
	const ttl, year = 3 * time.Second, 365 * 24 * time.Hour
	ps := newProcesses(t, ttl, 300*time.Millisecond)
	waits := make(map[uint64]<-chan answer)
	for _, id := range ps.ids() {
		_, waits[id] = ps.hold(id, ps.other(id), fmt.Sprint("of ", id))
	}
	jumps := 0
	for began := bootTime(); bootTime()-began < ttl; {
		for _, ahead := range []time.Duration{time.Hour, -time.Hour, year, -year, 0} {
			for _, id := range ps.ids() {
				ps.ask(id, "set wall clock", (time.Duration(id-2) * ahead).String())
				jumps++
				for _, other := range ps.ids() {
					ps.ask(other, "validate", fmt.Sprint("of ", other))
				}
			}
		}
	}
	for id, c := range waits {
		select {
		case a := <-c:
			t.Fatalf("the lock of replica %d was granted to another one: %+v", id, a)
		default:
		}
	}
	leader := ps.leader()
	killed := ps.kill(leader)
	ps.leader() // it counts the lease already
	for _, id := range ps.ids() {
		ps.ask(id, "set wall clock", (-year).String())
	}
	delay := ps.get(waits[leader]).At - killed
	t.Logf("%d jumps; the leader killed, its lock granted after %v of a TTL of %v", jumps, delay, ttl)
	require.Greater(t, delay, ttl/4, "its lease ran on")
	require.Less(t, delay, ttl+10*time.Second, "on a machine however slow; a year by a clock that counts back")
}
