//go:build !linux

package peer

import "net"

// tune makes a connection notice that the other side is gone. It does what it
// can: a connection that cannot be tuned is still one.
func tune(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetNoDelay(true)
		_ = tcp.SetKeepAliveConfig(keepAlive)
	}
}
