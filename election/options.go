package election

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/quorumlock/quorumlock"
)

// An Option changes one thing about Run or Campaign. Campaign heeds WithValue; the
// others are about what Run does.
type Option func(*config)

type config struct {
	value   string
	log     *slog.Logger
	health  func(context.Context) error
	every   time.Duration
	grace   time.Duration
	ignored func(*Term)
	yield   func(quorumlock.YieldRequest) bool
	retry   bool
	most    time.Duration // the longest pause before the next campaign
}

const (
	// defaultGrace is how long a function may ignore that its context has ended
	// before that is reported.
	defaultGrace = 10 * time.Second
	// leastPause and mostPause bound the pause before the next campaign.
	leastPause = 50 * time.Millisecond
	mostPause  = 2 * time.Second
)

func configOf(opts []Option) config {
	c := config{grace: defaultGrace, most: mostPause, log: slog.New(slog.DiscardHandler)}
	for _, opt := range opts {
		opt(&c)
	}
	return c
}

// WithValue publishes a text with the campaign and with the term, such as the
// leader's address: at most quorumlock.MaxValueLen bytes of UTF-8. Term.SetValue
// changes it for a term; the next one begins with this one again.
func WithValue(value string) Option { return func(c *config) { c.value = value } }

// WithLogger lets Run tell of terms that begin and end, and of what it does about
// errors. Default: none, a library does not print.
func WithLogger(log *slog.Logger) Option { return func(c *config) { c.log = log } }

// WithHealth lets a replica lead only while it is healthy. check is called before the
// campaign and then at this interval, also while the replica waits in line. When it
// returns an error, or does not return within the interval, when its ctx ends, the
// replica leaves the line, or resigns: the term's context ends with ErrUnhealthy as
// its cause, and the lock is given up when the function has returned. It campaigns
// again when check succeeds. There is one call at a time, and Run does not return
// before it.
func WithHealth(check func(ctx context.Context) error, every time.Duration) Option {
	return func(c *config) { c.health, c.every = check, max(every, time.Millisecond) }
}

// WithGrace sets how long the function may go on after its context has ended before
// that is reported: see OnIgnored. Default: 10 s.
func WithGrace(grace time.Duration) Option { return func(c *config) { c.grace = grace } }

// OnIgnored is called, once a term and in a goroutine of its own, when the function
// has ignored for the grace that its context has ended. It is logged as well. Run
// waits for the function all the same, and while the session lives nobody else can
// lead; where that is worse than a crash, ignored may end the process.
func OnIgnored(ignored func(term *Term)) Option { return func(c *config) { c.ignored = ignored } }

// WithYield lets the leader resign when somebody asks for it by Node.RequestYield and
// agree returns true; nil agrees to everything. agree must not block. Default: a
// request is ignored.
func WithYield(agree func(request quorumlock.YieldRequest) bool) Option {
	if agree == nil {
		agree = func(quorumlock.YieldRequest) bool { return true }
	}
	return func(c *config) { c.yield = agree }
}

// WithRetry makes Run campaign again after the function returned an error, in place
// of ending with it. The pause before that doubles from one error to the next, up to
// most, and begins anew after a term that lasted longer than that.
func WithRetry(most time.Duration) Option {
	return func(c *config) { c.retry, c.most = true, max(most, leastPause) }
}

var (
	// ErrStop is for the function of Run to return: it makes Run give up the
	// leadership, campaign no more and return nil.
	ErrStop = errors.New("election: stop")
	// ErrNoLeader is returned by LeaderOf when nobody leads.
	ErrNoLeader = errors.New("election: nobody leads")
	// ErrResigned is why a term ended by Resign, HandOver or a request to yield.
	ErrResigned = errors.New("election: resigned")
	// ErrUnhealthy is why a term ended because the check of WithHealth failed.
	ErrUnhealthy = errors.New("election: unhealthy")
)
