package sqlfence_test

import (
	"context"
	"database/sql"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/fencing/sqlfence"
)

// Check and write in one transaction. The same with a real driver, run and its
// output checked, is the example of the dbtest module.
func ExampleFence_Admit() {
	fence, err := sqlfence.New(sqlfence.PostgreSQL) // once, beside sql.Open
	if err != nil {
		panic(err)
	}

	settle := func(ctx context.Context, db *sql.DB, invoice string, token fencing.Token) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		// First of all, so that what is read below cannot change any more.
		if err := fence.Admit(ctx, tx, "invoice/"+invoice, token); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "UPDATE invoices SET paid = true WHERE number = $1 AND NOT paid", invoice)
		if err != nil {
			return err
		}
		return tx.Commit()
	}
	_ = settle
}
