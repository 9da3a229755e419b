package quorumlock

import (
	"errors"
	"io"
	"runtime"
	"sync"

	"github.com/quorumlock/quorumlock/internal/wire"
)

// A machine is the state machine as the engine drives it: the rules, a lock around
// them, and the way their effects take to the node.
type machine struct {
	// perform is called with every entry's effects, and restored after the state
	// was replaced by a snapshot's, both with mu held: they must not block.
	perform  func(effects []effect)
	restored func()

	mu      sync.RWMutex
	fsm     *lockFSM
	applied uint64 // index of the last entry applied

	stopwatch *stopwatch // nil while nobody has asked for stats
}

var _ stateMachine = (*machine)(nil)

func newMachine() *machine { return &machine{fsm: newLockFSM()} }

func (m *machine) apply(entries []logEntry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer m.stopwatch.end(m.stopwatch.begin())
	for _, e := range entries {
		effects := m.fsm.apply(e.cmd)
		m.applied = e.index
		if len(effects) > 0 {
			m.perform(effects)
		}
	}
}

// snapshot marks the state. Writing it then takes the lock a page at a time, so the
// log goes on meanwhile.
func (m *machine) snapshot() func(io.Writer, <-chan struct{}) error {
	_, write := m.mark()
	return write
}

// mark is snapshot, and tells after which entry the state was marked.
func (m *machine) mark() (applied uint64, write func(io.Writer, <-chan struct{}) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fsm.halted != nil {
		// What this replica has is not what the others have: it must not be kept.
		return m.applied, func(io.Writer, <-chan struct{}) error { return errStopped }
	}
	head, c := m.fsm.mark()
	level := m.fsm.level
	return m.applied, func(w io.Writer, stop <-chan struct{}) error {
		defer func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			c.drop()
		}()
		if w == nil {
			return nil
		}
		return m.write(wire.NewSnapshotWriter(w, level), head, c, stop)
	}
}

func (m *machine) write(w *wire.SnapshotWriter, head []byte, c *capture, stop <-chan struct{}) error {
	if _, err := w.Write(head); err != nil {
		return err
	}
	var page []byte
	for i := range pages {
		if isClosed(stop) {
			return errStopped
		}
		m.mu.Lock()
		page = c.take(page[:0], i)
		m.mu.Unlock()
		// An entry that waited for the lock is runnable now, behind this goroutine,
		// which would otherwise go on for its whole time slice.
		runtime.Gosched()
		if len(page) == 0 {
			continue
		}
		if _, err := w.Write(page); err != nil {
			return err
		}
	}
	return w.Close()
}

func (m *machine) restore(r io.Reader, stop <-chan struct{}) error {
	fsm, err := restoreFSM(r, stop)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil && fsm.level > m.fsm.speaks {
		err = &wire.VersionError{Version: fsm.level}
	}
	var newer *wire.VersionError
	switch {
	case errors.As(err, &newer):
		// As for an entry that is not known. The engine would stop the process over an
		// error; and it has the snapshot, from which an upgraded replica goes on.
		m.perform(m.fsm.outgrown(newer.Version))
		return nil
	case err != nil:
		return err
	}
	fsm.speaks = m.fsm.speaks
	m.fsm = fsm
	m.restored()
	return nil
}

// read calls f with the state, which f must neither change nor keep.
func (m *machine) read(f func(*lockFSM)) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	f(m.fsm)
}
