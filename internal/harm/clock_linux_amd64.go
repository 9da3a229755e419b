package harm

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// To set the clocks of the machine would hurt others, and a time namespace can shift a
// clock and not change its rate. But a program reads its clocks by a function that the
// kernel puts into each process, the vDSO's clock_gettime, and clockGettime takes its
// place. A program that asks the kernel itself for the boot clock, as package quorumlock
// does, is answered by the same function, through a filter that turns that system call
// into a signal. Everything else, such as the kernel's timers, goes by the true clocks.

// CanSetClocks reports whether SetWallClock and SetClockRate are there on this machine.
const CanSetClocks = true

// A bearing is what a clock showed at a moment, in nanoseconds.
type bearing struct{ then, shown int64 }

// A period is for how long clocks have one rate. clockGettime knows where its fields are.
type period struct {
	rate       int64 // in 2^-32
	mono, boot bearing
	before     *period // kept: a thread may still be reading it
}

const one = 1 << 32

func (p *period) at(b bearing, then int64) int64 {
	return b.shown + int64(float64(then-b.then)*float64(p.rate)/one)
}

// What clockGettime reads, and what it showed last.
var (
	wallAhead atomic.Int64 // seconds
	course    atomic.Pointer[period]
	//lint:ignore U1000 the assembly uses it
	latest [2]int64 // the monotonic clock, and the boot clock
)

var (
	mu         sync.Mutex // guards what follows, and changes of the clocks
	vdsoTaken  bool
	callsTaken bool
)

// entries is in assembly, as what it returns is.
func entries() (clock, handler, restorer uintptr)

// trueClock makes the number of a clock one that is not answered by clockGettime.
const trueClock = 1 << 32

func trueTime(clock uintptr) int64 {
	var ts unix.Timespec
	_, _, _ = unix.RawSyscall(unix.SYS_CLOCK_GETTIME, clock|trueClock, uintptr(unsafe.Pointer(&ts)), 0) // cannot fail
	return ts.Nano()
}

// SetWallClock has this process see a wall clock that is ahead of the machine's, or
// behind it, by whole seconds. It is what the process would see of `date --set`: every
// other clock goes on.
func SetWallClock(ahead time.Duration) error {
	mu.Lock()
	defer mu.Unlock()
	if err := takeVDSO(); err != nil {
		return err
	}
	wallAhead.Store(int64(ahead / time.Second))
	wall := trueTime(unix.CLOCK_REALTIME)
	if seen := time.Now().Round(0).Sub(time.Unix(0, wall)); (seen - ahead).Abs() > time.Minute {
		return fmt.Errorf("the wall clock was set %v ahead and is %v ahead", ahead, seen)
	}
	return nil
}

// SetClockRate has the monotonic clock and the boot clock of this process go at a rate
// from now on, from what they show now: 1 is the machine's. They never go back. When
// the rate falls, they may stand still for some microseconds.
//
// A system call for the monotonic clock, which nothing here makes, tells the true one.
func SetClockRate(rate float64) error {
	if !(rate >= 1./16 && rate <= 16) {
		return fmt.Errorf("a rate of %v: must be from 1/16 to 16", rate)
	}
	mu.Lock()
	defer mu.Unlock()
	if course.Load() == nil {
		mono, boot := trueTime(unix.CLOCK_MONOTONIC), trueTime(unix.CLOCK_BOOTTIME)
		course.Store(&period{rate: one, mono: bearing{mono, mono}, boot: bearing{boot, boot}})
	}
	if err := takeVDSO(); err != nil {
		return err
	}
	if err := takeCalls(); err != nil {
		return err
	}
	mono, boot := trueTime(unix.CLOCK_MONOTONIC), trueTime(unix.CLOCK_BOOTTIME)
	last := course.Load()
	course.Store(&period{rate: int64(rate * one), before: last,
		mono: bearing{mono, last.at(last.mono, mono)}, boot: bearing{boot, last.at(last.boot, boot)}})
	return nil
}

// takeCalls has clockGettime answer the system calls for the boot clock.
func takeCalls() error {
	if callsTaken {
		return nil
	}
	_, handler, restorer := entries()
	const onStack, info, returns = 0x08000000, 0x4, 0x04000000 // SA_ONSTACK, SA_SIGINFO, SA_RESTORER
	action := struct {
		handler, flags, restorer uintptr
		mask                     uint64
	}{handler, onStack | info | returns, restorer, ^uint64(0)}
	if _, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGSYS), uintptr(unsafe.Pointer(&action)), 0,
		unsafe.Sizeof(action.mask), 0, 0); errno != 0 {
		return fmt.Errorf("handle SIGSYS: %w", errno)
	}
	err := filterCalls([]unix.SockFilter{
		{Code: load, K: callNumber},
		{Code: equal, Jf: 5, K: unix.SYS_CLOCK_GETTIME},
		{Code: load, K: firstLow},
		{Code: equal, Jf: 3, K: unix.CLOCK_BOOTTIME},
		{Code: load, K: firstHigh},
		{Code: equal, Jf: 1, K: 0}, // not trueClock
		{Code: answer, K: unix.SECCOMP_RET_TRAP},
		{Code: answer, K: unix.SECCOMP_RET_ALLOW},
	})
	callsTaken = err == nil
	return err
}
