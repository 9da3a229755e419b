package quorumlock

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// To set the clock of the machine would hurt others, and there are no namespaces for
// the wall clock. But a program reads it by a function that the kernel puts into each
// process, the vDSO's clock_gettime. A child takes another one in its place: the system
// call, and for the wall clock an offset that may be changed at any time. What the
// process sees is what it would see of `date --set`: every other clock goes on.

func init() { harms["set wall clock"] = setWallClock }

var (
	wallAhead atomic.Int64 // seconds
	wallTaken bool
)

func setWallClock(o order) error {
	ahead, err := time.ParseDuration(o.Name)
	if err != nil {
		return err
	}
	if !wallTaken {
		if err := takeWallClock(); err != nil {
			return err
		}
		wallTaken = true
	}
	wallAhead.Store(int64(ahead / time.Second))
	var true unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME, &true); err != nil {
		return err
	}
	if seen := time.Now().Round(0).Sub(time.Unix(true.Unix())); (seen - ahead).Abs() > time.Minute {
		return fmt.Errorf("the wall clock was set %v ahead and is %v ahead", ahead, seen)
	}
	return nil
}

// takeWallClock puts the other function in place while threads may be calling the first:
// who comes in between waits in a loop of one instruction.
func takeWallClock() error {
	entry, err := vdsoClockGettime()
	if err != nil {
		return err
	}
	code := append([]byte{
		0xb8, unix.SYS_CLOCK_GETTIME, 0, 0, 0, // mov eax, the system call
		0x0f, 0x05, // syscall
		0x85, 0xff, // test edi, edi: CLOCK_REALTIME is 0
		0x75, 0x10, // jnz to ret
		0x48, 0xb9}, // mov rcx, the offset's address
		binary.LittleEndian.AppendUint64(nil, uint64(uintptr(unsafe.Pointer(&wallAhead))))...)
	code = append(code,
		0x48, 0x8b, 0x09, // mov rcx, [rcx]
		0x48, 0x01, 0x0e, // add [rsi], rcx: the seconds
		0xc3) // ret
	if len(entry) < len(code) {
		return fmt.Errorf("the function has only %d bytes", len(entry))
	}
	first := (*uint64)(unsafe.Pointer(&entry[0]))
	const loop = 0xfeeb // jmp to itself
	atomic.StoreUint64(first, atomic.LoadUint64(first)&^0xffff|loop)
	pause := unix.Timespec{Nsec: 1e6} // for those inside; the runtime must not look at a clock now
	_, _, _ = unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&pause)), 0, 0)
	copy(entry[8:], code[8:])
	atomic.StoreUint64(first, binary.LittleEndian.Uint64(code))
	return nil
}

// vdsoClockGettime returns the code of that function, which may be written to: the
// process gets a page of its own then.
func vdsoClockGettime() ([]byte, error) {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil, err
	}
	var from, to uintptr
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, "[vdso]") {
			if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err != nil {
				return nil, err
			}
		}
	}
	if from == 0 {
		return nil, errors.New("there is no vDSO")
	}
	image := unsafe.Slice((*byte)(address(from)), to-from)
	if err := unix.Mprotect(image, unix.PROT_READ|unix.PROT_WRITE|unix.PROT_EXEC); err != nil {
		return nil, err
	}
	file, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return nil, err
	}
	symbols, err := file.DynamicSymbols()
	if err != nil {
		return nil, err
	}
	for _, s := range symbols {
		if s.Name == "__vdso_clock_gettime" && s.Value%8 == 0 {
			return image[s.Value:][:s.Size], nil
		}
	}
	return nil, errors.New("the vDSO has no clock_gettime")
}

// address is a pointer to what the kernel has put there, of which the garbage collector
// knows nothing. To convert a uintptr is what go vet takes for a mistake.
func address(at uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&at)) }

// Five processes hold a lock each while their wall clocks jump by hours and years, ahead
// and back, each to another time. Nobody loses a session, and nobody in line is granted
// anything. When the leader dies then, the next in line is granted its lock as late as
// always.
func TestProcessesWallClockJumps(t *testing.T) {
	if testing.Short() {
		t.Skip("starts five processes")
	}
	t.Parallel()
	const ttl, year = 3 * time.Second, 365 * 24 * time.Hour
	ps := newProcesses(t, ttl, 300*time.Millisecond)
	waits := make(map[uint64]<-chan answer)
	for _, id := range ps.ids() {
		_, waits[id] = ps.hold(id, ps.other(id), fmt.Sprint("of ", id))
	}
	jumps := 0
	for began := bootTime(); bootTime()-began < ttl; {
		for _, ahead := range []time.Duration{time.Hour, -time.Hour, year, -year, 0} {
			for _, id := range ps.ids() {
				ps.ask(id, "set wall clock", (time.Duration(id-2) * ahead).String())
				jumps++
				for _, other := range ps.ids() {
					ps.ask(other, "validate", fmt.Sprint("of ", other))
				}
			}
		}
	}
	for id, c := range waits {
		select {
		case a := <-c:
			t.Fatalf("the lock of replica %d was granted to another one: %+v", id, a)
		default:
		}
	}
	leader := ps.leader()
	killed := ps.kill(leader)
	ps.leader() // it counts the lease already
	for _, id := range ps.ids() {
		ps.ask(id, "set wall clock", (-year).String())
	}
	delay := ps.get(waits[leader]).At - killed
	t.Logf("%d jumps; the leader killed, its lock granted after %v of a TTL of %v", jumps, delay, ttl)
	require.Greater(t, delay, ttl/4, "its lease ran on")
	require.Less(t, delay, ttl+10*time.Second, "on a machine however slow; a year by a clock that counts back")
}
