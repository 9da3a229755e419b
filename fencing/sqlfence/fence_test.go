package sqlfence

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/quorumlock/quorumlock/fencing"
)

// The databases themselves are tested in dbtest, a module of its own. Here a
// scripted one shows what Admit makes of answers that a real one seldom gives.

func TestNewRefuses(t *testing.T) {
	for _, d := range []Dialect{0, -1, 4} {
		if f, err := New(d); err == nil || f != nil {
			t.Errorf("%v: %v, %v", d, f, err)
		}
	}
	long := strings.Repeat("x", 63)
	for _, name := range []string{"", ".", "a.", ".a", "a.b.c", "1a", "a b", "a-b", `a"b`, "a`b", "a;b", "ä", "a\n", "a%s", long + "x"} {
		if f, err := New(SQLite, WithTable(name)); err == nil || f != nil {
			t.Errorf("table %q was taken", name)
		}
	}
	for _, name := range []string{"a", "_", "A1", "order", "a.b", long, long + "." + long} {
		if _, err := New(SQLite, WithTable(name)); err != nil {
			t.Error(err)
		}
	}
}

func TestTableIsQuoted(t *testing.T) {
	for dialect, want := range map[Dialect]string{
		PostgreSQL: `"locks"."Order"`, MySQL: "`locks`.`Order`", SQLite: `"locks"."Order"`,
	} {
		f, err := New(dialect, WithTable("locks.Order"))
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{f.Schema(), f.sql.exists, f.sql.upsert, f.sql.read} {
			if strings.Count(text, want) != 1 || strings.Contains(text, "%") {
				t.Errorf("%v: %s", dialect, text)
			}
		}
	}
}

func TestDialectString(t *testing.T) {
	for d, want := range map[Dialect]string{PostgreSQL: "PostgreSQL", MySQL: "MySQL", SQLite: "SQLite", 9: "Dialect(9)"} {
		if got := d.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestAdmitVerdicts(t *testing.T) {
	broken := errors.New("connection reset")
	stale := func(admitted fencing.Token) error {
		return &fencing.StaleError{Resource: "a", Presented: 5, Admitted: admitted}
	}
	for name, c := range map[string]struct {
		dialect Dialect
		db      script
		want    error
	}{
		"one row":                     {PostgreSQL, script{rows: 1}, nil},
		"no row":                      {PostgreSQL, script{rows: 0, token: 9}, stale(9)},
		"no row, and the read fails":  {PostgreSQL, script{rows: 0, readErr: broken}, stale(0)},
		"the upsert fails":            {PostgreSQL, script{execErr: broken}, broken},
		"the rows are unknown":        {PostgreSQL, script{rowsErr: broken}, broken},
		"SQLite, no row":              {SQLite, script{rows: 0, token: 9}, stale(9)},
		"MySQL, equal":                {MySQL, script{rows: 0, token: 5}, nil},
		"MySQL, higher":               {MySQL, script{rows: 2, token: 9}, stale(9)},
		"MySQL, the rows are unknown": {MySQL, script{rowsErr: broken, token: 5}, nil},
		"MySQL, the upsert fails":     {MySQL, script{execErr: broken, token: 5}, broken},
		"MySQL, the read fails":       {MySQL, script{readErr: broken}, broken},
	} {
		t.Run(name, func(t *testing.T) {
			err := admitOn(t, c.dialect, &c.db, 5)
			var got *fencing.StaleError
			if errors.As(c.want, new(*fencing.StaleError)) {
				if !errors.As(err, &got) || *got != *c.want.(*fencing.StaleError) {
					t.Errorf("got %v, want %v", err, c.want)
				}
			} else if !errors.Is(err, c.want) || errors.Is(err, fencing.ErrStale) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}

// A column that is too narrow for the token must not pass for an admission.
func TestAdmitIntoAForeignTable(t *testing.T) {
	err := admitOn(t, MySQL, &script{token: 4}, 5)
	if err == nil || errors.Is(err, fencing.ErrStale) {
		t.Errorf("got %v", err)
	}
}

func TestAdmitTouchesNothingOnBadInput(t *testing.T) {
	f, err := New(MySQL)
	if err != nil {
		t.Fatal(err)
	}
	tx := &sql.Tx{} // any use of it would panic
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		ctx      context.Context
		tx       *sql.Tx
		resource string
		token    fencing.Token
		want     error // nil: any
	}{
		{t.Context(), tx, "a", 0, fencing.ErrToken},
		{t.Context(), tx, "a", math.MaxInt64 + 1, fencing.ErrToken},
		{t.Context(), tx, "", 1, fencing.ErrResource},
		{ended, tx, "a", 1, context.Canceled},
		{nil, tx, "a", 1, nil},
		{t.Context(), nil, "a", 1, nil},
	} {
		if err := f.Admit(c.ctx, c.tx, c.resource, c.token); err == nil || (c.want != nil && !errors.Is(err, c.want)) {
			t.Errorf("Admit(%q, %d) = %v, want %v", c.resource, c.token, err, c.want)
		}
	}
	if err := f.CreateTable(t.Context(), nil); err == nil {
		t.Error("a table without a database")
	}
	if err := f.Guard(nil).Admit(t.Context(), "a", 1); err == nil {
		t.Error("a token without a database")
	}
}

func TestGuardEndsItsTransaction(t *testing.T) {
	broken := errors.New("connection reset")
	f, err := New(PostgreSQL)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		db    script
		want  error
		ended string
	}{
		{script{rows: 1}, nil, "commit"},
		{script{rows: 0, token: 9}, fencing.ErrStale, "rollback"},
		{script{execErr: broken}, broken, "rollback"},
		{script{rows: 1, commitErr: broken}, broken, "commit"},
		{script{beginErr: broken}, broken, ""},
	} {
		db := sql.OpenDB(&c.db)
		if err := f.Guard(db).Admit(t.Context(), "a", 5); !errors.Is(err, c.want) {
			t.Errorf("got %v, want %v", err, c.want)
		}
		if c.db.ended != c.ended {
			t.Errorf("ended by %q, want %q", c.db.ended, c.ended)
		}
		db.Close()
	}
}

func admitOn(t *testing.T, dialect Dialect, s *script, token fencing.Token) error {
	t.Helper()
	f, err := New(dialect)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(s)
	defer db.Close()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	return f.Admit(t.Context(), tx, "a", token)
}

// script is a database that answers as told: connector, connection, transaction
// and result in one.
type script struct {
	rows                                           int64
	token                                          int64
	beginErr, execErr, rowsErr, readErr, commitErr error
	ended                                          string
}

func (s *script) Connect(context.Context) (driver.Conn, error) { return s, nil }
func (s *script) Driver() driver.Driver                        { return nil }
func (s *script) Prepare(string) (driver.Stmt, error)          { return nil, errors.ErrUnsupported }
func (s *script) Close() error                                 { return nil }
func (s *script) Begin() (driver.Tx, error)                    { return s, s.beginErr }
func (s *script) Commit() error                                { s.ended = "commit"; return s.commitErr }
func (s *script) Rollback() error                              { s.ended = "rollback"; return nil }
func (s *script) LastInsertId() (int64, error)                 { return 0, errors.ErrUnsupported }
func (s *script) RowsAffected() (int64, error)                 { return s.rows, s.rowsErr }

func (s *script) ExecContext(context.Context, string, []driver.NamedValue) (driver.Result, error) {
	return s, s.execErr
}

func (s *script) QueryContext(context.Context, string, []driver.NamedValue) (driver.Rows, error) {
	return &oneRow{token: s.token}, s.readErr
}

type oneRow struct {
	token int64
	read  bool
}

func (r *oneRow) Columns() []string { return []string{"token"} }
func (r *oneRow) Close() error      { return nil }
func (r *oneRow) Next(dest []driver.Value) error {
	if r.read {
		return io.EOF
	}
	r.read, dest[0] = true, r.token
	return nil
}
