// Package lab is the road by which package locktest opens replicas on hardware that it
// has under its control. It is no part of the public API: in production a replica runs
// on the machine's own network, disk and clock.
package lab

import (
	"context"
	"net"
	"time"

	"github.com/lni/vfs"

	"github.com/quorumlock/quorumlock/internal/peer"
)

// Hardware is what a replica touches of the world outside its process.
type Hardware struct {
	Listen func(address string) (net.Listener, error)
	Dial   func(ctx context.Context, address string) (net.Conn, error)
	Faults *peer.Faults // what becomes of messages; nil for nothing

	Disk vfs.FS // where the log is kept
	// Clock returns what the clock by which the replica judges its own leases shows when
	// the machine's shows something.
	Clock func(machine time.Duration) time.Duration

	// Closing is called when nothing leaves the replica any more, neither to a peer nor
	// to a caller, and before its engine is closed: what is not on the disk now was
	// promised to nobody.
	Closing func()
}

// Install has the replica that options describe run on h. options is a
// *quorumlock.Options; that package, which imports this one, sets the function.
var Install func(options any, h *Hardware)
