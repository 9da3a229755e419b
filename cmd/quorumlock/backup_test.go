package main

import (
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
)

// lone opens a replica with a directory on the real disk.
func lone(t *testing.T) (n *quorumlock.Node, dir string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	require.NoError(t, l.Close())
	dir = t.TempDir()
	n, err = quorumlock.Open(quorumlock.Options{ReplicaID: 1, Address: address, Members: map[uint64]string{1: address}, Dir: dir, Cluster: "tried"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = n.Close() })
	require.NoError(t, n.Ready(soon(t)))
	return n, dir
}

// A backup is there whole, from a page or from a directory, or not at all; and what is no
// backup is told from one.
func TestBackupAndRestore(t *testing.T) {
	n, dir := lone(t)
	s := serve(t, n)
	h, err := n.Acquire(soon(t), "job")
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "backup")
	code, out, errs := tried(t, "backup", "-url", s.URL, "-by", "anna", file)
	require.Zero(t, code, errs)
	require.Contains(t, out, "tried")
	t.Setenv("USER", "") // as for a cron job: it says by itself who asks
	code, _, errs = tried(t, "backup", "-url", s.URL, file+".cron")
	require.Zero(t, code, errs)
	require.NoError(t, os.Remove(file+".cron"))
	code, _, errs = tried(t, "backup", "-url", s.URL, "-reason", " ", file)
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "why", "the page's own words")
	code, again, errs := tried(t, "restore", file)
	require.Zero(t, code, errs)
	require.Contains(t, again, out, "the same is read again")
	require.Contains(t, again, h.Token().String())
	good, err := os.ReadFile(file)
	require.NoError(t, err)

	// A page that ends in the middle, one that is not allowed to, and one that is none.
	for what, page := range map[string]http.HandlerFunc{
		"cut short": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/vnd.quorumlock.backup")
			_, _ = w.Write(good[:len(good)-9])
		},
		"aborted": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/vnd.quorumlock.backup")
			_, _ = w.Write(good)
			panic(http.ErrAbortHandler)
		},
		"denied": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "{}", http.StatusForbidden) },
		"a page": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) },
	} {
		var h http.Handler = page
		s.page.Store(&h)
		code, _, errs := tried(t, "backup", "-url", s.URL, "-by", "anna", file)
		require.Equal(t, exitFailed, code, what)
		require.NotEmpty(t, errs, what)
		is, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, good, is, "%s: the former backup is still there", what)
		left, err := os.ReadDir(filepath.Dir(file))
		require.NoError(t, err)
		require.Len(t, left, 1, what)
	}
	// One that does not answer is given up.
	var silent http.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	})
	s.page.Store(&silent)
	code, _, errs = tried(t, "backup", "-url", s.URL, "-timeout", "100ms", file)
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "no answer in 100ms")
	require.NoError(t, os.WriteFile(file, good[:len(good)/2], 0o600))
	code, _, errs = tried(t, "restore", file)
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, file)

	code, _, errs = tried(t, "backup", "-dir", dir, file)
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "in use")
	require.NoError(t, n.Close())
	code, out, errs = tried(t, "backup", "-dir", dir, file)
	require.Zero(t, code, errs)
	require.Contains(t, out, "tried")
}

// What a stopped replica has is shown; one that runs is left alone.
func TestInspect(t *testing.T) {
	n, dir := lone(t)
	_, err := n.Acquire(soon(t), "job")
	require.NoError(t, err)
	code, _, errs := tried(t, "inspect", dir)
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "in use")
	require.NoError(t, n.Close())
	code, out, errs := tried(t, "inspect", dir)
	require.Zero(t, code, errs)
	require.Contains(t, out, "tried")
	require.Contains(t, out, dir)
	require.Contains(t, out, "LAST")
	code, out, errs = tried(t, "inspect", "-json", dir)
	require.Zero(t, code, errs)
	require.Contains(t, out, `"Replica": 1`)
	code, _, _ = tried(t, "inspect", t.TempDir())
	require.Equal(t, exitFailed, code)
	for _, command := range []string{"inspect", "restore", "backup"} {
		code, _, _ = tried(t, command)
		require.Equal(t, exitUsage, code, command)
	}
}
