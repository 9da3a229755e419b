// Package dbtest holds the tests of fencing/sqlfence on real databases. It is a
// module of its own so that nobody who imports the library inherits the drivers.
//
// SQLite always runs. PostgreSQL and MariaDB run where the environment variables
// QUORUMLOCK_TEST_POSTGRES (a URL) and QUORUMLOCK_TEST_MYSQL (a DSN) say, and
// otherwise where services.sh starts them by default; without a server there,
// their tests are skipped.
//
//	eval "$(./services.sh)" && go test ./...
package dbtest
