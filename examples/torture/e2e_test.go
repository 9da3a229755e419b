//go:build unix

package main

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"testing"
)

// mainEnv has the test binary act as the program: a test can then run it, and it can
// start itself, without another build.
const mainEnv = "QUORUMLOCK_TORTURE_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(mainEnv) != "" || os.Getenv(workerEnv) != "" {
		main() // does not return
	}
	os.Exit(m.Run())
}

// number returns the number that stands before or after a text in the output.
func number(t *testing.T, out, pattern string) int {
	t.Helper()
	m := regexp.MustCompile(pattern).FindStringSubmatch(out)
	if m == nil {
		t.Errorf("no %q", pattern)
		return -1
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		t.Error(err)
	}
	return n
}

// A short torture breaks no promise, does something, and leaves nothing behind: here
// with whatever faults this machine and user can do, and on the loopback.
func TestTorture(t *testing.T) {
	if testing.Short() {
		t.Skip("hurts five processes for seconds")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for what, args := range map[string][]string{
		"all":      {"-for", "6s"},
		"loopback": {"-for", "2s", "-loopback", "-groups", "3", "-faults", "kill,stop"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			tmp := t.TempDir()
			cmd := exec.Command(self, args...)
			cmd.Env = append(os.Environ(), mainEnv+"=1", "TMPDIR="+tmp)
			var b bytes.Buffer
			cmd.Stdout, cmd.Stderr = &b, &b
			if err := cmd.Run(); err != nil {
				t.Error(err)
			}
			out := b.String()
			if n := number(t, out, `violations (\d+)`); n != 0 {
				t.Errorf("%d violations", n)
			}
			for _, some := range []string{`(?m)^ *all +(\d+) `, `granted (\d+),`, `lock-set, without the token: (\d+)`, `fenced-set, with the token: (\d+)`} {
				if number(t, out, some) <= 0 {
					t.Errorf("nothing of %q", some)
				}
			}
			if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
				t.Errorf("left in the temporary directory: %v, %v", left, err)
			}
			if t.Failed() {
				t.Log(out)
			}
		})
	}
}

// When nobody reads the output any more, the run ends and leaves nothing behind.
func TestOutputGone(t *testing.T) {
	if testing.Short() {
		t.Skip("starts five processes")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	tmp := t.TempDir()
	cmd := exec.Command(self, "-for", "1h", "-loopback", "-faults", "kill")
	cmd.Env = append(os.Environ(), mainEnv+"=1", "TMPDIR="+tmp)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }() // fails when it has ended, as it should
	if _, err := stdout.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	stdout.Close()
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != exitInterrupted {
		t.Errorf("status %d", got)
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("left in the temporary directory: %v, %v", left, err)
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{"-x"}, {"now"}, {"-for", "0s"}, {"-faults", "rain"}, {"-groups", "0"}, {"-groups", "10"}, {"-loopback", "-faults", "loss"}} {
		var stdout, stderr bytes.Buffer
		if status := run(args, &stdout, &stderr); status != exitUsage || stdout.Len() > 0 || stderr.Len() == 0 {
			t.Errorf("%v: status %d, output %q, error %q", args, status, stdout.String(), stderr.String())
		}
	}
}
