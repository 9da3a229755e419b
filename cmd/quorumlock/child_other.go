//go:build !unix

package main

import (
	"os"
	"os/exec"
)

// passedOn are the signals that the command gets in our place.
var passedOn = []os.Signal{os.Interrupt}

func number(os.Signal) int { return 2 }

// A child is the command that runs. What it has started is not ended with it here.
type child struct {
	cmd  *exec.Cmd
	done chan struct{}
}

func begin(cmd *exec.Cmd) (*child, error) {
	c := &child{cmd: cmd, done: make(chan struct{})}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(c.done)
		_ = cmd.Wait() // code tells
	}()
	return c, nil
}

func (c *child) signal(os.Signal) { c.kill() }
func (c *child) terminate()       { c.kill() }
func (c *child) kill()            { _ = c.cmd.Process.Kill() }
func (c *child) finish()          {}
func (c *child) code() int        { return c.cmd.ProcessState.ExitCode() }
