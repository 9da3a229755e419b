//go:build unix && !linux

package crew

import (
	"os/exec"
	"syscall"
)

// tieToParent gives the worker a process group of its own, which keeps the
// terminal's Ctrl-C away from it: that is for the director to handle. A worker
// whose director died ends when it finds its standard input closed.
func tieToParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
}
