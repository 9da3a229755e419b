//go:build unix && !linux

package main

import "syscall"

func attributes() *syscall.SysProcAttr { return new(syscall.SysProcAttr) }
