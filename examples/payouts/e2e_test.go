//go:build unix

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// mainEnv has the test binary act as the program: a test can then run it, and it
// can start itself, without another build.
const mainEnv = "QUORUMLOCK_PAYOUTS_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(mainEnv) != "" || os.Getenv(workerEnv) != "" {
		main() // does not return
	}
	os.Exit(m.Run())
}

// A program is one run of it, as a user starts it.
type program struct {
	cmd    *exec.Cmd
	tmp    string
	stdout io.Reader
	stderr bytes.Buffer
}

func start(t *testing.T, args ...string) *program {
	t.Helper()
	if testing.Short() {
		t.Skip("starts five processes and freezes one for seconds")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := &program{cmd: exec.Command(self, args...), tmp: t.TempDir()}
	r.cmd.Env = append(os.Environ(), mainEnv+"=1", "TMPDIR="+r.tmp)
	r.cmd.Stderr = &r.stderr
	if r.stdout, err = r.cmd.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.cmd.Process.Kill() })
	return r
}

// until reads the output up to a line with text in it, or all of it.
func (r *program) until(text string) string {
	var seen strings.Builder
	lines := bufio.NewScanner(r.stdout)
	for lines.Scan() {
		seen.WriteString(lines.Text() + "\n")
		if text != "" && strings.Contains(lines.Text(), text) {
			break
		}
	}
	return seen.String()
}

// wait returns the exit status, and fails if anything is left of the run.
func (r *program) wait(t *testing.T, output string) int {
	t.Helper()
	_ = r.cmd.Wait()
	left, err := os.ReadDir(r.tmp)
	if err != nil || len(left) > 0 {
		t.Errorf("left in the temporary directory: %v, %v", left, err)
	}
	expectGone(t, output)
	return r.cmd.ProcessState.ExitCode()
}

// expectGone fails if one of the processes that output names is still there.
func expectGone(t *testing.T, output string) {
	t.Helper()
	found := regexp.MustCompile(`\(pids ([0-9, ]+)\)`).FindStringSubmatch(output)
	if found == nil {
		t.Fatalf("the output does not name the processes:\n%s", output)
	}
	deadline := time.Now().Add(5 * time.Second)
	for pid := range strings.SplitSeq(found[1], ", ") {
		for alive(t, pid) {
			if time.Now().After(deadline) {
				t.Errorf("worker with pid %s is still there", pid)
				break
			}
			time.Sleep(10 * time.Millisecond) // a killed process is gone soon, and tells nobody but its parent
		}
	}
}

func alive(t *testing.T, pid string) bool {
	t.Helper()
	n, err := strconv.Atoi(pid)
	if err != nil {
		t.Fatal(err)
	}
	if syscall.Kill(n, 0) != nil {
		return false
	}
	// One that is dead but has no parent to see it is as good as gone.
	stat, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	return err != nil || !bytes.Contains(stat, []byte(") Z "))
}

// smallFile writes a file of a few invoices.
func smallFile(t *testing.T, invoices int) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("\ufeff" + header)
	for i := range invoices {
		fmt.Fprintf(&b, "R-%d,\"Brüggli, Söhne & Co.\",EUR,%d.05,2026-01-31\r\n", i, i)
	}
	path := filepath.Join(t.TempDir(), "small.csv")
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// With the fence the woken worker's payment is refused and the audit holds.
func TestFencedRun(t *testing.T) {
	t.Parallel()
	r := start(t, "-csv", smallFile(t, 12), "-lease", "2.5s")
	output := r.until("")
	if status := r.wait(t, output); status != exitOK {
		t.Errorf("status %d", status)
	}
	for _, want := range []string{
		"FREEZE worker", "in line: worker", "WAKE worker", "the ledger REFUSED the write", "quorumlock: lost ",
		"KILL worker", "RESTART worker", "The audit HOLDS",
	} {
		if !strings.Contains(output, want) {
			t.Errorf("no %q", want)
		}
	}
	if t.Failed() {
		t.Logf("%s%s", output, r.stderr.String())
	}
}

// Without it that payment is the second one for its invoice, even for a file
// with no other invoice in it.
func TestUnfencedRun(t *testing.T) {
	t.Parallel()
	r := start(t, "-csv", smallFile(t, 1), "-lease", "2.5s", "-unfenced")
	output := r.until("")
	if status := r.wait(t, output); status != exitFailed {
		t.Errorf("status %d", status)
	}
	for _, want := range []string{
		"the ledger TOOK the write", `"R-0" of Brüggli, Söhne & Co., EUR 0.05: by worker`, "DIFFERENT by EUR 0.05",
		"what -unfenced is there to show",
	} {
		if !strings.Contains(output, want) {
			t.Errorf("no %q", want)
		}
	}
	if t.Failed() {
		t.Logf("%s%s", output, r.stderr.String())
	}
}

// Ctrl-C leaves nothing behind, not even a worker that is frozen.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	r := start(t, "-lease", "10s")
	output := r.until("FREEZE")
	if err := r.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	output += r.until("")
	if status := r.wait(t, output); status != exitInterrupted {
		t.Errorf("status %d\n%s%s", status, output, r.stderr.String())
	}
}

// When the director cannot clean up, the kernel ends the workers.
func TestDirectorKilled(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("a frozen worker outlives a killed director where the kernel cannot tie it to its parent")
	}
	t.Parallel()
	r := start(t, "-lease", "10s")
	output := r.until("FREEZE")
	if err := r.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = r.cmd.Wait()
	expectGone(t, output)
}

// Nothing is started for a file that is no good.
func TestBadFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bad.csv")
	if err := os.WriteFile(path, []byte(header+"R-1,Acme,EUR,ten,2026-01-31\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"bad row":       {[]string{"-csv", path}, path + `:2: amount "ten" is not a number`},
		"no file":       {[]string{"-csv", path + "x"}, "no such file"},
		"short lease":   {[]string{"-lease", "1s"}, "must be from 2s to 10s"},
		"an argument":   {[]string{path}, "takes no arguments"},
		"unknown flag":  {[]string{"-x"}, "not defined"},
		"senseless TTL": {[]string{"-lease", "soon"}, "invalid value"},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			status := run(c.args, &stdout, &stderr)
			if status != exitUsage || stdout.Len() > 0 || !strings.Contains(stderr.String(), c.want) {
				t.Errorf("status %d, output %q, error %q, want %q", status, stdout.String(), stderr.String(), c.want)
			}
		})
	}
}
