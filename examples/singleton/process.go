package main

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

// workerEnv marks a process that the program started as one of its workers.
const workerEnv = "QUORUMLOCK_SINGLETON_WORKER"

// A process is one worker as the director sees it.
type process struct {
	id     uint64
	life   int // 1 for a worker's first process, 2 after its restart
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	orders *json.Encoder
	log    string        // path of what it writes to standard error
	doomed bool          // its end will be no surprise
	done   chan struct{} // closed when it has ended and been reaped
}

// startProcess starts this program once more, as a worker. Its reports go to
// reports until gone is closed; the last one is reportExited.
//
// It is to be called from one goroutine that is locked to its thread and lives
// as long as the director: on Linux the worker is killed when that thread ends.
func startProcess(cfg workerConfig, life int, log string, reports chan<- report, gone <-chan struct{}) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), workerEnv+"=1")
	tieToParent(cmd)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	logFile, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	cmd.Stderr = logFile
	if cfg.Verbose {
		cmd.Stderr = io.MultiWriter(logFile, os.Stderr)
	}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, logFile.Close())
	}
	p := &process{
		id: cfg.ID, life: life, cmd: cmd, stdin: stdin, orders: json.NewEncoder(stdin), log: log,
		done: make(chan struct{}),
	}
	go func() {
		defer close(p.done)
		defer logFile.Close()
		p.listen(stdout, reports, gone)
	}()
	if err := p.orders.Encode(cfg); err != nil {
		p.kill()
		return nil, fmt.Errorf("worker %d: %w", cfg.ID, err)
	}
	return p, nil
}

// listen passes on what the worker says until it has ended.
func (p *process) listen(stdout io.Reader, reports chan<- report, gone <-chan struct{}) {
	pass := func(r report) {
		r.Worker, r.Life = p.id, p.life
		select {
		case reports <- r:
		case <-gone:
		}
	}
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		var r report
		if json.Unmarshal(lines.Bytes(), &r) == nil {
			pass(r)
		}
	}
	_, _ = io.Copy(io.Discard, stdout) // a line too long to scan must not block it
	text := "exit status 0"
	if err := p.cmd.Wait(); err != nil {
		text = err.Error()
	}
	pass(report{What: reportExited, Text: text})
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// tell sends an order.
func (p *process) tell(o order) error {
	if err := p.orders.Encode(o); err != nil {
		return fmt.Errorf("worker %d does not listen: %w", p.id, err)
	}
	return nil
}

// kill ends the process at once (SIGKILL), frozen or not.
func (p *process) kill() {
	p.doomed = true
	_ = p.cmd.Process.Kill() // fails only when it has ended already
}

// reap waits until the process has ended and is gone.
func (p *process) reap(limit time.Duration) error {
	select {
	case <-p.done:
		return nil
	case <-time.After(limit):
		return errors.New("process does not end")
	}
}

// lastWords returns the end of the worker's log.
func (p *process) lastWords() string {
	const most = 10 // lines
	data, err := os.ReadFile(p.log)
	if err != nil || len(data) == 0 {
		return "it left no message"
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return "its last words:\n" + strings.Join(lines[max(0, len(lines)-most):], "\n")
}
