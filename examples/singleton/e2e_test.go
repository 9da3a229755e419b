//go:build unix

package main

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// mainEnv has the test binary act as the program: a test can then run it, and it can
// start itself, without another build.
const mainEnv = "QUORUMLOCK_SINGLETON_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(mainEnv) != "" || os.Getenv(workerEnv) != "" {
		main() // does not return
	}
	os.Exit(m.Run())
}

// With the fence the woken worker's record is refused, and without it the record is
// there twice. Both leave nothing behind.
func TestRuns(t *testing.T) {
	if testing.Short() {
		t.Skip("starts five processes and freezes one for seconds")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args   []string
		status int
		want   []string
	}{
		{nil, exitOK, []string{"END worker", "FREEZE worker", "REFUSED", `quorumlock: lost "exporter"`, "KILL worker", "The check HOLDS"}},
		{[]string{"-unfenced"}, exitFailed, []string{"TOOK record", "what -unfenced is there to show"}},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			t.Parallel()
			tmp := t.TempDir()
			cmd := exec.Command(self, c.args...)
			cmd.Env = append(os.Environ(), mainEnv+"=1", "TMPDIR="+tmp)
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			_ = cmd.Run()
			if got := cmd.ProcessState.ExitCode(); got != c.status {
				t.Errorf("status %d", got)
			}
			for _, want := range c.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("no %q", want)
				}
			}
			if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
				t.Errorf("left in the temporary directory: %v, %v", left, err)
			}
			if t.Failed() {
				t.Log(out.String())
			}
		})
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{"-x"}, {"now"}} {
		var stdout, stderr bytes.Buffer
		if status := run(args, &stdout, &stderr); status != exitUsage || stdout.Len() > 0 || stderr.Len() == 0 {
			t.Errorf("%v: status %d, output %q, error %q", args, status, stdout.String(), stderr.String())
		}
	}
}
