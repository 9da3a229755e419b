package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/fencing/sqlfence"
)

// job is what the election is about, and what tokens are admitted for.
const job = "exporter"

// The records have no UNIQUE number, since most of what an exporter writes to (a queue,
// another company's service) has nothing of the kind. Every record that is written
// stays to be counted.
const schema = `
CREATE TABLE records (id INTEGER PRIMARY KEY, number INTEGER NOT NULL, token INTEGER NOT NULL, worker INTEGER NOT NULL);
CREATE TABLE refusals (id INTEGER PRIMARY KEY, token INTEGER NOT NULL, newest INTEGER NOT NULL, worker INTEGER NOT NULL);`

// A store is the SQLite file that all workers write to.
type store struct {
	db    *sql.DB
	fence *sqlfence.Fence // nil: tokens are written down and not checked
}

func createStore(ctx context.Context, path string) error {
	s, err := openStore(path, true)
	if err != nil {
		return err
	}
	defer s.db.Close()
	if _, err := s.db.ExecContext(ctx, schema); err != nil {
		return err
	}
	return s.fence.CreateTable(ctx, s.db)
}

// openStore opens the file. Transactions take the write lock as they begin: SQLite
// cannot turn a reader into a writer while another process writes.
func openStore(path string, fenced bool) (*store, error) {
	query := url.Values{"_pragma": {"busy_timeout(10000)", "journal_mode(WAL)", "synchronous(FULL)"}, "_txlock": {"immediate"}}
	source := url.URL{Scheme: "file", OmitHost: true, Path: path, RawQuery: query.Encode()}
	db, err := sql.Open("sqlite", source.String())
	if err != nil {
		return nil, err
	}
	s := &store{db: db}
	if fenced {
		if s.fence, err = sqlfence.New(sqlfence.SQLite); err != nil {
			return nil, errors.Join(err, db.Close())
		}
	}
	return s, nil
}

// inTerm does something in a transaction that admits the term's token first. Whoever
// comes with an older one than has been admitted is refused, however late.
func (s *store) inTerm(ctx context.Context, token fencing.Token, do func(tx *sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if s.fence != nil {
		if err := s.fence.Admit(ctx, tx, job, token); err != nil {
			return err
		}
	}
	if err := do(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// takeOver admits a new term and returns the number of the next record. From then on
// no write of an earlier term gets in, so the number stays right.
func (s *store) takeOver(ctx context.Context, token fencing.Token) (next int64, err error) {
	err = s.inTerm(ctx, token, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, `SELECT COALESCE(MAX(number), 0) + 1 FROM records`).Scan(&next)
	})
	return next, err
}

func (s *store) write(ctx context.Context, number int64, token fencing.Token, worker uint64) error {
	err := s.inTerm(ctx, token, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO records (number, token, worker) VALUES (?, ?, ?)`, number, int64(token), int64(worker))
		return err
	})
	var stale *fencing.StaleError
	if errors.As(err, &stale) {
		_, noted := s.db.ExecContext(ctx, `INSERT INTO refusals (token, newest, worker) VALUES (?, ?, ?)`,
			int64(token), int64(stale.Admitted), int64(worker))
		return errors.Join(err, noted)
	}
	return err
}

// An audit is what the store comes to.
type audit struct {
	records, workers, terms, refused int
	wrong                            []string
}

// audit looks whether every record is there once, in order, by terms in order.
func (s *store) audit(ctx context.Context) (a audit, err error) {
	rows, err := s.db.QueryContext(ctx, `SELECT number, token, worker FROM records ORDER BY id`)
	if err != nil {
		return a, err
	}
	defer rows.Close()
	workers, terms := map[uint64]bool{}, map[fencing.Token]bool{}
	var last int64
	var newest fencing.Token
	for rows.Next() {
		var number int64
		var token fencing.Token
		var worker uint64
		if err := rows.Scan(&number, &token, &worker); err != nil {
			return a, err
		}
		a.records++
		workers[worker], terms[token] = true, true
		if number != last+1 {
			a.wrong = append(a.wrong, fmt.Sprintf("record %d of worker %d (token %s) comes after record %d", number, worker, token, last))
		}
		if token < newest {
			a.wrong = append(a.wrong, fmt.Sprintf("record %d of worker %d has token %s, and %s had written before", number, worker, token, newest))
		}
		last, newest = max(last, number), max(newest, token)
	}
	a.workers, a.terms = len(workers), len(terms)
	if err := rows.Err(); err != nil {
		return a, err
	}
	return a, s.db.QueryRowContext(ctx, `SELECT COUNT(*) FROM refusals`).Scan(&a.refused)
}

func (s *store) count(ctx context.Context) (n int, err error) {
	return n, s.db.QueryRowContext(ctx, `SELECT COUNT(*) FROM records`).Scan(&n)
}
