// Package peer carries messages between the replicas of one cluster over TCP.
//
// Every connection starts with a handshake in which both sides say who they
// are: which cluster, which replica, founded with whom, and which storage they
// have. A replica keeps on disk what it learned of the others, and from then on
// refuses a replica that comes back under a used id with another or an older
// storage: such a replica has forgotten its votes and what it acknowledged, and
// could help to decide the same thing twice.
//
// With Config.TLS both sides also show a certificate, which must be for the replica
// that they say they are: in secure.go.
//
// Messages are framed, bounded and checked with a CRC. They may be lost with a
// connection, never altered. Nothing that arrives at the port can crash the
// process or make it allocate more than was really sent.
package peer
