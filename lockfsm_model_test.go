package quorumlock

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/queue"
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
// searched from the front. It keeps no lines, no slots and no running times: what
// those are, it finds out from the claims whenever it needs to know.
type naiveFSM struct {
	token    uint64
	lives    []*naiveLife
	sessions []naiveSession
	claims   []*naiveClaim // in the order in which they came
	bars     []naiveBar    // in the order in which they came
	ticks    []naiveTick   // all that were claimed, in that order, of jobs that are not forgotten
	limits   map[string]uint64
	said     []string // effects of the present entry
	forEyes  []bool   // which of them only those are told who watch
}

type naiveLife struct{ replica, epoch, renewal, batch, claimed uint64 }

type naiveSession struct {
	id  sessions.ID
	ttl uint64
}

// A naiveClaim is one acquisition of any number of names.
type naiveClaim struct {
	session sessions.ID
	hold    uint64
	names   []string
	tokens  []uint64 // for each name; none while it waits
	mode    uint8
	permits uint64
	slots   []uint64
	value   string

	maxHold, minHold, delay   uint64 // milliseconds
	started, matured, leaving bool
}

type naiveTick struct {
	job                  string
	tick                 int64
	replica, epoch, call uint64
}

type naiveBar struct {
	name   string
	id, ms uint64
}

func (x *naiveClaim) holds() bool   { return len(x.tokens) > 0 }
func (x *naiveClaim) tooSoon() bool { return x.holds() && x.minHold > 0 && !x.matured }

// maxRuns and minRuns tell whether these times run.
func (x *naiveClaim) maxRuns() bool { return x.started && !x.leaving }
func (x *naiveClaim) minRuns() bool { return x.tooSoon() }

func (n *naiveFSM) say(format string, args ...any) {
	n.said = append(n.said, fmt.Sprintf(format, args...))
	n.forEyes = append(n.forEyes, false)
}

// saidTo is what somebody is told who watches, or does not.
func (n *naiveFSM) saidTo(watcher bool) []string {
	var list []string
	for i, text := range n.said {
		if watcher || !n.forEyes[i] {
			list = append(list, text)
		}
	}
	return list
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

func (n *naiveFSM) apply(e *wire.Entry) {
	n.said, n.forEyes = nil, nil
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
			case wire.Due:
				n.due(c.More.Who, c.Hold, c.More.What)
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
		return
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
	var why string
	switch c.Op {
	case wire.Open:
		n.sessions = slices.DeleteFunc(n.sessions, func(s naiveSession) bool { return s.id == id })
		n.sessions = append(n.sessions, naiveSession{id, c.TTL})
		n.say("opened %v", id)
		return
	case wire.Close:
		if n.alive(id) {
			n.end("closed", func(s naiveSession) bool { return s.id == id })
		} else {
			n.say("ended %v: no session", id)
		}
		return
	case wire.Acquire:
		n.take(id, wire.Command{Hold: c.Hold, Mode: c.Mode, Wait: c.Wait, Limit: c.Limit,
			More: &wire.More{Names: []string{c.Name}, MaxWaits: math.MaxUint64}}, c.Mode != 1)
		return
	case wire.Take:
		n.take(id, c, false)
		return
	case wire.Release, wire.Cancel:
		n.giveBack(id, c)
		return
	case wire.Start:
		if x := n.own(id, c); x != nil && x.holds() && x.maxHold > 0 && !x.started {
			x.started = true
			n.say("timed max hold of %v/%d for %dms", id, x.hold, x.maxHold)
		}
		return
	case wire.Downgrade:
		why = n.downgrade(n.own(id, c))
	case wire.Resize:
		why = n.resize(c.Name, c.More.Of)
	case wire.Revoke:
		why = n.revoke(c)
	case wire.Evict:
		if why = ": gone"; n.alive(c.More.Who) {
			why = ""
			n.end(fmt.Sprintf("revoked (%s: %s)", c.More.By, c.More.Reason), func(s naiveSession) bool { return s.id == c.More.Who })
		}
	case wire.Ask:
		why = ": gone"
		for _, x := range n.on(c.Name) {
			if x.holds() {
				why = ""
				if !x.leaving {
					n.say("asked %q by %v/%d (%s: %s)", c.Name, x.session, x.hold, c.More.By, c.More.Reason)
				}
			}
		}
	case wire.Publish:
		why = ": gone"
		if x := n.own(id, c); x != nil && x.holds() {
			why, x.value = "", c.More.Value
			for i, name := range x.names {
				n.say("published %q by %v/%d token %d", name, id, x.hold, x.tokens[i])
			}
		}
	case wire.HandOver:
		why = n.handOver(n.own(id, c), c.More.Who)
	case wire.Claim:
		why = n.claimTick(naiveTick{c.Name, c.More.Tick, id.Replica, id.Epoch, c.More.Call})
	case wire.Forget:
		before := len(n.ticks)
		n.ticks = slices.DeleteFunc(n.ticks, func(x naiveTick) bool { return x.job == c.Name })
		if why = ": gone"; len(n.ticks) < before {
			why = ""
			n.say("forgotten %q", c.Name)
		}
	default:
		return
	}
	n.say("answered call %d of %d.%d%s", c.More.Call, id.Replica, id.Epoch, why)
}

// handOver ends a hold. Whoever is chosen is from now on as if it had come right
// after it.
func (n *naiveFSM) handOver(x *naiveClaim, to sessions.ID) string {
	if x == nil || !x.holds() {
		return ": gone"
	}
	why := ": mode"
	if x.mode == 1 && len(x.names) == 1 {
		why = ": no waiter"
		for i, y := range n.claims {
			if y.session == to && !y.holds() && len(y.names) == 1 && y.names[0] == x.names[0] {
				n.claims = slices.Delete(n.claims, i, i+1)
				n.claims = slices.Insert(n.claims, 1+slices.Index(n.claims, x), y)
				why = ""
				break
			}
		}
	}
	if x.tooSoon() {
		n.linger(x)
	} else {
		n.part(x, "released", "left", "")
	}
	return why
}

// claimTick looks at all that was ever claimed of the job.
func (n *naiveFSM) claimTick(asked naiveTick) string {
	var last *naiveTick
	late := false
	for i := range n.ticks {
		if x := &n.ticks[i]; x.job == asked.job {
			last = x
			late = late || x.tick >= asked.tick
		}
	}
	switch {
	case last != nil && *last == asked: // nobody has claimed a later one since
		return ""
	case late:
		return ": claimed"
	}
	n.ticks = append(n.ticks, asked)
	n.say("ticked %q tick %d by %d.%d", asked.job, asked.tick, asked.replica, asked.epoch)
	return ""
}

// on lists the claims on a name: first those who hold it, since nobody overtakes.
func (n *naiveFSM) on(name string) (list []*naiveClaim) {
	for _, x := range n.claims {
		if slices.Contains(x.names, name) {
			list = append(list, x)
		}
	}
	return list
}

// own finds the claim that a command means.
func (n *naiveFSM) own(id sessions.ID, c wire.Command) *naiveClaim {
	for _, x := range n.claims {
		if x.session == id && x.hold == c.Hold && !x.leaving && hashOf(x.names[0]) == c.Lock {
			return x
		}
	}
	return nil
}

func (n *naiveFSM) take(id sessions.ID, c wire.Command, unknown bool) {
	m := c.More
	refuse := func(name, why string) { n.say("refused %q to %v/%d: %s", name, id, c.Hold, why) }
	if !n.alive(id) {
		refuse(m.Names[0], "no session")
		return
	}
	l := n.life(id.Replica)
	repeated := c.Hold <= l.claimed
	l.claimed = max(l.claimed, c.Hold)
	counted := c.Mode == 3
	switch {
	case repeated:
		refuse(m.Names[0], "repeated")
		return
	case unknown || c.Mode < 1 || c.Mode > 3 || len(m.Names) > 1 && c.Mode != 1:
		refuse(m.Names[0], "mode")
		return
	case !counted && m.Permits+m.Of > 0, counted && (m.Permits < 1 || m.Permits > m.Of || m.Of > 65536):
		refuse(m.Names[0], "permits")
		return
	}
	ms := func(d uint64) uint64 { return min(d, 366*24*3600*1000) }
	x := &naiveClaim{session: id, hold: c.Hold, names: slices.Clone(m.Names), mode: c.Mode, permits: m.Permits, value: m.Value,
		maxHold: ms(m.MaxHold), minHold: ms(m.MinHold), delay: ms(m.Delay)}
	if name, why := n.obstacle(x, c); why != "" {
		refuse(name, why)
		return
	}
	for _, name := range x.names {
		if len(n.on(name)) == 0 {
			n.limits[name] = m.Of
		}
	}
	n.claims = append(n.claims, x)
	if n.fits(x) {
		n.grant(x)
		return
	}
	for _, name := range x.names {
		n.say("queued %q to %v/%d", name, id, c.Hold)
	}
}

// obstacle tells which name keeps x from being there at all, and why.
func (n *naiveFSM) obstacle(x *naiveClaim, c wire.Command) (name, why string) {
	inTheWay := ""
	for _, name := range x.names {
		alone := *x
		alone.names = []string{name}
		there := n.on(name)
		waiting := uint64(0)
		for _, y := range there {
			if !y.holds() {
				waiting++
			}
		}
		switch {
		case len(there) > 0 && (there[0].mode == 3) != (x.mode == 3):
			return name, "mode"
		case len(there) > 0 && n.limits[name] != c.More.Of:
			return name, "limit"
		case len(there) == 0 && !n.barred(name), len(there) > 0 && n.fits(&alone):
			continue
		case c.Wait && waiting >= c.Limit:
			return name, "queue full"
		}
		if inTheWay == "" {
			inTheWay = name
		}
	}
	waits := 0
	for _, y := range n.claims {
		if y.session == x.session && !y.holds() {
			waits += len(y.names)
		}
	}
	switch {
	case inTheWay != "" && !c.Wait:
		return inTheWay, "held"
	case inTheWay != "" && uint64(waits+len(x.names)) > c.More.MaxWaits:
		return inTheWay, "queue full"
	}
	return "", ""
}

func (n *naiveFSM) barred(name string) bool {
	return slices.ContainsFunc(n.bars, func(b naiveBar) bool { return b.name == name })
}

// fits reports whether x may be granted all its names: none is barred, nobody came
// to one of them earlier and waits, and it may be beside those who hold.
func (n *naiveFSM) fits(x *naiveClaim) bool {
	for _, name := range x.names {
		if n.barred(name) {
			return false
		}
		sum := x.permits
		for _, y := range n.on(name) {
			if y == x {
				break
			}
			if !y.holds() || y.mode != x.mode || y.mode == 1 {
				return false
			}
			sum += y.permits
		}
		if x.mode == 3 && sum > n.limits[name] {
			return false
		}
	}
	return true
}

func (n *naiveFSM) grant(x *naiveClaim) {
	for _, name := range x.names {
		token := uint64(0)
		taken := map[uint64]bool{}
		for _, y := range n.on(name) {
			if y != x && y.holds() && x.mode == 2 {
				token = y.tokens[0] // readers that overlap have one
			}
			for _, k := range y.slots {
				taken[k] = true
			}
		}
		for k := uint64(0); uint64(len(x.slots)) < x.permits; k++ {
			if !taken[k] {
				x.slots = append(x.slots, k)
			}
		}
		if token == 0 {
			n.token++
			token = n.token
		}
		x.tokens = append(x.tokens, token)
		n.say("granted %q to %v/%d token %d", name, x.session, x.hold, token)
	}
	if x.minHold > 0 {
		n.say("timed min hold of %v/%d for %dms", x.session, x.hold, x.minHold)
	}
}

// settle grants a name to whoever came first of those who wait, as long as they may
// have it.
func (n *naiveFSM) settle(name string) {
	for _, x := range n.on(name) {
		if !x.holds() {
			if !n.fits(x) {
				return
			}
			n.grant(x)
		}
	}
}

func (n *naiveFSM) giveBack(id sessions.ID, c wire.Command) {
	switch x := n.own(id, c); {
	case x == nil:
		n.say("gone %v/%d", id, c.Hold)
	case c.Op == wire.Release && x.tooSoon():
		n.linger(x)
	default:
		n.part(x, "released", "left", "")
	}
}

func (n *naiveFSM) linger(x *naiveClaim) {
	if x.maxRuns() {
		n.say("untimed max hold of %v/%d", x.session, x.hold)
	}
	x.leaving = true
	for i, name := range x.names {
		n.say("lingers %q by %v/%d token %d", name, x.session, x.hold, x.tokens[i])
	}
}

// stop ends the times of a claim that is about to go.
func (n *naiveFSM) stop(x *naiveClaim) {
	if x.maxRuns() {
		n.say("untimed max hold of %v/%d", x.session, x.hold)
	}
	if x.minRuns() {
		n.say("untimed min hold of %v/%d", x.session, x.hold)
	}
}

func (n *naiveFSM) drop(x *naiveClaim) {
	n.claims = slices.DeleteFunc(n.claims, func(y *naiveClaim) bool { return y == x })
}

// part takes a claim out, says so of each name, and lets the others in.
func (n *naiveFSM) part(x *naiveClaim, held, waited, why string) {
	n.stop(x)
	for i, name := range x.names {
		if x.holds() {
			n.say("%s %q by %v/%d token %d%s", held, name, x.session, x.hold, x.tokens[i], why)
		} else {
			n.say("%s %q by %v/%d%s", waited, name, x.session, x.hold, why)
		}
	}
	n.drop(x)
	for _, name := range x.names {
		n.settle(name)
	}
}

// bar keeps what x lost from being granted for a while.
func (n *naiveFSM) bar(x *naiveClaim) {
	if x.holds() && x.delay > 0 {
		for _, name := range x.names {
			n.token++
			n.bars = append(n.bars, naiveBar{name, n.token, x.delay})
			n.say("timed lock delay of 0.0.0/%d for %dms", n.token, x.delay)
		}
	}
}

func (n *naiveFSM) lose(x *naiveClaim, why string) {
	n.bar(x)
	n.part(x, "lost", "left", why)
}

func (n *naiveFSM) due(who sessions.ID, hold uint64, what uint8) {
	if what == 3 && who.IsZero() {
		for i, b := range n.bars {
			if b.id == hold {
				n.bars = slices.Delete(n.bars, i, i+1)
				n.say("untimed lock delay of 0.0.0/%d", b.id)
				n.settle(b.name)
				return
			}
		}
	}
	for _, x := range n.claims {
		switch is := x.session == who && x.hold == hold; {
		case is && what == 1 && x.maxRuns():
			n.lose(x, ": max hold")
			return
		case is && what == 2 && x.minRuns() && x.leaving:
			n.part(x, "released", "left", "")
			return
		case is && what == 2 && x.minRuns():
			n.say("untimed min hold of %v/%d", who, hold)
			x.matured = true
			return
		}
	}
}

func (n *naiveFSM) downgrade(x *naiveClaim) string {
	switch {
	case x == nil || !x.holds():
		return ": gone"
	case x.mode == 2:
		return ""
	case x.mode != 1 || len(x.names) > 1:
		return ": mode"
	}
	x.mode = 2
	n.say("downgraded %q by %v/%d token %d", x.names[0], x.session, x.hold, x.tokens[0])
	n.settle(x.names[0])
	return ""
}

func (n *naiveFSM) resize(name string, limit uint64) string {
	there := n.on(name)
	switch {
	case limit < 1 || limit > 65536:
		return ": permits"
	case len(there) == 0:
		return ": gone"
	case there[0].mode != 3:
		return ": mode"
	}
	n.limits[name] = limit
	n.say("resized %q to %d", name, limit)
	for _, x := range there {
		if !x.holds() && x.permits > limit {
			n.drop(x)
			n.say("refused %q to %v/%d: permits", name, x.session, x.hold)
		}
	}
	n.settle(name)
	return ""
}

func (n *naiveFSM) revoke(c wire.Command) string {
	found := ": gone"
	for _, x := range n.on(c.Name) {
		if i := slices.Index(x.names, c.Name); x.holds() && x.tokens[i] == uint64(c.More.Token) {
			found = ""
			n.lose(x, fmt.Sprintf(": revoked (%s: %s)", c.More.By, c.More.Reason))
		}
	}
	return found
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
			if x.session == id && !x.leaving {
				own = append(own, x)
			}
		}
		slices.SortFunc(own, func(a, b *naiveClaim) int { return cmp.Compare(a.hold, b.hold) })
		n.tell(own, why)
		for _, x := range own {
			if why == "closed" && x.tooSoon() {
				n.linger(x)
				continue
			}
			n.stop(x)
			if why != "closed" {
				n.bar(x)
			}
			names = append(names, x.names...)
			n.drop(x)
		}
		n.say("ended %v: %s", id, why)
	}
	for _, name := range names {
		n.settle(name)
	}
}

// tell tells those who watch what a session takes along.
func (n *naiveFSM) tell(own []*naiveClaim, why string) {
	before := len(n.said)
	for _, x := range own {
		for i, name := range x.names {
			switch {
			case !x.holds():
				n.say("left %q by %v/%d: %s", name, x.session, x.hold, why)
			case why != "closed":
				n.say("lost %q by %v/%d token %d: %s", name, x.session, x.hold, x.tokens[i], why)
			case !x.tooSoon():
				n.say("released %q by %v/%d token %d: %s", name, x.session, x.hold, x.tokens[i], why)
			}
		}
	}
	for i := before; i < len(n.said); i++ {
		n.forEyes[i] = true
	}
}

// describe tells what both have: the same text for the same state.
func (n *naiveFSM) describe() string {
	var b strings.Builder
	fmt.Fprintf(&b, "token %d\n", n.token)
	for _, l := range slices.SortedFunc(slices.Values(n.lives), func(a, b *naiveLife) int { return cmp.Compare(a.replica, b.replica) }) {
		fmt.Fprintf(&b, "%d.%d %d %d\n", l.replica, l.epoch, l.renewal, l.batch)
	}
	for _, s := range slices.SortedFunc(slices.Values(n.sessions), func(a, b naiveSession) int { return a.id.Compare(b.id) }) {
		fmt.Fprintf(&b, "%v %d\n", s.id, s.ttl)
	}
	names := map[string]bool{}
	var times []string
	for _, x := range n.claims {
		for _, name := range x.names {
			names[name] = true
		}
		if x.maxRuns() {
			times = append(times, fmt.Sprintf("max hold of %v/%d: %d\n", x.session, x.hold, x.maxHold))
		}
		if x.minRuns() {
			times = append(times, fmt.Sprintf("min hold of %v/%d: %d\n", x.session, x.hold, x.minHold))
		}
	}
	for _, bar := range n.bars {
		names[bar.name] = true
		times = append(times, fmt.Sprintf("lock delay of %v/%d: %d\n", sessions.ID{}, bar.id, bar.ms))
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		fmt.Fprintf(&b, "%q:", name)
		if there := n.on(name); len(there) > 0 && there[0].mode == 3 {
			fmt.Fprintf(&b, " of %d", n.limits[name])
		}
		for _, bar := range n.bars {
			if bar.name == name {
				fmt.Fprintf(&b, " bar %d for %d", bar.id, bar.ms)
			}
		}
		for _, x := range n.on(name) {
			token := uint64(0)
			if x.holds() {
				token = x.tokens[slices.Index(x.names, name)]
			}
			fmt.Fprintf(&b, " %v/%d=%d %d %d%v %d,%d,%d %v,%v,%v %d %q", x.session, x.hold, token, x.mode, x.permits, x.slots,
				x.maxHold, x.minHold, x.delay, x.started, x.matured, x.leaving, len(x.names), x.value)
		}
		b.WriteByte('\n')
	}
	jobs := map[string]string{}
	for _, x := range n.ticks {
		jobs[x.job] = fmt.Sprintf("job %q: %d by %d.%d %d\n", x.job, x.tick, x.replica, x.epoch, x.call)
	}
	for _, job := range slices.Sorted(maps.Keys(jobs)) {
		b.WriteString(jobs[job])
	}
	slices.Sort(times)
	return b.String() + strings.Join(times, "")
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
			lines[name] = lineLikeNaive(f.table.line(name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(lines)) {
		b.WriteString(lines[name])
	}
	for _, j := range f.jobList() {
		fmt.Fprintf(&b, "job %q: %d by %d.%d %d\n", j.Name, j.Tick, j.By.Replica, j.By.Epoch, j.Call)
	}
	var times []string
	for id, x := range f.times {
		times = append(times, fmt.Sprintf("%v of %v/%d: %d\n", id.what, id.who, id.hold, x.d/time.Millisecond))
	}
	slices.Sort(times)
	return b.String() + strings.Join(times, "")
}

func lineLikeNaive(l *queue.Line) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%q:", l.Name)
	if l.InUse() && l.Limit() > 0 {
		fmt.Fprintf(&b, " of %d", l.Limit())
	}
	for _, bar := range l.Bars() {
		fmt.Fprintf(&b, " bar %d for %d", bar.ID, bar.For/time.Millisecond)
	}
	for _, side := range []func(func(*queue.Claim) bool){l.Holders(), l.Waiters()} {
		for c := range side {
			terms := queue.Terms{}
			if c.Terms != nil {
				terms = *c.Terms
			}
			fmt.Fprintf(&b, " %v/%d=%d %d %d%v %d,%d,%d %v,%v,%v %d %q", c.Session, c.Seq, c.Token, c.Mode, c.Permits, c.Slots,
				terms.MaxHold/time.Millisecond, terms.MinHold/time.Millisecond, terms.Delay/time.Millisecond,
				c.Is(queue.Started), c.Is(queue.Matured), c.Is(queue.Leaving), len(c.Parts()), c.Value)
		}
	}
	return b.String() + "\n"
}
