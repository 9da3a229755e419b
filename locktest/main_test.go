package locktest_test

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain fails the run if a cluster left a goroutine. None is ignored.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
