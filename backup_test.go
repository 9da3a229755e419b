package quorumlock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/sessions"
)

// backupOf is a node's backup, and what is in it.
func backupOf(t testing.TB, n *Node) ([]byte, BackupInfo) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var b bytes.Buffer
	require.NoError(t, n.Backup(ctx, &b))
	info, err := InspectBackup(bytes.NewReader(b.Bytes()))
	require.NoError(t, err)
	return b.Bytes(), info
}

func inFile(t testing.TB, backup []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "quorumlock.backup")
	require.NoError(t, os.WriteFile(path, backup, 0o600))
	return path
}

// A slowWriter lets time pass in the middle of what it is given.
type slowWriter struct {
	bytes.Buffer
	each func()
}

func (w *slowWriter) Write(p []byte) (int, error) {
	w.each()
	return w.Buffer.Write(p)
}

// A state that is captured while locks change hands is the state after one entry of the
// log, with all that was complete when it was called; the log does not wait for it, nor
// does the engine's own snapshot.
func TestBackupUnderLoad(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		s.alter(func() { s.faults.delay = 2 * time.Millisecond }) // so that time passes at all
		for i := range 300 {
			_, err := nodes[1].Acquire(soon(t), fmt.Sprint("held/", i))
			require.NoError(t, err)
		}
		_, err := nodes[3].ClaimTick(soon(t), "nightly", 20)
		require.NoError(t, err)
		done, stop := make(chan struct{}), make(chan struct{})
		var rounds atomic.Int64
		go func() {
			defer close(done)
			for i := 0; !isClosed(stop); i++ {
				for _, name := range []string{"job", fmt.Sprint("held/more/", i)} {
					h, err := nodes[2].Acquire(t.Context(), name)
					if err == nil && name == "job" {
						err = h.Release(t.Context())
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
				rounds.Add(1)
			}
		}()
		for _, id := range []uint64{2, 4, 1} {
			before := rounds.Load()
			writes := 0
			w := slowWriter{each: func() {
				if writes++; writes%64 == 0 {
					elapse(50 * time.Millisecond)
				}
			}}
			require.NoError(t, nodes[id].consult(soon(t)))
			require.NoError(t, nodes[id].capture(soon(t), &w))
			require.Greater(t, rounds.Load(), before+10, "the log stood still")
			info, err := InspectBackup(bytes.NewReader(w.Bytes()))
			require.NoError(t, err)
			require.Equal(t, "quorumlock", info.Cluster)
			require.Len(t, info.Groups, 1)
			g := info.Groups[0]
			require.GreaterOrEqual(t, g.Locks, 300+int(before))
			require.Equal(t, 1, g.Jobs)
			require.NotZero(t, g.Term)

			want := newLockFSM()
			s.mu.Lock()
			for _, e := range s.log[:g.Index] {
				want.apply(e)
			}
			s.mu.Unlock()
			require.Contains(t, w.String(), string(want.bytes()), "it is not the state at any entry")
			require.Equal(t, want.token, g.Token)
		}
		close(stop)
		<-done
		require.Empty(t, nodes[2].groups[0].machine.fsm.table.captures)
	})
}

// By the first write to whoever takes a backup, the state is captured, in a file that has no
// name: nothing is kept in memory for the sake of w, however many names come and go before it
// returns, and what it gets then is the state of before.
func TestBackupKeepsNothingForASlowWriter(t *testing.T) {
	inSimWith(t, func(o *Options, _ func() time.Duration) { o.Groups, o.Dir = 2, t.TempDir() },
		func(t *testing.T, _ *sim, nodes map[uint64]*Node, _ func(time.Duration)) {
			n := nodes[1]
			for i := range 5_000 { // more than is copied at once
				_, err := n.Acquire(soon(t), fmt.Sprint("held/", i))
				require.NoError(t, err)
			}
			writes := 0
			w := slowWriter{each: func() {
				writes++
				left, err := os.ReadDir(n.opts.Dir)
				require.NoError(t, err)
				require.Empty(t, left)
				for _, g := range n.groups {
					g.machine.read(func(f *lockFSM) { require.Empty(t, f.table.captures) })
				}
				for i := range 50 {
					h, err := n.Acquire(soon(t), fmt.Sprint("meanwhile/", writes, "/", i))
					require.NoError(t, err)
					require.NoError(t, h.Release(soon(t)))
				}
			}}
			require.NoError(t, n.Backup(soon(t), &w))
			require.Greater(t, writes, 1)
			require.NotContains(t, w.String(), "meanwhile/")
			info, err := InspectBackup(&w.Buffer)
			require.NoError(t, err)
			require.Equal(t, 5_000, info.Groups[0].Locks+info.Groups[1].Locks)
			left, err := os.ReadDir(n.opts.Dir)
			require.NoError(t, err)
			require.Empty(t, left)
		})
}

// A replica that lags waits until it has what was complete elsewhere.
func TestBackupHasWhatWasComplete(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		s.pause(3, true)
		h, err := nodes[1].Acquire(soon(t), "job")
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var b bytes.Buffer
		err = nodes[3].Backup(ctx, &b)
		require.ErrorIs(t, err, ErrNoQuorum)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Zero(t, b.Len())
		s.pause(3, false)
		_, info := backupOf(t, nodes[3])
		require.Equal(t, h.Token(), info.Groups[0].Token)
		require.Equal(t, 1, info.Groups[0].Locks)
	})
}

func TestBackupThatIsGivenUp(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		for i := range 1000 { // more than is written at once
			_, err := nodes[1].Acquire(soon(t), fmt.Sprintf("%0100d", i))
			require.NoError(t, err)
		}
		var w slowWriter
		for _, backup := range []func(context.Context, io.Writer) error{nodes[1].capture, nodes[1].Backup} {
			ctx, cancel := context.WithCancel(t.Context())
			w = slowWriter{each: cancel}
			err := backup(ctx, &w)
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorIs(t, err, ErrBackup)
			_, err = InspectBackup(&w.Buffer)
			require.ErrorIs(t, err, ErrBackup)
			full := errors.New("no space left on device")
			require.ErrorIs(t, backup(soon(t), brokenWriter{full}), full)
		}
		//lint:ignore SA1012 that is what is tested
		require.ErrorIs(t, nodes[1].Backup(nil, &w), ErrNilContext)
		require.Empty(t, nodes[1].groups[0].machine.fsm.table.captures)
		require.NoError(t, nodes[2].Close())
		require.ErrorIs(t, nodes[2].Backup(soon(t), &w), ErrClosed)
	})
}

// Each backup that was cut short, and each with a flipped bit, is known as none.
func TestBackupThatIsDamaged(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		for _, name := range []string{"a", "b"} {
			_, err := nodes[1].Acquire(soon(t), name)
			require.NoError(t, err)
		}
		_, err := nodes[1].ClaimTick(soon(t), "nightly", 20)
		require.NoError(t, err)
		whole, info := backupOf(t, nodes[1])
		for i := range whole {
			_, err := InspectBackup(bytes.NewReader(whole[:i]))
			require.ErrorIs(t, err, ErrBackup, "first %d bytes", i)
			b := bytes.Clone(whole)
			b[i] ^= 1 << (i % 8)
			_, err = InspectBackup(bytes.NewReader(b))
			require.True(t, errors.Is(err, ErrBackup) != errors.Is(err, ErrFormat), "byte %d: %v", i, err)
		}
		_, err = InspectBackup(bytes.NewReader(append(bytes.Clone(whole), 0)))
		require.ErrorIs(t, err, ErrBackup)
		_, err = InspectBackup(strings.NewReader("something else altogether"))
		require.ErrorIs(t, err, ErrBackup)
		broken := errors.New("input/output error")
		_, err = InspectBackup(iotest.ErrReader(broken))
		require.ErrorIs(t, err, broken)
		require.NotErrorIs(t, err, ErrBackup)

		newer := bytes.Clone(whole)
		newer[len("quorumlock backup\n")]++
		_, err = InspectBackup(bytes.NewReader(newer))
		require.ErrorIs(t, err, ErrFormat)
		require.NotErrorIs(t, err, ErrBackup)

		// None of them founds a cluster, and nothing is written.
		again, err := InspectBackup(bytes.NewReader(whole))
		require.NoError(t, err)
		require.Equal(t, info, again)
		for want, b := range map[error][]byte{ErrBackup: whole[:len(whole)-1], ErrFormat: newer} {
			dir := filepath.Join(t.TempDir(), "replica")
			_, err := Open(Options{ReplicaID: 1, Address: "127.0.0.1:7001", Members: map[uint64]string{1: "127.0.0.1:7001"},
				Dir: dir, Restore: inFile(t, b)})
			require.ErrorIs(t, err, want)
			left, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Len(t, left, 1, "but for its LOCK")
		}
	})
}

// founded opens five nodes over a new log, founded from a backup.
func founded(t *testing.T, seed uint64, backup []byte, groups int, faults simFaults) (*sim, map[uint64]*Node) {
	t.Helper()
	s, nodes := newSim(seed, 5), make(map[uint64]*Node)
	s.faults = faults
	path := inFile(t, backup)
	for id := range s.replicas {
		o := s.options(id)
		o.Restore, o.Groups = path, groups
		nodes[id] = s.open(t, o)
	}
	return s, nodes
}

func closeAll(t *testing.T, nodes map[uint64]*Node) {
	t.Helper()
	for _, n := range nodes {
		require.NoError(t, n.Close())
	}
}

// A cluster founded from a backup: the store takes only its tokens and not those of
// grants that the backup does not know of, a tick is not claimed twice, what a LockDelay
// kept free is kept free, and nobody holds what the dead held. All that only after a full
// grace, over a log that loses, repeats and delays, while leaders change.
func TestRestore(t *testing.T) {
	for i, seed := range seeds(t, 5) {
		groups := [][2]int{{1, 1}, {3, 3}, {1, 3}, {3, 1}, {1, 1}}[i%5] // of the old cluster, and of the new one
		synctest.Test(t, func(t *testing.T) {
			defer func() {
				if t.Failed() {
					t.Logf("%s=%d", seedVar, seed)
				}
			}()
			old := newSim(seed, 5)
			nodes := make(map[uint64]*Node)
			for id := range old.replicas {
				o := old.options(id)
				o.Groups = groups[0]
				nodes[id] = old.open(t, o)
			}
			defer closeAll(t, nodes)
			s, err := nodes[1].OpenSession(soon(t), WithTTL(40*time.Second))
			require.NoError(t, err)
			_, err = s.Acquire(soon(t), "account", LockDelay(30*time.Second))
			require.NoError(t, err)
			_, err = nodes[2].Acquire(soon(t), "report", MinHold(20*time.Second))
			require.NoError(t, err)
			_, err = nodes[3].Acquire(soon(t), "plain")
			require.NoError(t, err)
			for i := range int64(2*partItems + 7) {
				first, err := nodes[4].ClaimTick(soon(t), fmt.Sprintf("job %04d", i), 1000+i)
				require.NoError(t, err)
				require.True(t, first)
			}
			backup, info := backupOf(t, nodes[5])
			require.Len(t, info.Groups, groups[0])
			known, jobCount := fencing.Token(0), 0
			for _, g := range info.Groups {
				known, jobCount = max(known, g.Token), jobCount+g.Jobs
			}
			require.Equal(t, 2*partItems+7, jobCount)

			// What the backup does not know of: grants, after which the majority is lost.
			var store fencing.MemGuard
			var last fencing.Token
			for range 100 {
				require.NoError(t, nodes[1].Do(soon(t), "invoice", func(ctx context.Context, token fencing.Token) error {
					last = token
					return store.Admit(ctx, "invoice", token)
				}))
			}
			require.Greater(t, last, known)
			closeAll(t, nodes)

			begun := time.Now()
			sim, nodes := founded(t, seed, backup, groups[1],
				simFaults{drop: 0.1, duplicate: 0.1, late: 0.1, delay: 20 * time.Millisecond, snapshot: 0.2})
			defer closeAll(t, nodes)
			for range 4 {
				elapse(12 * time.Second)
				sim.moveLeader()
			}
			for _, n := range nodes {
				require.NoError(t, n.Ready(soon(t)))
			}
			require.GreaterOrEqual(t, time.Since(begun), 40*time.Second, "no full grace for what the dead believe in")

			for _, n := range nodes {
				for i := int64(0); i < 2*partItems+7; i += 101 {
					again, err := n.ClaimTick(soon(t), fmt.Sprintf("job %04d", i), 1000+i)
					require.NoError(t, err)
					require.False(t, again, "job %d ran twice", i)
				}
			}
			jobs, err := nodes[1].Jobs(soon(t), "")
			require.NoError(t, err)
			require.Len(t, jobs, 2*partItems+7)

			require.NoError(t, nodes[2].Do(soon(t), "invoice", func(ctx context.Context, token fencing.Token) error {
				require.Greater(t, token, last)
				require.NoError(t, store.Admit(ctx, "invoice", token))
				require.ErrorIs(t, store.Admit(ctx, "invoice", last), fencing.ErrStale, "one that still runs of the lost cluster")
				return nil
			}))
			_, err = nodes[3].TryAcquire(soon(t), "plain")
			require.NoError(t, err, "its holder is gone")
			for name, d := range map[string]time.Duration{"account": 30 * time.Second, "report": 20 * time.Second} {
				h, err := nodes[4].Acquire(soon(t), name)
				require.NoError(t, err)
				require.GreaterOrEqual(t, time.Since(begun), 40*time.Second+d, "%s is to be kept free for %v", name, d)
				require.NoError(t, h.Release(soon(t)))
			}
			require.Equal(t, []int{wire.Version}, levelsInForce(nodes))
			closeAll(t, nodes)
			sim.strays.Wait()
		})
	}
}

// Clusters are restored one after the other, each from any backup of any before it, and
// each grants as fast as can be. Whatever a restored one grants is above all before.
func TestRestoredTokensExceedAll(t *testing.T) {
	for _, seed := range seeds(t, 200) {
		rng := rand.New(rand.NewPCG(seed, 0))
		now := time.Unix(1_796_000_000+rng.Int64N(1_000), 0)
		backups := []*restoration{{info: BackupInfo{At: now}, token: fencing.Token(rng.Int64N(1 << 30))}}
		highest := backups[0].token
		pass := func(token fencing.Token) fencing.Token { // time, with grants in it
			d := time.Duration(rng.Int64N(int64(time.Second) << rng.IntN(26)))
			now = now.Add(d)
			if d > time.Second { // or none at all
				token += fencing.Token(float64(d.Microseconds()) * rng.Float64())
			}
			highest = max(highest, token)
			return token
		}
		pass(highest) // the backup does not know of these
		for range 20 {
			r := backups[rng.IntN(len(backups))]
			token := r.part(0, now).Token
			require.GreaterOrEqual(t, token, highest, "%s=%d", seedVar, seed) // its grants begin above that
			require.Zero(t, r.part(1, now).Token, "only the first part says it")
			token = pass(token)
			backups = append(backups, &restoration{info: BackupInfo{At: now}, token: token})
			pass(token)
		}
	}
	year2255 := time.Date(2255, 1, 1, 0, 0, 0, 0, time.UTC)
	require.Less(t, (&restoration{info: BackupInfo{At: year2255.AddDate(-1, 0, 0)}}).beyond(year2255), fencing.Token(1<<53), "a float64 holds it")

	// With a clock that is behind the backup, or was so once.
	at := time.Unix(1_796_000_000, 0)
	r := &restoration{info: BackupInfo{At: at}, token: 1 << 52}
	for _, wrong := range []time.Time{{}, time.Unix(-5, 0), time.Unix(1, 0), at} {
		require.Equal(t, r.token+tokenJump, r.beyond(wrong))
	}
	require.GreaterOrEqual(t, r.beyond(at.Add(time.Hour)), r.token+3_600_000_000)
}

// A founder that restarts before all is restored goes on waiting, with the backup or
// without; the last part is not missed by one that was not there.
func TestRestoreGoesOnAfterRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := newSim(1, 5)
		nodes := old.openAll(t)
		defer closeAll(t, nodes)
		for i := range int64(partItems + 1) {
			_, err := nodes[1].ClaimTick(soon(t), fmt.Sprint("job ", i), 5)
			require.NoError(t, err)
		}
		backup, _ := backupOf(t, nodes[1])
		closeAll(t, nodes)

		s, nodes := founded(t, 1, backup, 1, simFaults{})
		defer closeAll(t, nodes)
		s.cut(5)
		first := make(chan struct{}) // closed with the first of two parts
		s.alter(func() {
			s.committed = func(entry []byte) {
				if wire.VersionOf(entry) == 3 && !isClosed(first) {
					close(first)
					s.faults.delay = time.Second // and the second one takes its time
				}
			}
		})
		reopen := func(id uint64, path string) {
			require.NoError(t, nodes[id].Close())
			o := s.options(id)
			o.Restore = path
			nodes[id] = s.open(t, o)
		}
		elapse(DefaultSessionTTL / 2)
		reopen(3, inFile(t, backup))
		elapse(DefaultSessionTTL / 3)
		for _, n := range nodes {
			require.False(t, n.Status().Ready)
			require.Zero(t, n.Status().Token)
		}
		<-first
		leader, _ := nodes[2].groups[0].engine.leader()
		reopen(leader, inFile(t, backup))
		for id := uint64(1); id <= 4; id++ {
			require.NoError(t, nodes[id].Ready(soon(t)))
			nodes[id].groups[0].machine.read(func(f *lockFSM) { require.EqualValues(t, 2, f.origin.Done) })
		}
		require.False(t, nodes[5].Status().Ready)
		s.heal()
		require.NoError(t, nodes[5].Ready(soon(t)))
		first500, err := nodes[5].ClaimTick(soon(t), "job 500", 5)
		require.NoError(t, err)
		require.False(t, first500)
		settled(t, nodes)
	})
}

// A replica that joins knows nothing of the backup and would not wait for it: nobody is
// added before all is restored.
func TestNobodyJoinsBeforeAllIsRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := newSim(1, 5)
		nodes := old.openAll(t)
		defer closeAll(t, nodes)
		_, err := nodes[1].Acquire(soon(t), "account", LockDelay(time.Minute))
		require.NoError(t, err)
		backup, info := backupOf(t, nodes[1])
		closeAll(t, nodes)

		s, nodes := founded(t, 1, backup, 1, simFaults{})
		defer closeAll(t, nodes)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, nodes[1].AddReplica(ctx, 6, simAddress(6)), context.DeadlineExceeded)
		require.NoError(t, nodes[1].AddReplica(soon(t), 6, simAddress(6)))
		nodes[6] = s.open(t, s.options(6))
		_, err = nodes[6].TryAcquire(soon(t), "account")
		require.ErrorIs(t, err, ErrHeld)
		h, err := nodes[6].Acquire(soon(t), "job")
		require.NoError(t, err)
		require.Greater(t, h.Token(), info.Groups[0].Token)
		for _, n := range nodes {
			require.NoError(t, n.Ready(soon(t)))
		}
	})
}

// Jobs of several groups may be too many for fewer: none is left out without a word.
func TestRestoreOfTooManyJobs(t *testing.T) {
	r := new(restoration)
	for i := range MaxJobs + 1 {
		r.ticks = append(r.ticks, wire.Tick{Job: fmt.Sprint("job ", i)})
	}
	require.ErrorIs(t, r.fits(1), ErrBackup)
	require.NoError(t, r.fits(2))
	r.ticks = r.ticks[1:]
	require.NoError(t, r.fits(1))
}

// So may names that are kept from others be too many for one page.
func TestRestoreOfTooManyBars(t *testing.T) {
	r := &restoration{bars: make([]wire.NamedBar, maxSlots+1)}
	one, other := "a", "b"
	for i := 0; pageOf(hashOf(other)) != pageOf(hashOf(one)) || groupOf(other, 2) == groupOf(one, 2); i++ {
		other = fmt.Sprint(i)
	}
	for i := range r.bars {
		r.bars[i].Name = one // for so many of its page
	}
	r.bars[0].Name = other
	require.ErrorIs(t, r.fits(1), ErrBackup)
	require.NoError(t, r.fits(2))
	r.bars = r.bars[1:]
	require.NoError(t, r.fits(1))
}

// A name that finds no room, in an entry that no founder makes, leaves the tokens beyond all
// that were granted, and the rest restored.
func TestRestoredTokensNeedNoBars(t *testing.T) {
	f := newLockFSM()
	full := pageOf(hashOf("a"))
	name := "0"
	for i := 0; pageOf(hashOf(name)) != full; i++ {
		name = fmt.Sprint(i)
	}
	elder := sessions.ID{Replica: 9, Epoch: 1, Seq: 1}
	f.table.enroll(elder)
	f.table.hold(f.table.seek(hashOf("a"), "a"), record{seq: 1, token: 1, member: f.table.member(elder)})
	f.table.page[full].live += maxSlots - 1 // as if there were so many
	f.apply(wire.AppendEntry(nil, &wire.Entry{Replica: 1, Epoch: 1, Commands: []wire.Command{{Op: wire.Boot}}}))
	part := &wire.Part{Origin: wire.Origin{Sum: strings.Repeat("a", 64), Of: 1}, Token: 7000,
		Ticks: []wire.Tick{{Job: "nightly", Tick: 20}}, Bars: []wire.NamedBar{{Name: name, For: time.Second}}}
	f.apply(wire.AppendEntry(nil, &wire.Entry{Replica: 1, Epoch: 1, Commands: []wire.Command{{Op: wire.Restore, More: &wire.More{Part: part}}}}))
	require.EqualValues(t, 1, f.origin.Done)
	require.EqualValues(t, 7000, f.token)
	require.EqualValues(t, 20, f.jobs["nightly"].Tick)
	require.Empty(t, f.times)
}
