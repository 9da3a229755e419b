package once

import (
	"context"
	"fmt"
	"time"
)

// A Register is what of a node claims need.
type Register interface {
	ClaimTick(ctx context.Context, job string, tick int64) (bool, error)
}

// Claims claims the ticks of one job, one after the other: since once a tick was
// claimed so were all before it, a replica must have its answer for one before it
// asks for the next. It is safe for concurrent use.
type Claims struct {
	register Register
	job      string
	patience time.Duration
	turn     chan struct{} // holds one while nobody claims; receivers are served in order
}

// NewClaims makes the claims of a job. A claim without an answer is given up after
// patience.
func NewClaims(r Register, job string, patience time.Duration) *Claims {
	c := &Claims{register: r, job: job, patience: patience, turn: make(chan struct{}, 1)}
	c.turn <- struct{}{}
	return c
}

// Claim reports whether the run that was planned for a time is the caller's. Only
// true without an error allows it to run: after an error the tick may be anybody's, or
// claimed for nobody.
func (c *Claims) Claim(ctx context.Context, planned time.Time) (bool, error) {
	select {
	case <-c.turn:
	case <-ctx.Done():
		return false, fmt.Errorf("claim of %s for %s: %w", c.job, planned.UTC().Format(time.RFC3339Nano), ctx.Err())
	}
	defer func() { c.turn <- struct{}{} }()
	ctx, cancel := context.WithTimeout(ctx, c.patience)
	defer cancel()
	won, err := c.register.ClaimTick(ctx, c.job, Tick(planned))
	return won && err == nil, err
}

// Tick is the number of the tick that was planned for a time: its Unix time in
// milliseconds.
func Tick(planned time.Time) int64 { return planned.UnixMilli() }
