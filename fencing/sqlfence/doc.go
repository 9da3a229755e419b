// Package sqlfence lets a SQL database refuse a holder that lost its lock: it
// admits a fencing token inside the transaction that does the writing.
//
//	tx, err := db.BeginTx(ctx, nil)
//	...
//	defer tx.Rollback()
//	if err := fence.Admit(ctx, tx, "invoice/4711", token); err != nil {
//		return err // matches fencing.ErrStale if a newer holder was here
//	}
//	// read, decide and write in tx
//	return tx.Commit()
//
// One table holds the highest admitted token per resource. Admit raises it with
// one conditional upsert, which also locks the resource's row until tx ends. Three
// things follow:
//
//   - The token is remembered if and only if the writes of tx are: they commit, or
//     are rolled back, together.
//   - Between the check and the end of tx nobody can admit a newer token; who
//     tries waits. So once a newer token stands, no transaction with an older one
//     can commit any more, however early it began.
//   - Transactions for different resources do not meet.
//
// # Admit first
//
// Call Admit before tx reads anything its writes depend on. What is read after
// Admit cannot be changed by an older holder any more, since that holder either
// committed before (and is seen) or is refused. A value read before Admit may be
// older than the lock on the row, and a decision made on it is not protected.
//
// Every write to the resource must go this way. One that does not is not fenced.
//
// # Isolation levels, waiting and deadlocks
//
// The guarantee holds at every isolation level of the three databases, from read
// committed up; the levels differ in how a conflict shows. All these are the
// driver's own errors, wrapped, and do not match fencing.ErrStale. They say
// nothing about the token. Roll back, and begin again while the lock is held:
//
//   - PostgreSQL, read committed: none; Admit waits for the row and then judges
//     by what it finds. Repeatable read and serializable: SQLSTATE 40001 when the
//     row changed after tx's snapshot was taken. Serializable may also report
//     40001 at Commit: only a Commit that returned nil has written.
//   - MySQL and MariaDB: Admit judges by the newest row at every level, whatever
//     tx read before. Error 1205 after innodb_lock_wait_timeout (50 s unless set),
//     error 1213 for a deadlock, which two first admissions of one name can meet
//     too, and in MariaDB with innodb_snapshot_isolation 1020 in place of
//     PostgreSQL's 40001. After 1205 the server keeps the transaction open: roll
//     it back yourself.
//   - SQLite has one writer at a time. Admit waits for it as long as the busy
//     timeout says, then fails with SQLITE_BUSY; at once if tx has read before
//     and somebody wrote since. A transaction that begins with Admit does not
//     meet that.
//
// A transaction that admits for several resources does so in one order
// everywhere, by name say, or meets deadlocks. Nothing bounds the wait but the
// database's own timeout and ctx; a transaction that is left open makes the next
// holder wait for as long.
//
// # After any error from Admit, roll back
//
// A refusal leaves tx usable in some databases. Writing on regardless is the
// mistake this package exists to prevent. A rollback to a savepoint set before
// Admit takes the admission back; admit again after it.
//
// # What it does not cover
//
// The row lock and the token must outlive the write, so the database must keep
// its committed transactions and lock rows for all writers. A failover that loses
// commits loses admitted tokens with them. A cluster that takes writes on several
// nodes at once, as Galera can, does not lock rows across nodes: send the fenced
// writes to one of them. In MySQL and MariaDB the table must be InnoDB, as
// [Fence.Schema] makes it.
//
// The table grows by one small row per resource and is never cleaned. A row may
// be deleted by hand once no transaction with an older token can still be on its
// way; deleting it forgets the token.
package sqlfence
