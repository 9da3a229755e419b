package main

import (
	"log"
	"net"
)

func Example() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	if err := run(address); err != nil {
		log.Fatal(err)
	}
	// Output: paying invoice 4711 with fencing token 1
}
