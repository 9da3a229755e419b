package lab

import (
	"context"
	"fmt"
	"net"
	"sync"

	"github.com/quorumlock/quorumlock/internal/peer"
)

// A Network joins replicas within the process. Connections are pipes; what the faults
// take, they take from whole messages.
type Network struct {
	*peer.Faults

	mu        sync.Mutex
	listeners map[string]*listener
}

// NewNetwork returns one without faults. The seed fixes the dice of the faults, not
// their order between goroutines.
func NewNetwork(seed uint64) *Network {
	return &Network{Faults: peer.NewFaults(seed), listeners: make(map[string]*listener)}
}

// Listen takes an address, which must be free.
func (n *Network) Listen(address string) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners[address] != nil {
		return nil, fmt.Errorf("lab: address %s is in use", address)
	}
	l := &listener{net: n, address: address, queue: make(chan net.Conn), closed: make(chan struct{})}
	n.listeners[address] = l
	return l, nil
}

// Dial connects to whoever listens at address.
func (n *Network) Dial(ctx context.Context, address string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[address]
	n.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("lab: nobody listens at %s", address)
	}
	here, there := net.Pipe()
	select {
	case l.queue <- there:
		return here, nil
	case <-l.closed:
		return nil, fmt.Errorf("lab: nobody listens at %s", address)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type listener struct {
	net     *Network
	address string
	queue   chan net.Conn
	closed  chan struct{}
	once    sync.Once
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.queue:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() {
		close(l.closed)
		l.net.mu.Lock()
		defer l.net.mu.Unlock()
		delete(l.net.listeners, l.address)
	})
	return nil
}

func (l *listener) Addr() net.Addr { return address(l.address) }

type address string

func (address) Network() string  { return "lab" }
func (a address) String() string { return string(a) }
