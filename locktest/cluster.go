package locktest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/lab"
)

const (
	// DefaultElectionTimeout and DefaultSessionTTL are those of a Config that does not
	// set others. They are shorter than production's, so that a test need not wait.
	DefaultElectionTimeout = 300 * time.Millisecond
	DefaultSessionTTL      = 3 * time.Second

	readyTimeout = 30 * time.Second
)

// Config says what cluster to run. The zero value is five replicas.
type Config struct {
	// Replicas is how many there are. Default: 5.
	Replicas int
	// Options, when set, may change the options of each replica before it is opened, at
	// the first start and at every other. Who the replicas are, where they listen and
	// where they keep their log is not to be changed.
	Options func(o *quorumlock.Options)
	// Seed fixes the dice of Drop, Duplicate and Delay, though not the order in which
	// messages come to them. Default: drawn; New logs it.
	Seed uint64
}

// A Cluster is N replicas, numbered from 1, in this process. Its methods may be called by
// any goroutine.
type Cluster struct {
	network  *lab.Network
	machines map[uint64]*machine
	dir      string

	mu              sync.Mutex
	drop, duplicate float64
	delay           time.Duration
	closing         sync.Once
	closed          chan struct{}
	closeErr        error
}

// New opens a cluster, waits until all its replicas are ready, and closes it when the test
// ends. It fails the test if it cannot.
func New(t testing.TB, conf Config) *Cluster {
	t.Helper()
	if conf.Seed == 0 {
		conf.Seed = rand.Uint64()
	}
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	c, err := Open(ctx, conf)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("locktest: Config.Seed is %d", conf.Seed)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// Open is New outside of a test. Close must follow. It returns an error if a replica
// cannot be opened, or is not ready when ctx ends.
func Open(ctx context.Context, conf Config) (*Cluster, error) {
	if conf.Replicas == 0 {
		conf.Replicas = 5
	}
	if conf.Replicas < 1 {
		return nil, fmt.Errorf("locktest: %d replicas", conf.Replicas)
	}
	if conf.Seed == 0 {
		conf.Seed = rand.Uint64()
	}
	dir, err := os.MkdirTemp("", "locktest-")
	if err != nil {
		return nil, fmt.Errorf("locktest: %w", err)
	}
	c := &Cluster{
		network:  lab.NewNetwork(conf.Seed),
		machines: make(map[uint64]*machine),
		dir:      dir,
		closed:   make(chan struct{}),
	}
	members := make(map[uint64]string)
	for id := range uint64(conf.Replicas) {
		members[id+1] = "replica-" + strconv.FormatUint(id+1, 10) + ":7000"
	}
	for id, address := range members {
		c.machines[id] = &machine{
			options: quorumlock.Options{
				ReplicaID: id, Address: address, Members: members,
				Dir:             filepath.Join(dir, strconv.FormatUint(id, 10)),
				ElectionTimeout: DefaultElectionTimeout,
				SessionTTL:      DefaultSessionTTL,
			},
			change: conf.Options,
			net:    c.network,
			disk:   lab.NewDisk(),
			clock:  lab.NewClock(),
		}
	}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	err := each(c.Replicas(), func(id uint64) error { return c.machines[id].start() })
	if err != nil {
		return err
	}
	return each(c.Replicas(), func(id uint64) error { return c.Node(id).Ready(ctx) })
}

// Close closes all replicas and removes their files. It is idempotent.
func (c *Cluster) Close() error {
	c.closing.Do(func() {
		defer close(c.closed)
		err := each(c.Replicas(), func(id uint64) error { return c.machines[id].stop(false) })
		c.closeErr = errors.Join(err, os.RemoveAll(c.dir))
	})
	<-c.closed
	return c.closeErr
}

// Replicas returns the numbers of all replicas, in order, those that are down included.
func (c *Cluster) Replicas() []uint64 { return slices.Sorted(maps.Keys(c.machines)) }

// Node returns the present life of a replica: after Restart it is another Node. That of a
// replica that is down is closed. It panics if there is no such replica, as do all methods
// that are given one.
func (c *Cluster) Node(replica uint64) *quorumlock.Node {
	m := c.machine(replica)
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.node
}

func (c *Cluster) machine(replica uint64) *machine {
	m := c.machines[replica]
	if m == nil {
		panic(fmt.Sprintf("locktest: no replica %d among %v", replica, c.Replicas()))
	}
	return m
}

// Leader waits until a majority of all replicas believe in one leader, and returns which
// that is; of several groups (quorumlock.Options.Groups), that of the first. It returns an
// error matching ctx's error if ctx ends first.
func (c *Cluster) Leader(ctx context.Context) (uint64, error) {
	leaders, err := c.await(ctx, func(s quorumlock.Status) []uint64 { return []uint64{s.Leader} })
	if err != nil {
		return 0, err
	}
	return leaders[0], nil
}

// Leaders is Leader of each group, in order.
func (c *Cluster) Leaders(ctx context.Context) ([]uint64, error) {
	return c.await(ctx, func(s quorumlock.Status) (all []uint64) {
		for _, g := range s.Groups {
			all = append(all, g.Leader)
		}
		if all == nil {
			all = []uint64{s.Leader}
		}
		return all
	})
}

// await waits until a majority of all replicas believe in each of the leaders that leadersOf
// takes from what one knows, and each of these runs.
func (c *Cluster) await(ctx context.Context, leadersOf func(quorumlock.Status) []uint64) ([]uint64, error) {
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for {
		if leaders := c.elected(leadersOf); leaders != nil && !slices.Contains(leaders, 0) {
			return leaders, nil
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("locktest: no leader: %w", ctx.Err())
		}
	}
}

// elected are those leaders in whom a majority believes, and 0 where there is none.
func (c *Cluster) elected(leadersOf func(quorumlock.Status) []uint64) (leaders []uint64) {
	votes := make(map[int]map[uint64]int) // by group and replica
	for _, id := range c.up() {
		for i, leader := range leadersOf(c.Node(id).Status()) {
			if votes[i] == nil {
				votes[i] = make(map[uint64]int)
			}
			votes[i][leader]++
		}
	}
	for i := range len(votes) {
		elected := uint64(0)
		for id, n := range votes[i] {
			if id != 0 && n > len(c.machines)/2 && c.machine(id).up() {
				elected = id
			}
		}
		leaders = append(leaders, elected)
	}
	return leaders
}

// up are the replicas that run.
func (c *Cluster) up() []uint64 {
	return slices.DeleteFunc(c.Replicas(), func(id uint64) bool { return !c.machines[id].up() })
}

// each does something for all replicas at once.
func each(replicas []uint64, do func(replica uint64) error) error {
	errs := make([]error, len(replicas))
	var wg sync.WaitGroup
	for i, id := range replicas {
		wg.Go(func() {
			if err := do(id); err != nil {
				errs[i] = fmt.Errorf("locktest: replica %d: %w", id, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
