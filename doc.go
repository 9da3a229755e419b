// Package quorumlock gives an application its own distributed locks, with no server
// to run: five replicas of the application link it, and a Raft group inside their
// own processes decides who holds what.
//
//	node, err := quorumlock.Open(quorumlock.Options{ ... })
//	err = node.Do(ctx, "invoice/4711", func(ctx context.Context, token fencing.Token) error {
//		return pay(ctx, token)
//	})
//	node.Close()
//
// # Promises
//
// Never two exclusive holders are granted at once: a minority refuses. Every grant
// carries a fencing token that only ever grows for its name. A holder learns that it
// lost a lock by its own clock, before anyone else can be granted it, unless
// somebody forced it out. Nothing leaks: a cancelled wait leaves no waiter, a dead
// session leaves nothing, an idle name costs nothing.
//
// # Kinds of lock
//
// Locks are exclusive, shared (Share), or counted with numbered slots (Permits);
// AcquireAll takes several names at once without deadlock. MaxHold, MinHold and
// LockDelay bound a hold in time. Describe, List, Sessions and Watch tell who has
// what and who waits; RequestYield, ForceRelease and ForceClose put it right.
//
// # What a lock cannot do
//
// A lock alone does not protect a store. A process can be stopped between its last
// look at the lock and its write, for longer than its lease, and write when it
// wakes. What protects the store is the token, checked by the store: it refuses a
// token older than one that it has seen. Package fencing is for that, with guards
// for SQL databases and HTTP services.
//
// # Sessions
//
// Locks belong to sessions, and a session lives in a process. The node renews all of
// its process's sessions at once, at a cost that does not grow with the number of
// locks. When a session ends, all that it held comes free at once. The node has a
// session of its own, on which Node.Acquire and Node.Do work; OpenSession makes
// others.
//
// # Years of it
//
// AddReplica, RemoveReplica and ReplaceReplica change who is in the cluster, Members
// and Status show it; Options.Zone, Groups, Quotas and TLS shape it. Backup writes what
// Options.Restore founds a new cluster from. Stats counts, for package metrics too.
// docs/OPERATIONS.md has the procedures.
//
// # Contexts
//
// A call whose ctx ends returns at once, with an error that matches both ctx's error
// and the library's own: ErrHeld if it stood in line, ErrNoQuorum if a majority did
// not answer. It leaves nothing behind. No ctx error is returned when the caller's
// ctx has not ended.
package quorumlock
