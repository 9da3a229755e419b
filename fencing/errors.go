package fencing

import (
	"errors"
	"fmt"
)

var (
	// ErrStale is returned when a token is older than one already admitted for
	// the resource: its holder lost the lock, and must stop. Trying again cannot
	// help. The error is a *StaleError.
	ErrStale = errors.New("fencing: stale token")
	// ErrToken is returned for the zero token, for text that is not a token, and
	// by a guard for a token that it has no room for.
	ErrToken = errors.New("fencing: not a token")
	// ErrResource is returned for a resource name that is empty or longer than
	// MaxResourceLen bytes.
	ErrResource = errors.New("fencing: bad resource name")
)

// StaleError says which token was refused, and which one stands in its way. It
// matches ErrStale.
type StaleError struct {
	Resource  string
	Presented Token
	// Admitted is the highest token admitted so far, or zero if the guard could
	// not tell.
	Admitted Token
}

func (e *StaleError) Error() string {
	if e.Admitted.IsZero() {
		return fmt.Sprintf("%v %d for %s: a newer one was admitted", ErrStale, e.Presented, abridge(e.Resource))
	}
	return fmt.Sprintf("%v %d for %s: %d was admitted", ErrStale, e.Presented, abridge(e.Resource), e.Admitted)
}

// Unwrap returns ErrStale.
func (e *StaleError) Unwrap() error { return ErrStale }
