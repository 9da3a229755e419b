package quorumlock

import (
	"bytes"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/queue"
	"github.com/quorumlock/quorumlock/sessions"
)

// A speaker is one process that says a great deal to a state machine.
type speaker struct {
	t     testing.TB
	f     *lockFSM
	entry wire.Entry
	buf   []byte
}

func newSpeaker(t testing.TB, f *lockFSM, replica uint64, ids ...uint64) *speaker {
	s := &speaker{t: t, f: f, entry: wire.Entry{Replica: replica, Epoch: 1}}
	f.apply(wire.AppendEntry(nil, &wire.Entry{Replica: replica, Epoch: 1, Commands: []wire.Command{{Op: wire.Boot}}}))
	for _, id := range ids {
		s.say(wire.Command{Op: wire.Open, Session: id, TTL: 10_000, Owner: "owner"})
	}
	s.flush()
	return s
}

// say puts a command into the present batch, and applies that when it is full.
func (s *speaker) say(c wire.Command) {
	s.entry.Commands = append(s.entry.Commands, c)
	if len(s.entry.Commands) == maxBatchCommands {
		s.flush()
	}
}

// flush applies the present batch. Each of its commands has one effect at least.
func (s *speaker) flush() []effect {
	n := len(s.entry.Commands)
	if n == 0 {
		return nil
	}
	s.entry.Batch++
	s.buf = wire.AppendEntry(s.buf[:0], &s.entry)
	s.entry.Commands = s.entry.Commands[:0]
	effects := s.f.apply(s.buf)
	if len(effects) <= n || effects[0].cause != 0 {
		s.t.Fatalf("%d effects of %d commands: %v", len(effects), n, effects[0])
	}
	return effects
}

func (s *speaker) acquire(session, hold uint64, name string) {
	s.say(wire.Command{Op: wire.Acquire, Session: session, Hold: hold, Name: name, Mode: 1, Wait: true, Limit: wire.MaxWaiters})
}

func (s *speaker) release(session, hold uint64, name string) {
	s.say(wire.Command{Op: wire.Release, Session: session, Hold: hold, Lock: hashOf(name)})
}

// heap returns how many bytes are in use.
func heapInUse() int {
	runtime.GC()
	runtime.GC() // what a sync.Pool holds survives the first
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

func sized(full, short int) int {
	if testing.Short() || raceEnabled {
		return short
	}
	return full
}

// An idle name costs nothing: millions that were taken and freed once each leave
// nothing behind but the token.
func TestIdleNamesCostNothing(t *testing.T) {
	names := sized(10_000_000, 200_000)
	f := newLockFSM()
	s := newSpeaker(t, f, 1, 1)
	s.acquire(1, 1, "first")
	s.release(1, 1, "first")
	s.flush()
	first := f.token

	hold := uint64(1)
	takeAndFree := func(n int) {
		for range n {
			hold++
			name := "job/" + strconv.FormatUint(hold, 10)
			s.acquire(1, hold, name)
			s.release(1, hold, name)
		}
		s.flush()
	}
	takeAndFree(20_000)
	heapBefore, snapshotBefore := heapInUse(), len(f.bytes())
	start := time.Now()
	takeAndFree(names)
	t.Logf("%d names in %v", names, time.Since(start))

	require.Less(t, heapInUse()-heapBefore, 1<<20, "heap before: %d", heapBefore)
	require.LessOrEqual(t, len(f.bytes()), snapshotBefore+16) // the numbers in it have grown
	require.Zero(t, f.table.n)
	checkFSM(t, f)

	hold++
	s.acquire(1, hold, "first")
	effects := s.flush()
	require.Equal(t, granted, effects[1].kind)
	require.Equal(t, first+fencing.Token(names+20_000)+1, effects[1].token)
}

// Nor does a name that was idle after a time in which very many were held at once.
func TestBestDaysCostNothing(t *testing.T) {
	names := sized(200_000, 100_000)
	f := newLockFSM()
	s := newSpeaker(t, f, 1, 1)
	day := func() {
		for i := range uint64(names) {
			s.acquire(1, i+1, "job/"+strconv.FormatUint(i, 10))
		}
		for i := range uint64(names) {
			s.release(1, i+1, "job/"+strconv.FormatUint(i, 10))
		}
		s.flush()
	}
	before := heapInUse()
	day()
	s.say(wire.Command{Op: wire.Close, Session: 2}) // the last effects hold on to what they name
	s.flush()
	after := heapInUse()
	require.Zero(t, f.table.n)
	require.Less(t, after-before, 3<<20, "%d names, heap before: %d", names, before)
	runtime.KeepAlive(s)
}

// The bytes of a held lock with a name of 60, of which there are two million: the
// target is 160. With fewer the pages' own room weighs more.
func TestHeldLockSize(t *testing.T) {
	names := sized(2_000_000, 100_000)
	f := newLockFSM()
	s := newSpeaker(t, f, 1, 1)
	before := heapInUse()
	for i := range uint64(names) {
		s.acquire(1, i+1, fmt.Sprintf("%060d", i))
	}
	s.flush()
	each := (heapInUse() - before) / names
	t.Logf("%d bytes for a held lock with a name of 60", each)
	require.LessOrEqual(t, each, sized(160, 250))
	require.Equal(t, names, f.table.n)
	runtime.KeepAlive(s)
}

// Who leaves a line costs the same from any place in it.
func TestLongLine(t *testing.T) {
	waiters := sized(100_000, 20_000)
	f := newLockFSM()
	s := newSpeaker(t, f, 1, 1)
	s.acquire(1, 1, "a")
	s.flush()
	first := uint64(2) // the number of the first one in line
	fill := func() {
		for i := range uint64(waiters) {
			s.acquire(1, first+i, "a")
		}
		s.flush()
	}
	leave := func(order func(i int) int) time.Duration {
		start := time.Now()
		for i := range waiters {
			s.release(1, first+uint64(order(i)), "a")
		}
		s.flush()
		took := time.Since(start)
		require.Zero(t, f.table.line("a").Waiting())
		first += uint64(waiters)
		return took
	}
	fill()
	head := leave(func(i int) int { return i })
	fill()
	tail := leave(func(i int) int { return waiters - 1 - i })
	fill()
	// From the middle outwards: 0, 1, 2, 3, 4 become 2, 3, 1, 4, 0.
	middle := leave(func(i int) int {
		if i%2 == 0 {
			return (waiters-1)/2 - i/2
		}
		return (waiters-1)/2 + 1 + i/2
	})
	t.Logf("%d leave from the head in %v, from the tail in %v, from the middle in %v", waiters, head, tail, middle)
	// One that walked half the line each time would take thousands of times as long.
	require.Less(t, middle, 50*head+time.Second)
	checkFSM(t, f)

	// And they are served in order, one entry each, at the same cost.
	fill()
	s.release(1, 1, "a")
	for i := range uint64(waiters) - 1 {
		s.release(1, first+i, "a")
	}
	s.flush()
	last := f.table.claim(sessions.ID{Replica: 1, Epoch: 1, Seq: 1}, "a", first+uint64(waiters)-1)
	require.True(t, last.Holds() && f.table.line("a").Holding() == 1)
}

// A page that is full refuses another name, and takes it when there is room again.
func TestFullPage(t *testing.T) {
	f := newLockFSM()
	s := newSpeaker(t, f, 1, 1)
	s.acquire(1, 1, "a")
	s.flush()
	p := f.table.page[pageOf(hashOf("a"))]
	other := ""
	for i := 0; other == ""; i++ {
		if name := strconv.Itoa(i); pageOf(hashOf(name)) == pageOf(hashOf("a")) {
			other = name
		}
	}
	p.live += maxSlots - 1 // as if there were so many
	s.acquire(1, 2, other)
	require.Equal(t, causeQueueFull, s.flush()[1].cause)
	p.live -= maxSlots - 1
	s.acquire(1, 3, other)
	require.Equal(t, granted, s.flush()[1].kind)
	checkFSM(t, f)
}

// A session that ends with very many holds, and somebody behind each of them.
func TestSessionEndsWithManyHolds(t *testing.T) {
	holds := sized(100_000, 20_000)
	f := newLockFSM()
	one, two := newSpeaker(t, f, 1, 1), newSpeaker(t, f, 2, 1)
	for i := range uint64(holds) {
		one.acquire(1, i+1, "job/"+strconv.FormatUint(i, 10))
	}
	one.flush()
	for i := range uint64(holds) {
		two.acquire(1, i+1, "job/"+strconv.FormatUint(i, 10))
		one.acquire(1, uint64(holds)+i+1, "job/"+strconv.FormatUint(i, 10)) // and it waits for its own
	}
	two.flush()
	one.flush()

	start := time.Now()
	e := wire.Entry{Replica: 2, Epoch: 1, Commands: []wire.Command{{Op: wire.Expire, Replica: 1, Epoch: 1, TTL: 10_000}}}
	effects := f.apply(wire.AppendEntry(nil, &e))
	took := time.Since(start)
	t.Logf("%d holds and as many waits ended in one entry, in %v", holds, took)
	require.Less(t, took, 10*time.Second)
	require.Len(t, effects, holds+1)
	last := fencing.Token(holds)
	for _, x := range effects[1:] {
		last++
		if x.kind != granted || x.session.Replica != 2 || x.token != last {
			t.Fatalf("%v, want a grant to 2.1.1 with token %d", x, last)
		}
	}
	checkFSM(t, f)

	f.apply(wire.AppendEntry(nil, &wire.Entry{Replica: 2, Epoch: 1, Renewal: 1}))
	require.LessOrEqual(t, cap(f.effects), manyEffects, "the room for so many effects is not kept")
}

func (s *speaker) take(session, hold uint64, name string, mode queue.Mode, permits, of uint64) {
	s.say(wire.Command{Op: wire.Take, Session: session, Hold: hold, Mode: uint8(mode), Wait: true, Limit: wire.MaxWaiters,
		More: &wire.More{Names: []string{name}, MaxWaits: wire.MaxWaiters, Permits: permits, Of: of}})
}

// effectsOf applies an entry outside the batches and returns its effects and how
// often it asked for memory.
func effectsOf(f *lockFSM, e wire.Entry) ([]effect, uint64) {
	cmd := wire.AppendEntry(nil, &e)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	effects := f.apply(cmd)
	runtime.ReadMemStats(&after)
	return effects, after.Mallocs - before.Mallocs
}

// A thousand waiters whose session has died are out of the line in the entry that
// says so, and the next live one has the lock in that same entry: it never meets
// them, in whatever modes they waited.
func TestDeadWaitersCostNothing(t *testing.T) {
	const dead = 1000
	cost := func(waiters uint64) uint64 {
		f := newLockFSM()
		holder, dying, live := newSpeaker(t, f, 1, 1), newSpeaker(t, f, 2, 1), newSpeaker(t, f, 3, 1)
		holder.acquire(1, 1, "a")
		holder.flush()
		for i := range waiters {
			dying.take(1, i+1, "a", queue.Exclusive+queue.Mode(i%2), 0, 0)
		}
		dying.flush()
		live.acquire(1, 1, "a")
		live.flush()

		died, _ := effectsOf(f, wire.Entry{Replica: 1, Epoch: 1, Commands: []wire.Command{{Op: wire.Expire, Replica: 2, Epoch: 1, TTL: 10_000}}})
		require.Len(t, died, 1, "that the session ended, and not of each wait")
		require.Equal(t, 1, f.table.line("a").Waiting())
		checkFSM(t, f)
		effects, allocs := effectsOf(f, wire.Entry{Replica: 1, Epoch: 1, Batch: 3, Commands: []wire.Command{{Op: wire.Release, Session: 1, Hold: 1, Lock: hashOf("a")}}})
		require.Equal(t, []string{"batch 1.1 #3", `released "a" by 1.1.1/1 token 1`, `granted "a" to 3.1.1/1 token 2`}, effectTexts(effects))
		return allocs
	}
	none := cost(0)
	require.LessOrEqual(t, cost(dead), none+50, "a hand-over without any dead waiters asks for memory %d times", none)

	// And if it is the holder that dies too, all of it is one entry.
	f := newLockFSM()
	dying, live := newSpeaker(t, f, 2, 1), newSpeaker(t, f, 3, 1)
	for i := range uint64(dead) {
		dying.take(1, i+1, "a", queue.Exclusive+queue.Mode(i%2), 0, 0)
	}
	dying.flush()
	live.acquire(1, 1, "a")
	live.flush()
	effects, _ := effectsOf(f, wire.Entry{Replica: 1, Epoch: 1, Commands: []wire.Command{{Op: wire.Expire, Replica: 2, Epoch: 1, TTL: 10_000}}})
	require.Equal(t, []string{"ended 2.1.1: expired", `granted "a" to 3.1.1/1 token 2`}, effectTexts(effects))
	checkFSM(t, f)
}

// Very many readers of one name, a writer behind them, and one word that ends them all.
func TestManyReaders(t *testing.T) {
	const readers = 10_000
	f := newLockFSM()
	s, writer := newSpeaker(t, f, 1, 1), newSpeaker(t, f, 2, 1)
	fill := func(from uint64) {
		for i := range uint64(readers) {
			s.take(1, from+i, "a", queue.Shared, 0, 0)
		}
		s.flush()
	}
	start := time.Now()
	fill(1)
	require.Equal(t, readers, f.table.line("a").Holding())
	require.Equal(t, fencing.Token(1), f.token, "one generation, one token")
	writer.acquire(1, 1, "a")
	writer.flush()
	for i := range uint64(readers) {
		s.release(1, i+1, "a")
	}
	s.flush()
	require.True(t, f.table.line("a").Alone().Session.Replica == 2)
	require.Equal(t, fencing.Token(2), f.token)

	// They come back behind the writer, are let in by its leaving, and revoked.
	fill(readers + 1)
	writer.release(1, 1, "a")
	require.Len(t, writer.flush(), 2+readers)
	checkFSM(t, f)
	whole := f.bytes()
	restored, err := restoreFSM(bytes.NewReader(whole), nil)
	require.NoError(t, err)
	require.True(t, bytes.Equal(whole, restored.bytes()))
	writer.acquire(1, 2, "a")
	writer.say(wire.Command{Op: wire.Revoke, Name: "a", More: &wire.More{Token: 3}})
	require.Len(t, writer.flush(), 1+1+readers+2, "queued, each of them lost, granted, answered")
	require.True(t, f.table.line("a").Alone().Session.Replica == 2)
	t.Logf("%d readers came and went twice in %v", readers, time.Since(start))
	require.Less(t, time.Since(start), 30*time.Second)
	checkFSM(t, f)
}

// A counted lock with as many permits as there may be, one each and all at once.
func TestManyPermits(t *testing.T) {
	const n = wire.MaxPermits
	f := newLockFSM()
	s := newSpeaker(t, f, 1, 1)
	start := time.Now()
	for i := range uint64(n) {
		s.take(1, i+1, "a", queue.Counted, 1, n)
	}
	s.take(1, n+1, "a", queue.Counted, 1, n)
	s.flush()
	l := f.table.line("a")
	require.Equal(t, []int{n, 1}, []int{l.Holding(), l.Waiting()})
	s.release(1, 40_001, "a")
	effects := s.flush()
	require.Equal(t, granted, effects[2].kind)
	id := sessions.ID{Replica: 1, Epoch: 1, Seq: 1}
	require.Equal(t, []uint32{40_000}, f.table.claim(id, "a", n+1).Slots)
	checkFSM(t, f)

	s.take(1, n+2, "a", queue.Counted, n, n)
	s.take(1, n+3, "a", queue.Counted, 1, n)
	s.flush()
	for i := range uint64(n) + 1 {
		if i != 40_000 {
			s.release(1, i+1, "a")
		}
	}
	s.flush()
	all := f.table.claim(id, "a", n+2)
	require.Len(t, all.Slots, n)
	require.Equal(t, []uint32{0, n - 1}, []uint32{all.Slots[0], all.Slots[n-1]})
	whole := f.bytes()
	restored, err := restoreFSM(bytes.NewReader(whole), nil)
	require.NoError(t, err)
	require.True(t, bytes.Equal(whole, restored.bytes()))
	s.release(1, n+2, "a")
	require.Equal(t, granted, s.flush()[2].kind)
	t.Logf("%d permits came and went in %v", n, time.Since(start))
	require.Less(t, time.Since(start), 30*time.Second)
	checkFSM(t, f)
}

// As many jobs as there may be: no new one is taken then, the known ones go on, and
// one that is forgotten makes room.
func TestManyJobs(t *testing.T) {
	const n = wire.MaxJobs
	f := newLockFSM()
	s := newSpeaker(t, f, 1)
	claim := func(job int, tick int64, call uint64) {
		s.say(wire.Command{Op: wire.Claim, Name: fmt.Sprintf("job/%05d", job), More: &wire.More{Tick: tick, Call: call}})
	}
	before := heapInUse()
	for i := range n {
		claim(i, int64(i), uint64(i))
	}
	s.flush()
	require.Len(t, f.jobs, n)
	t.Logf("%d bytes for a job", (heapInUse()-before)/n)

	full := f.bytes()
	claim(n, 1, n)
	require.Equal(t, []string{"batch 1.1 #17", "answered call 65536 of 1.1: too many jobs"}, effectTexts(s.flush()))
	claim(n-1, n-1, n-1)
	claim(n-1, n-1, n)
	require.Equal(t, []string{"batch 1.1 #18", "answered call 65535 of 1.1", "answered call 65536 of 1.1: claimed"}, effectTexts(s.flush()))
	require.Len(t, f.jobs, n)
	checkFSM(t, f)

	restored, err := restoreFSM(bytes.NewReader(full), nil)
	require.NoError(t, err)
	require.True(t, slices.Equal(f.jobList(), restored.jobList()))
	require.True(t, bytes.Equal(full, restored.bytes()))

	claim(0, 1, n+1)
	s.say(wire.Command{Op: wire.Forget, Name: "job/00001", More: &wire.More{Call: n + 2}})
	claim(n, 1, n+3)
	claim(1, 1, n+4)
	require.Equal(t, []string{"batch 1.1 #19", `ticked "job/00000" tick 1 by 1.1`, "answered call 65537 of 1.1",
		`forgotten "job/00001"`, "answered call 65538 of 1.1", `ticked "job/65536" tick 1 by 1.1`, "answered call 65539 of 1.1",
		"answered call 65540 of 1.1: too many jobs"}, effectTexts(s.flush()))
	checkFSM(t, f)

	start := time.Now()
	head, c := f.mark()
	c.drop()
	t.Logf("marked in %v, %d bytes", time.Since(start), len(head))
	require.Less(t, time.Since(start), 5*time.Second)
	runtime.KeepAlive(s)
}

// A writer that waits is granted once those who were there before it have gone,
// however many readers go on coming.
func TestWriterDoesNotStarve(t *testing.T) {
	f := newLockFSM()
	s, writer := newSpeaker(t, f, 1, 1), newSpeaker(t, f, 2, 1)
	hold := uint64(0)
	come := func() { hold++; s.take(1, hold, "a", queue.Shared, 0, 0) }
	for range 20 {
		come()
	}
	s.flush()
	writer.acquire(1, 1, "a")
	writer.flush()
	for i := range uint64(20) {
		require.False(t, f.table.claim(sessions.ID{Replica: 2, Epoch: 1, Seq: 1}, "a", 1).Holds())
		come() // one comes for each that leaves, so there are never less than 20
		s.release(1, i+1, "a")
		s.flush()
	}
	require.True(t, f.table.claim(sessions.ID{Replica: 2, Epoch: 1, Seq: 1}, "a", 1).Holds())
	writer.release(1, 1, "a")
	require.Len(t, writer.flush(), 2+20)
}

// A snapshot of many locks is marked at once, and no page of it holds up the log.
func TestMarkAndPagesAreShort(t *testing.T) {
	names := sized(200_000, 50_000)
	f := newLockFSM()
	s := newSpeaker(t, f, 1, 1)
	for i := range uint64(names) {
		s.acquire(1, i+1, fmt.Sprintf("%060d", i))
	}
	s.flush()
	want := f.bytes()
	got := bytes.NewBuffer(make([]byte, 0, len(want)))
	w := wire.NewSnapshotWriter(got, wire.BaseVersion)
	start := time.Now()
	head, c := f.mark()
	mark := time.Since(start)
	_, _ = w.Write(head)
	var took []time.Duration
	var page []byte
	for i := range pages {
		s.release(1, uint64(i)+1, fmt.Sprintf("%060d", i))
		s.flush()
		start = time.Now()
		page = c.take(page[:0], i)
		took = append(took, time.Since(start))
		_, _ = w.Write(page)
	}
	_ = w.Close()
	c.drop()
	require.True(t, bytes.Equal(want, got.Bytes()))
	slices.Sort(took)
	median := took[pages/2]
	t.Logf("mark in %v, a page in %v, the longest in %v, %d bytes", mark, median, took[pages-1], len(want))
	// Not the longest: it is that of the moment when something else had the processor.
	require.Less(t, median, 5*time.Millisecond)
	require.Less(t, mark, time.Second)
}

// holding returns a machine on which one session holds that many locks with names of
// 60 bytes.
func holding(t testing.TB, locks int) (*machine, *speaker) {
	m := newMachine()
	m.perform, m.restored = func([]effect) {}, func() {}
	s := newSpeaker(t, m.fsm, 1, 1)
	for i := range uint64(locks) {
		s.acquire(1, i+1, fmt.Sprintf("%060d", i))
	}
	s.flush()
	return m, s
}

// pairs makes entries of 32 acquires and the releases of what they take, of names
// that are spread over the whole table.
func (s *speaker) pairs(entries int, hold *uint64) (log []logEntry) {
	for range entries {
		s.entry.Batch++
		s.entry.Commands = s.entry.Commands[:0]
		for k := range uint64(32) {
			name := fmt.Sprintf("job/%056d", (*hold+k)%(1<<16))
			s.entry.Commands = append(s.entry.Commands, wire.Command{Op: wire.Acquire, Session: 1, Hold: *hold + k + 1, Name: name, Mode: 1})
		}
		for k := range uint64(32) {
			c := s.entry.Commands[k]
			s.entry.Commands = append(s.entry.Commands, wire.Command{Op: wire.Release, Session: 1, Hold: c.Hold, Lock: hashOf(c.Name)})
		}
		*hold += 32
		log = append(log, logEntry{cmd: wire.AppendEntry(nil, &s.entry)})
	}
	s.entry.Commands = s.entry.Commands[:0]
	return log
}

// The time is for one acquire and one release, in entries of 64 commands, from the
// bytes of the log to the effects, while so many locks are held.
func BenchmarkApply(b *testing.B) {
	for _, held := range []int{1_000, 2_000_000} {
		b.Run(fmt.Sprintf("held=%d", held), func(b *testing.B) {
			m, s := holding(b, held)
			hold := uint64(held)
			b.ReportAllocs()
			b.ResetTimer()
			for done := 0; done < b.N; {
				b.StopTimer()
				log := s.pairs(256, &hold)
				log = log[:min(len(log), (b.N-done+31)/32)]
				b.StartTimer()
				m.apply(log)
				done += 32 * len(log)
			}
		})
	}
}

// The longest time for which one entry of 64 commands waited or was applied, while
// two million locks were written to a snapshot beside it.
func BenchmarkSnapshotStall(b *testing.B) {
	const held = 2_000_000
	m, s := holding(b, held)
	hold := uint64(held)
	var longest time.Duration
	for range b.N {
		b.StopTimer()
		log := s.pairs(20_000, &hold)
		runtime.GC()
		b.StartTimer()
		start := time.Now()
		save := m.snapshot()
		longest = max(longest, time.Since(start))
		written := make(chan error, 1)
		go func() { written <- save(io.Discard, nil) }()
		for writing := true; writing && len(log) > 0; log = log[1:] {
			start := time.Now()
			m.apply(log[:1])
			longest = max(longest, time.Since(start))
			select {
			case err := <-written:
				if err != nil {
					b.Fatal(err)
				}
				writing = false
			default:
			}
		}
		if len(log) == 0 {
			<-written
		}
		// What was not applied is not of the stream any more.
		s.entry.Batch = m.fsm.roll.Process(1, 1).Batch
		hold = m.fsm.roll.Process(1, 1).Claimed
	}
	b.ReportMetric(float64(longest)/1e6, "max-stall-ms")
	b.ReportMetric(held, "locks")
}

// The time to read a snapshot of two million locks.
func BenchmarkRestore(b *testing.B) {
	const held = 2_000_000
	m, _ := holding(b, held)
	snapshot := m.fsm.bytes()
	m = nil
	runtime.GC()
	b.ResetTimer()
	for range b.N {
		if _, err := restoreFSM(bytes.NewReader(snapshot), nil); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(b.Elapsed().Seconds()/float64(b.N), "s/restore")
	b.ReportMetric(held, "locks")
}
