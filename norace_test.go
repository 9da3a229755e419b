//go:build !race

package quorumlock

const raceEnabled = false
