package quorumlock

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// roleVar makes a run of the test binary one process of a test instead: see
// process_test.go.
const roleVar = "QUORUMLOCK_TEST_ROLE"

// longVar has some tests take longer: TestProcessesHolderKilledOrStopped with the default
// TTL, TestLinearizableReal for a minute, TestProcessesAllRestarted with 250 restarts.
const longVar = "QUORUMLOCK_TEST_LONG"

// TestMain fails the run if a test left a goroutine. None is ignored.
func TestMain(m *testing.M) {
	if role := os.Getenv(roleVar); role != "" {
		os.Exit(playRole(role))
	}
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}
