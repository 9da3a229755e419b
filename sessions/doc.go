// Package sessions knows who is alive.
//
// Three ideas live here, all of them pure: none reads a clock, and time comes in
// as an argument.
//
//   - The Roll is replicated: which processes there are, which sessions they
//     opened, up to where their commands were applied. Every replica's Roll is
//     the same after the same log entry.
//   - The Judge is local to the leader's process: it tells which sessions have
//     not been renewed for a whole lease and are to be ended.
//   - Lease, Trust and RenewEvery are the arithmetic that lets a holder stop
//     before the leader gives its lock to the next.
//
// That a lease is trusted from before the renewal was sent, and judged from after
// it was applied, is from Gray and Cheriton, "Leases: an efficient fault-tolerant
// mechanism for distributed file cache consistency" (SOSP 1989).
package sessions
