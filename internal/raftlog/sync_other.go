//go:build !linux

package raftlog

import "github.com/lni/vfs"

func syncData(f vfs.File) error { return f.Sync() }
