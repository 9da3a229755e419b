package dashboard

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/dashboard/api"
)

const (
	flushInterval = 250 * time.Millisecond
	perFlush      = 50               // changes that a browser is sent at once, and thrice as many more losses: of more, it is told how many
	quiet         = 15 * time.Second // after which a line keeps the connection from being taken for dead
	writeTimeout  = 10 * time.Second // for a browser that does not read
)

// A feed is the changes that wait to be written.
type feed struct {
	mu      sync.Mutex
	changes []api.Change
	skipped int
	err     error // why the watch ended
}

// add copies what is needed of an event: it is shared by all who watch.
func (f *feed) add(e *quorumlock.Event) {
	if e.Kind == quorumlock.EventPicture {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := len(f.changes); n >= 4*perFlush || n >= perFlush && e.Kind != quorumlock.EventLost {
		f.skipped++
		return
	}
	c := api.Change{
		Kind: e.Kind.String(), At: time.Now(), Name: e.Name, Owner: e.Owner, Slots: e.Slots, Limit: e.Limit, Value: e.Value,
	}
	if !e.Session.IsZero() {
		c.Session = e.Session.String()
	}
	if e.Token != 0 {
		c.Token = token(e.Token)
	}
	if e.Mode != 0 {
		c.Mode = e.Mode.String()
	}
	if e.Cause != nil {
		c.Cause = e.Cause.Error()
	}
	f.changes = append(f.changes, c)
}

func (f *feed) take() (changes []api.Change, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	changes, err = f.changes, f.err
	if f.skipped > 0 {
		changes = append(changes, api.Change{Kind: "skipped", At: time.Now(), Count: f.skipped})
	}
	f.changes, f.skipped = nil, 0
	return changes, err
}

func (f *feed) follow(ctx context.Context, node *quorumlock.Node, prefix string) {
	for e, err := range node.Watch(ctx, prefix) {
		if err != nil {
			f.mu.Lock()
			f.err = err
			f.mu.Unlock()
			return
		}
		f.add(e)
	}
}

// events streams the changes as server-sent events until the browser goes or the node
// closes.
func (h *handler) events(p *reply) {
	prefix, _, _, err := paging(p.r, "prefix")
	if err != nil {
		p.fail(err)
		return
	}
	if !h.watchers.take(h.opts.MaxWatchers) {
		p.fail(&failure{http.StatusServiceUnavailable, fmt.Sprintf("%d pages of live changes are open, and no more are allowed.", h.opts.MaxWatchers)})
		return
	}
	defer h.watchers.free()
	p.w.Header().Set("Content-Type", "text/event-stream")
	p.w.Header().Set("X-Accel-Buffering", "no") // nginx would keep the changes back
	if p.r.Method == http.MethodHead {
		return
	}
	ctx, cancel := context.WithCancel(p.r.Context())
	var f feed
	var wg sync.WaitGroup
	wg.Go(func() { f.follow(ctx, h.node, prefix) })
	defer wg.Wait()
	defer cancel()
	h.stream(ctx, p.w, &f)
}

func (h *handler) stream(ctx context.Context, w http.ResponseWriter, f *feed) {
	control := http.NewResponseController(w)
	send := func(s string) bool {
		// Not every ResponseWriter has a deadline or a buffer; that it does not is no fault.
		_ = control.SetWriteDeadline(time.Now().Add(writeTimeout))
		_, err := w.Write([]byte(s))
		_ = control.Flush()
		return err == nil
	}
	tick := time.NewTicker(h.interval)
	defer tick.Stop()
	last := time.Now()
	for ok := send("retry: 3000\n\n"); ok; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		changes, err := f.take()
		if err != nil && ctx.Err() != nil {
			return
		}
		if err != nil {
			changes = append(changes, api.Change{Kind: "ended", At: time.Now(), Cause: err.Error()})
		}
		if len(changes) > 0 {
			ok = send(encode(changes))
			last = time.Now()
		} else if time.Since(last) > quiet {
			ok = send(": quiet\n\n")
			last = time.Now()
		}
		if err != nil {
			return
		}
	}
}

// encode writes changes as events. JSON has no raw line ends, which would end one.
func encode(changes []api.Change) string {
	var b strings.Builder
	for _, c := range changes {
		body, err := json.Marshal(c)
		if err != nil {
			panic(err) // strings, numbers and times: there is nothing that could fail
		}
		fmt.Fprintf(&b, "data: %s\n\n", body)
	}
	return b.String()
}
