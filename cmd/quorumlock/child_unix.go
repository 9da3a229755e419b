//go:build unix

package main

import (
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// passedOn are the signals that the command gets in our place.
var passedOn = []os.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2}

func number(s os.Signal) int {
	n, _ := s.(syscall.Signal)
	return int(n)
}

// A child is the command that runs, in a process group of its own: so that all that it
// has started can be ended with it.
type child struct {
	cmd      *exec.Cmd
	done     chan struct{} // closed when it has ended
	terminal bool          // it has the terminal
}

// terminal is the standard input.
const terminal = 0

// begin starts the command. It is to be called on the first thread: on Linux the command
// is killed when the thread that started it ends, however that happens.
//
// If we have the terminal, the command is given it: it may ask questions there, and
// Ctrl-C is meant for it.
func begin(cmd *exec.Cmd) (*child, error) {
	c := &child{cmd: cmd, done: make(chan struct{})}
	pgrp, err := unix.IoctlGetInt(terminal, unix.TIOCGPGRP)
	c.terminal = err == nil && pgrp == unix.Getpgrp()
	cmd.SysProcAttr = attributes()
	cmd.SysProcAttr.Setpgid = true
	cmd.SysProcAttr.Foreground, cmd.SysProcAttr.Ctty = c.terminal, terminal
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	// Only now, since the command would inherit it: to take the terminal back from the
	// background would stop us.
	signal.Ignore(unix.SIGTTOU)
	go func() {
		defer close(c.done)
		_ = cmd.Wait() // code tells
	}()
	return c, nil
}

func (c *child) signal(s os.Signal) { _ = unix.Kill(-c.cmd.Process.Pid, s.(syscall.Signal)) }

// terminate tells it to end. A stopped process would not hear that.
func (c *child) terminate() {
	c.signal(unix.SIGTERM)
	c.signal(unix.SIGCONT)
}

func (c *child) kill() { c.signal(unix.SIGKILL) }

// finish takes the terminal back.
func (c *child) finish() {
	if c.terminal {
		_ = unix.IoctlSetPointerInt(terminal, unix.TIOCSPGRP, unix.Getpgrp())
	}
}

// code is the exit status, as a shell would have it.
func (c *child) code() int {
	if s, ok := c.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		return 128 + int(s.Signal())
	}
	return c.cmd.ProcessState.ExitCode()
}
