package harm

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// takeVDSO puts clockGettime in place while threads may be calling the function that
// is there: who comes in between waits in a loop of one instruction.
func takeVDSO() error {
	if vdsoTaken {
		return nil
	}
	entry, err := vdsoClockGettime()
	if err != nil {
		return err
	}
	clock, _, _ := entries()
	code := binary.LittleEndian.AppendUint64([]byte{0x48, 0xb8}, uint64(clock)) // mov rax, clock
	code = append(code, 0xff, 0xe0)                                             // jmp rax
	if len(entry) < len(code) {
		return fmt.Errorf("the vDSO's clock_gettime has only %d bytes", len(entry))
	}
	first := (*uint64)(unsafe.Pointer(&entry[0]))
	const loop = 0xfeeb // jmp to itself
	atomic.StoreUint64(first, atomic.LoadUint64(first)&^0xffff|loop)
	pause := unix.Timespec{Nsec: 1e6} // for those inside; the runtime must not look at a clock now
	_, _, _ = unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&pause)), 0, 0)
	copy(entry[8:], code[8:])
	atomic.StoreUint64(first, binary.LittleEndian.Uint64(code))
	vdsoTaken = true
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
