package peer

import (
	"net"
	"time"
)

var keepAlive = net.KeepAliveConfig{
	Enable:   true,
	Idle:     10 * time.Second,
	Interval: 3 * time.Second,
	Count:    3,
}
