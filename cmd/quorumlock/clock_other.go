//go:build !linux

package main

import "time"

// now is a clock by which only differences count.
func now() time.Duration { return time.Since(started) }

var started = time.Now()
