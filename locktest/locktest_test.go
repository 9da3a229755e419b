package locktest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/locktest"
)

// soon is a ctx for what must not take long.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// A witness sees every grant of one lock, and says what is wrong with it.
type witness struct {
	mu     sync.Mutex
	live   map[*quorumlock.Hold]bool // not given back
	last   fencing.Token
	grants int
	wrong  []string
}

// granted is told right after a grant. Whoever had the lock before knows by now that it
// has it no more, or has begun to give it back.
func (w *witness) granted(h *quorumlock.Hold) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.grants++
	if h.Err() != nil {
		return // lost already; what others hold was perhaps granted after
	}
	for other := range w.live {
		if other.Err() == nil && h.Err() == nil {
			w.wrong = append(w.wrong, fmt.Sprintf("tokens %d and %d at once", other.Token(), h.Token()))
		}
	}
	if h.Token() <= w.last {
		w.wrong = append(w.wrong, fmt.Sprintf("token %d after %d", h.Token(), w.last))
	}
	w.last = max(w.last, h.Token())
	w.live[h] = true
}

func (w *witness) ending(h *quorumlock.Hold) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.live, h)
}

func (w *witness) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.grants
}

// goesOn waits for some more grants: a majority is there.
func (w *witness) goesOn(t *testing.T, when string) {
	t.Helper()
	before := w.count()
	require.Eventually(t, func() bool { return w.count() >= before+10 }, 20*time.Second, time.Millisecond, "no grants: %s", when)
}

// keep takes the lock and does not give it back. A session that was lost in what went
// before may say so once.
func (w *witness) keep(t *testing.T, n *quorumlock.Node) *quorumlock.Hold {
	t.Helper()
	h, err := n.Acquire(soon(t), "contended")
	if errors.Is(err, quorumlock.ErrSessionExpired) {
		h, err = n.Acquire(soon(t), "contended")
	}
	require.NoError(t, err)
	w.granted(h)
	return h
}

// work takes one lock on one replica again and again until ctx ends.
func work(ctx context.Context, c *locktest.Cluster, replica uint64, w *witness) {
	for ctx.Err() == nil {
		try, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		h, err := c.Node(replica).Acquire(try, "contended")
		if err == nil {
			w.granted(h)
			w.ending(h)
			_ = h.Release(try) // when it cannot be confirmed, it goes on in the background
		} else if errors.Is(err, quorumlock.ErrClosed) {
			<-try.Done() // it may be started again
		}
		cancel()
	}
}

// The faults, and what of them the leader may well keep its lock in.
var faults = []struct {
	name string
	mild bool
	do   func(t *testing.T, c *locktest.Cluster, leader uint64, others []uint64)
}{
	{"partition", false, func(_ *testing.T, c *locktest.Cluster, leader uint64, others []uint64) {
		c.Partition([]uint64{leader, others[0]})
	}},
	{"isolate", false, func(_ *testing.T, c *locktest.Cluster, leader uint64, _ []uint64) { c.Isolate(leader) }},
	{"one way", false, func(_ *testing.T, c *locktest.Cluster, leader uint64, others []uint64) {
		for _, id := range others {
			c.CutOneWay(leader, id)
		}
	}},
	{"delay", true, func(_ *testing.T, c *locktest.Cluster, _ uint64, _ []uint64) { c.Delay(30 * time.Millisecond) }},
	{"drop", true, func(_ *testing.T, c *locktest.Cluster, _ uint64, _ []uint64) { c.Drop(0.2) }},
	{"duplicate", true, func(_ *testing.T, c *locktest.Cluster, _ uint64, _ []uint64) {
		c.Duplicate(0.5)
		c.Delay(5 * time.Millisecond)
	}},
	{"pause", false, func(_ *testing.T, c *locktest.Cluster, leader uint64, _ []uint64) { c.Pause(leader) }},
	{"slow disk", true, func(_ *testing.T, c *locktest.Cluster, leader uint64, _ []uint64) {
		c.SlowDisk(leader, 40*time.Millisecond)
	}},
	{"failed disk", false, func(t *testing.T, c *locktest.Cluster, leader uint64, _ []uint64) {
		select {
		case <-c.FailDisk(leader):
		case <-soon(t).Done():
			t.Error("a leader with a failed disk still lives")
		}
	}},
	{"crash of two", false, func(t *testing.T, c *locktest.Cluster, leader uint64, others []uint64) {
		require.NoError(t, c.Crash(leader, others[0]))
	}},
	{"crash of all", false, func(t *testing.T, c *locktest.Cluster, _ uint64, _ []uint64) {
		require.NoError(t, c.Crash(c.Replicas()...))
	}},
	{"clock", false, func(_ *testing.T, c *locktest.Cluster, leader uint64, _ []uint64) {
		c.MoveClock(leader, time.Hour)
	}},
}

// Under each fault and after it, nobody is granted what another still has, and tokens grow.
func TestNoLockIsGrantedTwice(t *testing.T) {
	t.Parallel()
	c := locktest.New(t, locktest.Config{Options: func(o *quorumlock.Options) { o.SessionTTL = 1500 * time.Millisecond }})
	w := &witness{live: make(map[*quorumlock.Hold]bool)}
	ctx, cancel := context.WithCancel(t.Context())
	var workers sync.WaitGroup
	for _, id := range c.Replicas() {
		workers.Go(func() { work(ctx, c, id, w) })
	}
	defer workers.Wait()
	defer cancel()
	for _, fault := range faults {
		leader, err := c.Leader(soon(t))
		require.NoError(t, err)
		others, err := c.Followers(soon(t))
		require.NoError(t, err)
		var kept *quorumlock.Hold
		if !fault.mild {
			kept = w.keep(t, c.Node(leader))
		}
		fault.do(t, c, leader, others)
		if fault.name != "crash of all" {
			w.goesOn(t, fault.name)
		}
		if kept != nil {
			require.Error(t, kept.Err(), "%s: others were granted what the leader still has", fault.name)
			w.ending(kept)
		}
		c.Heal()
		for _, id := range c.Replicas() {
			if c.Node(id).Ready(soon(t)) != nil {
				require.NoError(t, c.Restart(id))
			}
		}
		for _, id := range c.Replicas() {
			require.NoError(t, c.Node(id).Ready(soon(t)), "%s: replica %d", fault.name, id)
		}
		w.goesOn(t, "after "+fault.name)
		t.Logf("%s: %d grants", fault.name, w.count())
		w.mu.Lock()
		require.Empty(t, w.wrong, fault.name)
		w.mu.Unlock()
	}
}

func TestPowerLossOfAMajorityLosesNoGrant(t *testing.T) {
	t.Parallel()
	c := locktest.New(t, locktest.Config{Options: func(o *quorumlock.Options) { o.SessionTTL = 30 * time.Second }})
	holds := make(map[string]*quorumlock.Hold)
	var newest fencing.Token
	for i := range 40 {
		name := fmt.Sprintf("account/%d", i)
		h, err := c.Node(uint64(4+i%2)).Acquire(soon(t), name)
		require.NoError(t, err)
		holds[name], newest = h, max(newest, h.Token())
	}
	require.NoError(t, c.Crash(1, 2, 3))
	require.NoError(t, c.Restart(1, 2, 3))
	for name, h := range holds {
		require.NoError(t, h.Validate(soon(t)), name)
		_, err := c.Node(1).TryAcquire(soon(t), name)
		require.ErrorIs(t, err, quorumlock.ErrHeld, name)
	}

	// All of them: what their last lives held comes free, and no token comes again.
	require.NoError(t, c.Crash(c.Replicas()...))
	require.NoError(t, c.Restart(c.Replicas()...))
	for name := range holds {
		h, err := c.Node(1).Acquire(soon(t), name)
		require.NoError(t, err)
		require.Greater(t, h.Token(), newest)
		newest = h.Token()
	}
}

func TestMinorityRefuses(t *testing.T) {
	t.Parallel()
	c := locktest.New(t, locktest.Config{Replicas: 3})
	leader, err := c.Leader(soon(t))
	require.NoError(t, err)
	c.Isolate(leader)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err = c.Node(leader).Acquire(ctx, "x")
	require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	c.Heal()
	_, err = c.Node(leader).Acquire(soon(t), "x")
	require.NoError(t, err)
}

func TestMovedClockEndsTrustAndNothingElse(t *testing.T) {
	t.Parallel()
	c := locktest.New(t, locktest.Config{Replicas: 3, Options: func(o *quorumlock.Options) { o.SessionTTL = 20 * time.Second }})
	h, err := c.Node(1).Acquire(soon(t), "x")
	require.NoError(t, err)
	other, err := c.Node(2).Acquire(soon(t), "y")
	require.NoError(t, err)
	c.MoveClock(1, 20*time.Second)
	require.ErrorIs(t, h.Err(), quorumlock.ErrLost)
	require.NoError(t, other.Err())
	// It gives the lock up by itself: nobody waits for the lease.
	next, err := c.Node(2).Acquire(soon(t), "x")
	require.NoError(t, err)
	require.Greater(t, next.Token(), h.Token())
}

// A holder whose clock stands still believes in its lock after another was granted it, as one
// that a hypervisor stopped: what is left is the token. One whose clock is fast gives its
// lock up long before.
func TestWrongClocks(t *testing.T) {
	t.Parallel()
	c := locktest.New(t, locktest.Config{Options: func(o *quorumlock.Options) { o.SessionTTL = 5 * time.Second }})
	leader, err := c.Leader(soon(t))
	require.NoError(t, err)
	others, err := c.Followers(soon(t))
	require.NoError(t, err)
	still, fast := others[0], others[1]
	var guard fencing.MemGuard
	believes, err := c.Node(still).Acquire(soon(t), "x")
	require.NoError(t, err)
	doubts, err := c.Node(fast).Acquire(soon(t), "y")
	require.NoError(t, err)
	c.ClockRate(still, 0)
	c.ClockRate(fast, 50)
	c.Isolate(still, fast)
	begin := time.Now()
	require.Eventually(t, func() bool { return errors.Is(doubts.Err(), quorumlock.ErrLost) }, 20*time.Second, time.Millisecond)
	early := time.Since(begin)
	next, err := c.Node(leader).Acquire(soon(t), "x")
	require.NoError(t, err)
	require.Less(t, early, time.Since(begin)/2)
	require.NoError(t, guard.Admit(soon(t), "x", next.Token()))
	require.NoError(t, believes.Err(), "it cannot know")
	require.ErrorIs(t, guard.Admit(soon(t), "x", believes.Token()), fencing.ErrStale)

	c.Heal()
	<-believes.Done()
	require.ErrorIs(t, believes.Err(), quorumlock.ErrLost)
	require.NoError(t, next.Validate(soon(t)))
	require.Panics(t, func() { c.ClockRate(1, -1) })
}

// Each group has a leader of its own.
func TestLeadersOfGroups(t *testing.T) {
	t.Parallel()
	c := locktest.New(t, locktest.Config{Replicas: 3, Options: func(o *quorumlock.Options) { o.Groups = 3 }})
	for group, to := range []uint64{2, 3, 1} {
		require.Eventually(t, func() bool { // a busy replica may decline
			return c.Node(1).TransferLeadership(soon(t), to, group) == nil
		}, 20*time.Second, time.Millisecond)
	}
	require.Eventually(t, func() bool { // until most have heard of the last one
		leaders, err := c.Leaders(soon(t))
		return err == nil && slices.Equal(leaders, []uint64{2, 3, 1})
	}, 20*time.Second, time.Millisecond)
	killed, err := c.KillLeader(soon(t))
	require.NoError(t, err)
	require.EqualValues(t, 2, killed, "of the first group")
	leaders, err := c.Leaders(soon(t))
	require.NoError(t, err)
	require.NotContains(t, leaders, killed)
	one, err := locktest.New(t, locktest.Config{Replicas: 1}).Leaders(soon(t))
	require.NoError(t, err)
	require.Equal(t, []uint64{1}, one)
}

// What a paused leader still had to say comes late, and does no harm.
func TestPausedHolderLosesItsLock(t *testing.T) {
	t.Parallel()
	c := locktest.New(t, locktest.Config{Replicas: 3})
	leader, err := c.Leader(soon(t))
	require.NoError(t, err)
	others, err := c.Followers(soon(t))
	require.NoError(t, err)
	h, err := c.Node(leader).Acquire(soon(t), "x")
	require.NoError(t, err)
	c.Pause(leader)
	next, err := c.Node(others[0]).Acquire(soon(t), "x")
	require.NoError(t, err)
	require.ErrorIs(t, h.Err(), quorumlock.ErrLost)
	require.Greater(t, next.Token(), h.Token())
	c.Resume(leader)
	_, err = c.Node(leader).TryAcquire(soon(t), "x")
	require.ErrorIs(t, err, quorumlock.ErrHeld)
	require.NoError(t, next.Validate(soon(t)))
}

// A leader whose disk stalls for five TTLs ends no session that others renew meanwhile,
// neither while it stalls nor by what it still believes when it goes on.
//
// etcd-io/etcd#12528, #15247
func TestLeaderWithAStalledDiskExpiresNobody(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	c := locktest.New(t, locktest.Config{Options: func(o *quorumlock.Options) { o.SessionTTL = ttl }})
	leader, err := c.Leader(soon(t))
	require.NoError(t, err)
	others, err := c.Followers(soon(t))
	require.NoError(t, err)
	holds := make(map[uint64]*quorumlock.Hold)
	for _, id := range append(others, leader) {
		holds[id], err = c.Node(id).Acquire(soon(t), fmt.Sprint("of ", id))
		require.NoError(t, err)
	}
	c.SlowDisk(leader, time.Hour)
	next, err := c.Node(others[0]).Acquire(soon(t), fmt.Sprint("of ", leader))
	require.NoError(t, err)
	require.ErrorIs(t, holds[leader].Err(), quorumlock.ErrLost, "the stalled one itself is not renewed")
	holds[leader] = next
	for end := time.Now().Add(5 * ttl); time.Now().Before(end); {
		for _, id := range others {
			require.NoError(t, c.Node(id).Do(soon(t), "busy", func(context.Context, fencing.Token) error { return nil }))
		}
	}
	c.Heal()
	_, err = c.Node(leader).Describe(soon(t), "busy")
	require.NoError(t, err, "it goes on")
	for id, h := range holds {
		require.NoError(t, h.Validate(soon(t)), "replica %d", id)
	}
}

func TestFailedDiskEndsTheReplicaAndNotTheProcess(t *testing.T) {
	t.Parallel()
	c := locktest.New(t, locktest.Config{Replicas: 3})
	others, err := c.Followers(soon(t))
	require.NoError(t, err)
	h, err := c.Node(others[0]).Acquire(soon(t), "x")
	require.NoError(t, err)
	dead := c.FailDisk(others[0])
	_, err = c.Node(others[1]).Acquire(soon(t), "y") // everybody writes
	require.NoError(t, err)
	select {
	case <-dead:
	case <-soon(t).Done():
		t.Fatal("it still lives")
	}
	require.ErrorIs(t, h.Err(), quorumlock.ErrLost)
	_, err = c.Node(others[0]).Acquire(soon(t), "z")
	require.ErrorIs(t, err, quorumlock.ErrClosed)
	require.NoError(t, c.Restart(others[0]))
	_, err = c.Node(others[0]).Acquire(soon(t), "x")
	require.NoError(t, err)

	// One that dies otherwise first is dead as well.
	dead = c.FailDisk(others[0])
	require.NoError(t, c.Crash(others[0]))
	<-dead
}

func TestCloseIsIdempotentAlsoAmidFaults(t *testing.T) {
	t.Parallel()
	c := locktest.New(t, locktest.Config{Replicas: 3})
	c.Pause(1)
	c.FailDisk(2)
	c.SlowDisk(3, time.Hour)
	require.NoError(t, c.Crash(3))
	require.NoError(t, c.Close())
	require.NoError(t, c.Close())
	_, err := c.Node(1).Acquire(soon(t), "x")
	require.ErrorIs(t, err, quorumlock.ErrClosed)
}

// As the README shows it.
func TestPartitionLeavesOneHolder(t *testing.T) {
	c := locktest.New(t, locktest.Config{}) // five replicas; closed when the test ends
	hold, err := c.Node(1).Acquire(t.Context(), "payouts")
	if err != nil {
		t.Fatal(err)
	}
	c.Partition([]uint64{1, 2}, []uint64{3, 4, 5}) // the holder is in the minority
	next, err := c.Node(3).Acquire(t.Context(), "payouts")
	if err != nil {
		t.Fatal(err)
	}
	if hold.Err() == nil || next.Token() <= hold.Token() {
		t.Error("two holders")
	}
}
