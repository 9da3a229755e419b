//go:build unix

package main

import "syscall"

const canFreeze = true

// freeze stops the process as it stands, and thaw lets it go on, as a long pause
// of a garbage collector, a hypervisor or a full disk does.
func (p *process) freeze() error { return p.cmd.Process.Signal(syscall.SIGSTOP) }

func (p *process) thaw() error { return p.cmd.Process.Signal(syscall.SIGCONT) }
