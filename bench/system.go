package main

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"time"
)

// The systems, by the names that the output has.
const (
	quorumlockName = "quorumlock"
	etcdName       = "etcd"
	rueidisName    = "redis-rueidis"
	goredisName    = "redis-goredis"
)

var systemNames = []string{quorumlockName, etcdName, rueidisName, goredisName}

// replicas is how many members a cluster has.
const replicas = 5

// procs is GOMAXPROCS of a process that all members of a cluster share: what five
// processes would have together. With less, a member whose thread is in an fdatasync
// keeps a processor of Go's from the others until the runtime takes it back, and they
// wait for one while the machine's own are idle.
func procs() int { return replicas * runtime.NumCPU() }

// Where callers may be.
const (
	everywhere = "all five" // in turn on each replica
	atLeader   = "leader"
	atFollower = "follower"
	oneServer  = "one server" // for systems that have no replicas
)

// A system is a lock service that runs, with its clients, in this process.
type system interface {
	about() string
	// lockers returns the ways in for n callers. With apart, no two of them may
	// take each other's locks for their own.
	lockers(ctx context.Context, n int, where string, apart bool) ([]locker, error)
	// stop ends what runs outside of this process, which ends itself right after:
	// what it holds ends with it, and its data is thrown away.
	stop()
}

// A locker is one caller's way to the locks.
type locker interface {
	// lock returns what gives the lock back.
	lock(ctx context.Context, name string) (unlock func(ctx context.Context) error, err error)
}

// startSystem starts a system and returns when it grants locks.
func startSystem(ctx context.Context, o order) (system, error) {
	const limit = 30 * time.Second
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if o.System == quorumlockName {
		return startQuorumlock(ctx, o.Dir, o.With, o.Groups)
	}
	if start := peers[o.System]; start != nil {
		return start(ctx, o.System, o.Dir)
	}
	return nil, fmt.Errorf("no system %q", o.System)
}

// nameLen is the length of every lock's name, in bytes.
const nameLen = 60

// lockName returns the i-th name of a job.
func lockName(job string, i int) string {
	name := fmt.Sprintf("bench/%s/%d/", job, i)
	return name + strings.Repeat("x", max(0, nameLen-len(name)))
}
