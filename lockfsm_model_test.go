package quorumlock

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/sessions"
)

// fsmDice returns a source that a failed test can be repeated with.
func fsmDice(t *testing.T, stream uint64) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("QUORUMLOCK_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("QUORUMLOCK_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, stream))
}

// naiveFSM is the rules once more, for reading and not for speed: lists that are
// searched from the front.
type naiveFSM struct {
	token    uint64
	lives    []*naiveLife
	sessions []naiveSession
	claims   []*naiveClaim // in the order in which they came
	said     []string      // effects of the present entry
}

type naiveLife struct{ replica, epoch, renewal, batch, claimed uint64 }

type naiveSession struct {
	id  sessions.ID
	ttl uint64
}

type naiveClaim struct {
	session sessions.ID
	hold    uint64
	name    string
	token   uint64 // 0 while it waits
}

func (n *naiveFSM) say(format string, args ...any) {
	n.said = append(n.said, fmt.Sprintf(format, args...))
}

func (n *naiveFSM) life(replica uint64) *naiveLife {
	for _, l := range n.lives {
		if l.replica == replica {
			return l
		}
	}
	return nil
}

func (n *naiveFSM) alive(id sessions.ID) bool {
	return slices.ContainsFunc(n.sessions, func(s naiveSession) bool { return s.id == id })
}

func (n *naiveFSM) apply(e *wire.Entry) []string {
	n.said = nil
	l := n.life(e.Replica)
	known := l != nil && l.epoch == e.Epoch
	if e.Batch == 0 {
		for _, c := range e.Commands {
			switch c.Op {
			case wire.Boot:
				n.boot(e.Replica, e.Epoch)
			case wire.Expire:
				judged := n.life(c.Replica)
				if judged != nil && judged.epoch == c.Epoch && judged.renewal == c.Renewal {
					n.end("expired", func(s naiveSession) bool {
						return s.id.Replica == c.Replica && s.id.Epoch == c.Epoch && s.ttl <= c.TTL
					})
				}
			}
		}
		l = n.life(e.Replica)
		known = l != nil && l.epoch == e.Epoch
	}
	if known && e.Renewal > l.renewal {
		l.renewal = e.Renewal
		n.say("renewed %d.%d #%d", e.Replica, e.Epoch, e.Renewal)
	}
	if e.Batch == 0 {
		return n.said
	}
	switch number := fmt.Sprintf("batch %d.%d #%d", e.Replica, e.Epoch, e.Batch); {
	case !known:
		n.say("%s: stranger", number)
	case e.Batch <= l.batch:
		n.say("%s: duplicate", number)
	case e.Batch > l.batch+1:
		n.say("%s: gap", number)
	default:
		n.say("%s", number)
		l.batch++
		for _, c := range e.Commands {
			n.command(sessions.ID{Replica: e.Replica, Epoch: e.Epoch, Seq: c.Session}, c)
		}
	}
	return n.said
}

func (n *naiveFSM) boot(replica, epoch uint64) {
	l := n.life(replica)
	switch {
	case l == nil:
		n.lives = append(n.lives, &naiveLife{replica: replica, epoch: epoch})
	case epoch < l.epoch:
		n.say("booted %d.%d: stranger", replica, epoch)
		return
	case epoch > l.epoch:
		n.end("restarted", func(s naiveSession) bool { return s.id.Replica == replica })
		*l = naiveLife{replica: replica, epoch: epoch}
	}
	n.say("booted %d.%d", replica, epoch)
}

func (n *naiveFSM) command(id sessions.ID, c wire.Command) {
	switch c.Op {
	case wire.Open:
		n.sessions = slices.DeleteFunc(n.sessions, func(s naiveSession) bool { return s.id == id })
		n.sessions = append(n.sessions, naiveSession{id, c.TTL})
		n.say("opened %v", id)
	case wire.Close:
		if !n.alive(id) {
			n.say("ended %v: no session", id)
			return
		}
		n.end("closed", func(s naiveSession) bool { return s.id == id })
	case wire.Acquire:
		n.acquire(id, c)
	case wire.Release, wire.Cancel:
		i := slices.IndexFunc(n.claims, func(x *naiveClaim) bool { return x.session == id && x.hold == c.Hold && hashOf(x.name) == c.Lock })
		if i < 0 {
			n.say("gone %v/%d", id, c.Hold)
			return
		}
		x := n.claims[i]
		if x.token > 0 {
			n.say("released %q by %v/%d token %d", x.name, id, c.Hold, x.token)
		} else {
			n.say("left %q by %v/%d", x.name, id, c.Hold)
		}
		n.claims = slices.Delete(n.claims, i, i+1)
		n.settle(x.name)
	}
}

func (n *naiveFSM) acquire(id sessions.ID, c wire.Command) {
	held, waiting, repeated := false, uint64(0), false
	if n.alive(id) {
		l := n.life(id.Replica)
		repeated = c.Hold <= l.claimed
		l.claimed = max(l.claimed, c.Hold)
	}
	for _, x := range n.claims {
		if x.name == c.Name {
			held = true
			if x.token == 0 {
				waiting++
			}
		}
	}
	refuse := func(why string) { n.say("refused %q to %v/%d: %s", c.Name, id, c.Hold, why) }
	switch {
	case !n.alive(id):
		refuse("no session")
	case repeated:
		refuse("repeated")
	case c.Mode != 1:
		refuse("mode")
	case held && !c.Wait:
		refuse("held")
	case held && waiting >= c.Limit:
		refuse("queue full")
	case held:
		n.claims = append(n.claims, &naiveClaim{session: id, hold: c.Hold, name: c.Name})
		n.say("queued %q to %v/%d", c.Name, id, c.Hold)
	default:
		n.claims = append(n.claims, &naiveClaim{session: id, hold: c.Hold, name: c.Name})
		n.settle(c.Name)
	}
}

// settle grants a name to whoever came first, if nobody holds it.
func (n *naiveFSM) settle(name string) {
	for _, x := range n.claims {
		if x.name == name {
			if x.token == 0 {
				n.token++
				x.token = n.token
				n.say("granted %q to %v/%d token %d", name, x.session, x.hold, x.token)
			}
			return
		}
	}
}

func (n *naiveFSM) end(why string, which func(naiveSession) bool) {
	var over []sessions.ID
	for _, s := range n.sessions {
		if which(s) {
			over = append(over, s.id)
		}
	}
	slices.SortFunc(over, sessions.ID.Compare)
	n.sessions = slices.DeleteFunc(n.sessions, which)
	var names []string
	for _, id := range over {
		var own []*naiveClaim
		for _, x := range n.claims {
			if x.session == id {
				own = append(own, x)
			}
		}
		slices.SortFunc(own, func(a, b *naiveClaim) int { return int(a.hold) - int(b.hold) })
		for _, x := range own {
			names = append(names, x.name)
		}
		n.claims = slices.DeleteFunc(n.claims, func(x *naiveClaim) bool { return x.session == id })
		n.say("ended %v: %s", id, why)
	}
	for _, name := range names {
		n.settle(name)
	}
}

// describe tells what both have: the same text for the same state.
func (n *naiveFSM) describe() string {
	var b strings.Builder
	fmt.Fprintf(&b, "token %d\n", n.token)
	for _, l := range slices.SortedFunc(slices.Values(n.lives), func(a, b *naiveLife) int { return int(a.replica) - int(b.replica) }) {
		fmt.Fprintf(&b, "%d.%d %d %d\n", l.replica, l.epoch, l.renewal, l.batch)
	}
	for _, s := range slices.SortedFunc(slices.Values(n.sessions), func(a, b naiveSession) int { return a.id.Compare(b.id) }) {
		fmt.Fprintf(&b, "%v %d\n", s.id, s.ttl)
	}
	names := map[string]bool{}
	for _, x := range n.claims {
		names[x.name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		fmt.Fprintf(&b, "%q:", name)
		for _, x := range n.claims {
			if x.name == name {
				fmt.Fprintf(&b, " %v/%d=%d", x.session, x.hold, x.token)
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func describeLikeNaive(f *lockFSM) string {
	var b strings.Builder
	fmt.Fprintf(&b, "token %d\n", f.token)
	var alive []string
	for p := range f.roll.Processes() {
		fmt.Fprintf(&b, "%d.%d %d %d\n", p.Replica, p.Epoch, p.Renewal, p.Batch)
		for s := range p.Sessions() {
			alive = append(alive, fmt.Sprintf("%v %d\n", s.ID, s.TTL/time.Millisecond))
		}
	}
	b.WriteString(strings.Join(alive, ""))
	lines := map[string]string{}
	for i := range pages {
		for _, name := range f.table.lineNames(i) {
			l := f.table.line(name)
			text := fmt.Sprintf("%q:", name)
			for c := range l.Holders() {
				text += fmt.Sprintf(" %v/%d=%d", c.Session, c.Seq, c.Token)
			}
			for c := range l.Waiters() {
				text += fmt.Sprintf(" %v/%d=%d", c.Session, c.Seq, c.Token)
			}
			lines[name] = text + "\n"
		}
	}
	for _, name := range slices.Sorted(maps.Keys(lines)) {
		b.WriteString(lines[name])
	}
	return b.String()
}

// A crowd makes up what processes say: mostly what they would, and often enough
// what comes late, twice, too early, or from a life that is over.
type crowd struct {
	rnd     *rand.Rand
	epoch   [4]uint64 // by replica, from 1
	batch   [4]uint64
	renewal [4]uint64
	hold    [4]uint64
	asked   map[[3]uint64]string // what each acquisition asked for: replica, epoch, number
	sent    []*wire.Entry
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

func (c *crowd) next() *wire.Entry {
	r := 1 + c.rnd.Uint64N(3)
	if c.epoch[r] == 0 {
		return c.send(c.boot(r))
	}
	switch k := c.rnd.IntN(100); {
	case k < 15: // once more, from any time ago, but mostly from just now
		i := min(c.rnd.IntN(len(c.sent)), c.rnd.IntN(len(c.sent)))
		if c.rnd.IntN(3) > 0 {
			i = c.rnd.IntN(min(10, len(c.sent)))
		}
		return c.sent[len(c.sent)-1-i]
	case k < 17:
		return c.send(c.boot(r))
	case k < 22:
		c.renewal[r]++
		return c.send(&wire.Entry{Replica: r, Epoch: c.epoch[r], Renewal: c.renewal[r]})
	case k < 27:
		return c.send(c.expiry(r))
	case k < 30: // the next but one: a gap
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
		if renewal > 0 && c.rnd.IntN(3) == 0 {
			renewal--
		}
		e.Commands = append(e.Commands, wire.Command{Op: wire.Expire, Replica: r, Epoch: c.epoch[r], Renewal: renewal, TTL: 1000 * c.rnd.Uint64N(4)})
	}
	return e
}

func (c *crowd) speech(r uint64) *wire.Entry {
	e := &wire.Entry{Replica: r, Epoch: c.epoch[r], Batch: c.batch[r]}
	if c.rnd.IntN(3) == 0 {
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
	recent := 1 + c.hold[r] - min(c.hold[r], c.rnd.Uint64N(12))
	switch k := c.rnd.IntN(100); {
	case k < 12:
		return wire.Command{Op: wire.Open, Session: session, TTL: 1000 * (1 + c.rnd.Uint64N(3)), Owner: fmt.Sprint("owner ", c.rnd.IntN(3))}
	case k < 15:
		return wire.Command{Op: wire.Close, Session: session}
	case k < 40:
		return wire.Command{Op: wire.Release, Session: session, Hold: recent, Lock: c.lockOf(r, recent)}
	case k < 50:
		return wire.Command{Op: wire.Cancel, Session: session, Hold: recent, Lock: c.lockOf(r, recent)}
	}
	hold := recent
	if c.rnd.IntN(20) > 0 {
		c.hold[r]++
		hold = c.hold[r]
	}
	a := wire.Command{Op: wire.Acquire, Session: session, Hold: hold, Name: crowdNames[c.rnd.IntN(len(crowdNames))],
		Mode: 1, Wait: c.rnd.IntN(4) > 0, Limit: c.rnd.Uint64N(8)}
	if c.rnd.IntN(50) == 0 {
		a.Mode = 2
	}
	if c.asked == nil {
		c.asked = make(map[[3]uint64]string)
	}
	c.asked[[3]uint64{r, c.epoch[r], hold}] = a.Name
	return a
}

// lockOf is where an acquisition is to be found, now and then a wrong place.
func (c *crowd) lockOf(r, hold uint64) uint32 {
	if c.rnd.IntN(20) == 0 {
		return hashOf(crowdNames[0])
	}
	return hashOf(c.asked[[3]uint64{r, c.epoch[r], hold}])
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
	s.w = wire.NewSnapshotWriter(&s.got)
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
// written.
func TestRulesAgainstNaive(t *testing.T) {
	steps := 12_000
	if testing.Short() {
		steps = 4_000
	}
	rnd := fsmDice(t, 0)
	c := crowd{rnd: rnd}
	naive := new(naiveFSM)
	f, replica := newLockFSM(), newLockFSM()
	var snap *slowSnapshot
	var lastToken fencing.Token
	kinds := map[effectKind]int{}
	snaps := 0
	for step := range steps {
		e := c.next()
		cmd := wire.AppendEntry(nil, e)
		if rnd.IntN(100) == 0 {
			require.Empty(t, f.apply(cmd[:rnd.IntN(len(cmd))]), "cut short: no effect")
		}
		want := naive.apply(e)
		effects := f.apply(cmd)
		require.Equal(t, want, effectTexts(effects), "step %d: %+v", step, e)
		require.True(t, slices.Equal(effects, replica.apply(cmd)), "step %d: two replicas, two effects", step)
		for _, x := range effects {
			kinds[x.kind]++
			if x.kind == granted {
				require.Greater(t, x.token, lastToken)
				lastToken = x.token
			}
		}
		require.Equal(t, naive.describe(), describeLikeNaive(f), "step %d: %+v", step, e)
		checkFSM(t, f)

		switch {
		case snap != nil:
			if snap.write(t, rnd.IntN(800)) {
				snap = nil
				snaps++
			}
		case rnd.IntN(20) == 0:
			snap = newSlowSnapshot(f, replica.bytes())
		case rnd.IntN(20) == 0:
			b := f.bytes()
			require.True(t, bytes.Equal(b, replica.bytes()), "step %d: equal logs, other bytes", step)
			restored, err := restoreFSM(bytes.NewReader(b), nil)
			require.NoError(t, err)
			require.True(t, bytes.Equal(b, restored.bytes()), "step %d: restored, and other bytes", step)
			checkFSM(t, restored)
			replica = restored
		}
	}
	for k := renewed; k < halted; k++ {
		require.Positive(t, kinds[k], "the crowd never made %v happen", k)
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
	c := crowd{rnd: fsmDice(t, 1)}
	f := newLockFSM()
	var log, snapshots [][]byte
	for range entries {
		snapshots = append(snapshots, f.bytes())
		cmd := wire.AppendEntry(nil, c.next())
		log = append(log, cmd)
		f.apply(cmd)
	}
	end := f.bytes()
	for i, b := range snapshots {
		r, err := restoreFSM(bytes.NewReader(b), nil)
		require.NoError(t, err)
		require.True(t, bytes.Equal(b, r.bytes()), "restored before entry %d", i)
		for _, cmd := range log[i:] {
			r.apply(cmd)
		}
		require.True(t, bytes.Equal(end, r.bytes()), "restored before entry %d and played to the end", i)
	}
}

// Whatever bytes stand in the log, no replica panics, and all do the same.
func FuzzApply(f *testing.F) {
	for _, seed := range []uint64{1, 2} {
		c := crowd{rnd: rand.New(rand.NewPCG(seed, 0))}
		var log []byte
		for range 12 {
			cmd := wire.AppendEntry(nil, c.next())
			log = append(append(log, byte(len(cmd))), cmd...)
		}
		f.Add(log)
	}
	f.Fuzz(func(t *testing.T, log []byte) {
		a, b := newLockFSM(), newLockFSM()
		for len(log) > 0 {
			n := min(int(log[0]), len(log)-1)
			cmd := log[1 : 1+n]
			log = log[1+n:]
			require.True(t, slices.Equal(a.apply(cmd), b.apply(cmd)))
		}
		checkFSM(t, a)
		snapshot := a.bytes()
		r, err := restoreFSM(bytes.NewReader(snapshot), nil)
		require.NoError(t, err)
		require.True(t, bytes.Equal(snapshot, r.bytes()))
		require.True(t, bytes.Equal(snapshot, b.bytes()))
	})
}
