package main

import (
	"fmt"
	"math/rand/v2"
	"net"
)

// freeAddresses finds loopback addresses at which nobody listens. They lie below
// the ports that systems give to outgoing connections: a member that was killed
// wants its own back.
func freeAddresses(n int) ([]string, error) {
	const lowest, count, tries = 20000, 12000, 1000
	var found []string
	for range tries {
		address := fmt.Sprintf("127.0.0.1:%d", lowest+rand.IntN(count))
		l, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		defer l.Close() // kept until all are found, so that none is found twice
		if found = append(found, address); len(found) == n {
			return found, nil
		}
	}
	return nil, fmt.Errorf("no %d free ports on 127.0.0.1", n)
}

// founders gives replicas 1 to n an address each.
func founders(n int) (map[uint64]string, error) {
	addresses, err := freeAddresses(n)
	if err != nil {
		return nil, err
	}
	members := make(map[uint64]string, n)
	for i, a := range addresses {
		members[uint64(i+1)] = a
	}
	return members, nil
}
