package main

import "syscall"

// attributes have the system kill the command when we die.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
