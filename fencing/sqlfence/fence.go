package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"regexp"

	"github.com/quorumlock/quorumlock/fencing"
)

// MaxToken is the highest token that fits the table's signed 64-bit column.
const MaxToken fencing.Token = math.MaxInt64

// DefaultTable is the name of the table unless WithTable says otherwise.
const DefaultTable = "quorumlock_fencing"

// Fence admits tokens into one table of a database. It holds no connection, and
// is safe for concurrent use.
type Fence struct {
	dialect Dialect
	table   string
	sql     statements
}

// Option changes a default of [New].
type Option func(*Fence)

// WithTable names the table: one identifier or two with a dot between, as in
// "locks.fencing". An identifier is up to 63 ASCII letters, digits and
// underscores, and does not begin with a digit. It is quoted wherever it is used,
// so reserved words will do and upper case stays upper case.
func WithTable(name string) Option {
	return func(f *Fence) { f.table = name }
}

// New returns a Fence, or an error for an unknown dialect or a table's name that
// is not an identifier. It does not touch a database.
func New(dialect Dialect, opts ...Option) (*Fence, error) {
	f := &Fence{dialect: dialect, table: DefaultTable}
	for _, opt := range opts {
		opt(f)
	}
	switch dialect {
	case PostgreSQL, MySQL, SQLite:
	default:
		return nil, fmt.Errorf("sqlfence: unknown dialect %d", int(dialect))
	}
	if !identifier.MatchString(f.table) {
		return nil, fmt.Errorf("sqlfence: table name %q is not an identifier", f.table)
	}
	f.sql = dialect.statements(f.table)
	return f, nil
}

// 63 bytes is PostgreSQL's limit, which cuts a longer name off without a word.
var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?$`)

// Schema returns the CREATE TABLE IF NOT EXISTS statement, for those whose tables
// are made by migrations.
func (f *Fence) Schema() string { return f.sql.schema }

// CreateTable creates the table unless it exists, in which case it is left as it
// is. Many processes may do so at once, and one that is not allowed to create
// tables may call it on a table that is there. Any other failure is the driver's
// error, that of a ctx that ended included.
func (f *Fence) CreateTable(ctx context.Context, db *sql.DB) error {
	if ctx == nil || db == nil {
		return errors.New("sqlfence: create table: nil context or database")
	}
	_, err := db.ExecContext(ctx, f.sql.schema)
	if err == nil {
		return nil
	}
	// Two that create one table at the same moment can both find it missing in
	// PostgreSQL; the later one fails, and finds the table there.
	var token int64
	if errors.Is(db.QueryRowContext(ctx, f.sql.exists).Scan(&token), sql.ErrNoRows) {
		return nil
	}
	return fmt.Errorf("sqlfence: create table %s: %w", f.table, err)
}

// Admit admits t for the resource as part of tx, and returns nil when tx may
// write. The package documentation says when to call it and what it guarantees.
//
// It waits for other transactions that admitted for the same resource to end.
// The errors are:
//
//   - one that matches fencing.ErrStale, a *fencing.StaleError, when a newer token
//     was admitted and committed, or was admitted in tx itself;
//   - fencing.ErrToken for the zero token and for one above MaxToken, and
//     fencing.ErrResource for a bad name, without touching the database;
//   - the driver's own, wrapped, when the token could not be checked. If ctx ended
//     that is what the driver makes of it, and as a rule the connection is gone.
//
// After any of them tx must be rolled back.
func (f *Fence) Admit(ctx context.Context, tx *sql.Tx, resource string, t fencing.Token) error {
	if err := fencing.Check(ctx, resource, t); err != nil {
		return err
	}
	if tx == nil {
		return errors.New("sqlfence: nil transaction")
	}
	if t > MaxToken {
		return fmt.Errorf("%w that fits SQL: %d is above %d", fencing.ErrToken, t, MaxToken)
	}
	admit := f.admitOrNothing
	if f.dialect == MySQL {
		admit = f.admitByRaising
	}
	err := admit(ctx, tx, resource, t)
	if err != nil && !errors.Is(err, fencing.ErrStale) {
		return fmt.Errorf("sqlfence: token %d for %q not checked: %w", t, resource, err)
	}
	return err
}

// admitOrNothing takes the verdict from the number of rows the upsert touched.
func (f *Fence) admitOrNothing(ctx context.Context, tx *sql.Tx, resource string, t fencing.Token) error {
	result, err := tx.ExecContext(ctx, f.sql.upsert, []byte(resource), int64(t))
	if err != nil {
		return err
	}
	touched, err := result.RowsAffected()
	if err != nil {
		return err
	}
	if touched > 0 {
		return nil
	}
	// The refusal stands whether or not we learn what stands in the way.
	admitted, err := f.admitted(ctx, tx, resource)
	if err != nil {
		admitted = 0
	}
	return &fencing.StaleError{Resource: resource, Presented: t, Admitted: admitted}
}

// admitByRaising takes the verdict from the row as the upsert left it.
func (f *Fence) admitByRaising(ctx context.Context, tx *sql.Tx, resource string, t fencing.Token) error {
	if _, err := tx.ExecContext(ctx, f.sql.upsert, []byte(resource), int64(t), int64(t)); err != nil {
		return err
	}
	admitted, err := f.admitted(ctx, tx, resource)
	switch {
	case err != nil:
		return err
	case admitted > t:
		return &fencing.StaleError{Resource: resource, Presented: t, Admitted: admitted}
	case admitted < t:
		return fmt.Errorf("table %s kept %d instead; its schema is not that of sqlfence", f.table, admitted)
	}
	return nil
}

func (f *Fence) admitted(ctx context.Context, tx *sql.Tx, resource string) (fencing.Token, error) {
	var token int64
	err := tx.QueryRowContext(ctx, f.sql.read, []byte(resource)).Scan(&token)
	return fencing.Token(token), err
}
