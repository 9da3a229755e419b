#include "textflag.h"

#define SYS_rt_sigreturn 15
#define SYS_clock_gettime 228
#define CLOCK_REALTIME 0
#define CLOCK_MONOTONIC 1
#define CLOCK_BOOTTIME 7

// clockGettime is int clock_gettime(clockid_t, struct timespec *) as C calls it: the
// arguments are in DI and SI, and BX, BP and R12 to R15 are the caller's. It runs on
// whatever stack and in whatever thread, so it knows nothing of Go.
TEXT ·clockGettime(SB), NOSPLIT|NOFRAME, $0-0
	MOVL DI, DI
	BTSQ $32, DI // trueClock: the kernel does not look there, and the filter does
	MOVL $SYS_clock_gettime, AX
	SYSCALL
	TESTQ AX, AX
	JNE  done
	CMPL DI, $CLOCK_REALTIME
	JEQ  wall
	MOVQ ·course(SB), R9
	TESTQ R9, R9
	JEQ  done
	LEAQ 8(R9), R10
	LEAQ ·latest(SB), R11
	CMPL DI, $CLOCK_MONOTONIC
	JEQ  turn
	CMPL DI, $CLOCK_BOOTTIME
	JNE  done
	ADDQ $16, R10
	ADDQ $8, R11

turn: // shown + (true - then) * rate
	MOVQ  0(SI), AX
	IMULQ $1000000000, AX
	ADDQ  8(SI), AX
	SUBQ  0(R10), AX
	IMULQ 0(R9)
	SHRQ  $32, DX, AX
	ADDQ  8(R10), AX
	MOVQ  AX, R8

forward: // but never less than was shown before: the rate may have changed meanwhile
	MOVQ (R11), AX
	CMPQ R8, AX
	JLE  show
	LOCK
	CMPXCHGQ R8, (R11)
	JNE  forward
	MOVQ R8, AX

show:
	XORL DX, DX
	MOVQ $1000000000, CX
	DIVQ CX
	MOVQ AX, 0(SI)
	MOVQ DX, 8(SI)
	XORL AX, AX

done:
	RET

wall:
	MOVQ ·wallAhead(SB), CX
	ADDQ CX, 0(SI)
	RET

// onSIGSYS answers a system call that the filter stopped: a signal handler, whose third
// argument has the registers (struct ucontext).
TEXT ·onSIGSYS(SB), NOSPLIT|NOFRAME, $0-0
	MOVQ DX, BX
	MOVQ 104(BX), DI
	MOVQ 112(BX), SI
	CALL ·clockGettime(SB)
	MOVQ AX, 144(BX)
	RET

// sigreturn is where a signal handler returns to.
TEXT ·sigreturn(SB), NOSPLIT|NOFRAME, $0-0
	MOVL $SYS_rt_sigreturn, AX
	SYSCALL
	INT  $3

// entries returns where these three begin; a func of Go is where Go enters them.
TEXT ·entries(SB), NOSPLIT, $0-24
	LEAQ ·clockGettime(SB), AX
	MOVQ AX, clock+0(FP)
	LEAQ ·onSIGSYS(SB), AX
	MOVQ AX, handler+8(FP)
	LEAQ ·sigreturn(SB), AX
	MOVQ AX, restorer+16(FP)
	RET
