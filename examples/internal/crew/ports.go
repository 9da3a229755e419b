package crew

import (
	"fmt"
	"math/rand/v2"
	"net"
)

// FreeAddresses returns loopback addresses for n replicas, numbered from 1.
//
// The ports lie below those that systems hand out for outgoing connections: a
// killed replica wants its port back, and nobody may have been given it meanwhile.
func FreeAddresses(n int) (map[uint64]string, error) {
	const lowest, span, tries = 20000, 12000, 1000
	members := make(map[uint64]string, n)
	var bound []net.Listener // kept until all are found, so that none is found twice
	defer func() {
		for _, l := range bound {
			l.Close()
		}
	}()
	for range tries {
		address := fmt.Sprintf("127.0.0.1:%d", lowest+rand.IntN(span))
		l, err := net.Listen("tcp", address)
		if err != nil {
			continue // taken
		}
		bound = append(bound, l)
		members[uint64(len(bound))] = address
		if len(bound) == n {
			return members, nil
		}
	}
	return nil, fmt.Errorf("no %d free ports on 127.0.0.1", n)
}
