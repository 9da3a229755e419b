//go:build lean

package main

import "context"

// peers is empty: see peers.go.
var peers map[string]func(ctx context.Context, name, dir string) (system, error)
