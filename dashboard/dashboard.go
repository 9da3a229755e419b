package dashboard

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path"
	"strings"
	"sync/atomic"
	"time"

	"github.com/quorumlock/quorumlock"
)

// Options say what the page may do. The zero value shows everything and changes
// nothing.
type Options struct {
	// Title is shown at the top of each page. Default: quorumlock.
	Title string
	// Authorize says whether a request may do what it asks for: nil lets it, and an
	// error is shown to who asked, with status 403. It runs once before each action,
	// after all other checks. If it is nil, nobody may change anything.
	Authorize func(*http.Request, Action) error
	// User names who makes a request, for the reason that the victim of an action is
	// told. Default: who acts types a name.
	User func(*http.Request) string
	// MaxWatchers is how many pages of live changes may be open at once; further ones
	// are refused with status 503. Default: 64.
	MaxWatchers int
	// MaxHolds is how many locks clients outside of this process may hold, or wait for,
	// through this page at once, as "quorumlock run" does; further ones are refused with
	// status 503. Authorize is asked for each. Default: 0, none may.
	MaxHolds int
	// ChangeMembers has replicas added, removed and replaced through this page, as
	// "quorumlock members add" does, if Authorize lets it. Default: nobody can.
	ChangeMembers bool
}

const (
	readTimeout   = 10 * time.Second // of a page
	healthTimeout = 2 * time.Second  // within which a majority must answer
	maxWalks      = 2                // over all locks, at once
	maxWatchers   = 64
)

//go:embed static
var static embed.FS

// A handler serves the pages of one node.
type handler struct {
	node     *quorumlock.Node
	opts     Options
	cross    *http.CrossOriginProtection
	walks    chan struct{} // one place for each walk under way
	watchers places
	clients  places        // that hold a lock through this page
	interval time.Duration // between two batches of live changes
	patience time.Duration // for a majority to answer, before a backup
}

// New returns the handler of a node's pages. It is to be mounted with the prefix of
// its path stripped, as the package's example shows. It starts nothing and need not be
// closed; streams of live changes end when the node is closed.
func New(node *quorumlock.Node, opts Options) http.Handler { return newHandler(node, opts) }

func newHandler(node *quorumlock.Node, opts Options) *handler {
	if node == nil {
		panic("dashboard: nil node")
	}
	if opts.Title == "" {
		opts.Title = "quorumlock"
	}
	if opts.MaxWatchers <= 0 {
		opts.MaxWatchers = maxWatchers
	}
	return &handler{
		node: node, opts: opts, cross: http.NewCrossOriginProtection(),
		walks: make(chan struct{}, maxWalks), interval: flushInterval, patience: readTimeout,
	}
}

// A page makes what one page shows: the same value is rendered as HTML or as JSON.
type page struct {
	template string
	title    string
	make     func(*handler, context.Context, *http.Request) (any, error)
}

var pages = map[string]page{
	"cluster":   {"cluster", "Cluster", (*handler).cluster},
	"locks":     {"locks", "Locks", (*handler).locks},
	"lock":      {"lock", "Lock", (*handler).lock},
	"sessions":  {"sessions", "Sessions", (*handler).sessions},
	"session":   {"session", "Session", (*handler).session},
	"busiest":   {"busiest", "Busiest", (*handler).busiest},
	"elections": {"elections", "Elections", (*handler).elections},
	"live":      {"live", "Live", (*handler).live},
}

// places bound how many requests of a kind are served at once.
type places struct{ taken atomic.Int64 }

// take reports whether there was one of so many left. free gives it back.
func (p *places) take(most int) bool {
	if p.taken.Add(1) > int64(most) {
		p.free()
		return false
	}
	return true
}

func (p *places) free() { p.taken.Add(-1) }

// ServeHTTP finds the page, and sets what holds for all of them.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	secure(w.Header())
	name := strings.TrimPrefix(r.URL.Path, "/")
	name, wantsJSON := strings.CutSuffix(name, ".json")
	if name == "" {
		name = "cluster"
	}
	if !wantsJSON {
		accept := r.Header.Get("Accept")
		wantsJSON = strings.Contains(accept, "application/json") && !strings.Contains(accept, "text/html")
	}
	reply := &reply{h: h, w: w, r: r, json: wantsJSON, at: name}
	if kind, ok := kinds[name]; ok {
		if reply.allows(http.MethodPost) {
			h.act(reply, kind)
		}
		return
	}
	p, isPage := pages[name]
	switch {
	case name == "hold":
		if reply.allows(http.MethodPost) {
			h.hold(reply)
		}
	case !isPage && name != "events" && !isFile(name):
		reply.fail(&failure{http.StatusNotFound, "There is no such page."})
	case !reply.allows(http.MethodGet, http.MethodHead):
	case name == "events":
		h.events(reply)
	case isPage:
		ctx, cancel := context.WithTimeout(r.Context(), readTimeout)
		defer cancel()
		data, err := p.make(h, ctx, r)
		if err != nil {
			reply.fail(err)
			return
		}
		reply.page(http.StatusOK, p, data)
	default:
		h.file(w, r, name)
	}
}

// secure sets the headers of all answers. Scripts and styles come from this handler
// alone, none stand in the page.
func secure(header http.Header) {
	header.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "+
		"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("X-Frame-Options", "DENY")
	// Not "no-referrer": browsers then send "Origin: null" with forms.
	header.Set("Referrer-Policy", "same-origin")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Cache-Control", "no-store")
	header.Add("Vary", "Accept")
}

func isFile(name string) bool {
	_, err := static.ReadFile("static/" + name)
	return err == nil
}

func (h *handler) file(w http.ResponseWriter, r *http.Request, name string) {
	w.Header().Set("Cache-Control", "no-cache") // ask each time: a new version has new files
	w.Header().Set("ETag", fileTag)
	body, _ := static.ReadFile("static/" + name)
	http.ServeContent(w, r, path.Base(name), time.Time{}, bytes.NewReader(body))
}

// A failure is an answer that is not the page asked for.
type failure struct {
	status int
	text   string
}

func (f *failure) Error() string { return f.text }

func badRequest(format string, args ...any) error {
	return &failure{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

// statusOf says how an error is told in HTTP.
func statusOf(err error) int {
	var f *failure
	switch {
	case errors.As(err, &f):
		return f.status
	case errors.Is(err, quorumlock.ErrName), errors.Is(err, quorumlock.ErrReason), errors.Is(err, quorumlock.ErrNotMember),
		errors.Is(err, quorumlock.ErrMember):
		return http.StatusBadRequest
	case errors.Is(err, quorumlock.ErrNotHeld), errors.Is(err, quorumlock.ErrTransfer), errors.Is(err, quorumlock.ErrLastVoter),
		errors.Is(err, quorumlock.ErrMajority), errors.Is(err, quorumlock.ErrReplicaAlive):
		return http.StatusConflict
	default:
		return http.StatusServiceUnavailable
	}
}

// A reply writes one answer, as HTML or as JSON.
type reply struct {
	h    *handler
	w    http.ResponseWriter
	r    *http.Request
	json bool
	at   string // which page
}

// allows refuses other methods.
func (p *reply) allows(methods ...string) bool {
	for _, m := range methods {
		if p.r.Method == m {
			return true
		}
	}
	p.w.Header().Set("Allow", strings.Join(methods, ", "))
	p.fail(&failure{http.StatusMethodNotAllowed, "This can only be asked for with " + strings.Join(methods, " or ") + "."})
	return false
}

func (p *reply) fail(err error) {
	status := statusOf(err)
	text := err.Error()
	if errors.Is(err, quorumlock.ErrNoQuorum) {
		text = "A majority of the replicas did not answer in time (" + text + ")."
	}
	p.page(status, page{template: "error", title: http.StatusText(status)}, failed{Error: text})
}

type failed struct {
	Error string `json:"error"`
}

func (p *reply) page(status int, which page, data any) {
	var body bytes.Buffer
	contentType := "text/html; charset=utf-8"
	var err error
	if p.json {
		contentType = "application/json"
		encoder := json.NewEncoder(&body)
		encoder.SetIndent("", "  ")
		err = encoder.Encode(data)
	} else {
		err = p.render(&body, which, data)
	}
	if err != nil {
		http.Error(p.w, "The page could not be made: "+err.Error(), http.StatusInternalServerError)
		return
	}
	p.w.Header().Set("Content-Type", contentType)
	p.w.WriteHeader(status)
	// The browser may have gone: there is nobody to tell.
	_, _ = p.w.Write(body.Bytes())
}
