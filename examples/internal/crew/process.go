// Package crew is the worker processes of an example, as the director that starts,
// freezes and kills them sees them.
package crew

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// A Worker says what to start.
type Worker struct {
	ID     uint64
	Life   int    // 1 for a worker's first process, 2 after its restart
	Env    string // set for the process, by which the program knows that it is one of its workers
	Log    string // path of what it writes to standard error
	Echo   bool   // write that to the director's standard error too
	Config any    // the first value that it reads
}

// A Process is one worker as the director sees it.
type Process struct {
	Worker
	Doomed bool          // its end will be no surprise
	Done   chan struct{} // closed when it has ended and been reaped

	cmd    *exec.Cmd
	stdin  io.WriteCloser // kept open: when it is closed, the worker ends
	orders *json.Encoder
}

// Start starts this program once more, as a worker. The director writes to its
// standard input, first the config and then orders; what it writes to its standard
// output are reports, which heard is called with, and ended once it has ended, in a
// goroutine of its own. All are JSON values, one a line.
//
// It is to be called from one goroutine that is locked to its thread and lives
// as long as the director: on Linux the worker is killed when that thread ends.
func Start[Report any](w Worker, heard func(Report), ended func(text string)) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), w.Env+"=1")
	tieToParent(cmd)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	logFile, err := os.OpenFile(w.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	cmd.Stderr = logFile
	if w.Echo {
		cmd.Stderr = io.MultiWriter(logFile, os.Stderr)
	}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, logFile.Close())
	}
	p := &Process{Worker: w, Done: make(chan struct{}), cmd: cmd, stdin: stdin, orders: json.NewEncoder(stdin)}
	go func() {
		defer close(p.Done)
		defer logFile.Close()
		listen(stdout, heard)
		text := "exit status 0"
		if err := cmd.Wait(); err != nil {
			text = err.Error()
		}
		ended(text)
	}()
	if err := p.orders.Encode(w.Config); err != nil {
		p.Kill()
		return nil, fmt.Errorf("worker %d: %w", w.ID, err)
	}
	return p, nil
}

// listen passes on what a worker says until it says no more.
func listen[Report any](stdout io.Reader, heard func(Report)) {
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		var r Report
		if json.Unmarshal(lines.Bytes(), &r) == nil {
			heard(r)
		}
	}
	_, _ = io.Copy(io.Discard, stdout) // a line too long to scan must not block it
}

// Pid returns the process's id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Tell sends an order.
func (p *Process) Tell(order any) error {
	if err := p.orders.Encode(order); err != nil {
		return fmt.Errorf("worker %d does not listen: %w", p.ID, err)
	}
	return nil
}

// Kill ends the process at once (SIGKILL), frozen or not.
func (p *Process) Kill() {
	p.Doomed = true
	_ = p.cmd.Process.Kill() // fails only when it has ended already
}

// Reap waits until the process has ended and is gone.
func (p *Process) Reap(limit time.Duration) error {
	select {
	case <-p.Done:
		return nil
	case <-time.After(limit):
		return errors.New("process does not end")
	}
}

// LastWords returns the end of the worker's log.
func (p *Process) LastWords() string {
	const most = 10 // lines
	data, err := os.ReadFile(p.Log)
	if err != nil || len(data) == 0 {
		return "it left no message"
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return "its last words:\n" + strings.Join(lines[max(0, len(lines)-most):], "\n")
}
