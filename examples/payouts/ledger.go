package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/fencing/sqlfence"
)

// The payments table has no UNIQUE constraint on the invoice. A ledger of your
// own should have one; here it would hide what this program is about, since most
// writes that a lock protects (an order to a bank, a line in a file, a call to
// another service) have nothing of the kind. Every payment that is written stays
// to be counted.
const schema = `
CREATE TABLE invoices (
	number   TEXT PRIMARY KEY,
	supplier TEXT NOT NULL,
	currency TEXT NOT NULL,
	minor    INTEGER NOT NULL, -- in the currency's smallest unit
	due      TEXT NOT NULL
);
CREATE TABLE payments (
	id       INTEGER PRIMARY KEY,
	invoice  TEXT NOT NULL,
	currency TEXT NOT NULL,
	minor    INTEGER NOT NULL,
	token    INTEGER NOT NULL, -- of the lock's grant under which it was written
	worker   INTEGER NOT NULL,
	paid_at  TEXT NOT NULL
);
CREATE INDEX payments_by_invoice ON payments (invoice);
CREATE TABLE refusals (
	id       INTEGER PRIMARY KEY,
	invoice  TEXT NOT NULL,
	token    INTEGER NOT NULL, -- the one that was too old
	newest   INTEGER NOT NULL, -- the one that stood in its way
	worker   INTEGER NOT NULL
);`

const isPaid = `SELECT EXISTS (SELECT 1 FROM payments WHERE invoice = ?)`

// A ledger is the SQLite file that all workers write to.
type ledger struct {
	db    *sql.DB
	fence *sqlfence.Fence // nil: tokens are written down and not checked
}

// A payment is one row of the payments table.
type payment struct {
	Invoice string
	Amount  money
	Token   fencing.Token
	Worker  uint64
}

// createLedger makes the file, with the invoices and nothing paid.
func createLedger(ctx context.Context, path string, invoices []invoice) error {
	l, err := openLedger(path, true)
	if err != nil {
		return err
	}
	defer l.close()
	if _, err := l.db.ExecContext(ctx, schema); err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	if err := l.fence.CreateTable(ctx, l.db); err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	return l.inTx(ctx, func(tx *sql.Tx) error {
		for _, inv := range invoices {
			_, err := tx.ExecContext(ctx, `INSERT INTO invoices VALUES (?, ?, ?, ?, ?)`,
				inv.Number, inv.Supplier, inv.Amount.Currency, inv.Amount.Minor, inv.Due.Format(time.DateOnly))
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// openLedger opens the file. Transactions take the write lock as they begin:
// SQLite cannot turn a reader into a writer while another process writes.
func openLedger(path string, fenced bool) (*ledger, error) {
	query := url.Values{
		"_pragma": {"busy_timeout(10000)", "journal_mode(WAL)", "synchronous(FULL)"},
		"_txlock": {"immediate"},
	}
	source := url.URL{Scheme: "file", OmitHost: true, Path: path, RawQuery: query.Encode()}
	db, err := sql.Open("sqlite", source.String())
	if err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	l := &ledger{db: db}
	if fenced {
		if l.fence, err = sqlfence.New(sqlfence.SQLite); err != nil {
			return nil, errors.Join(err, db.Close())
		}
	}
	return l, nil
}

func (l *ledger) close() error { return l.db.Close() }

// unpaid returns up to limit invoices without a payment, the oldest debts first.
// Like isPaid it is a look without a lock, which only saves asking for locks in
// vain: takeOver decides.
func (l *ledger) unpaid(ctx context.Context, limit int) ([]invoice, error) {
	rows, err := l.db.QueryContext(ctx, `
		SELECT number, supplier, currency, minor FROM invoices
		WHERE NOT EXISTS (SELECT 1 FROM payments WHERE invoice = number)
		ORDER BY due, number LIMIT ?`, limit)
	if err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	defer rows.Close()
	var list []invoice
	for rows.Next() {
		var inv invoice
		if err := rows.Scan(&inv.Number, &inv.Supplier, &inv.Amount.Currency, &inv.Amount.Minor); err != nil {
			return nil, fmt.Errorf("ledger: %w", err)
		}
		list = append(list, inv)
	}
	return list, rows.Err()
}

// invoice returns one invoice by its number.
func (l *ledger) invoice(ctx context.Context, number string) (invoice, error) {
	inv := invoice{Number: number}
	err := l.db.QueryRowContext(ctx, `SELECT supplier, currency, minor FROM invoices WHERE number = ?`, number).
		Scan(&inv.Supplier, &inv.Amount.Currency, &inv.Amount.Minor)
	if err != nil {
		return invoice{}, fmt.Errorf("ledger: invoice %q: %w", number, err)
	}
	return inv, nil
}

func (l *ledger) isPaid(ctx context.Context, number string) (paid bool, err error) {
	err = l.db.QueryRowContext(ctx, isPaid, number).Scan(&paid)
	if err != nil {
		return false, fmt.Errorf("ledger: %w", err)
	}
	return paid, nil
}

// takeOver begins a holder's work on an invoice: it admits the holder's token and
// then reports whether the invoice is paid. In this order: once the token is
// admitted, no holder from before can write any more, so what is read after that
// stays true for as long as the lock is held. Read first, and a late write of the
// holder before could come in between, unseen and with a token that is still the
// newest admitted.
func (l *ledger) takeOver(ctx context.Context, number string, token fencing.Token) (paid bool, err error) {
	err = l.inTx(ctx, func(tx *sql.Tx) error {
		if err := l.admit(ctx, tx, number, token); err != nil {
			return err
		}
		return tx.QueryRowContext(ctx, isPaid, number).Scan(&paid)
	})
	return paid, err
}

// pay writes a payment, unless a newer token than the payment's was admitted for
// its invoice: then it writes down the refusal and returns an error that matches
// fencing.ErrStale. Token and payment are one transaction, so that nothing can
// come between the check and the write.
func (l *ledger) pay(ctx context.Context, p payment) error {
	err := l.inTx(ctx, func(tx *sql.Tx) error {
		if err := l.admit(ctx, tx, p.Invoice, p.Token); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `
			INSERT INTO payments (invoice, currency, minor, token, worker, paid_at) VALUES (?, ?, ?, ?, ?, ?)`,
			p.Invoice, p.Amount.Currency, p.Amount.Minor, int64(p.Token), int64(p.Worker), time.Now().UTC().Format(time.RFC3339Nano))
		return err
	})
	var stale *fencing.StaleError
	if !errors.As(err, &stale) {
		return err
	}
	_, noteErr := l.db.ExecContext(ctx, `INSERT INTO refusals (invoice, token, newest, worker) VALUES (?, ?, ?, ?)`,
		p.Invoice, int64(p.Token), int64(stale.Admitted), int64(p.Worker))
	if noteErr != nil {
		return fmt.Errorf("ledger: %w", noteErr)
	}
	return err
}

// admit is the token check, and all that -unfenced leaves out.
func (l *ledger) admit(ctx context.Context, tx *sql.Tx, number string, token fencing.Token) error {
	if l.fence == nil {
		return nil
	}
	return l.fence.Admit(ctx, tx, lockName(number), token)
}

func (l *ledger) inTx(ctx context.Context, fn func(*sql.Tx) error) error {
	tx, err := l.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	defer tx.Rollback() // does nothing after Commit
	if err := fn(tx); err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	return nil
}

// paidCount returns how many invoices have at least one payment.
func (l *ledger) paidCount(ctx context.Context) (n int, err error) {
	err = l.db.QueryRowContext(ctx, `SELECT count(DISTINCT invoice) FROM payments`).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("ledger: %w", err)
	}
	return n, nil
}

// payments returns every row of the payments table, in the order of writing.
func (l *ledger) payments(ctx context.Context) ([]payment, error) {
	rows, err := l.db.QueryContext(ctx, `SELECT invoice, currency, minor, token, worker FROM payments ORDER BY id`)
	if err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	defer rows.Close()
	var list []payment
	for rows.Next() {
		var p payment
		if err := rows.Scan(&p.Invoice, &p.Amount.Currency, &p.Amount.Minor, &p.Token, &p.Worker); err != nil {
			return nil, fmt.Errorf("ledger: %w", err)
		}
		list = append(list, p)
	}
	return list, rows.Err()
}

// refusalCount returns how many stale writes were refused.
func (l *ledger) refusalCount(ctx context.Context) (n int, err error) {
	err = l.db.QueryRowContext(ctx, `SELECT count(*) FROM refusals`).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("ledger: %w", err)
	}
	return n, nil
}
