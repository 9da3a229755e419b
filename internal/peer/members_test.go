package peer

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A replica that was removed is refused whoever dials, across restarts, by those who
// only heard of it, and under any storage; a connection that it has ends, and tells it.
func TestRemoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "peers.json")
	book, err := CreateBook(path)
	require.NoError(t, err)
	a := setup{id: Identity{Replica: 1}, book: book}.start(t)
	b := setup{id: Identity{Replica: 2}}.start(t)
	c := setup{id: Identity{Replica: 3}}.start(t)
	conn, err := b.dial(t, 1, a)
	require.NoError(t, err)
	require.NoError(t, conn.Send(kindTest, []byte("while it may")))
	require.Equal(t, "2:while it may", receive(t, a.got))

	require.NoError(t, a.book.Remove(2))
	a.Dismiss(map[uint64]string{2: b.addr})
	told := receive(t, b.refused)
	require.Equal(t, CodeRemoved, told.Code)
	require.EqualValues(t, 1, told.By)
	late := time.After(enough)
	for conn.Send(kindTest, []byte("no more")) == nil {
		select {
		case <-late:
			t.Fatal("its connection goes on")
		case <-time.After(time.Millisecond):
		}
	}
	require.Empty(t, a.got)

	_, err = c.dial(t, 1, a) // hears of it
	require.NoError(t, err)
	require.True(t, c.book.Removed(2))
	require.NoError(t, a.Close())
	book, err = OpenBook(path)
	require.NoError(t, err)
	a = setup{id: Identity{Replica: 1, Epoch: 1}, book: book}.start(t)
	anew := setup{id: Identity{Replica: 2, Storage: Storage{99}}}.start(t)
	for _, removed := range []*node{b, anew} {
		for id, by := range map[uint64]*node{1: a, 3: c} {
			var r *Refusal
			_, err = removed.dial(t, id, by)
			require.ErrorAs(t, err, &r)
			require.Equal(t, CodeRemoved, r.Code)
			_, err = by.dial(t, 2, removed)
			require.ErrorAs(t, err, &r)
			require.Equal(t, CodeRemoved, r.Code)
		}
	}
	require.NoError(t, a.book.Introduce(2, "anywhere:1", time.Now()))
	require.Empty(t, a.book.Address(2), "it stays removed")
}

// Who hears from another that a replica was removed ends the connections that it has with
// it, those that the removed one made and its own, as who saw to the removal does.
func TestRemovedByHearsay(t *testing.T) {
	a := setup{id: Identity{Replica: 1}}.start(t)
	removed := setup{id: Identity{Replica: 2}}.start(t)
	c := setup{id: Identity{Replica: 3}}.start(t)
	from, err := removed.dial(t, 3, c)
	require.NoError(t, err)
	to, err := c.dial(t, 2, removed)
	require.NoError(t, err)
	for _, conn := range []*Conn{from, to} {
		require.NoError(t, conn.Send(kindTest, []byte("while it may")))
	}
	require.Equal(t, "2:while it may", receive(t, c.got))
	require.Equal(t, "3:while it may", receive(t, removed.got))

	require.NoError(t, a.book.Remove(2))
	kept, err := a.dial(t, 3, c)
	require.NoError(t, err)
	require.True(t, c.book.Removed(2))
	late := time.After(enough)
	for _, conn := range []*Conn{from, to} {
		for conn.Send(kindTest, []byte("no more")) == nil {
			select {
			case <-late:
				t.Fatal("its connection goes on")
			case <-time.After(time.Millisecond):
			}
		}
	}
	require.NoError(t, kept.Send(kindTest, []byte("a word of others")))
	for receive(t, c.got) != "1:a word of others" { // what was sent before the end may come first
	}
}

// Where a replica was said to be travels with each greeting, until it says so itself;
// what it said last stands, whoever tells it.
func TestIntroduced(t *testing.T) {
	a := setup{id: Identity{Replica: 1}}.start(t)
	b := setup{id: Identity{Replica: 2}}.start(t)
	c := setup{id: Identity{Replica: 3}}.start(t)
	now := time.Now()
	require.NoError(t, a.book.Introduce(4, "wrong:1", now))
	_, err := b.dial(t, 1, a)
	require.NoError(t, err)
	require.Equal(t, "wrong:1", b.book.Address(4))
	require.NoError(t, a.book.Introduce(4, "right:1", now.Add(-time.Hour)), "by a clock that is behind")
	require.Equal(t, "right:1", a.book.Address(4))
	require.False(t, a.book.Heard(4))
	_, err = b.dial(t, 1, a)
	require.NoError(t, err)
	require.Equal(t, "right:1", b.book.Address(4))
	book, err := OpenBook(b.book.path)
	require.NoError(t, err)
	require.Equal(t, "right:1", book.Address(4), "it is on disk")

	first := setup{id: Identity{Replica: 4, Epoch: 1, Zone: "z1", NoVote: true}}.start(t)
	_, err = first.dial(t, 2, b)
	require.NoError(t, err)
	require.NoError(t, first.Close())
	_, err = b.dial(t, 3, c)
	require.NoError(t, err)
	require.Equal(t, first.addr, c.book.Address(4))
	require.Equal(t, "z1", c.book.Zone(4))
	require.False(t, c.book.WantsVote(4))
	require.True(t, c.book.Heard(4))

	moved := setup{id: Identity{Replica: 4, Epoch: 2}}.start(t)
	_, err = moved.dial(t, 1, a)
	require.NoError(t, err)
	_, err = c.dial(t, 1, a) // each tells the other
	require.NoError(t, err)
	for _, n := range []*node{a, c} {
		require.Equal(t, moved.addr, n.book.Address(4))
		require.True(t, n.book.WantsVote(4))
	}
	require.NoError(t, c.book.Introduce(4, "over its head:1", time.Now()))
	require.Equal(t, moved.addr, c.book.Address(4))
}

// Those whom one replica knows, another that meets it meets too.
func TestMeetsThoseItHearsOf(t *testing.T) {
	a := setup{id: Identity{Replica: 1, Epoch: 1}}.start(t)
	b := setup{id: Identity{Replica: 2, Epoch: 1}}.start(t)
	joins := setup{id: Identity{Replica: 3, Epoch: 1}}.start(t)
	_, err := a.dial(t, 2, b)
	require.NoError(t, err)
	joins.Meet(nil, bookRoute{joins.book})
	_, err = a.dial(t, 3, joins)
	require.NoError(t, err)
	late := time.After(enough)
	for !b.book.Heard(3) {
		select {
		case <-late:
			t.Fatal("they never met")
		case <-time.After(time.Millisecond):
		}
	}
}

type bookRoute struct{ *Book }

func (bookRoute) Failed(uint64, string) {}

// A replica that was heard by one is known to live by those who greet that one.
func TestHeardOf(t *testing.T) {
	a := setup{id: Identity{Replica: 1}}.start(t)
	b := setup{id: Identity{Replica: 2}}.start(t)
	c := setup{id: Identity{Replica: 3}}.start(t)
	require.Negative(t, c.Heard(2))
	conn, err := b.dial(t, 1, a)
	require.NoError(t, err)
	greeted := time.Now()
	_, err = c.dial(t, 1, a)
	require.NoError(t, err)
	require.LessOrEqual(t, c.Heard(2), time.Since(greeted)+time.Minute)
	require.GreaterOrEqual(t, c.Heard(2), time.Duration(0))

	before := a.Heard(2)
	require.NoError(t, conn.Send(kindTest, []byte("x")))
	receive(t, a.got)
	require.Less(t, a.Heard(2), before+time.Since(greeted))
	sent := time.Now()
	require.NoError(t, conn.Send(kindTest, []byte("y")))
	receive(t, a.got)
	require.LessOrEqual(t, a.Heard(2), time.Since(sent), "each message counts")
}

// The longest greeting fits.
func TestGreetingLengths(t *testing.T) {
	h := hello{Identity: Identity{Cluster: "c", Replica: 1, Storage: Storage{1}, Address: "a:1"}, to: 2}
	book, err := CreateBook(filepath.Join(t.TempDir(), "peers.json"))
	require.NoError(t, err)
	require.NoError(t, book.update(func(records map[uint64]record, gone map[uint64]bool) {
		for id := uint64(2); len(records) < maxRoster; id++ {
			records[id] = record{storage: Storage{1}, said: said{address: fmt.Sprintf("%0250d:1", id), zone: fmt.Sprintf("%064d", id)}}
		}
		for id := range uint64(1000) {
			gone[10_000+id] = true
		}
	}))
	h.Groups, h.Cluster, h.Address = 3, string(make([]byte, maxCluster)), string(make([]byte, maxAddress))
	book.tell(&h, func(uint64) time.Duration { return -1 })
	raw := h.encode()
	require.Less(t, len(raw), maxGreeting)
	got, _, err := decodeHello(raw)
	require.NoError(t, err)
	require.Equal(t, h, got)
	require.Len(t, got.roster, maxRoster)
}

// There is never more on record than a greeting may tell.
func TestBookIsFull(t *testing.T) {
	book, err := CreateBook(filepath.Join(t.TempDir(), "peers.json"))
	require.NoError(t, err)
	require.NoError(t, book.update(func(records map[uint64]record, _ map[uint64]bool) {
		for id := range uint64(maxRoster) {
			records[id+2] = record{storage: Storage{1}, epoch: 1}
		}
	}))
	require.NoError(t, book.Introduce(2, "known:1", time.Now()))
	require.ErrorIs(t, book.Introduce(999, "one:1", time.Now()), ErrFull)
	require.NoError(t, book.Remove(2))
	require.NoError(t, book.Introduce(999, "one:1", time.Now()))
	_, err = book.admit(1, &hello{Identity: Identity{Replica: 999, Storage: Storage{2}, Epoch: 1}})
	require.NoError(t, err)
	var h hello
	h.Replica, h.Storage = 1, Storage{3}
	book.tell(&h, func(uint64) time.Duration { return -1 })
	_, _, err = decodeHello(h.encode())
	require.NoError(t, err)
}
