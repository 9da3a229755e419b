//go:build !linux

package election_test

// playRole is not there where processes cannot be stopped and compared by one clock.
func playRole(string) int { return 2 }
