package quorumlock

import (
	"context"
	"net"
	"time"

	"github.com/quorumlock/quorumlock/internal/lab"
)

// Only package locktest has replicas run on other hardware than the machine's.
func init() {
	lab.Install = func(options any, h *lab.Hardware) {
		o := options.(*Options)
		o.hardware, o.faults = h, h.Faults
		o.trust = func() time.Duration { return h.Clock(bootTime()) }
	}
}

func (o *Options) listen() (net.Listener, error) {
	if o.hardware != nil {
		return o.hardware.Listen(o.Listen)
	}
	return net.Listen("tcp", o.Listen)
}

// dialer is nil for the machine's own.
func (o *Options) dialer() func(context.Context, string) (net.Conn, error) {
	if o.hardware != nil {
		return o.hardware.Dial
	}
	return nil
}
