// Package election runs something on exactly one replica, and moves it when that
// one dies.
//
//	err := election.Run(ctx, node, "exporter", func(ctx context.Context, term *election.Term) error {
//		return export(ctx, term.Token()) // until ctx ends
//	})
//
// Every replica calls Run. One of them leads: its function runs. The others stand in
// line, in the order in which they came, and one of them leads when the leader
// resigns, stops or dies. Campaign is the lower form of it, for those who steer
// themselves; Observe, LeaderOf and Candidates tell who leads and who would.
//
// # What leadership promises
//
// A leader is the holder of a lock of package quorumlock, so what is true of holds
// is true of terms. There is never more than one holder. A term's context ends, by
// this process's own clock, before anyone else can lead, and every later term has a
// larger token. A leader that stops hands over at once; one that dies has a successor
// within the session's TTL.
//
// # What it does not
//
// That the context has ended does not mean that the function has. Run gives the lock
// up only after the function has returned, so as long as the session lives nobody
// else leads beside a function that is slow to end. When the session is lost, by a
// partition, a pause or the node's Shutdown, the lock goes to the next in line however
// busy the function still is: end ctx and wait for Run to return before the node is
// shut down. A process that is stopped cannot look at its context at all, and
// quorumlock's ForceRelease and ForceClose end a term over its holder's head, which the
// holder may learn after the next was granted.
//
// In all these cases it is the token that protects a store: hand it along with every
// write, and let the store refuse one that is older than the newest it has seen. See
// package fencing.
package election
