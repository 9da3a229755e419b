//go:build unix

package crew

import "syscall"

// CanFreeze reports whether this system can stop a process as it stands.
const CanFreeze = true

// Freeze stops the process as it stands, and Thaw lets it go on, as a long pause
// of a garbage collector, a hypervisor or a full disk does.
func (p *Process) Freeze() error { return p.cmd.Process.Signal(syscall.SIGSTOP) }

func (p *Process) Thaw() error { return p.cmd.Process.Signal(syscall.SIGCONT) }
