package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/dashboard"
	"github.com/quorumlock/quorumlock/dashboard/api"
	"github.com/quorumlock/quorumlock/locktest"
)

// toolVar makes the test binary be the tool.
const toolVar = "QUORUMLOCK_TEST_AS_TOOL"

// patience bounds what a test waits for.
const patience = 30 * time.Second

func TestMain(m *testing.M) {
	if os.Getenv(toolVar) != "" {
		main()
	}
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil { // they wait more than they work
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// lines is what a process writes.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
	more chan struct{}
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.more != nil {
		close(l.more)
		l.more = nil
	}
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// await waits until a text was written.
func (l *lines) await(t *testing.T, text string) {
	t.Helper()
	for limit := time.After(patience); ; {
		l.mu.Lock()
		found := strings.Contains(l.text.String(), text)
		if l.more == nil {
			l.more = make(chan struct{})
		}
		more := l.more
		l.mu.Unlock()
		if found {
			return
		}
		select {
		case <-more:
		case <-limit:
			t.Fatalf("%q was not written: %s", text, l)
		}
	}
}

// A site is the page of one replica, behind a real server.
type site struct {
	*httptest.Server
	page atomic.Pointer[http.Handler]
}

// serve mounts a node's page as an application does. It lets everything be done.
func serve(t *testing.T, n *quorumlock.Node) *site {
	s := new(site)
	s.show(n)
	mux := http.NewServeMux()
	mux.Handle("/locks/", http.StripPrefix("/locks", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		(*s.page.Load()).ServeHTTP(w, r)
	})))
	s.Server = httptest.NewServer(mux)
	t.Cleanup(s.Close)
	s.URL += "/locks/"
	return s
}

func (s *site) show(n *quorumlock.Node) {
	page := dashboard.New(n, dashboard.Options{
		MaxHolds: 8, ChangeMembers: true, Authorize: func(*http.Request, dashboard.Action) error { return nil },
	})
	s.page.Store(&page)
}

// tried runs the tool within this process.
func tried(t *testing.T, args ...string) (code int, out, errs string) {
	var o, e bytes.Buffer
	code = start(soon(t), args, &o, &e)
	return code, o.String(), e.String()
}

// What is shown is what the cluster says, for people and as JSON.
func TestLooking(t *testing.T) {
	c := locktest.New(t, locktest.Config{Replicas: 3})
	s := serve(t, c.Node(1))
	h, err := c.Node(2).Acquire(soon(t), "evil\x1b[31m/name")
	require.NoError(t, err)
	_, err = c.Node(2).Acquire(soon(t), "other")
	require.NoError(t, err)
	ok := func(args ...string) string {
		t.Helper()
		code, out, errs := tried(t, append([]string{args[0], "-url", s.URL}, args[1:]...)...)
		require.Zero(t, code, "%q: %s", args, errs)
		require.Empty(t, errs)
		return out
	}
	require.Contains(t, ok("status"), "ok")
	require.Equal(t, 4, strings.Count(ok("members"), "\n"))
	locks := ok("locks", "evil")
	require.Contains(t, locks, `evil\x1b[31m/name`, "a terminal would obey it")
	require.Contains(t, locks, h.Token().String())
	require.NotContains(t, locks, "other")
	require.Contains(t, ok("lock", h.Name()), `evil\x1b[31m/name is held, 0 waiting`)
	var l api.Lock
	require.NoError(t, json.Unmarshal([]byte(ok("lock", "-json", h.Name())), &l))
	require.Equal(t, h.Name(), l.Name)
	require.Equal(t, h.Token().String(), l.Holders[0].Token)
	require.Contains(t, ok("sessions", l.Holders[0].Owner), l.Holders[0].Session)

	var all []seen
	code, out, errs := tried(t, "status", "-json", "-url", s.URL+",http://127.0.0.1:1/")
	require.Equal(t, exitFailed, code, "one says nothing: %s", errs)
	require.NoError(t, json.Unmarshal([]byte(out), &all))
	require.Equal(t, "ok", all[0].Health)
	require.Contains(t, all[1].Error, "refused")
	code, out, errs = tried(t, "members", "-url", "http://127.0.0.1:1/,"+s.URL)
	require.Zero(t, code, "the other one answers: %s", errs)
	require.Contains(t, out, "leader")

	c.Isolate(1)
	code, out, _ = tried(t, "status", "-url", s.URL)
	require.Equal(t, exitFailed, code)
	require.Contains(t, out, "no majority")
	code, _, errs = tried(t, "locks", "-timeout", "1s", "-url", s.URL)
	require.Equal(t, exitFailed, code)
	require.NotEmpty(t, errs)
}

// More locks than a page holds are read page by page.
func TestLocksAreReadPageByPage(t *testing.T) {
	c := locktest.New(t, locktest.Config{Replicas: 1})
	s := serve(t, c.Node(1))
	for _, names := range [][]string{many("a", 60), many("b", 60)} {
		_, err := c.Node(1).AcquireAll(soon(t), names...)
		require.NoError(t, err)
	}
	code, out, errs := tried(t, "locks", "-limit", "100", "-url", s.URL)
	require.Zero(t, code, errs)
	require.Equal(t, 101, strings.Count(out, "\n"))
	require.Contains(t, errs, "more than 100")
	_, out, errs = tried(t, "locks", "-limit", "0", "-json", "-url", s.URL)
	var all []api.Lock
	require.NoError(t, json.Unmarshal([]byte(out), &all), errs)
	require.Len(t, all, 120)
}

func many(prefix string, n int) (names []string) {
	for i := range n {
		names = append(names, prefix+strings.Repeat("x", i))
	}
	return names
}

func TestWatchTellsChanges(t *testing.T) {
	c := locktest.New(t, locktest.Config{Replicas: 1})
	s := serve(t, c.Node(1))
	ctx, cancel := context.WithCancel(soon(t))
	defer cancel()
	var out lines
	over := make(chan int, 1)
	go func() { over <- start(ctx, []string{"watch", "-url", s.URL, "jobs/"}, &out, os.Stderr) }()
	out.await(t, "synced")
	_, err := c.Node(1).Acquire(soon(t), "not this one")
	require.NoError(t, err)
	h, err := c.Node(1).Acquire(soon(t), "jobs/1")
	require.NoError(t, err)
	out.await(t, "granted  jobs/1")
	require.NoError(t, c.Node(1).ForceRelease(soon(t), h.Name(), h.Token(), "anna", "stuck"))
	out.await(t, "revoked by anna: stuck")
	cancel()
	require.Zero(t, <-over)
	require.NotContains(t, out.String(), "not this one")
}

// What cannot be is refused with a word on it, and nothing is asked.
func TestBadArguments(t *testing.T) {
	t.Setenv(urlVar, "")
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"", exitUsage, "status"},
		{"help", 0, ""},
		{"help run", 0, ""},
		{"nothing", exitUsage, `no command "nothing"`},
		{"status", exitUsage, urlVar},
		{"status x", exitUsage, `what is "x" for`},
		{"status -url ftp://x", exitUsage, "no URL"},
		{"status -url x -header y", exitUsage, "no URL"},
		{"status -url http://x -header y", exitUsage, "a colon"},
		{"status -nothing", exitUsage, "not defined"},
		{"lock -url http://x", exitUsage, "which lock"},
		{"locks -url http://x a b", exitUsage, `"b"`},
		{"run", exitTrouble, "NAME -- COMMAND"},
		{"run a --", exitTrouble, "NAME -- COMMAND"},
		{"run -lease 1ms a true", exitTrouble, "-lease"},
		{"run -grace 1h a true", exitTrouble, "-grace"},
		{"run -wait -1s a true", exitTrouble, "-wait"},
		{"run -try -wait 1s a true", exitTrouble, "-wait"},
		{"run -limit 0 a true", exitTrouble, "-limit is 0: must be 1 to"},
		{"run -limit -1 a true", exitTrouble, "-limit is -1"},
		{"run -limit 65537 a true", exitTrouble, "-limit is 65537: must be 1 to 65536"},
		{"run -limit 4 -permits 0 a true", exitTrouble, "-permits is 0: must be 1 to -limit, 4"},
		{"run -limit 4 -permits 5 a true", exitTrouble, "-permits is 5: must be 1 to -limit, 4"},
		{"run -permits 1 a true", exitTrouble, "-permits is 1 without -limit"},
		{"run -shared -limit 4 a true", exitTrouble, "-shared with -limit"},
		{"locks -url http://x -limit -1", exitUsage, "-limit is -1"},
		{"run -url http://127.0.0.1:1 a no-such-command-here", exitNotFound, "not found"},
		{"run -url http://127.0.0.1:1 a ./main.go", exitCannot, "main.go"},
		{"run -url http://127.0.0.1:1 a true", exitTrouble, "refused"},
		{"status -cacert /nonexistent -url https://x", exitFailed, "/nonexistent"},
	} {
		code, _, errs := tried(t, strings.Fields(c.args)...)
		require.Equal(t, c.code, code, "%s: %s", c.args, errs)
		require.Contains(t, errs, c.says, c.args)
	}
}
