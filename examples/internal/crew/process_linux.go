package crew

import (
	"os/exec"
	"syscall"
)

// tieToParent has the kernel kill the worker when the director dies, however it
// dies and whether or not the worker is frozen. A process group of its own keeps
// the terminal's Ctrl-C away from it: that is for the director to handle.
func tieToParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
