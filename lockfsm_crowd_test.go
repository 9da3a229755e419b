package quorumlock

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/queue"
	"github.com/quorumlock/quorumlock/sessions"
)

// A crowd makes up what processes say: mostly what they would, and often enough
// what comes late, twice, too early, from a life that is over, or for no reason.
type crowd struct {
	rnd     *rand.Rand
	epoch   [4]uint64 // by replica, from 1
	batch   [4]uint64
	renewal [4]uint64
	hold    [4]uint64
	asked   map[[3]uint64]askedFor // by replica, epoch, number
	limits  map[string]uint64      // of counted locks, as they were last seen
	ticks   map[string]int64       // of jobs, the next to be claimed
	grants  []effect               // seen last
	times   []effect               // begun last
	live    []sessions.ID
	claims  []claimKey // that hold or wait
	sent    []*wire.Entry
}

type askedFor struct {
	session uint64
	name    string // the first
}

func newCrowd(rnd *rand.Rand) *crowd {
	return &crowd{rnd: rnd, asked: map[[3]uint64]askedFor{}, limits: map[string]uint64{}, ticks: map[string]int64{}}
}

// crowdNames are seven names, four of which are on one page of the table.
var crowdNames = func() []string {
	names := []string{"name"}
	for i := 0; len(names) < 4; i++ {
		if name := fmt.Sprint("name ", i); pageOf(hashOf(name)) == pageOf(hashOf(names[0])) {
			names = append(names, name)
		}
	}
	return append(names, "a", "b", "c")
}()

// countedNames are those that are mostly used as counted locks.
var countedNames = []string{crowdNames[2], "b"}

// watch lets the crowd see what comes of what it says, so that it can refer to it.
func (c *crowd) watch(effects []effect) {
	for _, e := range effects {
		e.name = strings.Clone(e.name)
		k := claimKey{e.session, e.hold}
		switch e.kind {
		case opened:
			c.live = append(c.live, e.session)
		case ended:
			c.live = slices.DeleteFunc(c.live, func(id sessions.ID) bool { return id == e.session })
			c.claims = slices.DeleteFunc(c.claims, func(k claimKey) bool { return k.session == e.session })
		case queued:
			c.claims = append(c.claims, k)
		case granted:
			c.grants = append(c.grants, e)
			c.claims = append(c.claims, k)
		case released, lost, left, refused:
			c.claims = slices.DeleteFunc(c.claims, func(x claimKey) bool { return x == k })
		case timed:
			c.times = append(c.times, e)
		case resized:
			c.limits[e.name] = e.n
		}
	}
	c.grants = c.grants[max(0, len(c.grants)-12):]
	c.times = c.times[max(0, len(c.times)-12):]
}

func (c *crowd) chance(oneIn int) bool { return c.rnd.IntN(oneIn) == 0 }

func (c *crowd) next() *wire.Entry {
	r := 1 + c.rnd.Uint64N(3)
	if c.epoch[r] == 0 {
		return c.send(c.boot(r))
	}
	switch k := c.rnd.IntN(100); {
	case k < 12: // once more, from any time ago, but mostly from just now
		i := min(c.rnd.IntN(len(c.sent)), c.rnd.IntN(len(c.sent)))
		if c.rnd.IntN(3) > 0 {
			i = c.rnd.IntN(min(10, len(c.sent)))
		}
		return c.sent[len(c.sent)-1-i]
	case k < 13 && c.chance(3):
		return c.send(c.boot(r))
	case k < 16:
		c.renewal[r]++
		return c.send(&wire.Entry{Replica: r, Epoch: c.epoch[r], Renewal: c.renewal[r]})
	case k < 18:
		return c.send(c.expiry(r))
	case k < 32:
		return c.send(c.dues(r))
	case k < 34: // the next but one: a gap
		e := c.speech(r)
		e.Batch = c.batch[r] + 2
		return e
	}
	c.batch[r]++
	return c.send(c.speech(r))
}

func (c *crowd) send(e *wire.Entry) *wire.Entry {
	e.At = c.rnd.Int64()
	c.sent = append(c.sent, e)
	return e
}

func (c *crowd) boot(r uint64) *wire.Entry {
	c.epoch[r] += 1 + c.rnd.Uint64N(2)
	c.batch[r], c.renewal[r], c.hold[r] = 0, c.rnd.Uint64N(2), 0
	return &wire.Entry{Replica: r, Epoch: c.epoch[r], Renewal: c.renewal[r], Commands: []wire.Command{{Op: wire.Boot}}}
}

func (c *crowd) expiry(speaker uint64) *wire.Entry {
	e := &wire.Entry{Replica: speaker, Epoch: c.epoch[speaker]}
	for range 1 + c.rnd.IntN(2) {
		r := 1 + c.rnd.Uint64N(3)
		renewal := c.renewal[r]
		if renewal > 0 && c.chance(2) {
			renewal--
		}
		e.Commands = append(e.Commands, wire.Command{Op: wire.Expire, Replica: r, Epoch: c.epoch[r], Renewal: renewal, TTL: 1000 * c.rnd.Uint64N(4)})
	}
	return e
}

// dues says that times are over: some that run, some that did, some that never do.
func (c *crowd) dues(r uint64) *wire.Entry {
	e := &wire.Entry{Replica: r, Epoch: c.epoch[r]}
	for range 1 + c.rnd.IntN(3) {
		m := &wire.More{What: uint8(c.rnd.IntN(5))}
		d := wire.Command{Op: wire.Due, Hold: c.rnd.Uint64N(20), More: m}
		if len(c.times) > 0 && !c.chance(8) {
			seen := c.times[c.rnd.IntN(len(c.times))]
			d.Hold, m.Who, m.What = seen.hold, seen.session, uint8(seen.what)
			switch c.rnd.IntN(12) {
			case 0:
				m.What = uint8(c.rnd.IntN(5))
			case 1:
				d.Hold++
			case 2:
				m.Who.Seq++
			}
		}
		e.Commands = append(e.Commands, d)
	}
	return e
}

func (c *crowd) speech(r uint64) *wire.Entry {
	e := &wire.Entry{Replica: r, Epoch: c.epoch[r], Batch: c.batch[r]}
	if c.chance(3) {
		c.renewal[r]++
		e.Renewal = c.renewal[r]
	}
	for range c.rnd.IntN(5) {
		e.Commands = append(e.Commands, c.command(r))
	}
	return e
}

func (c *crowd) command(r uint64) wire.Command {
	session := 1 + c.rnd.Uint64N(3)
	lives := slices.Contains(c.live, sessions.ID{Replica: r, Epoch: c.epoch[r], Seq: session})
	switch k := c.rnd.IntN(100); {
	case !lives && k < 70, k < 1:
		return wire.Command{Op: wire.Open, Session: session, TTL: 1000 * (1 + c.rnd.Uint64N(3)), Owner: fmt.Sprint("owner ", c.rnd.IntN(3))}
	case k < 3:
		return wire.Command{Op: wire.Close, Session: session}
	case k < 22:
		return c.own(r, wire.Release)
	case k < 27:
		return c.own(r, wire.Cancel)
	case k < 36:
		return c.own(r, wire.Start)
	case k < 40:
		return c.own(r, wire.Downgrade)
	case k < 45:
		return c.own(r, wire.Publish)
	case k < 51:
		return c.own(r, wire.HandOver)
	case k < 58:
		return c.puttingRight(r)
	case k < 63:
		return c.tick()
	}
	return c.acquire(r, session)
}

// own makes a command about an acquisition of r, mostly by the session that has it.
func (c *crowd) own(r uint64, op wire.Op) wire.Command {
	hold := 1 + c.hold[r] - min(c.hold[r], c.rnd.Uint64N(14))
	var claims []claimKey
	for _, k := range c.claims {
		if k.session.Replica == r && k.session.Epoch == c.epoch[r] {
			claims = append(claims, k)
		}
	}
	if len(claims) > 0 && !c.chance(4) {
		// The oldest are those that hold.
		hold = claims[min(c.rnd.IntN(len(claims)), c.rnd.IntN(len(claims)))].hold
	}
	asked := c.asked[[3]uint64{r, c.epoch[r], hold}]
	d := wire.Command{Op: op, Session: asked.session, Hold: hold, Lock: hashOf(asked.name)}
	if c.chance(10) {
		d.Session = 1 + c.rnd.Uint64N(3)
	}
	if c.chance(20) {
		d.Lock = hashOf(c.name())
	}
	switch op {
	case wire.Downgrade:
		d.More = &wire.More{Call: c.rnd.Uint64N(100)}
	case wire.Publish:
		d.More = &wire.More{Call: c.rnd.Uint64N(100), Value: c.value(2)}
	case wire.HandOver:
		d.More = &wire.More{Call: c.rnd.Uint64N(100), Who: c.heir(asked.name)}
	}
	return d
}

// value makes a value, or none one time in so many.
func (c *crowd) value(none int) string {
	if c.chance(none) {
		return ""
	}
	return fmt.Sprint("value ", c.rnd.IntN(3))
}

// heir chooses a session: mostly one that has or wants the name.
func (c *crowd) heir(name string) sessions.ID {
	var want []sessions.ID
	for _, k := range c.claims {
		if c.asked[[3]uint64{k.session.Replica, k.session.Epoch, k.hold}].name == name {
			want = append(want, k.session)
		}
	}
	if len(want) > 0 && !c.chance(5) {
		return want[c.rnd.IntN(len(want))]
	}
	r := 1 + c.rnd.Uint64N(3)
	return sessions.ID{Replica: r, Epoch: c.epoch[r], Seq: 1 + c.rnd.Uint64N(4)}
}

// tick makes a claim of a tick: mostly of the next one or of the one that was claimed
// last, and by few calls, so that one comes twice. Now and then a job is forgotten.
func (c *crowd) tick() wire.Command {
	job := []string{"job", "a"}[c.rnd.IntN(2)] // one has the name of a lock
	d := wire.Command{Op: wire.Claim, Name: job, More: &wire.More{Call: c.rnd.Uint64N(3)}}
	if c.chance(10) {
		d.Op = wire.Forget
		return d
	}
	if c.chance(3) {
		c.ticks[job]++
	}
	d.More.Tick = c.ticks[job] - int64(c.rnd.IntN(2))
	if c.chance(30) {
		d.More.Tick = c.rnd.Int64N(9) - 4
	}
	return d
}

func (c *crowd) name() string { return crowdNames[c.rnd.IntN(len(crowdNames))] }

// puttingRight makes a command about locks and sessions of anybody's.
func (c *crowd) puttingRight(r uint64) wire.Command {
	m := &wire.More{Call: c.rnd.Uint64N(100), By: fmt.Sprint("ops ", c.rnd.IntN(3)), Reason: "because"}
	d := wire.Command{Name: c.name(), More: m}
	switch k := c.rnd.IntN(10); {
	case k < 3:
		d.Op, m.By, m.Reason = wire.Resize, "", ""
		if !c.chance(5) {
			d.Name = countedNames[c.rnd.IntN(len(countedNames))]
		}
		m.Of = c.rnd.Uint64N(6)
		if c.chance(20) {
			m.Of = wire.MaxPermits + c.rnd.Uint64N(2)
		}
	case k < 7:
		d.Op, m.Token = wire.Revoke, fencing.Token(c.rnd.Uint64N(10))
		if len(c.grants) > 0 && !c.chance(8) {
			seen := c.grants[c.rnd.IntN(len(c.grants))]
			d.Name, m.Token = seen.name, seen.token
			if c.chance(6) {
				m.Token++
			}
		}
	case k < 8:
		s := 1 + c.rnd.Uint64N(3)
		d = wire.Command{Op: wire.Evict, More: m}
		m.Who = sessions.ID{Replica: s, Epoch: c.epoch[s], Seq: 1 + c.rnd.Uint64N(4)}
	default:
		d.Op = wire.Ask
	}
	return d
}

// acquire makes an acquire, or a take in any mode.
func (c *crowd) acquire(r, session uint64) wire.Command {
	hold := 1 + c.hold[r] - min(c.hold[r], c.rnd.Uint64N(12))
	if !c.chance(20) {
		c.hold[r]++
		hold = c.hold[r]
	}
	a := wire.Command{Op: wire.Acquire, Session: session, Hold: hold, Name: c.name(),
		Mode: 1, Wait: c.rnd.IntN(4) > 0, Limit: c.rnd.Uint64N(12)}
	if c.chance(50) {
		a.Mode = uint8(c.rnd.IntN(5))
	}
	first := a.Name
	if !c.chance(4) {
		c.take(&a)
		first = a.More.Names[0]
	}
	c.asked[[3]uint64{r, c.epoch[r], hold}] = askedFor{session, first}
	return a
}

// take makes a take of an acquire.
func (c *crowd) take(a *wire.Command) {
	m := &wire.More{Names: []string{a.Name}, MaxWaits: c.rnd.Uint64N(20)}
	if c.chance(4) {
		m.Value = c.value(9)
	}
	counted := slices.Contains(countedNames, a.Name) != c.chance(30)
	switch k := c.rnd.IntN(10); {
	case counted:
		a.Mode = uint8(queue.Counted)
		m.Of = c.limits[a.Name]
		if m.Of == 0 || c.chance(12) {
			m.Of = 1 + c.rnd.Uint64N(4)
			c.limits[a.Name] = m.Of
		}
		m.Permits = 1 + c.rnd.Uint64N(m.Of)
	case k < 4:
		a.Mode = uint8(queue.Shared)
	case k < 7:
		for range 1 + c.rnd.IntN(3) {
			if name := c.name(); !slices.Contains(countedNames, name) || c.chance(20) {
				m.Names = append(m.Names, name)
			}
		}
		slices.Sort(m.Names)
		m.Names = slices.Compact(m.Names)
	}
	if c.chance(40) {
		a.Mode = uint8(c.rnd.IntN(5))
	}
	if c.chance(40) {
		m.Permits, m.Of = c.rnd.Uint64N(4), c.rnd.Uint64N(4)
	}
	term := func(oneIn int) uint64 {
		switch {
		case !c.chance(oneIn):
			return 0
		case c.chance(30):
			return math.MaxUint64
		}
		return 1000 * (1 + c.rnd.Uint64N(3))
	}
	m.MaxHold, m.MinHold, m.Delay = term(2), term(4), term(4)
	a.Op, a.Name, a.More = wire.Take, "", m
}

// A slowSnapshot is one that is written while the log goes on.
type slowSnapshot struct {
	capture *capture
	page    int
	got     bytes.Buffer
	w       *wire.SnapshotWriter
	want    []byte
}

// newSlowSnapshot marks f's state; want is its snapshot at this moment.
func newSlowSnapshot(f *lockFSM, want []byte) *slowSnapshot {
	s := &slowSnapshot{want: want}
	s.w = wire.NewSnapshotWriter(&s.got, f.level)
	head, c := f.mark()
	s.capture = c
	_, _ = s.w.Write(head)
	return s
}

// write takes n more pages and reports whether these were the last.
func (s *slowSnapshot) write(t *testing.T, n int) bool {
	for ; n > 0 && s.page < pages; n-- {
		_, _ = s.w.Write(s.capture.take(nil, s.page))
		s.page++
	}
	if s.page < pages {
		return false
	}
	_ = s.w.Close()
	s.capture.drop()
	require.True(t, bytes.Equal(s.want, s.got.Bytes()), "what was written is not the state at the mark")
	return true
}

func effectTexts(effects []effect) []string {
	var texts []string
	for _, e := range effects {
		texts = append(texts, e.String())
	}
	return texts
}

// TestRulesAgainstNaive lets a crowd loose on the state machine, the naive one, and
// a replica that is replaced by a restored one now and then, while snapshots are
// written, somebody watches one of them or the other, and a witness looks on.
func TestRulesAgainstNaive(t *testing.T) {
	steps := 8_000
	if testing.Short() {
		steps = 4_000
	}
	rnd := fsmDice(t, 0)
	c := newCrowd(rnd)
	w := newWitness(t)
	naive := &naiveFSM{limits: map[string]uint64{}}
	f, replica := newLockFSM(), newLockFSM()
	var snap []*slowSnapshot
	kinds, causes := map[effectKind]int{}, map[cause]int{}
	snaps := 0
	for step := range steps {
		e := c.next()
		cmd := wire.AppendEntry(nil, e)
		if rnd.IntN(100) == 0 {
			require.Empty(t, f.apply(cmd[:rnd.IntN(len(cmd))]), "cut short: no effect")
		}
		f.watched, replica.watched = rnd.IntN(2) == 0, rnd.IntN(2) == 0
		naive.apply(e)
		log := slices.Clone(cmd)
		effects := f.apply(log)
		require.Equal(t, naive.saidTo(f.watched), effectTexts(effects), "step %d: %+v", step, e)
		others := replica.apply(cmd)
		require.Equal(t, naive.saidTo(replica.watched), effectTexts(others), "step %d: %+v", step, e)
		if f.watched == replica.watched {
			require.True(t, slices.Equal(effects, others), "step %d: two replicas, two effects", step)
		}
		plain := slices.Clone(effects)
		for i := len(plain) - 1; i >= 0; i-- {
			plain[i].name = strings.Clone(plain[i].name) // the witness remembers it
			if f.watched && naive.forEyes[i] {
				plain = slices.Delete(plain, i, i+1)
			}
		}
		w.entry(e, plain, f)
		for _, x := range effects {
			kinds[x.kind]++
			causes[x.cause]++
		}
		c.watch(effects)
		clear(log) // the state holds on to nothing of it
		require.Equal(t, naive.describe(), describeLikeNaive(f), "step %d: %+v", step, e)
		checkFSM(t, f)

		snap = slices.DeleteFunc(snap, func(s *slowSnapshot) bool {
			done := rnd.IntN(2) == 0 && s.write(t, rnd.IntN(1600))
			if done {
				snaps++
			}
			return done
		})
		switch {
		case len(snap) < 3 && rnd.IntN(20) == 0: // of the engine and of backups, side by side
			snap = append(snap, newSlowSnapshot(f, replica.bytes()))
		case rnd.IntN(20) == 0:
			b := f.bytes()
			require.True(t, bytes.Equal(b, replica.bytes()), "step %d: equal logs, other bytes", step)
			restored, err := restoreFSM(bytes.NewReader(b), nil)
			require.NoError(t, err)
			require.True(t, bytes.Equal(b, restored.bytes()), "step %d: restored, and other bytes", step)
			require.Equal(t, timesOf(f), timesOf(restored), "step %d: restored, and other times run", step)
			require.Equal(t, naive.describe(), describeLikeNaive(restored), "step %d: restored, and another state", step)
			checkFSM(t, restored)
			replica = restored
		}
	}
	for k := renewed; k < restored; k++ { // of those from there on see the scripts
		require.Positive(t, kinds[k], "the crowd never made %v happen", k)
	}
	for k := causeHeld; k <= causeNoWaiter; k++ {
		if k != causeJobs { // see TestManyJobs
			require.Positive(t, causes[k], "the crowd never made anything happen because of: %v", k)
		}
	}
	require.Positive(t, snaps)
}

// Snapshot and restore at every single point of a log, each followed by the rest of
// it, end in the same bytes.
func TestRestoreAtEveryPoint(t *testing.T) {
	entries := 300
	if testing.Short() {
		entries = 60
	}
	c := newCrowd(fsmDice(t, 1))
	f := newLockFSM()
	var log, snapshots [][]byte
	var said [][]string
	for range entries {
		snapshots = append(snapshots, f.bytes())
		cmd := wire.AppendEntry(nil, c.next())
		log = append(log, cmd)
		effects := f.apply(cmd)
		said = append(said, effectTexts(effects))
		c.watch(effects)
	}
	end := f.bytes()
	for i, b := range snapshots {
		r, err := restoreFSM(bytes.NewReader(b), nil)
		require.NoError(t, err)
		require.True(t, bytes.Equal(b, r.bytes()), "restored before entry %d", i)
		for k, cmd := range log[i:] {
			if got := effectTexts(r.apply(cmd)); !slices.Equal(said[i+k], got) {
				require.Equal(t, said[i+k], got, "restored before entry %d: entry %d", i, i+k)
			}
		}
		require.True(t, bytes.Equal(end, r.bytes()), "restored before entry %d and played to the end", i)
		require.Equal(t, timesOf(f), timesOf(r))
	}
}

// Whatever bytes stand in the log, no replica panics, and all do the same.
func FuzzApply(f *testing.F) {
	for seed := range uint64(6) {
		c, m := newCrowd(rand.New(rand.NewPCG(seed, 0))), newLockFSM()
		var log []byte
		for range 12 + 8*seed {
			cmd := wire.AppendEntry(nil, c.next())
			c.watch(m.apply(cmd))
			log = append(append(log, byte(len(cmd)>>8), byte(len(cmd))), cmd...)
		}
		f.Add(log)
	}
	f.Fuzz(func(t *testing.T, log []byte) {
		a, b := newLockFSM(), newLockFSM()
		b.watched = true
		for len(log) > 1 {
			n := min(int(log[0])<<8|int(log[1]), len(log)-2)
			cmd := log[2 : 2+n]
			log = log[2+n:]
			effects := effectTexts(a.apply(cmd))
			require.Subset(t, effectTexts(b.apply(cmd)), effects)
		}
		checkFSM(t, a)
		snapshot := a.bytes()
		r, err := restoreFSM(bytes.NewReader(snapshot), nil)
		require.NoError(t, err)
		checkFSM(t, r)
		require.Equal(t, timesOf(a), timesOf(r))
		require.True(t, bytes.Equal(snapshot, r.bytes()))
		require.True(t, bytes.Equal(snapshot, b.bytes()))
	})
}
