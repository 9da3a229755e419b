package dbtest

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/fencing/sqlfence"
)

// Where services.sh starts the servers, for the case that nobody says otherwise.
const (
	localPostgres = "postgres://quorumlock:quorumlock@127.0.0.1:55432/quorumlock"
	localMySQL    = "quorumlock:quorumlock@tcp(127.0.0.1:53306)/quorumlock"
)

// levels are the isolation levels that a client can ask the servers for.
var levels = []sql.IsolationLevel{
	sql.LevelDefault, sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable,
}

// database is one database as one client sees it, with a fence of its own and a
// ledger that the tests write to under it.
type database struct {
	*sql.DB
	dialect sqlfence.Dialect
	levels  []sql.IsolationLevel
	fence   *sqlfence.Fence
	ledger  string
}

// on runs the test on every database there is, in each client setting that could
// change what Admit sees.
func on(t *testing.T, test func(*testing.T, *database)) {
	t.Run("SQLite", func(t *testing.T) { test(t, openSQLite(t)) })
	t.Run("PostgreSQL", func(t *testing.T) { test(t, openPostgres(t, pgx.QueryExecModeCacheStatement)) })
	t.Run("PostgreSQL/simple protocol", func(t *testing.T) { test(t, openPostgres(t, pgx.QueryExecModeSimpleProtocol)) })
	t.Run("MySQL", func(t *testing.T) { test(t, openMySQL(t, func(c *mysql.Config) { c.ClientFoundRows = false })) })
	t.Run("MySQL/clientFoundRows", func(t *testing.T) { test(t, openMySQL(t, func(c *mysql.Config) { c.ClientFoundRows = true })) })
	t.Run("MySQL/interpolated", func(t *testing.T) {
		test(t, openMySQL(t, func(c *mysql.Config) { c.InterpolateParams = true }))
	})
}

func openSQLite(t *testing.T) *database {
	dsn := "file:" + filepath.Join(t.TempDir(), "test.db") +
		"?_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)&_pragma=busy_timeout(10000)"
	db, err := sql.Open("sqlite", dsn)
	must(t, err)
	return prepare(t, &database{DB: db, dialect: sqlfence.SQLite, levels: levels[:1]},
		"id INTEGER PRIMARY KEY AUTOINCREMENT, resource INTEGER NOT NULL, token BIGINT NOT NULL")
}

func openPostgres(t *testing.T, mode pgx.QueryExecMode) *database {
	url, named := os.LookupEnv("QUORUMLOCK_TEST_POSTGRES")
	if !named {
		url = localPostgres
	}
	config, err := pgx.ParseConfig(url)
	must(t, err)
	config.DefaultQueryExecMode = mode
	db := stdlib.OpenDB(*config)
	answers(t, db, "QUORUMLOCK_TEST_POSTGRES", named)
	return prepare(t, &database{DB: db, dialect: sqlfence.PostgreSQL, levels: levels},
		"id BIGSERIAL PRIMARY KEY, resource INTEGER NOT NULL, token BIGINT NOT NULL")
}

func openMySQL(t *testing.T, change func(*mysql.Config)) *database {
	dsn, named := os.LookupEnv("QUORUMLOCK_TEST_MYSQL")
	if !named {
		dsn = localMySQL
	}
	config, err := mysql.ParseDSN(dsn)
	must(t, err)
	change(config)
	config.Logger = &mysql.NopLogger{} // a server that is not there is no news
	connector, err := mysql.NewConnector(config)
	must(t, err)
	db := sql.OpenDB(connector)
	answers(t, db, "QUORUMLOCK_TEST_MYSQL", named)
	return prepare(t, &database{DB: db, dialect: sqlfence.MySQL, levels: levels},
		"id BIGINT AUTO_INCREMENT PRIMARY KEY, resource INTEGER NOT NULL, token BIGINT NOT NULL")
}

// answers skips the test if no server answers, unless the user named one.
func answers(t *testing.T, db *sql.DB, variable string, named bool) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	err := db.PingContext(ctx)
	if err == nil {
		return
	}
	db.Close()
	if named {
		t.Fatalf("the server that %s names does not answer: %v", variable, err)
	}
	t.Skipf("no server: run services.sh in fencing/sqlfence/dbtest (Debian, as root), or start one and set %s", variable)
}

var tables atomic.Int64

// prepare makes the tables under names that no other test or process uses, and
// removes them in the end.
func prepare(t *testing.T, d *database, columns string) *database {
	unique := fmt.Sprintf("%d_%d_%d", os.Getpid(), time.Now().UnixNano(), tables.Add(1))
	fenced := "Fencing_" + unique
	d.ledger = "ledger_" + unique
	var err error
	d.fence, err = sqlfence.New(d.dialect, sqlfence.WithTable(fenced))
	must(t, err)
	must(t, d.fence.CreateTable(t.Context(), d.DB))
	d.exec(t, "CREATE TABLE "+d.ledger+" ("+columns+")")
	t.Cleanup(func() {
		d.drop(t, fenced)
		d.drop(t, d.ledger)
		d.Close()
	})
	return d
}

// quote quotes an identifier as the dialect does.
func (d *database) quote(name string) string {
	if d.dialect == sqlfence.MySQL {
		return "`" + name + "`"
	}
	return `"` + name + `"`
}

func (d *database) drop(t *testing.T, table string) {
	// t.Context has ended when cleanups run.
	if _, err := d.ExecContext(context.Background(), "DROP TABLE IF EXISTS "+d.quote(table)); err != nil {
		t.Errorf("drop %s: %v", table, err)
	}
}

func (d *database) exec(t *testing.T, query string) {
	t.Helper()
	_, err := d.ExecContext(t.Context(), query)
	must(t, err)
}

func (d *database) begin(t *testing.T, level sql.IsolationLevel) *sql.Tx {
	t.Helper()
	tx, err := d.BeginTx(t.Context(), &sql.TxOptions{Isolation: level})
	must(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// admit admits in a transaction of its own, and commits it if that went well.
func (d *database) admit(t *testing.T, resource string, token fencing.Token) error {
	t.Helper()
	tx := d.begin(t, sql.LevelDefault)
	if err := d.fence.Admit(t.Context(), tx, resource, token); err != nil {
		must(t, tx.Rollback())
		return err
	}
	must(t, tx.Commit())
	return nil
}

// write puts an entry into the ledger as part of tx.
func (d *database) write(ctx context.Context, tx *sql.Tx, resource int, token fencing.Token) error {
	query := "INSERT INTO " + d.ledger + " (resource, token) VALUES (?, ?)"
	if d.dialect == sqlfence.PostgreSQL {
		query = strings.Replace(query, "(?, ?)", "($1, $2)", 1)
	}
	_, err := tx.ExecContext(ctx, query, resource, int64(token))
	return err
}

type entry struct {
	resource int
	token    fencing.Token
}

// entries reads the whole ledger in the order in which it was written.
func (d *database) entries(t *testing.T) []entry {
	t.Helper()
	rows, err := d.QueryContext(t.Context(), "SELECT resource, token FROM "+d.ledger+" ORDER BY id")
	must(t, err)
	defer rows.Close()
	var all []entry
	for rows.Next() {
		var e entry
		must(t, rows.Scan(&e.resource, &e.token))
		all = append(all, e)
	}
	must(t, rows.Err())
	return all
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
