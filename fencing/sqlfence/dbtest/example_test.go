package dbtest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/fencing/sqlfence"
)

// A payout worker that was frozen past its lease wakes up and books again.
func Example() {
	ctx := context.Background()
	db, err := sql.Open("sqlite", "file:example?mode=memory&cache=shared")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	fence, err := sqlfence.New(sqlfence.SQLite)
	if err != nil {
		log.Fatal(err)
	}
	if err := fence.CreateTable(ctx, db); err != nil {
		log.Fatal(err)
	}
	if _, err := db.ExecContext(ctx, "CREATE TABLE payouts (invoice TEXT, cents INTEGER)"); err != nil {
		log.Fatal(err)
	}

	pay := func(invoice string, cents int, token fencing.Token) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if err := fence.Admit(ctx, tx, "invoice/"+invoice, token); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO payouts VALUES (?, ?)", invoice, cents); err != nil {
			return err
		}
		return tx.Commit()
	}

	frozen, successor := fencing.Token(33), fencing.Token(34) // each from its own grant
	fmt.Println(pay("4711", 9900, successor))
	err = pay("4711", 9900, frozen)
	fmt.Println(err)

	var stale *fencing.StaleError
	fmt.Println(errors.As(err, &stale), stale.Presented, stale.Admitted)
	var payouts int
	if err := db.QueryRowContext(ctx, "SELECT COUNT(*) FROM payouts").Scan(&payouts); err != nil {
		log.Fatal(err)
	}
	fmt.Println(payouts, "payout")
	// Output:
	// <nil>
	// fencing: stale token 33 for "invoice/4711": 34 was admitted
	// true 33 34
	// 1 payout
}
