//go:build !linux

package main

import "errors"

var errLinux = errors.New("only Linux has it")

// A network needs the namespaces of Linux.
type network struct{ *links }

func newNetwork(int, *links) (*network, error) { return nil, errLinux }

func (n *network) members() map[uint64]string { return nil }

func (n *network) within(uint64, func() error) error { return errLinux }

func (n *network) close() error { return nil }

func disks([]string) error { return errLinux }

func unmount([]string) error { return nil }

func fill(string) (func() error, error) { return nil, errLinux }
