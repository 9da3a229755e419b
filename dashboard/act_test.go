package dashboard

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
)

const (
	form   = "application/x-www-form-urlencoded"
	asJSON = "application/json"
)

func allowAll(*http.Request, Action) error { return nil }

// Whatever is wrong with a request, nothing changes and the answer says what it was.
func TestRefusedActionsChangeNothing(t *testing.T) {
	hold := take(t, nodes[0], "refused")
	session := url.QueryEscape(sessionOf(t, "refused"))
	token := hold.Token().String()
	good := `{"name":"refused","token":"` + token + `","session":"` + session + `","replica":"1","dead":"2","address":"127.0.0.1:1","by":"ann","reason":"test"}`
	judged := 0
	deny := func(*http.Request, Action) error { judged++; return errors.New("ann is not on duty") }
	for _, c := range []struct {
		what      string
		authorize func(*http.Request, Action) error
		body      string
		header    []string
		status    int
		says      string
	}{
		{"not enabled", nil, good, []string{"Content-Type", asJSON}, 403, "not enabled"},
		{"denied by the hook", deny, good, []string{"Content-Type", asJSON}, 403, "ann is not on duty"},
		{"from another site", allowAll, good, []string{"Content-Type", asJSON, "Sec-Fetch-Site", "cross-site"}, 403, "another site"},
		{"from another origin", allowAll, good, []string{"Content-Type", asJSON, "Origin", "https://evil.example"}, 403, "another site"},
		{"form without token", allowAll, "name=refused&token=" + token + "&session=" + session + "&by=a&reason=b", []string{"Content-Type", form}, 403, "cookie"},
		{"form with a token and no cookie", allowAll, "form-token=x&by=a&reason=b", []string{"Content-Type", form}, 403, "cookie"},
		{"form with empty token and cookie", allowAll, "form-token=&by=a&reason=b", []string{"Content-Type", form, "Cookie", tokenCookie + "="}, 403, "cookie"},
		{"form with another token", allowAll, "form-token=x&by=a&reason=b", []string{"Content-Type", form, "Cookie", tokenCookie + "=y"}, 403, "cookie"},
		{"as plain text", allowAll, good, []string{"Content-Type", "text/plain"}, 415, "application/json"},
		{"no type", allowAll, good, nil, 415, "application/json"},
		{"no JSON", allowAll, "{", []string{"Content-Type", asJSON}, 400, "no JSON object"},
		{"two objects", allowAll, good + good, []string{"Content-Type", asJSON}, 400, "follows"},
		{"too large", allowAll, `{"name":"` + strings.Repeat("x", maxBody) + `"}`, []string{"Content-Type", asJSON}, 400, "too large"},
		{"empty", allowAll, "{}", []string{"Content-Type", asJSON}, 400, ""},
		{"no reason", allowAll, strings.Replace(good, `"test"`, `" "`, 1), []string{"Content-Type", asJSON}, 400, "why"},
		{"nobody", allowAll, strings.Replace(good, `"ann"`, `""`, 1), []string{"Content-Type", asJSON}, 400, "who you are"},
	} {
		h := New(nodes[0], Options{Authorize: c.authorize, ChangeMembers: true})
		for kind, k := range kinds {
			if k.changesMembers() && strings.HasPrefix(c.what, "form") {
				continue // see below
			}
			w := ask(h, http.MethodPost, "/"+kind, c.body, c.header...)
			require.Equal(t, c.status, w.Code, "%s: %s: %s", c.what, kind, w.Body)
			require.Contains(t, w.Body.String(), c.says, "%s: %s", c.what, kind)
			require.Equal(t, slices.Contains(c.header, asJSON), json.Valid(w.Body.Bytes()), "who sends JSON is answered in it: %s: %s", c.what, kind)
		}
	}
	require.Equal(t, len(kinds), judged)
	h := New(nodes[0], Options{Authorize: allowAll})
	for body, status := range map[string]int{
		strings.Replace(good, token, "999999", 1):                             409,
		strings.Replace(good, token, "-1", 1):                                 400,
		strings.Replace(good, token, "0", 1):                                  400,
		strings.Replace(good, "refused", "other", 1):                          409,
		strings.Replace(good, "refused", "", 1):                               400,
		strings.Replace(good, "test", "\\u0000"+strings.Repeat("x", 5000), 1): 400,
	} {
		require.Equal(t, status, ask(h, http.MethodPost, "/force-release", body, "Content-Type", asJSON).Code, body)
	}
	for _, replica := range []string{"99", "0", "x"} {
		body := `{"replica":"` + replica + `","by":"a","reason":"b"}`
		require.Equal(t, 400, ask(h, http.MethodPost, "/transfer", body, "Content-Type", asJSON).Code, body)
	}
	for kind, k := range kinds {
		if !k.changesMembers() {
			continue
		}
		require.Equal(t, 403, ask(h, http.MethodPost, "/"+kind, good, "Content-Type", asJSON).Code, "ChangeMembers is not set: %s", kind)
		enabled := New(nodes[0], Options{Authorize: allowAll, ChangeMembers: true})
		w := ask(enabled, http.MethodPost, "/"+kind, "form-token=x&replica=3&by=a&reason=b", "Content-Type", form, "Cookie", tokenCookie+"=x")
		require.Equal(t, 415, w.Code, "there is no form: %s", kind)
		require.Equal(t, 400, ask(enabled, http.MethodPost, "/"+kind, `{"replica":"0","by":"a","reason":"b"}`, "Content-Type", asJSON).Code, kind)
	}
	require.Equal(t, 409, ask(h, http.MethodPost, "/force-close", `{"session":"9.9.9","by":"a","reason":"b"}`, "Content-Type", asJSON).Code)
	require.Equal(t, 400, ask(h, http.MethodPost, "/force-close", `{"session":"x","by":"a","reason":"b"}`, "Content-Type", asJSON).Code)
	require.NotContains(t, get(New(nodes[0], Options{}), "/lock?name=refused").Body.String(), "<form method")
	select {
	case r := <-hold.YieldRequests():
		t.Fatalf("asked to yield by %q", r.By)
	default:
	}
	require.NoError(t, hold.Validate(t.Context()))
}

func sessionOf(t *testing.T, name string) string {
	t.Helper()
	info, err := nodes[0].Describe(t.Context(), name)
	require.NoError(t, err)
	return info.Holders[0].Session.String()
}

// formOf finds a form of a page by its action, and what it would send.
func formOf(t *testing.T, page, action string) (target, token string) {
	t.Helper()
	at := regexp.MustCompile(`action="(` + action + `[^"]*)"`).FindStringSubmatch(page)
	require.NotNil(t, at, page)
	value := regexp.MustCompile(`name="form-token" value="([^"]+)"`).FindStringSubmatch(page)
	require.NotNil(t, value)
	return strings.ReplaceAll(at[1], "&amp;", "&"), value[1]
}

// visitor returns a client that keeps cookies, and what reads the page that it was answered with.
func visitor(t *testing.T) (*http.Client, func(*http.Response, error) string) {
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	return &http.Client{Jar: jar}, func(r *http.Response, err error) string {
		t.Helper()
		require.NoError(t, err)
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		return string(body)
	}
}

// What a browser does: load the page, keep the cookie, send the form. The lock has a
// name that a form field could not carry.
func TestForcedByForm(t *testing.T) {
	const name = "by form\nand &token=1"
	var judged Action
	server := httptest.NewServer(New(nodes[1], Options{
		Authorize: func(_ *http.Request, a Action) error { judged = a; return nil },
		User:      func(*http.Request) string { return "ann@example" },
	}))
	defer server.Close()
	browser, read := visitor(t)
	hold := take(t, nodes[0], name)
	lockPage := server.URL + "/lock?name=" + url.QueryEscape(name)

	target, token := formOf(t, read(browser.Get(lockPage)), "request-yield")
	require.Contains(t, read(browser.PostForm(server.URL+"/"+target, url.Values{"form-token": {token}, "reason": {"please"}, "by": {"a liar"}})), "were asked")
	select {
	case r := <-hold.YieldRequests():
		require.Equal(t, quorumlock.YieldRequest{By: "ann@example", Reason: "please"}, r)
	case <-time.After(patience):
		t.Fatal("nobody asked")
	}
	require.NoError(t, hold.Err())

	target, token = formOf(t, read(browser.Get(lockPage)), "force-release")
	after := read(browser.PostForm(server.URL+"/"+target, url.Values{"form-token": {token}, "reason": {"stuck"}}))
	require.Contains(t, after, "The hold was ended")
	require.Equal(t, Action{Kind: ForceRelease, Name: name, Token: hold.Token(), By: "ann@example", Reason: "stuck"}, judged)
	<-hold.Done()
	var revoked *quorumlock.RevokedError
	require.ErrorAs(t, hold.Err(), &revoked)
	require.Equal(t, &quorumlock.RevokedError{By: "ann@example", Reason: "stuck"}, revoked)

	s, err := nodes[2].OpenSession(t.Context())
	require.NoError(t, err)
	target, token = formOf(t, read(browser.Get(server.URL+"/session?id="+s.ID().String())), "force-close")
	read(browser.PostForm(server.URL+"/"+target, url.Values{"form-token": {token}, "reason": {"gone"}}))
	<-s.Done()
	require.ErrorIs(t, s.Err(), quorumlock.ErrRevoked)
}

// Leadership is handed to who was chosen, and the page says so.
func TestTransferByForm(t *testing.T) {
	server := httptest.NewServer(New(nodes[1], Options{Authorize: allowAll}))
	defer server.Close()
	browser, read := visitor(t)
	page := read(browser.Get(server.URL + "/cluster"))
	target, token := formOf(t, page, "transfer")
	require.Equal(t, 2, strings.Count(page, `action="transfer?`), "to all but who leads")
	after := ""
	require.Eventually(t, func() bool { // a loaded replica may decline
		after = read(browser.PostForm(server.URL+"/"+target, url.Values{"form-token": {token}, "by": {"ann"}, "reason": {"maintenance"}}))
		return strings.Contains(after, "The chosen replica leads")
	}, patience, time.Millisecond, "%s", after)
	require.Equal(t, strings.TrimPrefix(target, "transfer?replica="), strconv.FormatUint(nodes[1].Status().Leader, 10))
}

// The tool of an operator sends JSON and no cookie.
func TestForcedByJSON(t *testing.T) {
	h := New(nodes[0], Options{Authorize: allowAll})
	hold := take(t, nodes[1], "by json")
	body := `{"name":"by json","token":"` + hold.Token().String() + `","by":"tool","reason":"why not"}`
	require.Equal(t, map[string]string{"done": "force-release"},
		decoded[map[string]string](t, ask(h, http.MethodPost, "/force-release", body, "Content-Type", asJSON)))
	<-hold.Done()
	require.Equal(t, http.StatusConflict, ask(h, http.MethodPost, "/force-release", body, "Content-Type", asJSON).Code, "a second time")
	require.Error(t, hold.Release(context.Background()))
}

func TestFormCookie(t *testing.T) {
	take(t, nodes[0], "cookie")
	h := New(nodes[0], Options{Authorize: allowAll})
	w := get(h, "/lock?name=cookie")
	cookie := w.Result().Cookies()[0]
	require.Equal(t, http.SameSiteStrictMode, cookie.SameSite)
	require.True(t, cookie.HttpOnly)
	require.Empty(t, get(h, "/lock?name=cookie", "Cookie", cookie.Name+"="+cookie.Value).Result().Cookies(), "kept")
	require.Empty(t, get(New(nodes[0], Options{}), "/lock?name=cookie").Result().Cookies(), "of no use")
}
