package main

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/quorumlock/quorumlock/fencing"
)

// One reads and is stopped, another reads and writes, and the first goes on and writes
// what it made of an old reading. Without the token an update is lost and counted; with
// it the write is refused, also when the second has only read so far.
func TestLateWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	s, err := openStore(path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	c := dialStore(path)
	ask := func(name string, token fencing.Token, elements []string) []string {
		t.Helper()
		got, err := c.ask(t.Context(), name, token, elements)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	for _, x := range []struct {
		name          string
		first, second fencing.Token
	}{{"lock-set/1", 0, 0}, {"fenced-set/1", 1, 2}} {
		stale := ask(x.name, x.first, nil)
		fresh := ask(x.name, x.second, nil)
		_, refused := c.ask(t.Context(), x.name, x.first, append(stale, "early"))
		ask(x.name, x.second, append(fresh, "second"))
		_, err := c.ask(t.Context(), x.name, x.first, append(stale, "first"))
		got, want := ask(x.name, x.second, nil), []string{"second"}
		if x.first == 0 {
			want = []string{"first"}
		} else if !errors.Is(err, fencing.ErrStale) || !errors.Is(refused, fencing.ErrStale) {
			t.Errorf("%s: a late write: %v, and %v", x.name, refused, err)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", x.name, got, want)
		}
	}
	if wrong := s.judgeBefore(time.Now().Add(-time.Hour)); len(wrong) > 0 || len(s.result().Written) > 0 {
		t.Errorf("judged too early: %q", wrong)
	}
	if wrong := s.judgeBefore(time.Now().Add(time.Hour)); len(wrong) > 0 {
		t.Errorf("%q", wrong)
	}
	r := s.result()
	if r.Written[lockSetKind] != 3 || r.Lost[lockSetKind] != 2 || r.Written[fencedSetKind] != 1 || r.Lost[fencedSetKind] != 0 || r.Refused != 2 {
		t.Errorf("%+v", r)
	}
}

// A store that forgets to check is found out.
func TestLostFencedUpdate(t *testing.T) {
	s := &store{sets: make(map[string]*set), tally: storeTally{Written: make(map[lockKind]int), Lost: make(map[lockKind]int)}}
	s.write("fenced-set/1", []string{"a"})
	s.write("fenced-set/1", []string{"b"})
	if wrong := s.judgeBefore(time.Now().Add(time.Hour)); len(wrong) != 1 {
		t.Errorf("%q", wrong)
	}
}
