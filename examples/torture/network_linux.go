package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A network joins the workers, each in a network namespace of its own whose only way
// out is a TUN device. This program is the wire between them: it reads the packets
// that a worker's kernel sends, and hands them to another's, late or not at all.
//
// The namespaces have no name and the devices live in them, so the kernel removes all
// of it when the processes have gone, however they went.
type network struct {
	*links
	home  *os.File   // the namespace that this program lives in
	rooms []*os.File // the namespaces, by worker
	wires []*os.File // and the ends of their devices
	busy  sync.WaitGroup
}

// subnet is what the workers' addresses begin with; the last byte is the worker's id.
var subnet = [3]byte{10, 77, 0}

// newNetwork makes namespaces for workers 1 to n. It needs the right to do so.
func newNetwork(n int, l *links) (*network, error) {
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	net := &network{links: l, home: home}
	for id := 1; id <= n; id++ {
		room, wire, err := newRoom(byte(id))
		if err != nil {
			return nil, errors.Join(err, net.close())
		}
		net.rooms, net.wires = append(net.rooms, room), append(net.wires, wire)
	}
	for id := range net.wires {
		net.busy.Go(func() { net.carry(uint64(id + 1)) })
	}
	return net, nil
}

// newRoom makes a namespace with a TUN device in it.
func newRoom(id byte) (room, wire *os.File, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if err = unix.Unshare(unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("make a network namespace: %w", err)
			return
		}
		if room, err = os.Open("/proc/thread-self/ns/net"); err != nil {
			return
		}
		if wire, err = newDevice(id); err != nil {
			err = errors.Join(fmt.Errorf("make a TUN device: %w", err), room.Close())
		}
	}()
	<-done
	return room, wire, err
}

// newDevice makes a TUN device in the namespace of this thread, and brings it up.
func newDevice(id byte) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	wire := func() error {
		r, err := unix.NewIfreq("wire")
		if err != nil {
			return err
		}
		r.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, r); err != nil {
			return err
		}
		return bringUp(id)
	}
	if err := wire(); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "tun"), nil
}

func bringUp(id byte) error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	for _, name := range []string{"lo", "wire"} {
		r, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		if name == "wire" {
			if err := r.SetInet4Addr([]byte{subnet[0], subnet[1], subnet[2], id}); err != nil {
				return err
			}
			if err := unix.IoctlIfreq(s, unix.SIOCSIFADDR, r); err != nil {
				return err
			}
			if err := r.SetInet4Addr([]byte{255, 255, 255, 0}); err != nil {
				return err
			}
			if err := unix.IoctlIfreq(s, unix.SIOCSIFNETMASK, r); err != nil {
				return err
			}
		}
		r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
		if err := unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, r); err != nil {
			return err
		}
	}
	return nil
}

// members are the addresses of the workers.
func (n *network) members() map[uint64]string {
	members := make(map[uint64]string)
	for i := range n.rooms {
		members[uint64(i+1)] = fmt.Sprintf("%d.%d.%d.%d:7000", subnet[0], subnet[1], subnet[2], i+1)
	}
	return members
}

// within does something in a worker's namespace. It is called on a locked thread.
func (n *network) within(id uint64, do func() error) error {
	if err := unix.Setns(int(n.rooms[id-1].Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter a network namespace: %w", err)
	}
	err := do()
	if back := unix.Setns(int(n.home.Fd()), unix.CLONE_NEWNET); back != nil {
		panic(back) // nothing on this thread can be relied on any more
	}
	return err
}

// carry takes a worker's packets to where they are going.
func (n *network) carry(from uint64) {
	packet := make([]byte, 1<<16)
	for {
		size, err := n.wires[from-1].Read(packet)
		if err != nil {
			return // closed
		}
		const ipv4Header, destination = 20, 16
		if size < ipv4Header || packet[0]>>4 != 4 || [3]byte(packet[destination:]) != subnet {
			continue // what a kernel sends of its own accord
		}
		to := uint64(packet[destination+3])
		if to < 1 || to > uint64(len(n.wires)) {
			continue
		}
		// A packet that the other side does not take is lost, as packets are.
		switch drop, delay := n.verdict(from, to); {
		case drop:
		case delay > 0:
			late := slices.Clone(packet[:size])
			time.AfterFunc(delay, func() { _, _ = n.wires[to-1].Write(late) })
		default:
			_, _ = n.wires[to-1].Write(packet[:size])
		}
	}
}

// close lets go of everything. The workers have ended before.
func (n *network) close() error {
	var errs []error
	for _, f := range slices.Concat(n.wires, n.rooms, []*os.File{n.home}) {
		errs = append(errs, f.Close())
	}
	n.busy.Wait()
	return errors.Join(errs...)
}
