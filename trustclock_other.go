//go:build !linux

package quorumlock

import "time"

// bootTime is the time since this process started, by Go's monotonic clock. Where
// that stops while the machine is suspended, a holder that wakes from suspension
// may trust its lock for too long; its token is refused all the same.
func bootTime() time.Duration { return sinceStart() }
