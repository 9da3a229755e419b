package quorumlock

import (
	"fmt"
	"maps"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/quorumlock/quorumlock/internal/harm"
)

// The tests of this file take something from a process of five that the library cannot
// do without, and look at what becomes of it and of the application it is in.

func init() {
	harms["fail fsync"] = func(order) error { return harm.FailFsync() }
	harms["take descriptors"] = keepDescriptors
	harms["give descriptors"] = func(order) error {
		close(noMore)
		return nil
	}
}

// The process of a leader that holds a lock meets an fsync that fails. It says so, and
// is no more: nothing that it may not have on its disk is promised to anybody. The four
// others go on at once, and its lock is granted to none of them while it still relied
// on it. With a disk that works it takes part again.
func TestProcessesFsyncFails(t *testing.T) {
	if testing.Short() {
		t.Skip("starts five processes")
	}
	t.Parallel()
	const ttl, election = 2 * time.Second, 300 * time.Millisecond
	ps := newProcesses(t, ttl, election)
	leader := ps.leader()
	token, waits := ps.hold(leader, ps.other(leader), "job")
	p := ps.running[leader]
	failed := bootTime()
	ps.ask(leader, "fail fsync", "")
	for _, id := range ps.ids() {
		if id != leader { // it has something to write
			ps.ask(id, "acquire", fmt.Sprint("of ", id))
		}
	}
	t.Logf("granted by each of the others after %v", bootTime()-failed)
	last := ps.end(p)
	t.Log(last.Err)
	require.Contains(t, last.Err, ps.roles[leader].Dir)
	require.Contains(t, last.Err, "sync ")
	require.Contains(t, last.Err, syscall.EIO.Error())
	require.Contains(t, last.Err, "cannot be trusted any more")
	require.Equal(t, 2, p.cmd.ProcessState.ExitCode(), "a panic of the engine")

	got := ps.get(waits)
	t.Logf("relied on until %v after the last words, granted after %v", last.Trusted-last.At, got.At-last.At)
	require.Greater(t, last.Trusted, last.At, "it held the lock")
	require.Greater(t, got.At, last.Trusted)
	require.Greater(t, got.Token, token)

	ps.start(leader)
	ps.ready(leader)
	require.Greater(t, ps.ask(leader, "acquire", "mended").Token, got.Token)
}

// end waits until a process has ended by itself, and returns its last words.
func (ps *processes) end(p *replicaProcess) answer {
	ps.t.Helper()
	select {
	case <-p.gone:
	case <-time.After(patience):
		ps.t.Fatal("it lives")
	}
	delete(ps.running, p.id)
	select {
	case last := <-p.last:
		return last
	default:
		ps.t.Fatal("it ended without a word")
		return answer{}
	}
}

var noMore = make(chan struct{}) // closed by an order

// keepDescriptors takes all that there are, and those that become free.
func keepDescriptors(order) error {
	give, err := takeDescriptors(0)
	if err != nil {
		return err
	}
	go func() {
		again := time.NewTicker(5 * time.Millisecond)
		defer again.Stop()
		all := []func(){give}
		for {
			select {
			case <-again.C:
				if give, err := takeDescriptors(0); err == nil {
					all = append(all, give)
				}
			case <-noMore:
				for _, give := range all {
					give()
				}
				return
			}
		}
	}()
	return nil
}

// busy is the processor time that a process has had.
func (ps *processes) busy(id uint64) time.Duration {
	ps.t.Helper()
	var clock int32
	pid := ps.running[id].cmd.Process.Pid
	clock = int32(^pid<<3 | 2) // man clock_getcpuclockid: the clock of that process
	var ts unix.Timespec
	require.NoError(ps.t, unix.ClockGettime(clock, &ts))
	return time.Duration(ts.Nano())
}

// A leader without a descriptor left can neither accept nor dial. It lives, leads and
// grants over the connections that it has, and does not spin; when there are descriptors
// again it finds those that have come back meanwhile.
func TestProcessesOutOfDescriptors(t *testing.T) {
	if testing.Short() {
		t.Skip("starts five processes")
	}
	t.Parallel()
	ps := newProcesses(t, 3*time.Second, 300*time.Millisecond)
	leader := ps.leader()
	one, two := ps.other(leader), ps.other(leader, ps.other(leader))
	ps.ask(leader, "take descriptors", "")
	ps.kill(one, two)
	ps.start(one, two)
	back := ps.give(one, "ready", "")
	before, began := ps.busy(leader), bootTime()
	tries := 0
	for ; bootTime()-began < time.Second; tries++ {
		ps.ask(leader, "acquire", fmt.Sprint("without ", tries))
	}
	t.Logf("%d locks without descriptors, %v of processor time in %v", tries, ps.busy(leader)-before, bootTime()-began)
	before, began = ps.busy(leader), bootTime()
	<-time.After(time.Second)
	idle := ps.busy(leader) - before
	t.Logf("then without calls: %v in %v", idle, bootTime()-began)
	require.Less(t, idle, 300*time.Millisecond, "it spins")

	select {
	case <-back:
		t.Fatal("there were descriptors")
	default:
	}
	ps.ask(leader, "give descriptors", "")
	ps.get(back)
	ps.ready(two)
	// Of the three that are left two have only now come back.
	ps.kill(ps.other(leader, one, two))
	ps.kill(ps.other(leader, one, two))
	ps.ask(leader, "acquire", "with them")
	ps.ask(one, "acquire", "from it")
}

// A directory that is removed under a running replica takes nothing from anybody at
// first: the log is in a file that has no name any more. When the next snapshot is due
// the process stops, and says why; and who starts on the empty directory is refused by
// those that remember, since what it had promised is gone.
func TestProcessesDirectoryRemoved(t *testing.T) {
	if testing.Short() {
		t.Skip("starts five processes")
	}
	t.Parallel()
	ps := newProcesses(t, 3*time.Second, 300*time.Millisecond, func(r *role) { r.Snapshots = 100 })
	victim := ps.other(ps.leader())
	r, p := ps.roles[victim], ps.running[victim]
	token := ps.ask(victim, "acquire", "before").Token
	require.NoError(t, os.RemoveAll(r.Dir))
	require.Greater(t, ps.ask(victim, "acquire", "after").Token, token)
	ps.ask(victim, "release", "before")
	for i := 0; !isClosed(p.gone) && i < 2000; i++ {
		ps.ask(ps.other(victim), "acquire", fmt.Sprint("go on ", i))
	}
	require.Contains(t, ps.end(p).Err, r.Dir+"/"+engineName+" was removed")

	ps.start(victim)
	refused := ps.end(ps.running[victim]).Err
	require.Contains(t, refused, ErrWiped.Error())
	require.Contains(t, refused, r.Dir)
	ps.ask(ps.other(), "acquire", "before")
}

// resident is the memory that a process has, in bytes.
func (ps *processes) resident(id uint64) int {
	ps.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", ps.running[id].cmd.Process.Pid))
	require.NoError(ps.t, err)
	var size, resident int
	_, err = fmt.Sscan(string(text), &size, &resident)
	require.NoError(ps.t, err)
	return resident * os.Getpagesize()
}

// Strangers at the ports, who send garbage or claim to send gigabytes, and a replica of
// another cluster that is told to find its peers here, take nothing from the five: neither
// a process, nor memory, nor a lock.
func TestProcessesStrangersAtThePorts(t *testing.T) {
	if testing.Short() {
		t.Skip("starts six processes")
	}
	t.Parallel()
	ps := newProcesses(t, 3*time.Second, 300*time.Millisecond)
	token := ps.ask(1, "acquire", "job").Token
	stranger := ps.roles[1]
	stranger.ID, stranger.Cluster, stranger.Dir = 6, "another", t.TempDir()
	stranger.Address = freeAddresses(t, 1)[0]
	stranger.Members = maps.Clone(stranger.Members)
	stranger.Members[6] = stranger.Address
	ps.roles[6] = stranger
	ps.start(6)
	leads := ps.give(6, "ready", "")
	before := ps.resident(1)
	huge := []byte{'q', 'L', 1, 1, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0}
	var conns []net.Conn
	for i := range 200 {
		for id := uint64(1); id <= 5; id++ {
			conn, err := net.Dial("tcp", ps.roles[id].Address)
			require.NoError(t, err)
			_, _ = conn.Write([][]byte{huge, []byte("GET / HTTP/1.0\r\n\r\n"), make([]byte, 1<<16)}[i%3])
			conns = append(conns, conn)
		}
	}
	for id := uint64(1); id <= 5; id++ {
		ps.ask(id, "acquire", fmt.Sprint("of ", id))
		t.Logf("replica %d has %d MiB", id, ps.resident(id)>>20)
		require.Less(t, ps.resident(id)-before, 64<<20)
	}
	ps.ask(1, "validate", "job")
	ps.ask(1, "release", "job")
	require.Greater(t, ps.ask(2, "acquire", "job").Token, token)
	select {
	case a := <-leads:
		t.Fatalf("the stranger is ready: %+v", a)
	default:
	}
	for _, c := range conns {
		_ = c.Close()
	}
}
