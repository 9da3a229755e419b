package quorumlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/sessions"
)

// A picture is what a reader knows of the locks: the holders and waiters of each
// name as texts, made from the events alone.
type picture struct {
	prefix string
	locks  map[string]*pictured
	synced bool
	missed int
	kinds  map[EventKind]int
	err    error
}

type pictured struct {
	mode             Mode
	holders, waiters []string
}

func newPicture(prefix string) *picture {
	return &picture{prefix: prefix, locks: make(map[string]*pictured), kinds: make(map[EventKind]int)}
}

func (p *picture) lock(name string) *pictured {
	if p.locks[name] == nil {
		p.locks[name] = new(pictured)
	}
	return p.locks[name]
}

func (h *Holder) text() string {
	return fmt.Sprintf("%s/%d token %s slots %v kept %v", h.Session, h.Hold, h.Token, h.Slots, h.Released)
}

func waiterText(id sessions.ID, hold uint64) string { return fmt.Sprintf("%s/%d", id, hold) }

// apply applies an event, and returns what is wrong with it.
func (p *picture) apply(e Event) error {
	p.kinds[e.Kind]++
	for _, l := range e.Locks {
		if !strings.HasPrefix(l.Name, p.prefix) {
			return fmt.Errorf("%q is shown, and was not asked for", l.Name)
		}
		if p.locks[l.Name] != nil {
			return fmt.Errorf("%q is shown twice", l.Name)
		}
		x := p.lock(l.Name)
		x.mode = l.Mode
		for _, h := range l.Holders {
			x.holders = append(x.holders, h.text())
		}
		for _, w := range l.Waiters {
			x.waiters = append(x.waiters, waiterText(w.Session, w.Hold))
		}
	}
	switch e.Kind {
	case EventPicture:
		if p.synced {
			return errors.New("a picture after all was shown")
		}
		return nil
	case EventSynced:
		p.synced = true
		return nil
	case EventMissed:
		p.locks, p.synced = make(map[string]*pictured), false
		p.missed++
		return nil
	}
	if !strings.HasPrefix(e.Name, p.prefix) {
		return fmt.Errorf("%s of %q, which was not asked for", e.Kind, e.Name)
	}
	if err := p.lock(e.Name).change(e); err != nil {
		return fmt.Errorf("%s of %q: %w", e.Kind, e.Name, err)
	}
	return nil
}

func (x *pictured) change(e Event) error {
	h := Holder{Session: e.Session, Hold: e.Hold, Token: e.Token, Slots: e.Slots}
	switch e.Kind {
	case EventGranted:
		if len(x.holders) > 0 && (e.Mode == Exclusive || e.Mode != x.mode) {
			return fmt.Errorf("granted %s beside %v", e.Mode, x.holders)
		}
		x.mode = e.Mode
		x.holders = append(x.holders, h.text())
		if i := slices.Index(x.waiters, waiterText(e.Session, e.Hold)); i >= 0 {
			x.waiters = slices.Delete(x.waiters, i, i+1)
		}
	case EventReleased, EventLost, EventKept:
		i := slices.IndexFunc(x.holders, func(s string) bool {
			return strings.HasPrefix(s, fmt.Sprintf("%s/%d token %s slots", e.Session, e.Hold, e.Token))
		})
		if i < 0 {
			return fmt.Errorf("%s token %s is not among %v", e.Session, e.Token, x.holders)
		}
		if e.Kind == EventKept {
			x.holders[i] = strings.Replace(x.holders[i], "kept false", "kept true", 1)
		} else {
			x.holders = slices.Delete(x.holders, i, i+1)
		}
		if e.Kind == EventLost && e.Cause == nil {
			return errors.New("nobody says why")
		}
	case EventQueued:
		x.waiters = append(x.waiters, waiterText(e.Session, e.Hold))
	case EventLeft:
		i := slices.Index(x.waiters, waiterText(e.Session, e.Hold))
		if i < 0 {
			return fmt.Errorf("%s is not among %v", e.Session, x.waiters)
		}
		x.waiters = slices.Delete(x.waiters, i, i+1)
	case EventDowngraded:
		x.mode = Shared
	case EventResized:
	default:
		return errors.New("unknown kind")
	}
	return nil
}

// text shows the picture, with the waiters in their order.
func (p *picture) text() string {
	var all []string
	for name, x := range p.locks {
		if len(x.holders)+len(x.waiters) > 0 {
			all = append(all, x.text(name))
		}
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

func (x *pictured) text(name string) string {
	slices.Sort(x.holders)
	mode := Mode(0)
	if len(x.holders) > 0 {
		mode = x.mode
	}
	return fmt.Sprintf("%s %s: %v, then %v", name, mode, x.holders, x.waiters)
}

// listed is the picture that List gives.
func listed(t *testing.T, n *Node, prefix string) string {
	list, err := n.List(soon(t), prefix)
	require.NoError(t, err)
	p := newPicture(prefix)
	require.NoError(t, p.apply(Event{Kind: EventPicture, Locks: list}))
	return p.text()
}

// A reader follows a watch and notes what it knows. It is slow now and then.
type reader struct {
	mu   sync.Mutex
	p    *picture
	slow func() time.Duration
}

// look looks at what the reader knows.
func (r *reader) look(f func(p *picture)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(r.p)
}

func (r *reader) run(ctx context.Context, n *Node) {
	for e, err := range n.Watch(ctx, r.p.prefix) {
		r.mu.Lock()
		if r.p.err == nil {
			r.p.err = err
		}
		if err == nil {
			if r.p.err = r.p.apply(*e); r.p.err != nil {
				r.mu.Unlock()
				return
			}
		}
		r.mu.Unlock()
		if d := r.slow(); d > 0 {
			time.Sleep(d)
		}
	}
}

// What watchers know from the events is what List says, whenever nothing changes:
// for several watchers, begun at any moment, for all kinds of changes at once.
func TestWatchTellsAll(t *testing.T) {
	kinds := make(map[EventKind]int)
	for _, seed := range seeds(t, 4) {
		ok := t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) { watchAll(t, s, nodes, seed, kinds) })
		})
		if !ok {
			t.Fatalf("replay with %s=%d", seedVar, seed)
		}
	}
	if os.Getenv(seedVar) != "" {
		return // one run need not have all kinds
	}
	for _, k := range []EventKind{EventPicture, EventSynced, EventGranted, EventReleased, EventKept, EventLost,
		EventQueued, EventLeft, EventDowngraded, EventResized, EventMissed} {
		require.NotZero(t, kinds[k], k.String())
	}
}

func watchAll(t *testing.T, s *sim, nodes map[uint64]*Node, seed uint64, kinds map[EventKind]int) {
	rng := rand.New(rand.NewPCG(seed, 3))
	ctx, cancel := context.WithCancel(t.Context())
	var watchers, calls sync.WaitGroup
	var readers []*reader
	watch := func() {
		r := &reader{p: newPicture([]string{"", "a", "b", "b1"}[rng.IntN(4)]), slow: func() time.Duration { return 0 }}
		id := uint64(1 + rng.IntN(3))
		readers = append(readers, r)
		watchers.Go(func() { r.run(ctx, nodes[id]) })
	}
	watch()
	for range 12 {
		stop, end := context.WithCancel(ctx)
		for id := range nodes {
			for k := range uint64(3) {
				own := rand.New(rand.NewPCG(seed, 100*id+k+rng.Uint64N(1<<30)))
				calls.Go(func() { doAll(stop, t, nodes[id], own) })
			}
		}
		watch()
		elapse(time.Duration(rng.IntN(8000)) * time.Millisecond)
		switch rng.IntN(4) {
		case 0:
			s.pause(3, true)
			elapse(2 * time.Second)
			s.catchUp(3)
		case 1:
			s.cut(4)
			elapse(DefaultSessionTTL)
			s.heal()
		}
		watch()
		end()
		calls.Wait()
		elapse(time.Minute) // MinHold and MaxHold end
		synctest.Wait()
		for i, r := range readers {
			r.look(func(p *picture) {
				require.NoError(t, p.err, "reader %d", i)
				require.True(t, p.synced)
				require.Equal(t, listed(t, nodes[1], p.prefix), p.text(), "reader %d, of %q", i, p.prefix)
			})
		}
	}
	cancel()
	watchers.Wait()
	for _, r := range readers {
		require.ErrorIs(t, r.p.err, context.Canceled)
		for k, n := range r.p.kinds {
			kinds[k] += n
		}
	}
	for _, n := range nodes {
		require.Zero(t, n.groups[0].changes.watchers.Load())
		require.Nil(t, n.groups[0].changes.ring, "the ring is there only while somebody watches")
		n.groups[0].machine.read(func(f *lockFSM) { require.False(t, f.watched) })
	}
}

// doAll makes calls of all kinds until ctx ends; some holds stay for the next round.
func doAll(ctx context.Context, t *testing.T, n *Node, rng *rand.Rand) {
	var s locker = n
	if own, err := n.OpenSession(ctx, WithTTL(6*time.Second)); err == nil && rng.IntN(2) == 0 {
		s = own
	}
	for ctx.Err() == nil {
		name := []string{"a1", "a2", "b1", "b11", "b2"}[rng.IntN(5)]
		var opts []AcquireOption
		switch rng.IntN(4) {
		case 0:
			opts = append(opts, Share())
		case 1:
			name, opts = "bp", append(opts, Permits(1+rng.IntN(2), 3))
		}
		if rng.IntN(6) == 0 {
			opts = append(opts, MinHold(2*time.Second))
		}
		if rng.IntN(6) == 0 {
			opts = append(opts, MaxHold(4*time.Second), LockDelay(time.Second))
		}
		try, cancel := context.WithTimeout(ctx, time.Duration(1+rng.IntN(1500))*time.Millisecond)
		var h *Hold
		var err error
		if rng.IntN(8) == 0 {
			h, err = n.AcquireAll(try, "a1", "b1", fmt.Sprint("c", rng.IntN(9)))
		} else {
			h, err = s.Acquire(try, name, opts...)
		}
		cancel()
		if err == nil {
			use(ctx, t, n, h, rng)
		} else if !errors.Is(err, ErrHeld) && !errors.Is(err, ErrMode) && !errors.Is(err, ErrPermits) && !errors.Is(err, ErrNoQuorum) &&
			!errors.Is(err, context.Canceled) && !errors.Is(err, ErrSessionExpired) && !errors.Is(err, ErrRevoked) && !errors.Is(err, ErrSessionClosed) {
			t.Error(err)
		}
		if own, ok := s.(*Session); ok && own.Err() != nil {
			s = n
		}
	}
	if own, ok := s.(*Session); ok && rng.IntN(2) == 0 {
		_ = own.Close(ctx) // it goes on in the background
	}
}

// use does something with a hold, and mostly releases it.
func use(ctx context.Context, t *testing.T, n *Node, h *Hold, rng *rand.Rand) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	switch rng.IntN(12) {
	case 0, 1:
		_ = h.Downgrade(ctx)
	case 2:
		_ = n.ForceRelease(ctx, h.Name(), h.Token(), "ops", "test")
	case 3:
		_ = n.ForceClose(ctx, h.Session().ID(), "ops", "test")
	case 4, 5:
		_ = n.Resize(ctx, "bp", 1+rng.IntN(4))
	case 6:
		time.Sleep(5 * time.Second)
	case 7:
		return // it stays until its session ends
	}
	time.Sleep(time.Duration(rng.IntN(300)) * time.Millisecond)
	if err := h.Release(ctx); err != nil && !errors.Is(err, ErrLost) && !errors.Is(err, ErrNoQuorum) {
		t.Error(err)
	}
}

// A reader that falls behind is told so and gets a new picture, over and over if
// need be, and never a change out of order.
func TestSlowReaderIsToldThatItMissedSomething(t *testing.T) {
	inSim(t, func(t *testing.T, _ *sim, nodes map[uint64]*Node) {
		r := &reader{p: newPicture("")}
		gate := make(chan struct{})
		r.slow = func() time.Duration { <-gate; return 0 }
		ctx, cancel := context.WithCancel(t.Context())
		var done sync.WaitGroup
		done.Go(func() { r.run(ctx, nodes[1]) })
		synctest.Wait()
		defer done.Wait()
		defer cancel()
		kept, err := nodes[2].Acquire(soon(t), "kept")
		require.NoError(t, err)
		churn(t, nodes[2], keptChanges/2+10)
		synctest.Wait()
		close(gate)
		synctest.Wait()
		r.look(func(p *picture) {
			require.NoError(t, p.err)
			require.Equal(t, 1, p.missed)
			require.True(t, p.synced)
			require.Equal(t, listed(t, nodes[1], ""), p.text())
			require.Contains(t, p.text(), "kept")
		})
		// What fits is not missed.
		churn(t, nodes[2], keptChanges/2-100)
		elapse(time.Second) // a reader lets a stream of changes gather
		r.look(func(p *picture) {
			require.Equal(t, 1, p.missed)
			require.GreaterOrEqual(t, p.kinds[EventGranted], keptChanges/2-100)
		})
		require.NoError(t, kept.Release(soon(t)))
		cancel()
		done.Wait()
		require.ErrorIs(t, r.p.err, context.Canceled)
	})
}

// churn takes and frees locks so often that twice as many changes are made.
func churn(t *testing.T, n *Node, times int) {
	t.Helper()
	const at = 64
	var wg sync.WaitGroup
	for k := range at {
		wg.Go(func() {
			for i := k; i < times; i += at {
				h, err := n.TryAcquire(t.Context(), fmt.Sprint("churn ", i))
				if err == nil {
					err = h.Release(t.Context())
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// A reader that is too slow for even one picture ends all the same when its ctx
// does, or the node closes, and so does one that stops in the middle of it.
func TestWatchEnds(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		for i := range 100 {
			_, err := nodes[2].Acquire(soon(t), fmt.Sprint("name ", i))
			require.NoError(t, err)
		}
		gone := func() {
			t.Helper()
			for id, n := range nodes {
				require.Zero(t, n.groups[0].changes.watchers.Load(), id)
				require.Nil(t, n.groups[0].changes.ring, id)
			}
		}
		for _, kind := range []EventKind{EventPicture, EventSynced} {
			for e, err := range nodes[1].Watch(t.Context(), "") {
				require.NoError(t, err)
				require.NotNil(t, nodes[1].groups[0].changes.ring)
				if e.Kind == kind {
					break
				}
			}
			gone()
		}
		require.Panics(t, func() {
			for range nodes[1].Watch(t.Context(), "") {
				panic("reader")
			}
		})
		gone()

		for what, end := range map[string]func(cancel context.CancelFunc){
			"ctx":  func(cancel context.CancelFunc) { cancel() },
			"node": func(context.CancelFunc) { require.NoError(t, nodes[3].Close()) },
		} {
			id := map[string]uint64{"ctx": 1, "node": 3}[what]
			ctx, cancel := context.WithCancel(t.Context())
			events, errs := 0, 0
			for _, err := range nodes[id].Watch(ctx, "") {
				if err != nil {
					errs++
					require.ErrorIs(t, err, map[string]error{"ctx": context.Canceled, "node": ErrClosed}[what])
					continue
				}
				if events++; events == 3 {
					end(cancel) // in the middle of the picture
				}
				require.LessOrEqual(t, events, 3, "nothing more")
			}
			require.Equal(t, 1, errs)
			cancel()
		}
		gone()

		// One that waits for changes.
		over := make(chan error, 2)
		ctx, cancel := context.WithCancel(t.Context())
		for _, id := range []uint64{4, 5} {
			go func() {
				var last error
				for _, err := range nodes[id].Watch(ctx, "") {
					last = err
				}
				over <- last
			}()
		}
		synctest.Wait()
		require.NoError(t, nodes[4].Close())
		require.ErrorIs(t, <-over, ErrClosed)
		cancel()
		require.ErrorIs(t, <-over, context.Canceled)
		gone()
	})
}

// A replica that was brought up by a snapshot tells its readers that they missed
// something, for nobody knows what it was.
func TestSnapshotIsMissedByReaders(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		before, err := nodes[2].Acquire(soon(t), "before")
		require.NoError(t, err)
		events := watching(t, nodes[3], "")
		require.Equal(t, []string{"picture  before=1", "synced "}, texts(events))
		s.pause(3, true)
		_, err = nodes[2].Acquire(soon(t), "during")
		require.NoError(t, err)
		require.NoError(t, before.Release(soon(t)))
		s.catchUp(3)
		require.Equal(t, []string{"missed ", "picture  during=2", "synced "}, texts(events))
		_, err = nodes[2].Acquire(soon(t), "after")
		require.NoError(t, err)
		require.Equal(t, []string{"granted after 3"}, texts(events))
	})
}

// Each event says what it is about, and why.
func TestEventsSayWhy(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		events := watching(t, nodes[1], "")
		expect := func(want ...string) {
			t.Helper()
			require.Equal(t, want, texts(events))
		}
		expect("synced ")
		own, err := nodes[2].OpenSession(soon(t))
		require.NoError(t, err)
		h, err := own.Acquire(soon(t), "pool", Permits(2, 3))
		require.NoError(t, err)
		e := <-events
		require.Equal(t, Event{Kind: EventGranted, Name: "pool", Session: own.ID(), Hold: h.seq, Owner: "owner-2", Token: h.Token(), Mode: Counted, Slots: []int{0, 1}}, e)
		refused := inBackground(func() (*Hold, error) { return nodes[3].Acquire(soon(t), "pool", Permits(3, 3)) })
		require.NoError(t, nodes[4].Resize(soon(t), "pool", 2))
		require.ErrorIs(t, (<-refused).err, ErrPermits)
		synctest.Wait()
		<-events
		e = <-events
		require.Equal(t, []any{EventResized, 2}, []any{e.Kind, e.Limit})
		expect("left pool: " + ErrPermits.Error())
		short, err := nodes[3].Acquire(soon(t), "short", MaxHold(4*time.Second))
		require.NoError(t, err)
		tick, err := nodes[3].Acquire(soon(t), "tick", MinHold(2*time.Second))
		require.NoError(t, err)
		require.NoError(t, tick.Release(soon(t)))
		elapse(5 * time.Second)
		expect("granted short "+short.Token().String(), "granted tick "+tick.Token().String(), "kept tick "+tick.Token().String(),
			"released tick "+tick.Token().String(), "lost short "+short.Token().String()+": "+ErrMaxHold.Error())
		require.NoError(t, own.Close(soon(t)))
		expect("released pool " + h.Token().String())
		gone, err := nodes[5].Acquire(soon(t), "gone")
		require.NoError(t, err)
		waiting := inBackground(func() (*Hold, error) { return nodes[5].Acquire(t.Context(), "gone") })
		s.cut(5)
		elapse(DefaultSessionTTL)
		require.ErrorIs(t, (<-waiting).err, ErrSessionExpired)
		expect("granted gone "+gone.Token().String(), "queued gone",
			"lost gone "+gone.Token().String()+": "+ErrSessionExpired.Error(), "left gone: "+ErrSessionExpired.Error())
		for k := range EventValue + 3 {
			require.Equal(t, k == 0 || k > EventValue, k.String() == "event?")
		}
	})
}

// Sessions tells who is alive, with how much, and when it was last renewed.
func TestSessions(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		opened := time.Now()
		a, err := nodes[2].OpenSession(soon(t), WithOwner("a"), WithTTL(time.Minute))
		require.NoError(t, err)
		_, err = a.AcquireAll(soon(t), "x", "y")
		require.NoError(t, err)
		_, err = a.Acquire(soon(t), "plain")
		require.NoError(t, err)
		shared, err := a.Acquire(soon(t), "doc", Share(), MinHold(time.Hour))
		require.NoError(t, err)
		b, err := nodes[4].OpenSession(soon(t), WithOwner("b"))
		require.NoError(t, err)
		waiting := inBackground(func() (*Hold, error) { return b.AcquireAll(canceled(t, time.Hour), "x", "z") })
		elapse(5 * time.Minute)
		check := func(want ...string) {
			t.Helper()
			infos, err := nodes[1].Sessions(soon(t))
			require.NoError(t, err)
			var got []string
			for _, i := range infos {
				got = append(got, fmt.Sprintf("%s %s on %d: %d held, %d waits", i.ID, i.Owner, i.Replica, i.Holds, i.Waits))
				require.WithinDuration(t, time.Now(), i.RenewedAt, i.TTL/3)
				require.Equal(t, i.RenewedAt.Add(i.TTL-i.TTL/5), i.LeaseUntil)
				require.True(t, i.OpenedAt.Equal(opened), i.OpenedAt)
			}
			require.Equal(t, want, got)
		}
		check(a.ID().String()+" a on 2: 4 held, 0 waits", b.ID().String()+" b on 4: 0 held, 2 waits")
		require.NoError(t, shared.Release(soon(t)))
		check(a.ID().String()+" a on 2: 3 held, 0 waits", b.ID().String()+" b on 4: 0 held, 2 waits")
		require.NoError(t, a.Close(soon(t)))
		require.NoError(t, (<-waiting).err)
		check(b.ID().String() + " b on 4: 2 held, 0 waits")
	})
}
