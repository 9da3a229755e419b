package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"
)

// floorName stands in the output for what no replicated log with fsync can be
// faster than on this machine.
const floorName = "floor"

const (
	// floorEntry is the size of one small log entry, and of a message with it.
	floorEntry = 160
	majority   = replicas/2 + 1
)

// A floor measures what one replicated write takes at least: a round trip on
// loopback, and the time until a majority of five files is synced.
type floor struct {
	files []*os.File
	sync  []chan struct{} // one token makes one file be synced
	done  chan error
	echo  net.Conn
	peer  net.Listener
}

func openFloor(dir string) (*floor, error) {
	f := &floor{done: make(chan error, replicas)}
	for i := range replicas {
		file, err := os.Create(filepath.Join(dir, fmt.Sprintf("floor-%d", i)))
		if err != nil {
			f.close()
			return nil, err
		}
		token := make(chan struct{})
		f.files, f.sync = append(f.files, file), append(f.sync, token)
		go f.syncer(file, token)
	}
	if err := f.dial(); err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

func (f *floor) syncer(file *os.File, token <-chan struct{}) {
	entry := make([]byte, floorEntry)
	for range token {
		_, err := file.Write(entry)
		if err == nil {
			err = datasync(file)
		}
		f.done <- err
	}
}

func (f *floor) dial() (err error) {
	if f.peer, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return err
	}
	go func() {
		conn, err := f.peer.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		buf := make([]byte, floorEntry)
		for {
			if _, err := io.ReadFull(conn, buf); err != nil {
				return
			}
			if _, err := conn.Write(buf); err != nil {
				return
			}
		}
	}()
	f.echo, err = net.Dial("tcp", f.peer.Addr().String())
	return err
}

func (f *floor) close() {
	for i, file := range f.files {
		close(f.sync[i])
		_ = file.Close() // thrown away
	}
	if f.echo != nil {
		_ = f.echo.Close()
	}
	if f.peer != nil {
		_ = f.peer.Close()
	}
}

// measure takes samples for d: of both together, and of each.
func (f *floor) measure(ctx context.Context, d time.Duration) (map[string]float64, error) {
	var both, trips, syncs []time.Duration
	buf := make([]byte, floorEntry)
	for began := time.Now(); time.Since(began) < d && ctx.Err() == nil; {
		t0 := time.Now()
		if _, err := f.echo.Write(buf); err != nil {
			return nil, err
		}
		if _, err := io.ReadFull(f.echo, buf); err != nil {
			return nil, err
		}
		t1 := time.Now()
		synced, err := f.syncMajority()
		if err != nil {
			return nil, err
		}
		both = append(both, synced.Sub(t0))
		trips, syncs = append(trips, t1.Sub(t0)), append(syncs, synced.Sub(t1))
	}
	values := make(map[string]float64)
	spread(values, "", both)
	spread(values, "round_trip_", trips)
	spread(values, "fsync_", syncs)
	return values, ctx.Err()
}

// syncMajority has all files synced at once, and returns when the majority was. It
// waits for the others too, so that each sample finds the disk idle.
func (f *floor) syncMajority() (at time.Time, err error) {
	for _, token := range f.sync {
		token <- struct{}{}
	}
	for i := range f.sync {
		if e := <-f.done; e != nil {
			err = e
		}
		if i+1 == majority {
			at = time.Now()
		}
	}
	return at, err
}
