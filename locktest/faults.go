package locktest

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Partition lets replicas talk only to those of their own group. Those in no group are one
// more group. It takes the place of every earlier Partition, CutOneWay and Isolate.
func (c *Cluster) Partition(groups ...[]uint64) {
	group := make(map[uint64]int)
	for i, g := range groups {
		for _, id := range g {
			c.machine(id)
			group[id] = i + 1
		}
	}
	c.network.Join()
	all := c.Replicas()
	for i, a := range all {
		for _, b := range all[i+1:] {
			if group[a] != group[b] {
				c.network.Cut(a, b)
			}
		}
	}
}

// Isolate loses everything that these replicas send or are sent.
func (c *Cluster) Isolate(replicas ...uint64) {
	for _, id := range replicas {
		c.machine(id)
		c.network.Isolate(id)
	}
}

// CutOneWay loses what from sends to to; the other direction works.
func (c *Cluster) CutOneWay(from, to uint64) {
	c.machine(from)
	c.machine(to)
	c.network.CutOneWay(from, to)
}

// Drop loses each message with this probability, from 0 to 1.
func (c *Cluster) Drop(probability float64) { c.disturb(func() { c.drop = probability }) }

// Duplicate delivers each message twice with this probability, from 0 to 1.
func (c *Cluster) Duplicate(probability float64) { c.disturb(func() { c.duplicate = probability }) }

// Delay makes each message late by up to that much, each by another time, so that they
// come out of order.
func (c *Cluster) Delay(most time.Duration) { c.disturb(func() { c.delay = most }) }

func (c *Cluster) disturb(set func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	set()
	c.network.Chaos(c.drop, c.duplicate, c.delay)
}

// Heal ends every fault of the network, Pause, SlowDisk and ClockRate. What was delayed or
// held back still arrives, and a sync that was slow is done at once. It starts no replica,
// mends no disk that fails, and sets no clock.
func (c *Cluster) Heal() {
	c.mu.Lock()
	c.drop, c.duplicate, c.delay = 0, 0, 0
	c.network.Heal()
	c.mu.Unlock()
	for _, id := range c.Replicas() {
		c.machine(id).disk.Slow(0)
		c.machine(id).clock.SetRate(1)
		c.Resume(id)
	}
}

// Pause holds back what a replica says, hears and writes to its log until Resume, as if its
// process were stopped. Its clock goes on: a long enough Pause costs it its locks. In
// contrast to a process that is stopped, its timers and its callers go on, so that a
// holder learns that in time.
func (c *Cluster) Pause(replica uint64) {
	m := c.machine(replica)
	c.network.Pause(replica)
	m.disk.Stop()
}

// Resume ends Pause: what was held back arrives, late.
func (c *Cluster) Resume(replica uint64) {
	m := c.machine(replica)
	m.disk.Go()
	c.network.Resume(replica)
}

// Crash is a loss of power: these replicas stop, all at once, and what was not synced to
// their logs is gone. Their holds are lost and their calls return ErrClosed. Those that are
// down already stay so.
func (c *Cluster) Crash(replicas ...uint64) error {
	return each(replicas, func(id uint64) error { return c.machine(id).stop(true) })
}

// Restart starts replicas with what their last life left on the disk; those that run are
// closed before, but not crashed. It does not wait until they are ready, which takes a
// majority: see quorumlock.Node.Ready. A disk that failed is mended, and what was synced to
// it is still there.
func (c *Cluster) Restart(replicas ...uint64) error {
	return each(replicas, func(id uint64) error { return c.machine(id).start() })
}

// KillLeader crashes the leader (see Leader) and returns which replica that was. It waits until there is
// one, and returns an error matching ctx's error if ctx ends first.
func (c *Cluster) KillLeader(ctx context.Context) (uint64, error) {
	id, err := c.Leader(ctx)
	if err != nil {
		return 0, err
	}
	return id, c.Crash(id)
}

// Followers waits for a leader and returns all replicas that run but for it. It returns an
// error matching ctx's error if ctx ends first.
func (c *Cluster) Followers(ctx context.Context) ([]uint64, error) {
	leader, err := c.Leader(ctx)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(c.up(), func(id uint64) bool { return id == leader }), nil
}

// SlowDisk makes each sync of a replica's log take that much longer, those under way
// included; 0 ends it, and them. More than a
// third of the election timeout costs a leader its followers, as in production.
func (c *Cluster) SlowDisk(replica uint64, by time.Duration) { c.machine(replica).disk.Slow(by) }

// FailDisk breaks the disk under a replica's log. At its next write to it the replica dies,
// as in Crash, and the channel that is returned is closed once it is down, for this or any
// other reason. A replica writes
// when a lock is taken or given back anywhere in the cluster, and when sessions are renewed.
//
// In production the process dies with it: after a failed write or fsync nobody can tell what
// is on the disk, so the engine stops the process on purpose, which no recover prevents. A
// test has to live on. So here the write that fails does not return at all; the replica is
// cut off from everybody, and what is left of it is taken down. To the other replicas that
// is the same. Restart mends the disk.
func (c *Cluster) FailDisk(replica uint64) (dead <-chan struct{}) {
	return c.machine(replica).failDisk()
}

// MoveClock sets the clock by which a replica judges its own leases ahead, as if its machine
// had been suspended for so long: after the rest of a lease, Err of each of its holds is
// ErrLost. Done and contexts notice at the latest when the next renewal is due. No other
// replica hears of it, and none will be given the lock any earlier. d is not negative, since
// such a clock never goes back.
func (c *Cluster) MoveClock(replica uint64, d time.Duration) {
	if d < 0 {
		panic(fmt.Sprintf("locktest: MoveClock by %v", d))
	}
	c.machine(replica).clock.Move(d)
}

// ClockRate has the clock by which a replica judges its own leases go at a rate, which is 1
// for a clock that is right. The clocks by which it judges others, as a leader, and its
// timers go on as they are.
//
// One that is fast gives its locks up early. One that is slower than the leader's by more
// than one eighth is past what a lease can bear: the replica believes in a lock that others
// have been granted meanwhile, as it does on a virtual machine whose clocks were stopped.
// At 0 the clock stands still, and nothing is renewed. So it shows whether your store refuses
// the smaller token. Rates below 0 panic.
func (c *Cluster) ClockRate(replica uint64, rate float64) {
	if !(rate >= 0) {
		panic(fmt.Sprintf("locktest: ClockRate %v", rate))
	}
	c.machine(replica).clock.SetRate(rate)
}
