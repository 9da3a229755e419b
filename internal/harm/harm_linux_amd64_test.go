package harm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// harmedVar has a test be the process that is harmed: there is no way back.
const harmedVar = "QUORUMLOCK_HARMED"

// inChild runs the rest of a test in a process of its own.
func inChild(t *testing.T, rest func()) {
	t.Helper()
	if os.Getenv(harmedVar) != "" {
		rest()
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), harmedVar+"=1")
	out, err := cmd.CombinedOutput()
	t.Log(string(out))
	require.NoError(t, err)
}

// A file that is not synced is not said to be; with clocks taken as well, in whichever order.
func TestFailFsync(t *testing.T) {
	inChild(t, func() {
		f, err := os.Create(filepath.Join(t.TempDir(), "file"))
		require.NoError(t, err)
		require.NoError(t, f.Sync())
		require.NoError(t, SetClockRate(1))
		require.NoError(t, FailFsync())
		_, err = f.WriteString("something")
		require.NoError(t, err)
		require.ErrorIs(t, f.Sync(), syscall.EIO)
		require.ErrorIs(t, unix.Fdatasync(int(f.Fd())), unix.EIO)
		require.NoError(t, SetClockRate(2))
		require.ErrorIs(t, f.Sync(), syscall.EIO)
		require.NoError(t, f.Close())
	})
}

// bootTime asks for the boot clock as package quorumlock does.
func bootTime() time.Duration {
	var ts unix.Timespec
	_, _, _ = unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_BOOTTIME, uintptr(unsafe.Pointer(&ts)), 0)
	return time.Duration(ts.Nano())
}

// Both clocks go at the rate that was set, in every thread, and never back. The wall
// clock, and the clock that examples/torture judges by, go on as they were.
func TestSetClockRate(t *testing.T) {
	inChild(t, func() {
		const window, slack = 100 * time.Millisecond, 20 * time.Millisecond
		over := make(chan struct{})
		var lookers sync.WaitGroup
		for range 2 {
			lookers.Go(func() { neverBack(over) })
		}
		for _, rate := range []float64{0.5, 2, 1, 0.94, 1.06} {
			require.NoError(t, SetClockRate(rate))
			first, began, last := look()
			for machine()-last < window {
				runtime.Gosched()
			}
			then, ended, now := look()
			least, most := then-last, now-first // that passed by the machine's clock
			t.Logf("rate %v: %v to %v passed, %v monotonic, %v boot, %v wall", rate, least, most,
				ended.mono-began.mono, ended.boot-began.boot, ended.wall-began.wall)
			within := func(got time.Duration, rate float64) {
				t.Helper()
				require.GreaterOrEqual(t, got, time.Duration(rate*float64(least))-slack)
				require.LessOrEqual(t, got, time.Duration(rate*float64(most))+slack)
			}
			within(ended.mono-began.mono, rate)
			within(ended.boot-began.boot, rate)
			within(ended.wall-began.wall, 1)
		}
		close(over)
		lookers.Wait()
		require.Error(t, SetClockRate(0))
		require.Error(t, SetClockRate(17))
	})
}

// neverBack looks at the clocks until it is over.
func neverBack(over chan struct{}) {
	for mono, boot := time.Now(), bootTime(); ; runtime.Gosched() {
		m, b := time.Now(), bootTime()
		if m.Sub(mono) < 0 || b < boot {
			panic(fmt.Sprintf("a clock went back by %v, %v", mono.Sub(m), boot-b))
		}
		select {
		case <-over:
			return
		default:
			mono, boot = m, b
		}
	}
}

var start = time.Now()

type clocks struct{ mono, boot, wall time.Duration }

// look reads the clocks, and the machine's before and after.
func look() (before time.Duration, c clocks, after time.Duration) {
	before = machine()
	c = clocks{time.Since(start), bootTime(), time.Duration(time.Now().UnixNano())}
	return before, c, machine()
}

// machine is a clock that goes on as it was.
func machine() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return time.Duration(ts.Nano())
}

// The clocks differ by what SetWallClock says, and by nothing else.
func TestSetWallClock(t *testing.T) {
	inChild(t, func() {
		true := time.Now()
		for _, ahead := range []time.Duration{time.Hour, -time.Hour, 0} {
			require.NoError(t, SetWallClock(ahead))
			now := time.Now()
			require.Less(t, now.Sub(true).Abs(), time.Minute, "by the monotonic clock")
			require.Less(t, (now.Round(0).Sub(true.Round(0)) - ahead).Abs(), time.Minute)
		}
	})
}
