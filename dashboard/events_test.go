package dashboard

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/dashboard/api"
	"github.com/quorumlock/quorumlock/sessions"
)

// follow opens a stream and returns the next change of it.
func follow(t *testing.T, ctx context.Context, target string) func() (api.Change, bool) {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	require.NoError(t, err)
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	t.Cleanup(func() { _ = answer.Body.Close() })
	require.Equal(t, "text/event-stream", answer.Header.Get("Content-Type"))
	lines := bufio.NewScanner(answer.Body)
	return func() (c api.Change, ok bool) {
		for lines.Scan() {
			if data, is := strings.CutPrefix(lines.Text(), "data: "); is {
				require.NoError(t, json.Unmarshal([]byte(data), &c))
				return c, true
			}
		}
		return c, false
	}
}

// A change of a name that matches is told, others are not, and nothing is left when
// the browser goes.
func TestLiveChanges(t *testing.T) {
	before := goleak.IgnoreCurrent()
	h := newHandler(nodes[0], Options{MaxWatchers: 1})
	h.interval = 5 * time.Millisecond
	server := httptest.NewServer(h)
	ctx, leave := context.WithTimeout(t.Context(), patience)
	next := follow(t, ctx, server.URL+"/events?prefix=live/")
	c, ok := next()
	require.True(t, ok)
	require.Equal(t, "synced", c.Kind)

	w := get(h, "/events")
	require.Equal(t, http.StatusServiceUnavailable, w.Code, "more than are allowed")

	take(t, nodes[2], "not live")
	hold := take(t, nodes[1], "live/<b>\n\ndata: x")
	c, _ = next()
	require.Equal(t, "granted", c.Kind)
	require.Equal(t, "live/<b>\n\ndata: x", c.Name)
	require.Equal(t, "owner-2", c.Owner)
	require.Equal(t, hold.Token().String(), c.Token)
	require.NoError(t, nodes[0].ForceRelease(ctx, hold.Name(), hold.Token(), "ann", "test"))
	c, _ = next()
	require.Equal(t, "lost", c.Kind)
	require.Contains(t, c.Cause, "ann")

	leave()
	_, ok = next()
	require.False(t, ok)
	server.Close() // waits until the handler has returned
	http.DefaultClient.CloseIdleConnections()
	require.Zero(t, h.watchers.taken.Load())
	require.NoError(t, goleak.Find(before))
}

// When the node closes, the stream says so and ends.
func TestLiveEndsWithTheNode(t *testing.T) {
	one, err := open(t.TempDir(), 1)
	require.NoError(t, err)
	lone := one[0]
	server := httptest.NewServer(New(lone, Options{}))
	defer server.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	next := follow(t, ctx, server.URL+"/events")
	c, _ := next()
	require.Equal(t, "synced", c.Kind)
	require.NoError(t, lone.Close())
	c, _ = next()
	require.Equal(t, "ended", c.Kind)
	_, ok := next()
	require.False(t, ok)
}

// More than a browser can show is counted and not sent; a loss is sent sooner than others.
func TestFeedLeavesOutTheRest(t *testing.T) {
	var f feed
	shared := quorumlock.Event{Kind: quorumlock.EventGranted, Name: "a", Session: sessions.ID{Replica: 1, Epoch: 1, Seq: 1}, Token: 7}
	same := shared
	for range perFlush + 10 {
		f.add(&shared)
	}
	f.add(&quorumlock.Event{Kind: quorumlock.EventLost, Name: "b", Cause: quorumlock.ErrSessionExpired})
	f.add(&quorumlock.Event{Kind: quorumlock.EventPicture})
	require.Equal(t, same, shared, "others read it too")
	changes, err := f.take()
	require.NoError(t, err)
	require.Len(t, changes, perFlush+2)
	require.Equal(t, "1.1.1", changes[0].Session)
	require.Equal(t, "lost", changes[perFlush].Kind)
	require.Equal(t, 10, changes[perFlush+1].Count)
	changes, _ = f.take()
	require.Empty(t, changes)
	for range 10 * perFlush {
		f.add(&quorumlock.Event{Kind: quorumlock.EventLost})
	}
	changes, _ = f.take()
	require.Len(t, changes, 4*perFlush+1)
}
