// Package fencing makes a store refuse a holder that lost its lock without
// noticing.
//
// A lock alone protects nothing but the lock. A process may be frozen for a
// minute between "I hold it" and its write; by then its lease is over, somebody
// else was granted the lock and wrote, and the late write destroys that work. No
// clock and no lease can stop a process that is not running. The store can:
//
//   - every grant of a lock carries a [Token], which only ever grows for its name;
//   - the holder sends it along with every write;
//   - the store remembers the highest token it admitted per resource, and refuses
//     an older one with [ErrStale].
//
// A store that does so is a [Guard]. Check and write must be one step: a newer
// token that is admitted between an older one's check and its write brings the
// whole problem back. So, in order of preference:
//
//   - the store is a SQL database: package fencing/sqlfence admits the token
//     inside the transaction that writes;
//   - the store is in this process: [MemGuard.Do];
//   - the store is an HTTP service of your own: package fencing/httpfence carries
//     the token there, and the service then does one of the two above;
//   - the store is somebody else's and cannot check a token (a payment provider,
//     say): send [IdempotencyKey], by which the provider does the work once
//     however many holders ask for it.
//
// A token orders holders; it does not prove who they are. Whoever can present a
// made-up huge token bars every real holder after it, so a guard belongs behind
// the authentication that the store has anyway.
//
// The package imports the standard library only, so that a service which checks
// tokens need not link the lock cluster that makes them.
package fencing
