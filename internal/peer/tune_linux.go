package peer

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// unackedTimeout is how long sent bytes may stay unacknowledged. Without it a
// connection over a path that was cut for a while goes on with the pauses of
// its retransmissions, long after the path is whole again.
const unackedTimeout = 3 * time.Second

// tune makes a connection notice that the other side is gone. It does what it
// can: a connection that cannot be tuned is still one.
func tune(conn net.Conn) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	_ = tcp.SetNoDelay(true)
	_ = tcp.SetKeepAliveConfig(keepAlive)
	if raw, err := tcp.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unackedTimeout.Milliseconds()))
		})
	}
}
