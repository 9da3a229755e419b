package dbtest

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/fencing/sqlfence"
)

// onLevels runs the test at each isolation level of each database.
func onLevels(t *testing.T, test func(*testing.T, *database, sql.IsolationLevel)) {
	on(t, func(t *testing.T, d *database) {
		for _, level := range d.levels {
			t.Run(level.String(), func(t *testing.T) { test(t, d, level) })
		}
	})
}

// The holder began its transaction and read, then was frozen. It wakes up after
// its successor is done, with a snapshot in which its own token still stands.
func TestFrozenHolderWakesUp(t *testing.T) {
	onLevels(t, func(t *testing.T, d *database, level sql.IsolationLevel) {
		resource := "frozen " + level.String()
		must(t, d.admit(t, resource, 5))
		setup := d.begin(t, sql.LevelDefault)
		must(t, d.write(t.Context(), setup, 1, 5))
		must(t, setup.Commit())

		frozen := d.begin(t, level)
		var token int64
		must(t, frozen.QueryRowContext(t.Context(), "SELECT token FROM "+d.ledger+" WHERE id = 1").Scan(&token))

		successor := d.begin(t, level)
		must(t, d.fence.Admit(t.Context(), successor, resource, 9))
		must(t, d.write(t.Context(), successor, 1, 9))
		must(t, successor.Commit())

		err := d.fence.Admit(t.Context(), frozen, resource, 5)
		if !d.refusesOldSnapshots(t, level) {
			refused(t, err, resource, 5, 9)
			return
		}
		// The database itself will not let the row be judged by an old snapshot.
		if errors.Is(err, fencing.ErrStale) || !isConflict(err) {
			t.Fatalf("got %v, want the driver's serialization failure", err)
		}
		must(t, frozen.Rollback())
		refused(t, d.admit(t, resource, 5), resource, 5, 9)
	})
}

// refusesOldSnapshots reports whether a transaction that has read fails when it
// comes to a row that changed since, instead of seeing the row as it is now.
func (d *database) refusesOldSnapshots(t *testing.T, level sql.IsolationLevel) bool {
	switch d.dialect {
	case sqlfence.SQLite:
		return true
	case sqlfence.PostgreSQL:
		return level == sql.LevelRepeatableRead || level == sql.LevelSerializable
	}
	// MariaDB can be told to, and from 11.6 on is unless told otherwise.
	var name, value string
	err := d.QueryRowContext(t.Context(), "SHOW VARIABLES LIKE 'innodb_snapshot_isolation'").Scan(&name, &value)
	if errors.Is(err, sql.ErrNoRows) {
		return false
	}
	must(t, err)
	return value == "ON" && level != sql.LevelReadCommitted
}

// A newer token waits until the older transaction ends, whether the row is there
// before or comes into being with the older one.
func TestNewerTokenWaits(t *testing.T) {
	onLevels(t, func(t *testing.T, d *database, level sql.IsolationLevel) {
		for _, end := range []string{"commit", "rollback"} {
			for _, standing := range []fencing.Token{0, 3} {
				resource := end + standing.String() + level.String()
				if standing > 0 {
					must(t, d.admit(t, resource, standing))
				}
				older := d.begin(t, level)
				must(t, d.fence.Admit(t.Context(), older, resource, 5))
				mustWait(t, d, level, resource, 9)
				must(t, d.write(t.Context(), older, 2, 5))

				if end == "commit" {
					must(t, older.Commit())
				} else {
					must(t, older.Rollback())
				}
				must(t, d.admit(t, resource, 9))
				refused(t, d.admit(t, resource, 5), resource, 5, 9)
			}
		}
	})
}

// The same holds for a refusal: it locks the row too, so what it said is true
// until its transaction ends.
func TestRefusalHoldsTheRow(t *testing.T) {
	onLevels(t, func(t *testing.T, d *database, level sql.IsolationLevel) {
		resource := "refused " + level.String()
		must(t, d.admit(t, resource, 9))
		older := d.begin(t, level)
		refused(t, d.fence.Admit(t.Context(), older, resource, 5), resource, 5, 9)
		mustWait(t, d, level, resource, 10)
	})
}

// mustWait fails the test if the token gets a verdict now.
func mustWait(t *testing.T, d *database, level sql.IsolationLevel, resource string, token fencing.Token) {
	t.Helper()
	conn, err := d.Conn(t.Context())
	must(t, err)
	defer conn.Close()
	if d.dialect == sqlfence.SQLite { // its wait does not look at ctx
		_, err := conn.ExecContext(t.Context(), "PRAGMA busy_timeout = 40")
		must(t, err)
		defer conn.ExecContext(t.Context(), "PRAGMA busy_timeout = 10000")
	}
	tx, err := conn.BeginTx(t.Context(), &sql.TxOptions{Isolation: level})
	must(t, err)
	defer tx.Rollback()
	brief, cancel := context.WithTimeout(t.Context(), 40*time.Millisecond)
	defer cancel()
	err = d.fence.Admit(brief, tx, resource, token)
	if err == nil || errors.Is(err, fencing.ErrStale) {
		t.Fatalf("token %d did not wait: %v", token, err)
	}
	if d.dialect != sqlfence.SQLite && !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("token %d: %v, want the end of ctx", token, err)
	}
}
