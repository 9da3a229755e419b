package fencing

import (
	"context"
	"errors"
	"fmt"
)

// MaxResourceLen is the longest name of a resource that a guard takes, in bytes.
// It equals the longest name of a lock, so that a lock's name can serve as its
// resource's.
const MaxResourceLen = 512

// Guard is what a protected store does before it writes.
type Guard interface {
	// Admit remembers t as the highest token of the resource and returns nil, or
	// refuses it. An equal token is admitted: one holder writes many times. An
	// older one is refused with an error that matches ErrStale, the zero token
	// with ErrToken, a bad name with ErrResource. Any other error means that the
	// token could not be checked: the caller must not write, and may try again.
	//
	// Resource names are compared byte by byte. When ctx ends first, the error
	// matches ctx.Err(), and whether t is remembered is up to the guard; that is
	// harmless, since t was granted.
	Admit(ctx context.Context, resource string, t Token) error
}

// Check returns the errors that need no memory, and is where an Admit begins: a
// nil ctx, one that has ended, ErrResource for a name that is empty or longer
// than MaxResourceLen, ErrToken for the zero token.
func Check(ctx context.Context, resource string, t Token) error {
	switch {
	case ctx == nil:
		return errors.New("fencing: nil context")
	case resource == "":
		return fmt.Errorf("%w: it is empty", ErrResource)
	case len(resource) > MaxResourceLen:
		return fmt.Errorf("%w: %d bytes, at most %d are taken", ErrResource, len(resource), MaxResourceLen)
	case t.IsZero():
		return fmt.Errorf("%w: zero, for %s; a token comes with a grant", ErrToken, abridge(resource))
	case ctx.Err() != nil:
		return unchecked(ctx, resource, t)
	}
	return nil
}

// unchecked is the error of a ctx that ended before there was a verdict.
func unchecked(ctx context.Context, resource string, t Token) error {
	return fmt.Errorf("fencing: token %d for %s not checked: %w", t, abridge(resource), ctx.Err())
}
