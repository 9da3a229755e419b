package locktest

import (
	"sync"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/lab"
)

// A machine is what one replica runs on, through all its lives.
type machine struct {
	options quorumlock.Options
	change  func(*quorumlock.Options)
	net     *lab.Network
	disk    *lab.Disk
	clock   *lab.Clock

	turning sync.Mutex // one start or stop at a time

	mu      sync.Mutex
	node    *quorumlock.Node
	running bool
	dies    bool          // the present stop is a loss of power
	ended   chan struct{} // closed when the present life is over
}

func (m *machine) up() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.running
}

// start opens the replica, on what the last life left on the disk. One that runs is first
// closed.
func (m *machine) start() error {
	m.turning.Lock()
	defer m.turning.Unlock()
	if err := m.end(false); err != nil {
		return err
	}
	m.disk.PowerOn()
	o := m.options
	if m.change != nil {
		m.change(&o)
	}
	lab.Install(&o, &lab.Hardware{
		Listen:  m.net.Listen,
		Dial:    m.net.Dial,
		Faults:  m.net.Faults,
		Disk:    m.disk,
		Clock:   m.clock.Show,
		Closing: m.closing,
	})
	n, err := quorumlock.Open(o)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.node, m.running, m.dies, m.ended = n, true, false, make(chan struct{})
	return nil
}

// stop closes the replica, or has it lose its power.
func (m *machine) stop(dies bool) error {
	m.turning.Lock()
	defer m.turning.Unlock()
	return m.end(dies)
}

// end wants m.turning held.
func (m *machine) end(dies bool) error {
	m.mu.Lock()
	n, running, ended := m.node, m.running, m.ended
	m.running, m.dies = false, dies
	m.mu.Unlock()
	if !running {
		return nil
	}
	defer close(ended)
	err := n.Close()
	m.net.Resume(m.options.ReplicaID) // what is held back for it finds nobody
	return err
}

// failDisk has the present life end at its next write, and returns what is closed then.
func (m *machine) failDisk() <-chan struct{} {
	m.turning.Lock()
	defer m.turning.Unlock()
	m.mu.Lock()
	n, running, ended := m.node, m.running, m.ended
	m.mu.Unlock()
	if running {
		m.disk.Break(func() { m.died(n) })
	}
	return ended
}

// died takes down what is left of a life.
func (m *machine) died(life *quorumlock.Node) {
	m.turning.Lock()
	defer m.turning.Unlock()
	m.mu.Lock()
	present := m.node == life
	m.mu.Unlock()
	if present {
		_ = m.end(true) // it says how the engine ended, which is of no interest
	}
}

// closing is called when nothing leaves the replica any more. A user may have closed the
// Node, too.
func (m *machine) closing() {
	m.mu.Lock()
	dies := m.dies
	m.mu.Unlock()
	if dies || m.disk.Broken() {
		m.disk.PowerOff()
		return
	}
	m.disk.Go()
}
