package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/quorumlock/quorumlock/fencing"
)

// Guard returns a fencing.Guard that admits each token in a short transaction of
// its own, for a check at the door that outlives the process, as in
// httpfence.Handler.
//
// Its check is over before anything is written, so a newer token may come in
// between. A write to the same database is protected only by an Admit in its own
// transaction; the same token is admitted there again.
func (f *Fence) Guard(db *sql.DB) fencing.Guard { return guard{f, db} }

type guard struct {
	fence *Fence
	db    *sql.DB
}

func (g guard) Admit(ctx context.Context, resource string, t fencing.Token) (err error) {
	// Before a connection is taken for what cannot succeed.
	if err := fencing.Check(ctx, resource, t); err != nil {
		return err
	}
	if g.db == nil {
		return errors.New("sqlfence: nil database")
	}
	tx, err := g.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("sqlfence: begin: %w", err)
	}
	if err := g.fence.Admit(ctx, tx, resource, t); err != nil {
		_ = tx.Rollback() // there is nothing in it, and err says more
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("sqlfence: commit: %w", err)
	}
	return nil
}
