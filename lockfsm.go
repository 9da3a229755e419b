package quorumlock

import (
	"bytes"
	"fmt"
	"strings"
	"time"
	"unsafe"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/queue"
	"github.com/quorumlock/quorumlock/sessions"
)

// lockFSM is the rules and nothing else: a pure function of the log. An entry goes
// in, effects come out as data. It reads no clock and no option, starts nothing
// and waits for nothing; equal logs give equal states, effects and snapshots.
//
// It is not safe for concurrent use.
type lockFSM struct {
	level byte          // the highest version of any entry: what every replica that goes on speaks; it only grows
	token fencing.Token // the last one granted; one counter for all names, so that an idle name costs nothing
	roll  *sessions.Roll
	table table
	times map[timeID]runningTime // what the leader is to tell the end of
	jobs  map[string]*wire.Job

	origin wire.Origin // the backup that the cluster was founded from

	watched bool  // somebody wants to be told of what nobody else needs; decides nothing
	speaks  byte  // the highest version that is known here
	halted  error // set once something was met that is of a higher one
	entry   wire.Entry
	effects []effect
	names   []byte // of locks that the effects name and that are no more
}

// manyEffects is how many effects' room is kept from one entry to the next. An
// entry that ends a process may have millions, and is rare.
const manyEffects = 1 << 16

func newLockFSM() *lockFSM {
	return &lockFSM{level: wire.BaseVersion, speaks: wire.Version,
		roll: new(sessions.Roll), times: make(map[timeID]runningTime), jobs: make(map[string]*wire.Job)}
}

// apply applies one entry and returns its effects, which are good until the next
// call. What is malformed has none, on every replica alike. An entry of a newer
// version halts this replica's state machine: it cannot know what the others did.
func (f *lockFSM) apply(cmd []byte) []effect {
	clear(f.effects) // they hold on to what they name
	f.effects, f.names = f.effects[:0], f.names[:0]
	if cap(f.effects) > manyEffects {
		f.effects, f.names = nil, nil
	}
	if f.halted != nil {
		return nil
	}
	version, e := wire.VersionOf(cmd), &f.entry
	if version > f.speaks {
		return f.outgrown(version)
	}
	if wire.DecodeEntry(cmd, e) != nil {
		return nil
	}
	f.reach(version)
	speaker := sessions.ID{Replica: e.Replica, Epoch: e.Epoch}
	if e.Batch == 0 {
		f.outside(e)
	} else if f.admitBatch(speaker, e) {
		f.commands(speaker, e)
	}
	return f.effects
}

// outgrown stops this replica's state machine for good: something has a version that is
// not known here.
func (f *lockFSM) outgrown(version byte) []effect {
	f.halted = fmt.Errorf("%w: the cluster has reached feature level %d, and this version knows no more than %d: "+
		"upgrade this replica", ErrFormat, version, f.speaks)
	f.effects = append(f.effects[:0], effect{kind: halted})
	return f.effects
}

// reach notes that the log has an entry of a version. Who does not know it has stopped
// there, so from now on everybody who goes on knows it.
func (f *lockFSM) reach(version byte) {
	if version > f.level {
		f.level = version
		f.emit(effect{kind: raised, n: uint64(version)})
	}
}

// warmAhead is how many commands' memory is asked for before the first of them is
// applied.
const warmAhead = 32

// commands applies the commands of a batch.
func (f *lockFSM) commands(speaker sessions.ID, e *wire.Entry) {
	var hashes [warmAhead]uint32
	for rest := e.Commands; len(rest) > 0; {
		some := rest[:min(len(rest), warmAhead)]
		rest = rest[len(some):]
		for i := range some {
			c := &some[i]
			if c.Op == wire.Acquire {
				c.Lock = hashOf(c.Name)
			}
			hashes[i] = c.Lock
		}
		f.table.warm(hashes[:len(some)])
		for i := range some {
			f.command(speaker, e.At, &some[i])
		}
	}
}

// keep returns a name of the table that is good for as long as the effects are.
func (f *lockFSM) keep(name string) string {
	at := len(f.names)
	f.names = append(f.names, name...)
	return unsafe.String(unsafe.SliceData(f.names[at:]), len(name))
}

func (f *lockFSM) emit(e effect) { f.effects = append(f.effects, e) }

// outside applies an entry that stands outside its process's stream of batches:
// what may be applied late or twice and still be right.
func (f *lockFSM) outside(e *wire.Entry) {
	for i := range e.Commands {
		switch c := &e.Commands[i]; c.Op {
		case wire.Boot:
			f.boot(e)
		case wire.Expire:
			f.end(f.roll.Expire(c.Replica, c.Epoch, c.Renewal, ttlOf(c)), causeExpired, "", e.At)
		case wire.Due:
			f.due(timeID{c.More.Who, c.Hold, timeKind(c.More.What)}, e.At)
		case wire.Restore:
			f.restorePart(c.More.Part)
		}
	}
	f.renew(e)
}

func (f *lockFSM) boot(e *wire.Entry) {
	speaker := sessions.ID{Replica: e.Replica, Epoch: e.Epoch}
	before, ok := f.roll.Boot(e.Replica, e.Epoch)
	if !ok {
		f.emit(effect{kind: booted, session: speaker, cause: causeStranger})
		return
	}
	f.end(before, causeRestarted, "", e.At)
	f.emit(effect{kind: booted, session: speaker})
}

func (f *lockFSM) renew(e *wire.Entry) {
	if f.roll.Renew(e.Replica, e.Epoch, e.Renewal) {
		f.emit(effect{kind: renewed, session: sessions.ID{Replica: e.Replica, Epoch: e.Epoch}, n: e.Renewal})
	}
}

// admitBatch reports whether the entry's commands are to be applied. The renewal
// that travels with them counts in any case: it says that the process lives, not
// what it wants.
func (f *lockFSM) admitBatch(speaker sessions.ID, e *wire.Entry) bool {
	f.renew(e)
	var why cause
	switch f.roll.Admit(e.Replica, e.Epoch, e.Batch) {
	case sessions.Duplicate:
		why = causeDuplicate
	case sessions.Gap:
		why = causeGap
	case sessions.Stranger:
		why = causeStranger
	}
	f.emit(effect{kind: batch, session: speaker, n: e.Batch, cause: why})
	return why == 0
}

func (f *lockFSM) command(id sessions.ID, at int64, c *wire.Command) {
	id.Seq = c.Session
	switch c.Op {
	case wire.Open:
		f.open(id, at, c)
	case wire.Close:
		if s := f.roll.Close(id); s != nil {
			f.end([]*sessions.Session{s}, causeClosed, "", at)
		} else {
			f.emit(effect{kind: ended, session: id, cause: causeSession})
		}
	case wire.Acquire:
		f.acquire(id, at, c)
	case wire.Release, wire.Cancel:
		f.giveBack(id, at, c)
	case wire.Take:
		f.take(id, at, c)
	case wire.Start:
		f.start(id, c)
	case wire.Downgrade:
		f.answer(id, c, f.downgrade(id, at, c))
	case wire.Resize:
		f.answer(id, c, f.resize(at, c))
	case wire.Revoke:
		f.answer(id, c, f.revoke(at, c))
	case wire.Evict:
		f.answer(id, c, f.evict(at, c))
	case wire.Ask:
		f.answer(id, c, f.ask(c))
	case wire.Publish:
		f.answer(id, c, f.publish(id, c))
	case wire.HandOver:
		f.answer(id, c, f.handOver(id, at, c))
	case wire.Claim:
		f.answer(id, c, f.claimTick(id, at, c))
	case wire.Forget:
		f.answer(id, c, f.forgetJob(c))
	}
}

func (f *lockFSM) open(id sessions.ID, at int64, c *wire.Command) {
	f.roll.Open(sessions.Session{ID: id, TTL: ttlOf(c), Owner: strings.Clone(c.Owner), OpenedAt: at})
	f.table.enroll(id)
	f.emit(effect{kind: opened, session: id})
}

func ttlOf(c *wire.Command) time.Duration {
	return time.Duration(min(c.TTL, uint64(wire.MaxTTL/time.Millisecond))) * time.Millisecond
}

func (f *lockFSM) acquire(id sessions.ID, at int64, c *wire.Command) {
	e := effect{kind: refused, session: id, hold: c.Hold, name: c.Name}
	switch {
	case f.table.member(id) == 0:
		e.cause = causeSession
	case !f.roll.Number(id, c.Hold):
		e.cause = causeRepeated // no honest process does this; two claims under one number could not be told apart
	case queue.Mode(c.Mode) != queue.Exclusive: // any other comes as a take
		e.cause = causeMode
	default:
		f.enter(&e, at, c)
	}
	f.emit(e)
}

// enter grants the lock, or gives the claim its place in line, or neither.
func (f *lockFSM) enter(e *effect, at int64, c *wire.Command) {
	s := f.table.seek(c.Lock, c.Name)
	switch {
	case s.free() && f.table.full(s.page, 1):
		e.cause = causeQueueFull
	case s.free():
		f.token++
		f.table.hold(s, record{seq: c.Hold, token: f.token, at: at, member: f.table.member(e.session)})
		e.kind, e.token, e.mode, e.plain = granted, f.token, queue.Exclusive, true
	case s.counted():
		e.cause = causeMode
	case !c.Wait:
		e.cause = causeHeld
	case s.waiting() >= min(c.Limit, wire.MaxWaiters):
		e.cause = causeQueueFull
	default:
		l := f.table.edit(s)
		if !l.InUse() {
			l.SetLimit(0)
		}
		claim := &queue.Claim{Session: e.session, Seq: c.Hold, Mode: queue.Mode(c.Mode), At: at}
		f.table.wait(l, claim)
		e.kind, e.name = queued, l.Name
	}
}

// promote grants a line's lock to whoever is next, in the same entry that made it
// free. An acquisition of several names is granted them all at once, when it is
// next in every line.
func (f *lockFSM) promote(l *queue.Line, at int64) {
	for c := l.Next(); c != nil; c = l.Next() {
		for _, p := range c.Parts() {
			f.grant(p, at)
		}
		if c.Terms != nil && c.Terms.MinHold > 0 {
			f.run(timeID{c.Session, c.Seq, minHold}, runningTime{claim: c, d: c.Terms.MinHold})
		}
	}
	f.table.settle(l)
}

func (f *lockFSM) grant(c *queue.Claim, at int64) {
	l := c.Line()
	f.table.touchLine(l)
	token := l.Generation(c.Mode)
	if token.IsZero() {
		f.token++
		token = f.token
	}
	c.At = at
	f.table.served(c)
	l.Hold(c, token)
	f.emit(effect{kind: granted, session: c.Session, hold: c.Seq, name: l.Name, token: c.Token, mode: c.Mode, plain: c.Plain()})
}

// giveBack ends one acquisition, whether it holds or still waits. It is found by
// its session and number, and by the lock only where to look for it, so that it can
// never end another one. A release and a cancel are nearly the same here: what a
// cancel finds granted, its caller no longer wants. And since batches are applied
// in order, no acquire comes after its cancel.
func (f *lockFSM) giveBack(id sessions.ID, at int64, c *wire.Command) {
	e := effect{kind: gone, session: id, hold: c.Hold}
	m := f.table.member(id)
	if m == 0 {
		f.emit(e)
		return
	}
	if r := f.table.held(m, c.Lock, c.Hold); r != 0 {
		e.kind, e.name, e.token = released, f.keep(f.table.nameAt(r)), f.table.at(r).token
		f.table.drop(r)
		f.emit(e)
		return
	}
	own := f.table.members[m].claims[c.Hold]
	switch {
	case own == nil || hashOf(own.Line().Name) != c.Lock:
		f.emit(e)
	case c.Op == wire.Release:
		f.release(own, at)
	default:
		f.part(own, released, left, 0, "", at)
	}
}

// release ends an acquisition in a line at its owner's wish: now, or once it has been
// held for long enough.
func (f *lockFSM) release(c *queue.Claim, at int64) {
	if f.tooSoon(c) {
		f.linger(c)
		f.table.unindex(c)
		return
	}
	f.part(c, released, left, 0, "", at)
}

// part takes an acquisition out of its lines and grants each to whoever is next.
// What it says of it depends on whether it held or waited.
func (f *lockFSM) part(c *queue.Claim, held, waited effectKind, why cause, note string, at int64) {
	f.stop(c)
	lines := make([]*queue.Line, 0, 1)
	for _, p := range c.Parts() {
		l := p.Line()
		e := effect{kind: waited, session: p.Session, hold: p.Seq, name: l.Name, cause: why, note: note}
		if p.Holds() {
			e.kind, e.token = held, p.Token
		}
		f.table.leave(p)
		f.emit(e)
		lines = append(lines, l)
	}
	f.table.unindex(c)
	for _, l := range lines {
		f.promote(l, at)
	}
}

// end frees all that these sessions held, takes their waiters out of every line,
// and grants each lock to whoever is next. The sessions are off the roll already.
// All their claims leave before any lock is granted, so that none is granted to
// one of them.
func (f *lockFSM) end(over []*sessions.Session, why cause, note string, at int64) {
	var lines []*queue.Line
	for _, s := range over {
		if f.watched {
			f.tellLosses(s.ID, why, note)
		}
		lines = append(lines, f.table.dismiss(s.ID, func(c *queue.Claim) (stays bool) {
			if why == causeClosed && f.tooSoon(c) {
				f.linger(c)
				return true
			}
			f.stop(c)
			if why != causeClosed {
				f.bar(c)
			}
			return false
		})...)
		f.emit(effect{kind: ended, session: s.ID, cause: why, note: note})
	}
	for _, l := range lines {
		if f.table.has(l) { // a line may stand twice and be gone by now
			f.promote(l, at)
		}
	}
}

// tellLosses tells what a session that is about to end takes along.
func (f *lockFSM) tellLosses(id sessions.ID, why cause, note string) {
	f.table.each(id, func(c *queue.Claim, name string) {
		e := effect{kind: left, session: id, hold: c.Seq, name: f.keep(name), cause: why, note: note}
		switch {
		case !c.Holds():
		case why != causeClosed:
			e.kind, e.token = lost, c.Token
		case f.tooSoon(c):
			return // it lingers, which is told then
		default:
			e.kind, e.token = released, c.Token
		}
		f.emit(e)
	})
}

// mark captures the state at this moment, at a cost that does not grow with the
// number of locks. The capture is to be dropped by the caller.
func (f *lockFSM) mark() (head []byte, c *capture) {
	head = wire.AppendHead(nil, wire.Head{Level: f.level, Token: f.token, Roll: f.roll, Lines: f.table.n, Jobs: f.jobList(), Origin: f.origin})
	return head, f.table.mark()
}

// bytes returns a whole snapshot.
func (f *lockFSM) bytes() []byte {
	var b bytes.Buffer
	w := wire.NewSnapshotWriter(&b, f.level)
	head, c := f.mark()
	defer c.drop()
	_, _ = w.Write(head) // a bytes.Buffer takes everything
	var page []byte
	for i := range pages {
		page = c.take(page[:0], i)
		_, _ = w.Write(page)
	}
	_ = w.Close()
	return b.Bytes()
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
