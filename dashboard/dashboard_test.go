package dashboard

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/dashboard/api"
	"github.com/quorumlock/quorumlock/locktest"
)

// take holds a lock until the test is over.
func take(t *testing.T, n *quorumlock.Node, name string, opts ...quorumlock.AcquireOption) *quorumlock.Hold {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	h, err := n.Acquire(ctx, name, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = h.Release(context.Background()) }) // it may be lost by then
	return h
}

// queue lets a node wait for a name until the test is over, and returns when it does.
func queue(t *testing.T, n *quorumlock.Node, name string, opts ...quorumlock.AcquireOption) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	before, err := n.Describe(t.Context(), name)
	require.NoError(t, err)
	go func() {
		defer close(over)
		if h, err := n.Acquire(ctx, name, opts...); err == nil {
			<-ctx.Done()
			_ = h.Release(context.Background())
		}
	}()
	t.Cleanup(func() { cancel(); <-over })
	watch, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	for _, err := range n.Watch(watch, name) {
		require.NoError(t, err)
		info, err := n.Describe(watch, name)
		require.NoError(t, err)
		if len(info.Waiters) > len(before.Waiters) {
			return
		}
	}
}

func get(h http.Handler, target string, header ...string) *httptest.ResponseRecorder {
	return ask(h, http.MethodGet, target, "", header...)
}

// ask sends a request; header are keys and values in turn.
func ask(h http.Handler, method, target, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func decoded[T any](t *testing.T, w *httptest.ResponseRecorder) (v T) {
	t.Helper()
	require.Equal(t, http.StatusOK, w.Code, w.Body.String())
	require.Equal(t, "application/json", w.Header().Get("Content-Type"))
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &v))
	return v
}

// Every page is there as HTML and as JSON, by suffix and by Accept, and shows the same.
func TestEveryPageAsHTMLAndJSON(t *testing.T) {
	hold := take(t, nodes[0], "pages/leader", quorumlock.Value("10.0.0.1:80"))
	queue(t, nodes[1], "pages/leader")
	id := url.QueryEscape(hold.Name())
	info, err := nodes[0].Describe(t.Context(), hold.Name())
	require.NoError(t, err)
	session := info.Holders[0].Session.String()
	h := New(nodes[0], Options{})
	for target, shows := range map[string][]string{
		"/":                        {"127.0.0.1:"},
		"/cluster":                 {"127.0.0.1:"},
		"/locks?prefix=pages/":     {"pages/leader", "owner-1", "owner-2", hold.Token().String()},
		"/lock?name=" + id:         {"owner-1", "owner-2", hold.Token().String(), "10.0.0.1:80"},
		"/sessions?owner=owner-1":  {"owner-1", session},
		"/session?id=" + session:   {"owner-1", "pages/leader"},
		"/elections?prefix=pages/": {"pages/leader", "owner-1", "10.0.0.1:80"},
		"/live?prefix=pages/":      {"pages/"},
		"/busiest":                 {"eplica"},
	} {
		path, query, _ := strings.Cut(target, "?")
		if path == "/" {
			path = "/cluster"
		}
		html := get(h, target, "Accept", "text/html,application/xhtml+xml,*/*;q=0.8")
		require.Equal(t, http.StatusOK, html.Code, target)
		require.Equal(t, "text/html; charset=utf-8", html.Header().Get("Content-Type"), target)
		byAccept := get(h, target, "Accept", "application/json")
		bySuffix := get(h, path+".json?"+query)
		for _, w := range []*httptest.ResponseRecorder{byAccept, bySuffix} {
			require.Equal(t, http.StatusOK, w.Code, target)
			require.Equal(t, "application/json", w.Header().Get("Content-Type"), target)
			require.True(t, json.Valid(w.Body.Bytes()), target)
		}
		for _, s := range shows {
			require.Contains(t, html.Body.String(), s, target)
			require.Contains(t, bySuffix.Body.String(), s, target)
		}
	}
	v := decoded[api.Lock](t, get(h, "/lock.json?name="+id))
	require.Equal(t, []string{session}, v.Waiters[0].BlockedBy)
	require.Equal(t, hold.Token().String(), v.Holders[0].Token)
	c := decoded[api.Cluster](t, get(h, "/cluster.json"))
	require.Equal(t, "ok", c.Health)
	require.Len(t, c.Members, 3)
	require.NotZero(t, c.Leader)
	require.NotZero(t, c.Term)
	one := decoded[api.OneSession](t, get(h, "/session.json?id="+session))
	require.Equal(t, "pages/leader", one.Held[0].Name)
	waits := decoded[api.OneSession](t, get(h, "/session.json?id="+v.Waiters[0].Session))
	require.Equal(t, "pages/leader", waits.Waited[0].Name)
}

// Paging shows every lock of the prefix once, in order, however long a page is.
func TestPagingShowsEachLockOnce(t *testing.T) {
	var want []string
	for i := range 23 {
		want = append(want, fmt.Sprintf("paging/%02d", i))
		take(t, nodes[i%3], want[i], quorumlock.Value("v"))
	}
	take(t, nodes[0], "paginG")
	h := New(nodes[1], Options{})
	for _, path := range []string{"locks", "elections"} {
		for _, limit := range []int{1, 5, 22, 23, 24} {
			var got []string
			for after, pages := "", 0; ; pages++ {
				require.Less(t, pages, 30)
				q := url.Values{"prefix": {"paging/"}, "limit": {fmt.Sprint(limit)}, "after": {after}}
				w := get(h, "/"+path+".json?"+q.Encode())
				var names []api.Lock
				if path == "locks" {
					v := decoded[api.Locks](t, w)
					names, after = v.Locks, v.Next
				} else {
					v := decoded[api.Elections](t, w)
					names, after = v.Elections, v.Next
				}
				require.LessOrEqual(t, len(names), limit)
				for _, l := range names {
					got = append(got, l.Name)
				}
				if after == "" {
					break
				}
			}
			require.Equal(t, want, got, "%s, %d a page", path, limit)
		}
	}
	require.Contains(t, get(h, "/locks?prefix=paging/&limit=5").Body.String(), `after=paging%2f04`)
	none := decoded[api.Locks](t, get(h, "/locks.json?prefix=nothing-like-it"))
	require.Empty(t, none.Locks)
	require.Equal(t, nodes[1].Status().Locks, none.InUse)
}

func TestSessionsArePagedAndFound(t *testing.T) {
	for range 5 {
		s, err := nodes[2].OpenSession(t.Context(), quorumlock.WithOwner("many sessions"))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close(context.Background())) })
	}
	h := New(nodes[0], Options{})
	seen := make(map[string]bool)
	for after := ""; ; {
		v := decoded[api.Sessions](t, get(h, "/sessions.json?owner=many+sess&limit=2&after="+after))
		require.Equal(t, 5, v.Total)
		for _, s := range v.Sessions {
			require.False(t, seen[s.ID])
			seen[s.ID] = true
		}
		if after = v.Next; after == "" {
			break
		}
	}
	require.Len(t, seen, 5)
}

func TestALongLineIsPaged(t *testing.T) {
	take(t, nodes[0], "long line")
	for range 4 {
		queue(t, nodes[0], "long line")
	}
	h := New(nodes[0], Options{})
	v := decoded[api.Lock](t, get(h, "/lock.json?name=long+line&from=3"))
	require.Equal(t, 4, v.WaiterCount)
	require.Len(t, v.Waiters, 1)
	require.Equal(t, 3, v.Waiters[0].Ahead)
	require.Empty(t, decoded[api.Lock](t, get(h, "/lock.json?name=long+line&from=99")).Waiters)
	info, err := nodes[0].Describe(t.Context(), "long line")
	require.NoError(t, err)
	cut := viewLock(info, 1, 2)
	require.Len(t, cut.Waiters, 2)
	require.Equal(t, 3, cut.NextFrom)
}

// fields are where a name stands as it is, to be sent back.
var fields = regexp.MustCompile(` (value|data-prefix)="[^"]*"`)

// Names, owners and values come from anybody: none may become markup or a script.
func TestHostileNamesAreText(t *testing.T) {
	const evil = `"><script>alert(1)</script><img src=x onerror=alert(1)>'` + "\u202e\n`{{.}}"
	s, err := nodes[0].OpenSession(t.Context(), quorumlock.WithOwner(evil))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close(context.Background())) })
	_, err = s.Acquire(t.Context(), evil, quorumlock.Value("javascript:alert(1)"+evil))
	require.NoError(t, err)
	h := New(nodes[0], Options{Authorize: func(*http.Request, Action) error { return nil }, Title: evil})
	for _, target := range []string{
		"/", "/locks?prefix=" + url.QueryEscape(evil), "/locks?prefix=" + url.QueryEscape(evil+"x"), "/lock?name=" + url.QueryEscape(evil),
		"/sessions?owner=" + url.QueryEscape(evil), "/session?id=" + s.ID().String(), "/session?id=" + url.QueryEscape(evil),
		"/elections?prefix=" + url.QueryEscape(evil[:2]), "/live?prefix=" + url.QueryEscape(evil), "/" + url.PathEscape(evil),
	} {
		body := get(h, target).Body.String()
		require.NotContains(t, strings.ToLower(body), "<script>", target)
		require.NotContains(t, body, "<img", target)
		require.NotContains(t, fields.ReplaceAllString(body, ""), "\u202e", target)
		require.NotContains(t, body, " style=", target)
		require.NotContains(t, body, " onclick", target)
	}
	require.Contains(t, get(h, "/locks").Body.String(), `\u202e\n`)
	require.Equal(t, evil, decoded[api.Lock](t, get(h, "/lock.json?name="+url.QueryEscape(evil))).Name)
	require.NotContains(t, get(h, "/locks.json").Body.String(), "<script>")
}

func TestHeadersKeepTheBrowserSafe(t *testing.T) {
	h := New(nodes[0], Options{})
	for _, target := range []string{"/", "/locks.json", "/nothing", "/style.css", "/live.js", "/force-close"} {
		header := get(h, target).Header()
		csp := header.Get("Content-Security-Policy")
		require.Contains(t, csp, "default-src 'none'", target)
		require.Contains(t, csp, "frame-ancestors 'none'", target)
		require.NotContains(t, csp, "unsafe", target)
		require.Equal(t, "nosniff", header.Get("X-Content-Type-Options"), target)
		require.Equal(t, "same-origin", header.Get("Referrer-Policy"), target)
	}
	require.Equal(t, "no-store", get(h, "/").Header().Get("Cache-Control"))
	style := get(h, "/style.css")
	require.Contains(t, style.Header().Get("Content-Type"), "text/css")
	require.Equal(t, http.StatusNotModified, get(h, "/style.css", "If-None-Match", style.Header().Get("ETag")).Code)
}

// A bad request is told what is bad about it.
func TestBadRequests(t *testing.T) {
	h := New(nodes[0], Options{})
	for target, want := range map[string]struct {
		status int
		says   string
	}{
		"/nothing":                  {404, "no such page"},
		"/../style.css":             {404, "no such page"},
		"/layout.html":              {404, "no such page"},
		"/locks?limit=0":            {400, "from 1 to 500"},
		"/locks?limit=501":          {400, "from 1 to 500"},
		"/locks?limit=ten":          {400, "from 1 to 500"},
		"/locks?limit=5&limit=6":    {400, "given 2 times"},
		"/locks?prefix=%zz":         {400, "cannot be read"},
		"/sessions?after=no":        {400, "named like"},
		"/lock":                     {400, "bad name"},
		"/lock?name=%ff":            {400, "bad name"},
		"/lock?name=a&from=-1":      {400, "from must be"},
		"/session":                  {400, "named like"},
		"/session?id=1.2":           {400, "named like"},
		"/session?id=01.2.3":        {400, "named like"},
		"/session?id=9.9.9":         {404, "no session 9.9.9"},
		"/events?prefix=a&prefix=b": {400, "given 2 times"},
		"/elections?limit=99999":    {400, "from 1 to 500"},
		"/locks?prefix=" + strings.Repeat("x", quorumlock.MaxNameLen+1): {400, "no name more"},
	} {
		for _, accept := range []string{"text/html", "application/json"} {
			w := get(h, target, "Accept", accept)
			require.Equal(t, want.status, w.Code, target)
			require.Contains(t, w.Body.String(), want.says, target)
			require.Contains(t, w.Header().Get("Content-Type"), accept)
		}
	}
	w := ask(h, http.MethodPost, "/locks", "")
	require.Equal(t, http.StatusMethodNotAllowed, w.Code)
	require.Equal(t, "GET, HEAD", w.Header().Get("Allow"))
	require.Equal(t, http.StatusMethodNotAllowed, get(h, "/force-close").Code)
	require.Panics(t, func() { New(nil, Options{}) })
}

// Mounted as the documentation says, a link leads from page to page.
func TestMountedUnderAPrefix(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle("/a/b/", http.StripPrefix("/a/b", New(nodes[0], Options{})))
	server := httptest.NewServer(mux)
	defer server.Close()
	for _, path := range []string{"/a/b", "/a/b/", "/a/b/locks", "/a/b/style.css"} {
		r, err := server.Client().Get(server.URL + path)
		require.NoError(t, err)
		body, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		require.NoError(t, r.Body.Close())
		require.Equal(t, http.StatusOK, r.StatusCode, path)
		require.NotContains(t, string(body), `href="/`, path)
		require.NotContains(t, string(body), `action="/`, path)
	}
}

// A member that cannot be reached is shown with the reason.
func TestUnreachableMember(t *testing.T) {
	all, err := open(t.TempDir(), 3)
	require.NoError(t, err)
	down := all[0].Status().Leader // whoever leads next needs the others
	for _, n := range all {
		defer n.Close()
		if n.Status().ReplicaID == down {
			require.NoError(t, n.Close())
		}
	}
	h := New(all[down%3], Options{}) // the next id
	require.Eventually(t, func() bool {
		members := decoded[api.Cluster](t, get(h, "/cluster.json")).Members
		return !slices.ContainsFunc(members, func(m api.Member) bool { return (m.Trouble != "") != (m.Replica == down) })
	}, patience, 10*time.Millisecond)
	require.Contains(t, get(h, "/").Body.String(), "could not be reached")
}

// Without a majority the cluster's page says so at once, and what it knows of itself; the
// others give an error that says why.
func TestNoMajority(t *testing.T) {
	c := locktest.New(t, locktest.Config{Replicas: 3})
	h := newHandler(c.Node(1), Options{Authorize: allowAll})
	h.patience = time.Second
	c.Isolate(1)
	v := decoded[api.Cluster](t, get(h, "/cluster.json"))
	require.Equal(t, "no majority", v.Health)
	require.Len(t, v.Members, 3)
	require.Nil(t, v.Members[0].Sessions, "it cannot be known")
	page := get(h, "/cluster").Body.String()
	require.Contains(t, page, "Nothing can be granted until a majority")
	require.Contains(t, page, "unknown")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second) // in place of the page's ten
	defer cancel()
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/locks", nil)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	require.Equal(t, http.StatusServiceUnavailable, w.Code)
	require.Contains(t, w.Body.String(), "A majority of the replicas did not answer in time")
	w = ask(h, http.MethodPost, "/backup", `{"by":"anna","reason":"nightly"}`, "Content-Type", "application/json")
	require.Equal(t, http.StatusServiceUnavailable, w.Code, "it ends by itself")
	require.Contains(t, w.Body.String(), "A majority of the replicas did not answer in time")
	require.Empty(t, w.Header().Get("Content-Disposition"))
	c.Heal()
	require.NoError(t, c.Node(1).Ready(ctxOf(t)))
	require.Eventually(t, func() bool { return decoded[api.Cluster](t, get(h, "/cluster.json")).Health == "ok" }, patience, time.Millisecond)
}

// The busiest names are shown with how often they were asked for.
func TestBusiest(t *testing.T) {
	h := New(nodes[2], Options{})
	since := decoded[api.Busiest](t, get(h, "/busiest.json")).Since // it counts from now on
	for range 20 {
		lock, err := nodes[2].Acquire(ctxOf(t), "busy <name>")
		require.NoError(t, err)
		require.NoError(t, lock.Release(ctxOf(t)))
	}
	take(t, nodes[2], "idle name")
	v := decoded[api.Busiest](t, get(h, "/busiest.json"))
	require.Equal(t, since, v.Since)
	require.Equal(t, api.BusyName{Name: "busy <name>", Calls: 20}, v.Names[0])
	require.Contains(t, get(h, "/busiest").Body.String(), "busy &lt;name&gt;")
}

// When the node is closed the cluster's page says so, and the others give an error.
func TestClosedNode(t *testing.T) {
	// A node of a cluster of its own, so that the others go on.
	one, err := open(t.TempDir(), 1)
	require.NoError(t, err)
	lone := one[0]
	h := New(lone, Options{})
	require.Equal(t, "ok", decoded[api.Cluster](t, get(h, "/cluster.json")).Health)
	require.NoError(t, lone.Close())
	require.Equal(t, "failed", decoded[api.Cluster](t, get(h, "/cluster.json")).Health)
	require.Contains(t, get(h, "/").Body.String(), "Failed")
	for _, path := range []string{"/locks", "/lock?name=a", "/sessions", "/elections", "/session?id=1.1.1"} {
		w := get(h, path)
		require.Equal(t, http.StatusServiceUnavailable, w.Code, path)
		require.Contains(t, w.Body.String(), "closed", path)
	}
}
