#!/bin/sh
# Starts a PostgreSQL and a MariaDB of their own for the tests of sqlfence, and
# prints the two export lines that point the tests at them.
#
#   eval "$(fencing/sqlfence/dbtest/services.sh)"   start both, or find them running
#   fencing/sqlfence/dbtest/services.sh stop        stop both and delete their data
#
# For Debian 12 or later, as root, with or without systemd. Missing packages are
# installed. Both servers listen on loopback only, keep their data apart from any
# other server's, and do without fsync: nothing in them is worth keeping.
set -eu

pg_cluster=quorumlock
pg_port=55432
maria_port=53306
maria_home=/var/lib/quorumlock-dbtest
maria_socket=$maria_home/mariadb.sock
maria_pid=$maria_home/mariadb.pid
maria_log=$maria_home/mariadb.log
patience=60 # seconds until a server must answer

say() { echo "services.sh: $*" >&2; }
die() { say "$*"; exit 1; }

# wait_for NAME LOG COMMAND...: until COMMAND succeeds, or patience runs out.
wait_for() {
	name=$1 log=$2
	shift 2
	tries=$((patience * 5))
	until "$@" >/dev/null 2>&1; do
		tries=$((tries - 1))
		if [ "$tries" -le 0 ]; then
			[ ! -f "$log" ] || tail -n 20 "$log" >&2
			die "$name did not answer within $patience s"
		fi
		sleep 0.2
	done
}

install_missing() {
	missing=
	command -v pg_createcluster >/dev/null && [ -n "$(pg_version)" ] || missing=postgresql
	command -v mariadbd >/dev/null || missing="$missing mariadb-server"
	[ -n "$missing" ] || return 0
	say "installing $missing"
	export DEBIAN_FRONTEND=noninteractive
	# shellcheck disable=SC2086 # one word per package
	{ apt-get update -q && apt-get install -qy --no-install-recommends $missing; } >&2
}

pg_version() { ls /usr/lib/postgresql 2>/dev/null | sort -n | tail -n 1; }
pg_exists() { pg_lsclusters -h 2>/dev/null | awk '{print $1, $2}' | grep -qx "$1 $pg_cluster"; }
pg_answers() { pg_isready -q -h 127.0.0.1 -p "$pg_port"; }
pg_run() { runuser -u postgres -- psql -qtAX -v ON_ERROR_STOP=1 -p "$pg_port" -d postgres -c "$1"; }

start_postgres() {
	version=$(pg_version)
	if ! pg_exists "$version"; then
		say "creating PostgreSQL $version cluster $pg_cluster"
		pg_createcluster "$version" "$pg_cluster" --port "$pg_port" --start-conf manual \
			--locale C.UTF-8 --encoding UTF8 \
			-o listen_addresses=localhost -o fsync=off -o max_connections=100 >&2
	fi
	if ! pg_answers; then
		pg_ctlcluster "$version" "$pg_cluster" start >&2 9>&-
		wait_for PostgreSQL "/var/log/postgresql/postgresql-$version-$pg_cluster.log" pg_answers
	fi
	[ -n "$(pg_run "SELECT 1 FROM pg_roles WHERE rolname = 'quorumlock'")" ] ||
		pg_run "CREATE ROLE quorumlock LOGIN PASSWORD 'quorumlock'" >&2
	[ -n "$(pg_run "SELECT 1 FROM pg_database WHERE datname = 'quorumlock'")" ] ||
		pg_run "CREATE DATABASE quorumlock OWNER quorumlock" >&2
}

maria_answers() { mariadb-admin --no-defaults --socket="$maria_socket" -u root ping; }

start_mariadb() {
	if [ ! -d "$maria_home/data/mysql" ]; then
		say "creating a MariaDB data directory in $maria_home"
		install -d -o mysql -g mysql "$maria_home"
		mariadb-install-db --no-defaults --user=mysql --datadir="$maria_home/data" \
			--auth-root-authentication-method=socket --skip-test-db >/dev/null
	fi
	if ! maria_answers >/dev/null 2>&1; then
		# Out of this shell's session and off its pipes, or the caller's $(...)
		# would wait for the server to end.
		setsid mariadbd --no-defaults --user=mysql --datadir="$maria_home/data" \
			--bind-address=127.0.0.1 --port="$maria_port" --skip-name-resolve \
			--socket="$maria_socket" --pid-file="$maria_pid" --log-error="$maria_log" \
			--innodb-flush-log-at-trx-commit=0 --innodb-buffer-pool-size=64M \
			</dev/null >/dev/null 2>&1 9>&- &
		wait_for MariaDB "$maria_log" maria_answers
	fi
	mariadb --no-defaults --socket="$maria_socket" -u root <<-'SQL'
		CREATE DATABASE IF NOT EXISTS quorumlock;
		CREATE USER IF NOT EXISTS quorumlock IDENTIFIED BY 'quorumlock';
		GRANT ALL ON quorumlock.* TO quorumlock;
	SQL
}

stop_all() {
	version=$(pg_version)
	if [ -n "$version" ] && pg_exists "$version"; then
		pg_dropcluster --stop "$version" "$pg_cluster" >&2
	fi
	if [ -d "$maria_home" ]; then
		if maria_answers >/dev/null 2>&1; then
			mariadb-admin --no-defaults --socket="$maria_socket" -u root shutdown >&2
			wait_for "the end of MariaDB" "$maria_log" test ! -e "$maria_pid"
		fi
		rm -rf "$maria_home"
	fi
}

[ "$(id -u)" = 0 ] || die "needs root, to install packages and to run servers as their own users"
command -v apt-get >/dev/null || die "needs Debian; elsewhere start the servers by hand and set the variables"
PATH=$PATH:/usr/sbin:/sbin

# Two runs at once would create everything twice. The servers must not inherit
# the lock, hence the 9>&- where they are started.
exec 9>/run/lock/quorumlock-dbtest
flock -w $((patience * 5)) 9 || die "another run is under way"

case ${1-start} in
start)
	install_missing
	start_postgres
	start_mariadb
	echo "export QUORUMLOCK_TEST_POSTGRES='postgres://quorumlock:quorumlock@127.0.0.1:$pg_port/quorumlock'"
	echo "export QUORUMLOCK_TEST_MYSQL='quorumlock:quorumlock@tcp(127.0.0.1:$maria_port)/quorumlock'"
	;;
stop) stop_all ;;
*) die "usage: services.sh [start|stop]" ;;
esac
