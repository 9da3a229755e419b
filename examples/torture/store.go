package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/fencing/httpfence"
)

// A store is a service that keeps sets of text, read and written as a whole: whoever
// adds an element reads the set, and writes it back with the element in it. Such an
// update is lost if another was written in between, which is what the lock is for.
//
// What is under /fenced admits the caller's token in the step that reads or writes; what
// is under /plain does not look. The store belongs to the director and is not hurt.
type store struct {
	guard  countingGuard
	server *http.Server
	done   chan struct{}

	mu    sync.Mutex
	sets  map[string]*set
	tally storeTally
}

// A countingGuard counts what it refuses.
type countingGuard struct {
	fencing.MemGuard
	refused atomic.Int64
}

func (g *countingGuard) Admit(ctx context.Context, resource string, t fencing.Token) error {
	return g.count(g.MemGuard.Admit(ctx, resource, t))
}

func (g *countingGuard) Do(ctx context.Context, resource string, t fencing.Token, write func() error) error {
	return g.count(g.MemGuard.Do(ctx, resource, t, write))
}

func (g *countingGuard) count(err error) error {
	if errors.Is(err, fencing.ErrStale) {
		g.refused.Add(1)
	}
	return err
}

// A set is its elements, and all that were ever written into it.
type set struct {
	now     []string
	written map[string]bool
	changed time.Time
}

// A storeTally says how many elements were written, lost, and refused for their token.
type storeTally struct {
	Written, Lost map[lockKind]int
	Refused       int64
}

// openStore serves on a socket at path, which reaches across network namespaces.
func openStore(path string) (*store, error) {
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	s := &store{sets: make(map[string]*set), done: make(chan struct{}),
		tally: storeTally{Written: make(map[lockKind]int), Lost: make(map[lockKind]int)}}
	s.server = &http.Server{Handler: s.handler(), ReadHeaderTimeout: 5 * time.Second}
	go func() {
		defer close(s.done)
		_ = s.server.Serve(l) // ends with close
	}()
	return s, nil
}

func (s *store) close() {
	_ = s.server.Close() // nobody is left to be answered
	<-s.done
}

func (s *store) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/plain/{kind}/{round}", func(w http.ResponseWriter, r *http.Request) {
		s.serve(w, r, func(do func() error) error { return do() })
	})
	mux.Handle("/fenced/{kind}/{round}", httpfence.Handler(&s.guard, resourceOf, http.HandlerFunc(s.serveFenced)))
	return mux
}

func resourceOf(r *http.Request) string { return r.PathValue("kind") + "/" + r.PathValue("round") }

func (s *store) serveFenced(w http.ResponseWriter, r *http.Request) {
	name, token, _ := httpfence.FromContext(r.Context())
	s.serve(w, r, func(do func() error) error { return s.guard.Do(r.Context(), name, token, do) })
}

// serve reads or writes a set, in a step that the guard allows.
func (s *store) serve(w http.ResponseWriter, r *http.Request, step func(do func() error) error) {
	name := resourceOf(r)
	var elements []string
	if r.Method == http.MethodPut {
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&elements); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	}
	err := step(func() error {
		if r.Method == http.MethodPut {
			s.write(name, elements)
		} else {
			elements = s.read(name)
		}
		return nil
	})
	if err != nil {
		httpfence.Refuse(w, err)
		return
	}
	_ = json.NewEncoder(w).Encode(elements) // who has gone does not hear it
}

func (s *store) set(name string) *set {
	if s.sets[name] == nil {
		s.sets[name] = &set{written: make(map[string]bool)}
	}
	return s.sets[name]
}

func (s *store) read(name string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.set(name).now)
}

func (s *store) write(name string, elements []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.set(name)
	x.now, x.changed = elements, time.Now()
	for _, e := range elements {
		x.written[e] = true
	}
}

// judgeBefore counts what was lost of the sets that were last written before then, and
// forgets them. It returns those fenced ones that lost any.
func (s *store) judgeBefore(then time.Time) (wrong []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(s.sets)) {
		x := s.sets[name]
		if !x.changed.Before(then) {
			continue
		}
		delete(s.sets, name)
		lost := maps.Clone(x.written)
		for _, e := range x.now {
			delete(lost, e)
		}
		kind := kindOf(name)
		s.tally.Written[kind] += len(x.written)
		s.tally.Lost[kind] += len(lost)
		if kind == fencedSetKind && len(lost) > 0 {
			wrong = append(wrong, fmt.Sprintf("%s: updates were lost in spite of the token: %v", name, slices.Sorted(maps.Keys(lost))))
		}
	}
	return wrong
}

func (s *store) result() storeTally {
	s.mu.Lock()
	defer s.mu.Unlock()
	return storeTally{maps.Clone(s.tally.Written), maps.Clone(s.tally.Lost), s.guard.refused.Load()}
}

// A storeClient is the store as a worker sees it.
type storeClient struct{ http *http.Client }

func dialStore(path string) storeClient {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}
	return storeClient{&http.Client{Transport: &http.Transport{DialContext: dial}}}
}

// ask reads the set, or writes it if there are elements. A zero token is not sent.
func (c storeClient) ask(ctx context.Context, name string, token fencing.Token, elements []string) ([]string, error) {
	method, base := http.MethodGet, "http://store/plain/"
	if elements != nil {
		method = http.MethodPut
	}
	if !token.IsZero() {
		base = "http://store/fenced/"
	}
	body, err := json.Marshal(elements)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, method, base+name, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	httpfence.Set(r.Header, name, token)
	resp, err := c.http.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if err := httpfence.Check(resp); err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		return nil, fmt.Errorf("the store said %s: %s", resp.Status, text)
	}
	return elements, json.NewDecoder(resp.Body).Decode(&elements)
}
