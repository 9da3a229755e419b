//go:build linux

package quorumlock

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/fencing"
)

// Five processes of the old version are replaced by the new one, one after the other,
// with a lock that changes hands all the time. The level rises when the last is new. One
// that is started again as the old version stops with ErrFormat, and the others go on.
func TestProcessesUpgrade(t *testing.T) {
	t.Parallel()
	ps := newProcesses(t, 10*time.Second, 300*time.Millisecond, func(r *role) { r.Level = 2 })
	var last fencing.Token
	changeHands := func() {
		t.Helper()
		for _, id := range ps.ids() {
			token := ps.ask(id, "acquire", "job").Token
			require.Greater(t, token, last)
			last = token
			ps.ask(id, "release", "job")
		}
	}
	restart := func(id uint64, level byte) {
		r := ps.roles[id]
		r.Level = level
		ps.roles[id] = r
		if ps.running[id] != nil {
			ps.kill(id)
		}
		ps.start(id)
	}
	levels := func() (all []int) {
		for _, id := range ps.ids() {
			all = append(all, ps.ask(id, "status", "").Level)
		}
		return all
	}
	// shown is what every replica sees of who was upgraded, also of those that it has nothing
	// to say to.
	shown := func(want ...int) {
		t.Helper()
		for _, id := range ps.ids() {
			eventually(t, "all are met", func() bool { return slices.Equal(want, ps.ask(id, "members", "").Levels) })
		}
	}
	speak := []int{2, 2, 2, 2, 2}
	shown(speak...)
	for id := uint64(1); id <= 5; id++ {
		changeHands()
		require.Equal(t, []int{2, 2, 2, 2, 2}, levels(), "replica %d is of the old version", id)
		restart(id, 0)
		ps.ready(id)
		speak[id-1] = 3
		shown(speak...)
	}
	eventually(t, "the level rises", func() bool { return fmt.Sprint(levels()) == "[3 3 3 3 3]" })
	changeHands()

	restart(3, 2)
	a := <-ps.give(3, "ready", "")
	require.Contains(t, a.Err, "level 3, and this version knows no more than 2")
	a = <-ps.give(3, "acquire", "job")
	require.Contains(t, a.Err, ErrFormat.Error())
	ps.kill(3)
	changeHands()
	restart(3, 0)
	ps.ready(3)
	changeHands()
}
