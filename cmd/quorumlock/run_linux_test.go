package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/quorumlock/quorumlock/locktest"
)

// terminals returns both ends of a new terminal.
func terminals(t *testing.T) (ours, theirs *os.File) {
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no terminals here: ", err)
	}
	t.Cleanup(func() { _ = ours.Close() })
	require.NoError(t, unix.IoctlSetPointerInt(int(ours.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(int(ours.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	theirs, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	return ours, theirs
}

// On a terminal the command may read what is typed, and gets Ctrl-C; then whoever called
// the tool has the terminal again.
func TestRunOnATerminal(t *testing.T) {
	c := locktest.New(t, locktest.Config{Replicas: 1})
	s := serve(t, c.Node(1))
	self, err := os.Executable()
	require.NoError(t, err)
	ours, theirs := terminals(t)
	p := exec.Command("sh", "-c", `"$0" run job -- sh -c 'echo first; read x; echo "got $x"'; read y; echo "then $y"
		"$0" run job -- sh -c 'echo second; read z'; echo "code $?"; read z; echo "last $z"`, self)
	p.Env = append(os.Environ(), toolVar+"=1", urlVar+"="+s.URL, "GOCOVERDIR="+t.TempDir())
	p.Stdin, p.Stdout, p.Stderr = theirs, theirs, theirs
	p.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(t, p.Start())
	require.NoError(t, theirs.Close())
	over := make(chan error, 1)
	go func() { over <- p.Wait() }()
	t.Cleanup(func() { _ = p.Process.Kill() })
	var shown lines
	go func() { _, _ = io.Copy(&shown, ours) }() // until nobody has the other end
	for _, step := range []struct{ wait, typed string }{
		{"first", "one\n"}, {"got one", "two\n"}, {"then two", ""}, {"second", "\x03"}, {"code 130", "three\n"}, {"last three", ""},
	} {
		shown.await(t, step.wait)
		_, err := io.WriteString(ours, step.typed)
		require.NoError(t, err)
	}
	select {
	case err := <-over:
		require.NoError(t, err)
	case <-time.After(patience):
		t.Fatal("it does not end")
	}
}
