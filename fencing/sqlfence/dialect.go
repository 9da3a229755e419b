package sqlfence

import (
	"fmt"
	"strings"
)

// Dialect is the SQL that a database speaks.
type Dialect int

const (
	// PostgreSQL needs version 9.5.
	PostgreSQL Dialect = iota + 1
	// MySQL is MariaDB too. It needs InnoDB, as every version has.
	MySQL
	// SQLite needs version 3.24.
	SQLite
)

// String returns the database's name.
func (d Dialect) String() string {
	switch d {
	case PostgreSQL:
		return "PostgreSQL"
	case MySQL:
		return "MySQL"
	case SQLite:
		return "SQLite"
	}
	return fmt.Sprintf("Dialect(%d)", int(d))
}

// statements are the texts of one dialect for one table.
type statements struct {
	schema string
	exists string // finds no row, and fails without the table
	upsert string // raises the token unless it is higher; locks the row either way
	read   string // the token as it stands, under that lock
}

// Resource names are stored as bytes in every dialect. A text column would fold
// case or trailing spaces in some collations, and refuse U+0000 or invalid UTF-8
// in others, and two resources would share a token or one would have none.
//
// The conditional upsert of PostgreSQL and SQLite touches one row when the token
// is admitted and none when it is refused. The row is locked in both cases, and
// PostgreSQL judges by its newest version, not by the snapshot of the statement.
const (
	conditionalPostgreSQL = `INSERT INTO %s AS held (resource, token) VALUES ($1, $2)
ON CONFLICT (resource) DO UPDATE SET token = EXCLUDED.token WHERE held.token <= EXCLUDED.token`
	conditionalSQLite = `INSERT INTO %s AS held (resource, token) VALUES (?, ?)
ON CONFLICT (resource) DO UPDATE SET token = excluded.token WHERE held.token <= excluded.token`
)

// MySQL's upsert takes no condition, and the number of rows it reports cannot
// tell: for an equal or refused token it is 0 or 1 as the client's clientFoundRows
// flag has it, and 1 also stands for a new row. So the upsert keeps the higher of
// the two tokens, and reading the row says which one that was.
//
// The read needs FOR UPDATE. A plain SELECT sees the transaction's snapshot at
// repeatable read, the default, and may find there the older token that a newer
// one has long replaced. The token is passed twice, since MySQL deprecates
// VALUES(token) and MariaDB lacks the row alias that replaces it.
const (
	raiseMySQL = `INSERT INTO %s (resource, token) VALUES (?, ?)
ON DUPLICATE KEY UPDATE token = GREATEST(token, ?)`
	readMySQL = `SELECT token FROM %s WHERE resource = ? FOR UPDATE`
)

// statements returns d's statements for a table whose name has been validated.
func (d Dialect) statements(table string) statements {
	var s statements
	quote := `"`
	switch d {
	case PostgreSQL:
		s.schema = `CREATE TABLE IF NOT EXISTS %s (
	resource BYTEA NOT NULL PRIMARY KEY,
	token BIGINT NOT NULL
)`
		s.upsert = conditionalPostgreSQL
		s.read = `SELECT token FROM %s WHERE resource = $1`
	case MySQL:
		quote = "`"
		// 512 bytes fit an index key of every InnoDB row format.
		s.schema = `CREATE TABLE IF NOT EXISTS %s (
	resource VARBINARY(512) NOT NULL PRIMARY KEY,
	token BIGINT NOT NULL
) ENGINE = InnoDB`
		s.upsert = raiseMySQL
		s.read = readMySQL
	case SQLite:
		s.schema = `CREATE TABLE IF NOT EXISTS %s (
	resource BLOB NOT NULL PRIMARY KEY,
	token INTEGER NOT NULL
) WITHOUT ROWID`
		s.upsert = conditionalSQLite
		s.read = `SELECT token FROM %s WHERE resource = ?`
	}
	s.exists = `SELECT token FROM %s WHERE 1 = 0`

	name := quote + strings.ReplaceAll(table, ".", quote+"."+quote) + quote
	for _, text := range []*string{&s.schema, &s.exists, &s.upsert, &s.read} {
		*text = fmt.Sprintf(*text, name)
	}
	return s
}
