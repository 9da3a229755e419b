//go:build race

package quorumlock

// raceEnabled makes tests of sheer size smaller: the race detector slows them
// down tenfold, and they have one goroutine.
const raceEnabled = true
