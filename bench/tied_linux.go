//go:build !lean

package main

import (
	"os/exec"
	"syscall"
)

// tied has the kernel end a child when the thread that started it ends.
func tied(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
