package sessions

import "time"

// A TTL is what the users are promised: within it, a crashed process's locks come
// free. Two shorter spans are cut from it:
//
//	0                          Trust    Lease    TTL
//	|--- the holder may act ---|--------|--------|
//	                                    the leader may end the session
//
// What lies between Lease and TTL is for the case that the leader dies together
// with the holder: the next leader begins a full Lease at its election, and that
// election takes time too. What lies between Trust and Lease is for clocks that do
// not run at one rate: the holder still stops first if its clock runs slower than
// the leader's by up to one eighth.

// Lease is how long the leader waits after the last renewal of a session with
// this ttl before it ends the session.
func Lease(ttl time.Duration) time.Duration { return ttl - ttl/5 }

// Trust is how long, from before it sent the last renewal that was acknowledged,
// a holder may rely on a session with this ttl.
func Trust(ttl time.Duration) time.Duration { return ttl - 3*(ttl/10) }

// RenewEvery is how often a process renews if this is the shortest ttl of its
// sessions: often enough that one renewal may be lost.
func RenewEvery(ttl time.Duration) time.Duration { return ttl / 4 }
