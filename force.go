package quorumlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/sessions"
)

// ForceRelease ends the hold of a name that has this token, over its holder's head:
// the holder learns of it as of any loss, with a *RevokedError that says who wanted
// it and why. by and reason must be given, in at most MaxReasonLen bytes of UTF-8 each.
// The next hold has a larger token, so a store that checks tokens refuses what the
// former holder still writes; one that does not is not protected. See LockDelay.
//
// A hold on several names ends as a whole. Readers that share a token end together:
// no store could tell them apart.
//
// It returns ErrNotHeld when nobody holds the name with this token; an error matching
// ErrNoQuorum and ctx's error when ctx ended first: it may then be done or not.
func (n *Node) ForceRelease(ctx context.Context, name string, token fencing.Token, by, reason string) error {
	return n.force(ctx, name, by, reason, wire.Command{Op: wire.Revoke, Name: name, More: &wire.More{Token: token}})
}

// ForceClose ends a session over its owner's head, and with it all its holds and
// waits. See ForceRelease; ErrNotHeld stands for a session that is not there.
func (n *Node) ForceClose(ctx context.Context, id sessions.ID, by, reason string) error {
	return n.force(ctx, "", by, reason, wire.Command{Op: wire.Evict, More: &wire.More{Who: id}})
}

// RequestYield asks those who hold a name, politely, to give it up: they see it on
// Hold.YieldRequests. It returns ErrNotHeld if nobody holds it; other errors are
// those of ForceRelease.
func (n *Node) RequestYield(ctx context.Context, name, by, reason string) error {
	return n.force(ctx, name, by, reason, wire.Command{Op: wire.Ask, Name: name, More: &wire.More{}})
}

func (n *Node) force(ctx context.Context, name, by, reason string, c wire.Command) error {
	if err := checkCtx(ctx); err != nil {
		return err
	}
	if c.Op != wire.Evict {
		if err := checkName(name); err != nil {
			return err
		}
	}
	if err := errors.Join(checkReason("by", by), checkReason("reason", reason)); err != nil {
		return err
	}
	c.More.By, c.More.Reason = by, reason
	if c.Op == wire.Evict {
		return n.evict(ctx, c)
	}
	return n.groupOf(name).call(ctx, name, c)
}

// evict ends a session in every group where it is.
func (n *Node) evict(ctx context.Context, c wire.Command) error {
	faults := make([]error, len(n.groups))
	var all sync.WaitGroup
	for i, g := range n.groups {
		own, more := c, *c.More
		own.More = &more
		all.Go(func() { faults[i] = g.call(ctx, "", own) })
	}
	all.Wait()
	var known bool
	var gone error
	for _, err := range faults {
		switch {
		case err == nil:
			known = true
		case errors.Is(err, ErrNotHeld):
			gone = err
		default:
			return err
		}
	}
	if known {
		return nil
	}
	return gone
}

func checkReason(what, text string) error {
	if text == "" || !wire.ValidText(text, MaxReasonLen) || strings.Contains(text, "\x00") {
		return fmt.Errorf("%w: %s %q: must be 1 to %d bytes of UTF-8, none of them zero", ErrReason, what, text, MaxReasonLen)
	}
	return nil
}

// Resize changes how many permits a counted lock that is in use has. More are
// granted at once to those who wait; of fewer, those who have one keep it, and
// nothing is granted until enough came back. Who waits for more permits than there
// are now is refused with ErrPermits.
//
// It returns ErrPermits for a limit that is not 1 to MaxPermits, ErrNotHeld when
// nobody holds or waits for the name, ErrMode when it is in use in another mode,
// ErrName, and an error matching ErrNoQuorum and ctx's error when ctx ended first:
// it may then be done or not.
func (n *Node) Resize(ctx context.Context, name string, limit int) error {
	if err := checkCall(ctx, name); err != nil {
		return err
	}
	if limit < 1 || limit > MaxPermits {
		return fmt.Errorf("%w: a limit of %d: must be 1 to %d", ErrPermits, limit, MaxPermits)
	}
	return n.groupOf(name).call(ctx, name, wire.Command{Op: wire.Resize, Name: name, More: &wire.More{Of: uint64(limit)}})
}
