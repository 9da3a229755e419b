package dashboard

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/dashboard/api"
	"github.com/quorumlock/quorumlock/locktest"
)

// A talk is a request to hold a lock, as its client sees it.
type talk struct {
	t      *testing.T
	say    *io.PipeWriter
	answer *http.Response
	lines  *bufio.Scanner
	cancel func()
}

func begin(t *testing.T, server *httptest.Server, ask api.HoldRequest) *talk {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	body, say := io.Pipe()
	w := &talk{t: t, say: say, cancel: func() { cancel(); _ = say.CloseWithError(errors.New("gone")) }}
	t.Cleanup(w.cancel)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+"/hold", body)
	require.NoError(t, err)
	r.Header.Set("Content-Type", api.HoldType)
	go func() { _ = json.NewEncoder(say).Encode(ask) }()
	w.answer, err = server.Client().Do(r)
	require.NoError(t, err)
	t.Cleanup(func() { _ = w.answer.Body.Close() })
	require.Equal(t, http.StatusOK, w.answer.StatusCode)
	w.lines = bufio.NewScanner(w.answer.Body)
	return w
}

func (w *talk) tell(m api.HoldMessage) {
	w.t.Helper()
	require.NoError(w.t, json.NewEncoder(w.say).Encode(m))
}

// hear returns the next answer; its state is "" when there is none any more.
func (w *talk) hear() (a api.HoldAnswer) {
	if w.lines.Scan() {
		require.NoError(w.t, json.Unmarshal(w.lines.Bytes(), &a))
	}
	return a
}

// until returns the first answer of a state.
func (w *talk) until(state string) api.HoldAnswer {
	w.t.Helper()
	for {
		switch a := w.hear(); a.State {
		case state:
			return a
		case api.HoldWaiting, api.HoldHeld:
		default:
			require.Equal(w.t, state, a.State, a.Error)
		}
	}
}

func holding(t *testing.T, n *quorumlock.Node) *httptest.Server {
	server := httptest.NewServer(New(n, Options{Authorize: allowAll, MaxHolds: 4}))
	t.Cleanup(server.Close)
	return server
}

func ctxOf(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// A client that waits, is granted the lock, and releases it leaves it free at once. It is
// never told that it holds the lock without having asked.
func TestHoldForAClient(t *testing.T) {
	for what, start := range map[string]func(*httptest.Server){
		"HTTP/1": (*httptest.Server).Start,
		"HTTP/2": func(s *httptest.Server) { s.EnableHTTP2 = true; s.StartTLS() },
	} {
		t.Run(what, func(t *testing.T) {
			server := httptest.NewUnstartedServer(New(nodes[1], Options{Authorize: allowAll, MaxHolds: 1}))
			start(server)
			t.Cleanup(server.Close)
			name := "held for a client/" + what
			other := take(t, nodes[0], name)
			w := begin(t, server, api.HoldRequest{Name: name, By: "anna", Lease: 5000})
			w.tell(api.HoldMessage{Ping: 7})
			for w.until(api.HoldWaiting).Ping != 7 {
			}
			require.NoError(t, other.Release(ctxOf(t)))
			a := w.until(api.HoldHeld)
			require.EqualValues(t, 7, a.Ping)
			info, err := nodes[0].Describe(ctxOf(t), name)
			require.NoError(t, err)
			require.Equal(t, "anna", info.Holders[0].Owner)
			require.Equal(t, info.Holders[0].Token.String(), a.Token)
			w.tell(api.HoldMessage{Ping: 8})
			require.EqualValues(t, 8, w.until(api.HoldHeld).Ping)
			w.tell(api.HoldMessage{Release: true})
			w.until(api.HoldReleased)
			require.Empty(t, w.hear().State)
			h, err := nodes[0].TryAcquire(ctxOf(t), name)
			require.NoError(t, err)
			require.NoError(t, h.Release(ctxOf(t)))
		})
	}
}

// delayed returns whether nobody holds the lock and nobody may have it yet.
func delayed(t *testing.T, name string) bool {
	t.Helper()
	for e, err := range nodes[0].Watch(ctxOf(t), name) {
		require.NoError(t, err)
		if e.Kind != quorumlock.EventSynced && e.Kind != quorumlock.EventLost && e.Kind != quorumlock.EventReleased {
			continue
		}
		info, err := nodes[0].Describe(ctxOf(t), name)
		require.NoError(t, err)
		if len(info.Holders) == 0 {
			return !info.DelayedUntil.IsZero()
		}
	}
	return false
}

// heldBy waits until somebody has a lock.
func heldBy(t *testing.T, name, owner string) {
	t.Helper()
	for e, err := range nodes[0].Watch(ctxOf(t), name) {
		require.NoError(t, err)
		if e.Kind == quorumlock.EventGranted && e.Owner == owner || len(e.Locks) > 0 && e.Locks[0].Holders[0].Owner == owner {
			return
		}
	}
}

// A client that is gone without a release may still believe in its lock: it stays taken
// for a lease. One that was never told that it holds it cannot.
func TestHoldOfAClientThatIsGone(t *testing.T) {
	server := holding(t, nodes[1])
	for what, leave := range map[string]func(*talk){
		"cut off":       func(w *talk) { w.cancel() },
		"end of body":   func(w *talk) { _ = w.say.Close() },
		"silent":        func(*talk) {},
		"talks rubbish": func(w *talk) { _, _ = w.say.Write([]byte("what?\n")) },
	} {
		t.Run(what, func(t *testing.T) {
			w := begin(t, server, api.HoldRequest{Name: "gone/" + what, By: "anna", Lease: 1000})
			w.tell(api.HoldMessage{Ping: 1})
			w.until(api.HoldHeld)
			leave(w)
			require.True(t, delayed(t, "gone/"+what))
		})
	}
	w := begin(t, server, api.HoldRequest{Name: "gone unheard", By: "anna", Lease: 600_000})
	heldBy(t, "gone unheard", "anna") // though it was not told
	queue(t, nodes[0], "gone unheard")
	w.cancel()
	heldBy(t, "gone unheard", "owner-1") // and not only after a lease: nobody could believe in it
	other := take(t, nodes[0], "gone from line")
	w = begin(t, server, api.HoldRequest{Name: "gone from line", By: "anna", Lease: 600_000})
	w.tell(api.HoldMessage{Ping: 1})
	w.until(api.HoldWaiting)
	w.cancel()
	require.NoError(t, other.Release(ctxOf(t)))
	take(t, nodes[2], "gone from line")
}

// Without a majority nobody is told that it holds a lock, though the replica itself may
// still rely on it.
func TestHoldIsNotConfirmedWithoutAMajority(t *testing.T) {
	c := locktest.New(t, locktest.Config{Replicas: 3, Options: func(o *quorumlock.Options) { o.SessionTTL = time.Minute }})
	server := holding(t, c.Node(1))
	w := begin(t, server, api.HoldRequest{Name: "job", By: "anna", Lease: 1000})
	w.tell(api.HoldMessage{Ping: 1})
	w.until(api.HoldHeld)
	c.Isolate(1)
	go func() { // silence would end it before
		for ping := uint64(2); ping < 9; ping++ {
			if json.NewEncoder(w.say).Encode(api.HoldMessage{Ping: ping}) != nil {
				return
			}
			<-time.After(100 * time.Millisecond)
		}
	}()
	for a := w.hear(); a.State != ""; a = w.hear() {
		require.NotEqual(t, api.HoldHeld, a.State)
	}
}

// A lock that is taken from its client by force is not granted while the client may not
// have heard.
func TestHoldForcedFromAClient(t *testing.T) {
	w := begin(t, holding(t, nodes[1]), api.HoldRequest{Name: "forced from client", By: "anna", Lease: 1000})
	w.tell(api.HoldMessage{Ping: 1})
	w.until(api.HoldHeld)
	info, err := nodes[0].Describe(ctxOf(t), "forced from client")
	require.NoError(t, err)
	require.NoError(t, nodes[0].ForceRelease(ctxOf(t), "forced from client", info.Holders[0].Token, "ben", "stuck"))
	require.Contains(t, w.until(api.HoldLost).Error, "ben: stuck")
	_, err = nodes[0].TryAcquire(ctxOf(t), "forced from client")
	var held *quorumlock.HeldError
	require.ErrorAs(t, err, &held)
	require.True(t, held.Delayed)
}

func TestHoldRefused(t *testing.T) {
	server := holding(t, nodes[1])
	take(t, nodes[0], "refused to client")
	require.True(t, begin(t, server, api.HoldRequest{Name: "refused to client", By: "anna", Lease: 1000, Try: true}).until(api.HoldRefused).Held)
	require.True(t, begin(t, server, api.HoldRequest{Name: "refused to client", By: "anna", Lease: 1000, Wait: 200}).until(api.HoldRefused).Held)
	a := begin(t, server, api.HoldRequest{Name: "refused to client", By: "anna", Lease: 1000, Permits: 1, Limit: 2}).until(api.HoldRefused)
	require.False(t, a.Held || a.Again, a.Error)
	a = begin(t, server, api.HoldRequest{Name: strings.Repeat("x", 600), By: "anna", Lease: 1000}).until(api.HoldRefused)
	require.Contains(t, a.Error, "name")
}

// Whatever is wrong with a request, no lock is asked for.
func TestHoldNeedsLeave(t *testing.T) {
	deny := func(_ *http.Request, a Action) error {
		return errors.New("no " + string(a.Kind) + " of " + a.Name + " by " + a.By)
	}
	good := `{"name":"n","by":"anna","leaseMs":1000}` + "\n"
	for _, c := range []struct {
		what   string
		opts   Options
		body   string
		header []string
		status int
		says   string
	}{
		{"not enabled", Options{}, good, nil, 403, "not enabled"},
		{"actions only", Options{Authorize: allowAll}, good, nil, 403, "not enabled"},
		{"nobody to ask", Options{MaxHolds: 1}, good, nil, 403, "not enabled"},
		{"denied", Options{MaxHolds: 1, Authorize: deny}, good, nil, 403, "no take-lock of n by anna"},
		{"another site", Options{MaxHolds: 1, Authorize: allowAll}, good, []string{"Sec-Fetch-Site", "cross-site"}, 403, "another site"},
		{"a form", Options{MaxHolds: 1, Authorize: allowAll}, good, []string{"Content-Type", form}, 415, api.HoldType},
		{"no JSON", Options{MaxHolds: 1, Authorize: allowAll}, "x\n", nil, 400, "no request"},
		{"empty", Options{MaxHolds: 1, Authorize: allowAll}, "", nil, 400, "first line"},
		{"too long", Options{MaxHolds: 1, Authorize: allowAll}, strings.Repeat("x", 2*maxBody), nil, 400, "too long"},
		{"no name", Options{MaxHolds: 1, Authorize: allowAll}, `{"by":"anna","leaseMs":1000}` + "\n", nil, 400, "name"},
		{"nobody", Options{MaxHolds: 1, Authorize: allowAll}, `{"name":"n","leaseMs":1000}` + "\n", nil, 400, "who you are"},
		{"no lease", Options{MaxHolds: 1, Authorize: allowAll}, `{"name":"n","by":"anna"}` + "\n", nil, 400, "leaseMs"},
		{"long lease", Options{MaxHolds: 1, Authorize: allowAll}, `{"name":"n","by":"anna","leaseMs":9999999999}` + "\n", nil, 400, "leaseMs"},
		{"two modes", Options{MaxHolds: 1, Authorize: allowAll}, `{"name":"n","by":"anna","leaseMs":1000,"shared":true,"limit":2,"permits":1}` + "\n", nil, 400, "limit is 2: a lock is shared or counted"},
		{"no limit", Options{MaxHolds: 1, Authorize: allowAll}, `{"name":"n","by":"anna","leaseMs":1000,"permits":1}` + "\n", nil, 400, "permits is 1 and limit is 0"},
		{"no time", Options{MaxHolds: 1, Authorize: allowAll}, `{"name":"n","by":"anna","leaseMs":1000,"waitMs":-5}` + "\n", nil, 400, "waitMs is -5"},
	} {
		server := httptest.NewServer(New(nodes[0], c.opts))
		r, err := http.NewRequest(http.MethodPost, server.URL+"/hold", strings.NewReader(c.body))
		require.NoError(t, err)
		r.Header.Set("Content-Type", api.HoldType)
		for i := 0; i < len(c.header); i += 2 {
			r.Header.Set(c.header[i], c.header[i+1])
		}
		answer, err := server.Client().Do(r)
		require.NoError(t, err, c.what)
		body, err := io.ReadAll(answer.Body)
		require.NoError(t, err, c.what)
		require.Equal(t, c.status, answer.StatusCode, "%s: %s", c.what, body)
		require.Contains(t, string(body), c.says, c.what)
		require.NoError(t, answer.Body.Close())
		server.Close()
	}
	require.Equal(t, http.StatusNotImplemented, ask(New(nodes[0], Options{MaxHolds: 1, Authorize: allowAll}), http.MethodPost, "/hold", good).Code)
	require.Equal(t, http.StatusMethodNotAllowed, get(New(nodes[0], Options{MaxHolds: 1, Authorize: allowAll}), "/hold").Code)
	info, err := nodes[0].Describe(ctxOf(t), "n")
	require.NoError(t, err)
	require.Empty(t, info.Holders)
}

// No more clients than the application allows, and those that are gone are not counted.
func TestMaxHolds(t *testing.T) {
	server := httptest.NewServer(New(nodes[0], Options{Authorize: allowAll, MaxHolds: 1, User: func(*http.Request) string { return "user" }}))
	t.Cleanup(server.Close)
	w := begin(t, server, api.HoldRequest{Name: "max holds", By: "anna", Lease: 1000})
	w.tell(api.HoldMessage{Ping: 1})
	w.until(api.HoldHeld)
	info, err := nodes[0].Describe(ctxOf(t), "max holds")
	require.NoError(t, err)
	require.Equal(t, "user (anna)", info.Holders[0].Owner)
	r, err := server.Client().Post(server.URL+"/hold", api.HoldType, strings.NewReader(`{"name":"n","by":"anna","leaseMs":1000}`+"\n"))
	require.NoError(t, err)
	require.NoError(t, r.Body.Close())
	require.Equal(t, http.StatusServiceUnavailable, r.StatusCode)
	w.tell(api.HoldMessage{Release: true})
	w.until(api.HoldReleased)
	require.Empty(t, w.hear().State, "the request is over")
	begin(t, server, api.HoldRequest{Name: "max holds", By: "anna", Lease: 1000}).cancel()
}
