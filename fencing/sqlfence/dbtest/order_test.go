package dbtest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	"modernc.org/sqlite"

	"github.com/quorumlock/quorumlock/fencing"
)

const (
	workers   = 8
	rounds    = 40 // per worker
	resources = 3
)

// attempt is a transaction that was admitted and committed, with two readings of
// a counter that all workers share.
type attempt struct {
	entry
	admitted   int64 // after Admit returned
	committing int64 // before Commit was called
}

// crowd is many holders, most of them stale, that write all at once.
type crowd struct {
	*database
	level  sql.IsolationLevel
	clock  atomic.Int64
	issued atomic.Uint64
	seed   uint64

	mu        sync.Mutex
	committed []attempt
	stale     int
	failed    int
}

// Whatever happens at once: what is committed never goes backwards.
func TestCommittedTokensNeverGoBackwards(t *testing.T) {
	onLevels(t, func(t *testing.T, d *database, level sql.IsolationLevel) {
		c := &crowd{database: d, level: level, seed: rand.Uint64()}
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("seed %d", c.seed)
			}
		})
		before := len(d.entries(t))
		d.SetMaxOpenConns(workers)
		var all sync.WaitGroup
		for w := range workers {
			all.Go(func() { c.work(t, w) })
		}
		all.Wait()

		if len(c.committed) == 0 || c.stale == 0 {
			t.Fatalf("%d committed, %d stale: nothing was put to the test", len(c.committed), c.stale)
		}
		c.checkLedger(t, before)
		c.checkOrder(t)
		t.Logf("%d committed, %d stale, %d failed", len(c.committed), c.stale, c.failed)
	})
}

func (c *crowd) name(resource int) string { return fmt.Sprintf("crowd/%v/%d", c.level, resource) }

func (c *crowd) work(t *testing.T, worker int) {
	rng := rand.New(rand.NewPCG(c.seed, uint64(worker)))
	for range rounds {
		// Scattered around a number that rises, or one high token would refuse all
		// that follow.
		e := entry{rng.IntN(resources), fencing.Token(c.issued.Add(1)) + fencing.Token(rng.IntN(12))}
		a, err := c.try(t.Context(), e, rng.IntN(8) == 0)
		c.mu.Lock()
		switch {
		case err == nil && a != nil:
			c.committed = append(c.committed, *a)
		case err == nil:
		case errors.Is(err, fencing.ErrStale):
			c.stale++
		case isConflict(err):
			c.failed++
		default:
			t.Error(err)
		}
		c.mu.Unlock()
	}
}

// try is one holder's transaction. It returns nil and nil if it was given up.
func (c *crowd) try(ctx context.Context, e entry, giveUp bool) (*attempt, error) {
	tx, err := c.BeginTx(ctx, &sql.TxOptions{Isolation: c.level})
	if err != nil {
		return nil, err
	}
	defer tx.Rollback()
	if err := c.fence.Admit(ctx, tx, c.name(e.resource), e.token); err != nil {
		return nil, err
	}
	a := &attempt{entry: e, admitted: c.clock.Add(1)}
	if err := c.write(ctx, tx, e.resource, e.token); err != nil {
		return nil, err
	}
	if giveUp {
		return nil, nil
	}
	a.committing = c.clock.Add(1)
	return a, tx.Commit()
}

// isConflict reports whether the database gave up a transaction for another's
// sake, as the documentation of sqlfence says it may.
func isConflict(err error) bool {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code == "40001" || pg.Code == "40P01"
	}
	var my *mysql.MySQLError
	if errors.As(err, &my) {
		return my.Number == 1213 || my.Number == 1205 || my.Number == 1020
	}
	var lite *sqlite.Error
	const busy = 5 // SQLITE_BUSY; the bits above the first eight say which kind
	return errors.As(err, &lite) && lite.Code()&0xff == busy
}

// checkLedger reads the numbers that the database gave to the entries. They were
// given under the row's lock, so their order is that of the commits.
func (c *crowd) checkLedger(t *testing.T, before int) {
	t.Helper()
	highest := make(map[int]fencing.Token)
	entries := c.entries(t)[before:]
	for i, e := range entries {
		if e.token < highest[e.resource] {
			t.Errorf("ledger entry %d of resource %d: token %d follows %d", i, e.resource, e.token, highest[e.resource])
		}
		highest[e.resource] = e.token
	}
	if len(entries) != len(c.committed) {
		t.Errorf("%d entries of %d commits", len(entries), len(c.committed))
	}
	for resource, token := range highest {
		refused(t, c.admit(t, c.name(resource), token-1), c.name(resource), token-1, token)
	}
}

// checkOrder needs no trust in the lock: once a newer token was admitted and
// committed, no older one may so much as begin to commit.
func (c *crowd) checkOrder(t *testing.T) {
	t.Helper()
	for _, older := range c.committed {
		for _, newer := range c.committed {
			if older.resource == newer.resource && older.token < newer.token && newer.admitted < older.committing {
				t.Errorf("resource %d: %d was admitted at %d, and %d committed after %d",
					older.resource, newer.token, newer.admitted, older.token, older.committing)
			}
		}
	}
}
