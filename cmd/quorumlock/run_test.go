//go:build unix

package main

import (
	"bufio"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/dashboard/api"
	"github.com/quorumlock/quorumlock/locktest"
)

// A process is the tool, as a process of its own.
type process struct {
	*exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	errs lines
	over chan struct{} // closed when it has ended
}

func launch(t *testing.T, args ...string) *process {
	self, err := os.Executable()
	require.NoError(t, err)
	p := &process{Cmd: exec.Command(self, args...), over: make(chan struct{})}
	p.Env = append(os.Environ(), toolVar+"=1", "GOCOVERDIR="+t.TempDir())
	p.in, err = p.StdinPipe()
	require.NoError(t, err)
	out, to, err := os.Pipe() // not StdoutPipe, which Wait would close
	require.NoError(t, err)
	p.WaitDelay = time.Second // for what it has left behind, if it has
	p.Stdout, p.Stderr, p.out = to, &p.errs, bufio.NewReader(out)
	require.NoError(t, p.Start())
	require.NoError(t, to.Close())
	go func() {
		defer close(p.over)
		_ = p.Wait() // code tells
	}()
	t.Cleanup(func() {
		_ = p.Process.Kill()
		<-p.over
		_ = out.Close()
	})
	return p
}

// line returns the next line that the command writes.
func (p *process) line(t *testing.T) string {
	t.Helper()
	s, err := p.out.ReadString('\n')
	require.NoError(t, err, &p.errs)
	return strings.TrimSpace(s)
}

func (p *process) code(t *testing.T) int {
	t.Helper()
	select {
	case <-p.over:
		return p.ProcessState.ExitCode()
	case <-time.After(patience):
		t.Fatal("it does not end")
		return 0
	}
}

// dead reports whether a process has ended, reaped or not.
func dead(pid int) bool {
	if err := unix.Kill(pid, 0); err != nil {
		return errors.Is(err, unix.ESRCH)
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return errors.Is(err, os.ErrNotExist)
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(state, "Z") || strings.HasPrefix(state, "X")
}

// reads is a command that tells its token and ends with a status that it is told.
const reads = `echo $QUORUMLOCK_NAME $QUORUMLOCK_TOKEN; read code; exit $code`

// The command has the lock, knows its token, and its exit status is passed on. Afterwards
// the lock is free at once.
func TestRunHoldsTheLockForACommand(t *testing.T) {
	c := locktest.New(t, locktest.Config{Replicas: 3})
	s := serve(t, c.Node(1))
	p := launch(t, "run", "-url", s.URL, "-owner", "anna", "job", "--", "sh", "-c", reads)
	said := strings.Fields(p.line(t))
	info, err := c.Node(2).Describe(soon(t), "job")
	require.NoError(t, err)
	require.Equal(t, []string{"job", info.Holders[0].Token.String()}, said)
	require.Equal(t, "anna", info.Holders[0].Owner)

	second := launch(t, "run", "-url", s.URL, "job", "sh", "-c", reads)
	queued(t, c.Node(2), "job")
	for _, flag := range []string{"-try", "-wait=100ms"} {
		code, _, errs := tried(t, "run", "-url", s.URL, flag, "job", "--", "true")
		require.Equal(t, exitNotGot, code, errs)
		require.Contains(t, errs, "anna", "it says who has it")
	}
	_, err = io.WriteString(p.in, "7\n")
	require.NoError(t, err)
	require.Equal(t, 7, p.code(t), &p.errs)
	require.Greater(t, strings.Fields(second.line(t))[1], said[1])
	_, err = io.WriteString(second.in, "0\n")
	require.NoError(t, err)
	require.Zero(t, second.code(t), &second.errs)
	h, err := c.Node(3).TryAcquire(soon(t), "job")
	require.NoError(t, err, "it was released, and nobody is left in line")
	require.NoError(t, h.Release(soon(t)))
	require.Empty(t, p.errs.String()+second.errs.String())
}

// queued waits until somebody stands in line.
func queued(t *testing.T, n *quorumlock.Node, name string) {
	t.Helper()
	for e, err := range n.Watch(soon(t), name) {
		require.NoError(t, err)
		if e.Kind == quorumlock.EventQueued || len(e.Locks) > 0 && len(e.Locks[0].Waiters) > 0 {
			return
		}
	}
}

// Signals are meant for the command, and how it ends is told.
func TestRunPassesSignalsOn(t *testing.T) {
	c := locktest.New(t, locktest.Config{Replicas: 1})
	s := serve(t, c.Node(1))
	p := launch(t, "run", "-url", s.URL, "job", "--", "sh", "-c", `trap 'exit 9' USR1; echo ready; for i in $(seq 600); do sleep 0.05; done`)
	p.line(t)
	require.NoError(t, p.Process.Signal(unix.SIGUSR1))
	require.Equal(t, 9, p.code(t), &p.errs)

	p = launch(t, "run", "-url", s.URL, "job", "--", "sh", "-c", `echo ready; sleep 60`)
	p.line(t)
	require.NoError(t, p.Process.Signal(unix.SIGTERM))
	require.Equal(t, 128+15, p.code(t), &p.errs)

	h, err := c.Node(1).Acquire(soon(t), "job")
	require.NoError(t, err, "free at once")
	p = launch(t, "run", "-url", s.URL, "job", "--", "true")
	queued(t, c.Node(1), "job")
	require.NoError(t, p.Process.Signal(unix.SIGINT))
	require.Equal(t, 128+2, p.code(t), &p.errs)
	for e, err := range c.Node(1).Watch(soon(t), "job") {
		require.NoError(t, err, "it does not leave the line")
		if e.Kind == quorumlock.EventLeft || len(e.Locks) > 0 && len(e.Locks[0].Waiters) == 0 {
			break
		}
	}
	require.NoError(t, h.Release(soon(t)))
}

// stubborn is a command that does not end when it is told to, and has a child like it.
// After half a minute it ends by itself.
const stubborn = `trap '' TERM INT; sh -c 'echo $$; for i in $(seq 600); do sleep 0.05; done' & echo $$; wait`

// Whatever takes the lock away, the command and what it has started are gone before
// anybody else is granted the lock.
func TestRunEndsTheCommandBeforeAnybodyElseHasTheLock(t *testing.T) {
	for what, lose := range map[string]func(*testing.T, *locktest.Cluster, *site, *road){
		"its replica is cut off": func(_ *testing.T, c *locktest.Cluster, _ *site, _ *road) { c.Isolate(1) },
		"its replica is started anew": func(t *testing.T, c *locktest.Cluster, _ *site, _ *road) {
			require.NoError(t, c.Crash(1))
			require.NoError(t, c.Restart(1))
		},
		"its replica is shut down": func(t *testing.T, c *locktest.Cluster, _ *site, _ *road) {
			require.NoError(t, c.Node(1).Shutdown(soon(t)))
		},
		"the server is closed":  func(_ *testing.T, _ *locktest.Cluster, s *site, _ *road) { s.CloseClientConnections() },
		"the network goes dead": func(_ *testing.T, _ *locktest.Cluster, _ *site, r *road) { r.block() },
		"the lock is forced free": func(t *testing.T, c *locktest.Cluster, _ *site, _ *road) {
			info, err := c.Node(2).Describe(soon(t), "job")
			require.NoError(t, err)
			require.NoError(t, c.Node(2).ForceRelease(soon(t), "job", info.Holders[0].Token, "anna", "stuck"))
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c := locktest.New(t, locktest.Config{Replicas: 3})
			s := serve(t, c.Node(1))
			r := pave(t, s.Listener.Addr().String())
			p := launch(t, "run", "-url", "http://"+r.Addr().String()+"/locks/", "-lease", "3s", "job", "--", "sh", "-c", stubborn)
			var pids []int
			for range 2 {
				pid, err := strconv.Atoi(p.line(t))
				require.NoError(t, err)
				pids = append(pids, pid)
				t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGKILL) })
			}
			info, err := c.Node(2).Describe(soon(t), "job")
			require.NoError(t, err)
			lose(t, c, s, r)
			h, err := c.Node(2).Acquire(soon(t), "job")
			for _, pid := range pids {
				require.True(t, dead(pid), "%d still runs", pid)
			}
			require.NoError(t, err)
			require.Greater(t, h.Token(), info.Holders[0].Token)
			require.Equal(t, exitLost, p.code(t), &p.errs)
			require.Contains(t, p.errs.String(), "was lost")
		})
	}
}

// An answer counts from before its ping was sent, however late it comes, and an old one
// takes nothing back.
func TestAnswersCountFromTheirPing(t *testing.T) {
	heard := make(chan api.HoldAnswer)
	r := &runner{t: new(tool), line: &line{heard: heard, say: make(chan api.HoldMessage, 1)}, tick: time.NewTicker(10 * time.Millisecond)}
	defer r.tick.Stop()
	r.lease.length, r.lease.grace = 2*time.Second, 500*time.Millisecond
	r.lease.begin()
	r.lease.since = now()
	sent := make(map[uint64]time.Duration)
	for range 3 {
		sent[r.lease.ping().Ping] = r.lease.at
		<-time.After(time.Millisecond) // so that no two have the same time
	}
	runtime.LockOSThread() // the command ends with its thread
	c, err := begin(exec.Command("sleep", "30"))
	require.NoError(t, err)
	go func() {
		<-time.After(100 * time.Millisecond)
		heard <- api.HoldAnswer{State: api.HoldHeld, Ping: 2}
		heard <- api.HoldAnswer{State: api.HoldHeld, Ping: 1}
		heard <- api.HoldAnswer{State: api.HoldHeld, Ping: 1000}
	}()
	code, err := r.supervise(c)
	require.Equal(t, exitLost, code)
	require.ErrorContains(t, err, "no answer")
	require.Equal(t, sent[2], r.lease.since)
	require.GreaterOrEqual(t, now(), sent[2]+r.lease.length/2)
}

// A road is what lies between the tool and the page: a proxy that can stop to pass on,
// without a word.
type road struct {
	net.Listener
	mu      sync.Mutex
	blocked bool
}

func pave(t *testing.T, to string) *road {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &road{Listener: l}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); _ = l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			over, err := net.Dial("tcp", to)
			if err != nil {
				_ = from.Close()
				continue
			}
			context.AfterFunc(ctx, func() { _ = from.Close(); _ = over.Close() })
			wg.Go(func() { r.carry(over, from) })
			wg.Go(func() { r.carry(from, over) })
		}
	})
	return r
}

func (r *road) carry(to, from net.Conn) {
	_, err := io.Copy(writer(func(p []byte) (int, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.blocked {
			return len(p), nil
		}
		return to.Write(p)
	}), from)
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.blocked || errors.Is(err, net.ErrClosed) {
		_ = to.Close()
	}
}

func (r *road) block() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.blocked = true
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

// A tool that is killed takes its command along, and the lock comes free.
func TestRunKilled(t *testing.T) {
	c := locktest.New(t, locktest.Config{Replicas: 3})
	s := serve(t, c.Node(1))
	p := launch(t, "run", "-url", s.URL, "-lease", "3s", "job", "--", "sh", "-c", `echo $$; exec sleep 60`)
	pid, err := strconv.Atoi(p.line(t))
	require.NoError(t, err)
	require.NoError(t, p.Process.Kill())
	_, err = c.Node(2).Acquire(soon(t), "job")
	require.NoError(t, err)
	require.True(t, dead(pid))
}

// A replica that goes away while one stands in its line costs the place, not the wait.
func TestRunWaitsAtAnotherPage(t *testing.T) {
	c := locktest.New(t, locktest.Config{Replicas: 3})
	first, second := serve(t, c.Node(1)), serve(t, c.Node(2))
	h, err := c.Node(3).Acquire(soon(t), "job")
	require.NoError(t, err)
	p := launch(t, "run", "-verbose", "-url", first.URL+","+second.URL, "job", "--", "sh", "-c", reads)
	queued(t, c.Node(3), "job")
	first.CloseClientConnections()
	p.errs.await(t, "in line at "+second.URL)
	require.NoError(t, h.Release(soon(t)))
	p.line(t)
	_, err = io.WriteString(p.in, "0\n")
	require.NoError(t, err)
	require.Zero(t, p.code(t), &p.errs)
}

// It goes over TLS and HTTP/2 as well, with what the application wants to see.
func TestRunOverTLS(t *testing.T) {
	page := serve(t, locktest.New(t, locktest.Config{Replicas: 1}).Node(1)).Config.Handler
	var protocol atomic.Int64
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		protocol.Store(int64(r.ProtoMajor))
		page.ServeHTTP(w, r)
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600))
	args := []string{"run", "-url", s.URL + "/locks/", "-cacert", ca}
	code, _, errs := tried(t, append(args, "job", "true")...)
	require.Equal(t, exitTrouble, code)
	require.Contains(t, errs, "401")
	t.Setenv(headerVar, "Authorization: Bearer secret")
	code, _, errs = tried(t, append(args, "job", "false")...)
	require.Equal(t, 1, code, errs)
	require.Empty(t, errs)
	require.EqualValues(t, 2, protocol.Load())
	code, _, errs = tried(t, "run", "-url", s.URL+"/locks/", "job", "true")
	require.Equal(t, exitTrouble, code)
	require.Contains(t, errs, "certificate")
}

// What the page does not allow is not tried at the next one.
func TestRunNotAllowed(t *testing.T) {
	asked := 0
	s := serve(t, locktest.New(t, locktest.Config{Replicas: 1}).Node(1))
	var page http.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		http.Error(w, `{"error":"not you"}`, http.StatusForbidden)
	})
	s.page.Store(&page)
	code, _, errs := tried(t, "run", "-url", s.URL+","+s.URL, "job", "--", "true")
	require.Equal(t, exitTrouble, code)
	require.Contains(t, errs, "not you")
	require.Equal(t, 1, asked)
}

// A backup that is ended from outside, as by timeout(1), leaves no part of a file.
func TestBackupTerminated(t *testing.T) {
	asked := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // or nobody would see that the client is gone
		w.Header().Set("Content-Type", api.BackupType)
		_, _ = w.Write([]byte("quorumlock backup"))
		_ = http.NewResponseController(w).Flush()
		close(asked)
		<-r.Context().Done()
	}))
	t.Cleanup(s.Close)
	dir := t.TempDir()
	p := launch(t, "backup", "-url", s.URL, filepath.Join(dir, "backup"))
	<-asked
	require.NoError(t, p.Process.Signal(unix.SIGTERM))
	require.Equal(t, exitFailed, p.code(t))
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left, "%s", &p.errs)
}
