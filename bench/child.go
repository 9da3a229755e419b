package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// childEnv marks a process that the program started to run a system in.
const childEnv = "QUORUMLOCK_BENCH_CHILD"

// An order is what the parent tells a child to do; Do is the name of a method in
// serve.go. Each is answered by one reply.
type order struct {
	Do      string
	System  string            `json:",omitempty"`
	With    string            `json:",omitempty"`
	Dir     string            `json:",omitempty"`
	ID      uint64            `json:",omitempty"`
	Members map[uint64]string `json:",omitempty"`
	Where   string            `json:",omitempty"`
	Name    string            `json:",omitempty"`
	Callers int               `json:",omitempty"`
	Locks   int               `json:",omitempty"`
	Groups  int               `json:",omitempty"`
	Warm    time.Duration     `json:",omitempty"`
	For     time.Duration     `json:",omitempty"`
	TTL     time.Duration     `json:",omitempty"`
	Profile string            `json:",omitempty"`
}

type reply struct {
	Error  string             `json:",omitempty"`
	Values map[string]float64 `json:",omitempty"`
	Text   string             `json:",omitempty"`
}

// A child is a process in which one system, or one replica, runs. Each system has
// a process of its own, so that none pays for another's garbage.
type child struct {
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	orders  *json.Encoder
	replies chan reply
	log     *os.File
	done    chan struct{} // closed when it has ended
}

// startChild starts a build of this program as a child. What it writes to standard
// error goes to the file log.
func startChild(program, log string) (*child, error) {
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), childEnv+"=1")
	apart(cmd)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	cmd.Stderr = file
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	c := &child{cmd: cmd, stdin: stdin, orders: json.NewEncoder(stdin), log: file,
		replies: make(chan reply, 1), done: make(chan struct{})}
	go c.listen(stdout)
	return c, nil
}

func (c *child) listen(stdout io.Reader) {
	defer close(c.done)
	dec := json.NewDecoder(stdout)
	for {
		var r reply
		if dec.Decode(&r) != nil {
			break
		}
		c.replies <- r
	}
	_ = c.cmd.Wait() // how it ended is told by its last words
}

// ask sends an order and waits for its reply.
func (c *child) ask(ctx context.Context, o order) (reply, error) {
	if err := c.orders.Encode(o); err != nil {
		return reply{}, fmt.Errorf("%s: %w; %s", o.Do, err, c.lastWords())
	}
	select {
	case r := <-c.replies:
		if r.Error != "" {
			return r, fmt.Errorf("%s: %s", o.Do, r.Error)
		}
		return r, nil
	case <-c.done:
		return reply{}, fmt.Errorf("%s: the process ended; %s", o.Do, c.lastWords())
	case <-ctx.Done():
		return reply{}, fmt.Errorf("%s: %w", o.Do, context.Cause(ctx))
	}
}

// end lets the child clean up, and ends it by its process id if it takes long.
func (c *child) end() {
	const patience = 5 * time.Second
	_ = c.stdin.Close()
	select {
	case <-c.done:
	case <-time.After(patience):
		c.kill()
	}
	_ = c.log.Close()
}

// kill ends the child as a crash does.
func (c *child) kill() {
	_ = c.cmd.Process.Kill() // fails only if it has ended
	for {
		select {
		case <-c.replies: // nobody waits for it any more
		case <-c.done:
			return
		}
	}
}

// lastWords returns the end of what the child wrote to standard error.
func (c *child) lastWords() string {
	const most = 600 // bytes
	info, err := c.log.Stat()
	if err != nil || info.Size() == 0 {
		return "it left no message"
	}
	buf := make([]byte, min(most, info.Size()))
	if _, err := c.log.ReadAt(buf, info.Size()-int64(len(buf))); err != nil {
		return "its message cannot be read"
	}
	return "its last words: " + strings.Join(strings.Fields(string(bytes.ToValidUTF8(buf, nil))), " ")
}
