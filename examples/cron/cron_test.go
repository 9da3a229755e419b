package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

// TestMain has the test binary act as a worker, so that a run can start itself.
func TestMain(m *testing.M) {
	if os.Getenv(workerEnv) != "" {
		os.Exit(workerMain())
	}
	os.Exit(m.Run())
}

func TestOneRunEach(t *testing.T) {
	if testing.Short() {
		t.Skip("starts five processes, which work for seconds")
	}
	for name, c := range map[string]struct {
		args   []string
		status int
		want   string
	}{
		"claimed":   {[]string{"-ticks", "6"}, exitOK, "The count HOLDS"},
		"unclaimed": {[]string{"-ticks", "4", "-unclaimed"}, exitFailed, "TWICE"},
		"argument":  {[]string{"x"}, exitUsage, ""},
		"few ticks": {[]string{"-ticks", "1"}, exitUsage, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer
			if status := run(c.args, &stdout, &stderr); status != c.status || !strings.Contains(stdout.String(), c.want) {
				t.Errorf("status %d\n%s%s", status, &stdout, &stderr)
			}
		})
	}
}

func TestAudit(t *testing.T) {
	ran := func(tick int64, workers ...int) (reports []report) {
		for _, w := range workers {
			reports = append(reports, report{Worker: w, Tick: tick, Asked: true}, report{Worker: w, Tick: tick, Ran: true})
		}
		return reports
	}
	for name, c := range map[string]struct {
		reports []report
		holds   bool
		want    string
	}{
		"one each":     {append(ran(10, 1), ran(11, 2)...), true, "run once         2"},
		"twice":        {append(ran(10, 1), ran(11, 2, 3)...), false, "TWICE: the report for 00:00:11.0 was written by workers [2 3]"},
		"twice before": {append(ran(9, 1, 2), append(ran(10, 1), ran(11, 2)...)...), false, "TWICE"},
		"missed":       {ran(10, 1), false, "MISSED: nobody wrote the report for 00:00:11.0"},
		"died":         {append(ran(10, 1), report{Worker: 1, Tick: 11, Asked: true}), true, "worker 1 died between"},
		"denied":       {append(ran(10, 1), report{Worker: 2, Tick: 11, Asked: true}, report{Worker: 2, Tick: 11, Denied: true}), false, "MISSED"},
		"nothing":      {nil, false, "FAILS"},
	} {
		t.Run(name, func(t *testing.T) {
			a, out := newAudit(), &strings.Builder{}
			for _, r := range c.reports {
				a.hear(r)
			}
			if holds := a.print(out, 10, 2); holds != c.holds || !strings.Contains(out.String(), c.want) {
				t.Errorf("%v\n%s", holds, out)
			}
		})
	}
}
