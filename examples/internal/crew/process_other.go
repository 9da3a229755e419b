//go:build !unix

package crew

import "os/exec"

// tieToParent leaves it to the worker to end when its standard input is closed.
func tieToParent(*exec.Cmd) {}
