package httpfence

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/quorumlock/quorumlock/fencing"
)

// guardFunc is a guard that answers as told.
type guardFunc func(ctx context.Context, resource string, t fencing.Token) error

func (g guardFunc) Admit(ctx context.Context, resource string, t fencing.Token) error {
	return g(ctx, resource, t)
}

func TestHeadersRoundTrip(t *testing.T) {
	for _, name := range []string{"a", "invoice/4711", "ä 😀", "a\r\nX-Evil: 1", "\x00\xff", "100%", "a+b c", `"`, strings.Repeat("/", fencing.MaxResourceLen)} {
		r := httptest.NewRequest("POST", "/", nil)
		Set(r.Header, "another", 1)
		Set(r.Header, name, 42)
		if got := r.Header.Get(ResourceHeader); strings.ContainsAny(got, "\r\n\x00 ") {
			t.Errorf("%q is sent as %q", name, got)
		}
		if got := Resource(r); got != name {
			t.Errorf("%q came back as %q", name, got)
		}
		if got, err := Token(r.Header); err != nil || got != 42 {
			t.Errorf("token: %d, %v", got, err)
		}
		Set(r.Header, name, 0)
		if len(r.Header) != 0 {
			t.Errorf("the zero token left %v", r.Header)
		}
	}
}

func TestTokenHeader(t *testing.T) {
	for _, c := range []struct {
		values []string
		token  fencing.Token
		want   error
	}{
		{[]string{"18446744073709551615"}, 1<<64 - 1, nil},
		{nil, 0, ErrMissing},
		{[]string{""}, 0, fencing.ErrToken},
		{[]string{"0"}, 0, fencing.ErrToken},
		{[]string{"007"}, 0, fencing.ErrToken},
		{[]string{"-7"}, 0, fencing.ErrToken},
		{[]string{"7, 8"}, 0, fencing.ErrToken},
		{[]string{"7", "8"}, 0, fencing.ErrToken},
		{[]string{"7", "7"}, 0, fencing.ErrToken},
	} {
		got, err := Token(http.Header{TokenHeader: c.values})
		if got != c.token || !errors.Is(err, c.want) {
			t.Errorf("%q: %d, %v, want %d, %v", c.values, got, err, c.token, c.want)
		}
	}
}

func TestResourceHeader(t *testing.T) {
	for _, values := range [][]string{nil, {""}, {"%"}, {"%zz"}, {"a", "a"}} {
		if got := Resource(&http.Request{Header: http.Header{ResourceHeader: values}}); got != "" {
			t.Errorf("%q: %q", values, got)
		}
	}
}

func TestHandler(t *testing.T) {
	var guard fencing.MemGuard
	if err := guard.Admit(t.Context(), "a", 9); err != nil {
		t.Fatal(err)
	}
	broken := guardFunc(func(context.Context, string, fencing.Token) error { return errors.New("secret host is down") })
	terse := guardFunc(func(context.Context, string, fencing.Token) error { return fencing.ErrStale })
	for name, c := range map[string]struct {
		guard    fencing.Guard
		resource string
		token    string
		status   int
		admitted string
	}{
		"newer":             {&guard, "b", "10", 200, ""},
		"equal":             {&guard, "a", "9", 200, ""},
		"stale":             {&guard, "a", "8", 412, "9"},
		"stale, no details": {terse, "a", "8", 412, "0"},
		"missing":           {&guard, "a", "", 428, ""},
		"malformed":         {&guard, "a", "nine", 400, ""},
		"zero":              {&guard, "a", "0", 400, ""},
		"no resource":       {&guard, "", "9", 400, ""},
		"long resource":     {&guard, strings.Repeat("x", fencing.MaxResourceLen+1), "9", 400, ""},
		"guard is broken":   {broken, "a", "9", 503, ""},
	} {
		t.Run(name, func(t *testing.T) {
			ran := false
			h := Handler(c.guard, func(*http.Request) string { return c.resource },
				http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					ran = true
					resource, token, ok := FromContext(r.Context())
					if !ok || resource != c.resource || token.String() != c.token {
						t.Errorf("the context has %q, %d, %t", resource, token, ok)
					}
				}))
			r := httptest.NewRequest("POST", "/", nil)
			if c.token != "" {
				r.Header.Set(TokenHeader, c.token)
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != c.status || ran != (c.status == 200) {
				t.Errorf("status %d, ran: %t, want %d", w.Code, ran, c.status)
			}
			if got := w.Header().Get(AdmittedHeader); got != c.admitted {
				t.Errorf("%s is %q, want %q", AdmittedHeader, got, c.admitted)
			}
			if strings.Contains(w.Body.String(), "secret") {
				t.Errorf("the client was told %q", w.Body)
			}
		})
	}
}

func TestHandlerGivesUpWithTheRequest(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	h := Handler(new(fencing.MemGuard), func(*http.Request) string { return "a" },
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it ran") }))
	r := httptest.NewRequestWithContext(ctx, "POST", "/", nil)
	Set(r.Header, "", 1)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != http.StatusServiceUnavailable {
		t.Errorf("status %d", w.Code)
	}
}

// A newer token came in between the check at the door and the one that counts.
func TestRefuseInsideTheHandler(t *testing.T) {
	var guard fencing.MemGuard
	h := Handler(&guard, Resource, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		resource, token, _ := FromContext(r.Context())
		if err := guard.Admit(r.Context(), resource, token+1); err != nil {
			t.Error(err)
		}
		if err := guard.Admit(r.Context(), resource, token); err != nil {
			Refuse(w, err)
		}
	}))
	r := httptest.NewRequest("POST", "/", nil)
	Set(r.Header, "a/b", 5)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	resp := w.Result()
	resp.Request = r
	var stale *fencing.StaleError
	if err := Check(resp); !errors.As(err, &stale) || *stale != (fencing.StaleError{Resource: "a/b", Presented: 5, Admitted: 6}) {
		t.Errorf("got %v", err)
	}
}

func TestHandlerNeedsItsArguments(t *testing.T) {
	resource := func(*http.Request) string { return "a" }
	for i, build := range []func(){
		func() { Handler(nil, resource, http.NotFoundHandler()) },
		func() { Handler(new(fencing.MemGuard), nil, http.NotFoundHandler()) },
		func() { Handler(new(fencing.MemGuard), resource, nil) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%d was taken", i)
				}
			}()
			build()
		}()
	}
}

// Over a real connection: the token goes there, and the refusal comes back.
func TestClientAndServer(t *testing.T) {
	var guard fencing.MemGuard
	server := httptest.NewServer(Handler(&guard, Resource, http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			resource, token, _ := FromContext(r.Context())
			fmt.Fprintf(w, "%s %d", resource, token)
		})))
	defer server.Close()
	client := &http.Client{Transport: &Transport{Base: server.Client().Transport}}
	const resource = "invoice/4711 ä"

	send := func(ctx context.Context) (*http.Response, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(ctx, "POST", server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Header) != 0 {
			t.Errorf("the caller's request now has %v", r.Header)
		}
		return resp, string(body)
	}

	resp, body := send(NewContext(t.Context(), resource, 9))
	if err := Check(resp); err != nil || body != resource+" 9" {
		t.Errorf("%v, %q", err, body)
	}
	resp, _ = send(NewContext(t.Context(), resource, 5))
	var stale *fencing.StaleError
	if err := Check(resp); !errors.Is(err, fencing.ErrStale) || !errors.As(err, &stale) {
		t.Fatalf("%v, want ErrStale", err)
	}
	if want := (fencing.StaleError{Resource: resource, Presented: 5, Admitted: 9}); *stale != want {
		t.Errorf("got %+v, want %+v", *stale, want)
	}
	resp, _ = send(t.Context())
	if err := Check(resp); err != nil || resp.StatusCode != http.StatusPreconditionRequired {
		t.Errorf("without a token: status %d, %v", resp.StatusCode, err)
	}
}

func TestCheck(t *testing.T) {
	refusal := http.Header{AdmittedHeader: {"9"}}
	for _, c := range []struct {
		resp  http.Response
		stale bool
	}{
		{http.Response{StatusCode: 412, Header: refusal}, true},
		{http.Response{StatusCode: 412, Header: http.Header{AdmittedHeader: {"?"}, ResourceHeader: {"%"}}}, true},
		{http.Response{StatusCode: 412}, false}, // somebody's If-Match
		{http.Response{StatusCode: 503, Header: refusal}, false},
		{http.Response{StatusCode: 200, Header: refusal}, false},
	} {
		if err := Check(&c.resp); errors.Is(err, fencing.ErrStale) != c.stale || (err == nil) == c.stale {
			t.Errorf("%d %v: %v", c.resp.StatusCode, c.resp.Header, err)
		}
	}
}

func TestTransportTakesABareRequest(t *testing.T) {
	var sent http.Header
	transport := &Transport{Base: roundTripFunc(func(r *http.Request) (*http.Response, error) {
		sent = r.Header
		return nil, errors.ErrUnsupported
	})}
	r := (&http.Request{}).WithContext(NewContext(t.Context(), "a", 7))
	if _, err := transport.RoundTrip(r); !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
	if got, err := Token(sent); err != nil || got != 7 {
		t.Errorf("sent %v: %v", sent, err)
	}
}

type roundTripFunc func(*http.Request) (*http.Response, error)

func (f roundTripFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
