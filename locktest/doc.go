// Package locktest runs a whole cluster inside one test, on hardware that the test can
// break: it is for testing your own code against what quorumlock does when a leader dies,
// a network parts or a disk fails.
//
//	func TestPayoutsSurviveTheLeader(t *testing.T) {
//		c := locktest.New(t, locktest.Config{})
//		go payouts.Run(ctx, c.Node(1))
//		if _, err := c.KillLeader(ctx); err != nil {
//			t.Fatal(err)
//		}
//		...
//	}
//
// # What is real
//
// Everything but the hardware. Node returns the *quorumlock.Node of production, with the
// same engine, the same protocol between replicas and the same format of the log. Real
// time passes; Config has shorter timeouts than production, so that a lease runs out in
// three seconds.
//
// # What is simulated
//
//   - The network. Connections are pipes in memory. Faults act on whole messages between
//     replicas, as a datagram network would: a connection of TCP would repeat what got
//     lost, and the replicas get by without that.
//   - The disk with the log: the terms, votes and entries on which every promise rests. It
//     is in memory and keeps through Crash only what was synced. The marker of the
//     directory, what is known of the peers, and snapshots, which begin after 100,000
//     entries, are in files of a temporary directory and outlive a Crash, synced or not.
//   - The clock by which a holder judges its own lease, which MoveClock sets ahead and
//     ClockRate has go faster, slower, or not at all.
//
// # What is not
//
// The replicas share the process of the test, so a fault cannot stop your own goroutines.
// Pause stops what a replica says, hears and writes; its timers and your code go on. Crash
// makes a replica's Node closed, where in production your code would have died with it. And
// a failed disk ends the replica and not the process: see FailDisk.
package locktest
