package quorumlock

import (
	"errors"
	"fmt"
	"io"
	"sync"

	dragonboat "github.com/lni/dragonboat/v4/statemachine"
)

// fsm drives a stateMachine as the engine asks for it.
type fsm struct {
	machine stateMachine
	voice   *voice
	seen    func(numbers []uint64) // is told what was applied

	mu      sync.Mutex // held while the machine is called, but for saves
	closed  bool
	mark    *mark
	saves   sync.WaitGroup
	entries []logEntry // reused
	numbers []uint64   // reused
}

// mark is a snapshot that was begun.
type mark struct {
	write func(w io.Writer, stop <-chan struct{}) error
}

var _ dragonboat.IConcurrentStateMachine = (*fsm)(nil)

// Update applies entries. After close it does nothing: the replica is gone, and
// what it would have applied is in the log.
func (f *fsm) Update(entries []dragonboat.Entry) ([]dragonboat.Entry, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return entries, nil
	}
	defer f.lastWord("apply")
	f.entries, f.numbers = f.entries[:0], f.numbers[:0]
	for _, e := range entries {
		number, cmd := untag(e.Cmd)
		f.entries = append(f.entries, logEntry{index: e.Index, cmd: cmd})
		f.numbers = append(f.numbers, number)
	}
	f.machine.apply(f.entries)
	f.seen(f.numbers)
	clear(f.entries) // the engine reuses what they point to
	return entries, nil
}

// lastWord is deferred around the machine. A machine that panics met something
// it must not guess at, such as a command of a newer version: the replica stops
// rather than diverge.
func (f *fsm) lastWord(doing string) {
	if p := recover(); p != nil {
		err := asError(doing, p)
		lastWords(err, f.voice)
		panic(err)
	}
}

// Lookup is not used: the node looks at its own state.
func (f *fsm) Lookup(any) (any, error) { return nil, nil }

// PrepareSnapshot marks the present state. A mark that was never saved, because
// the engine failed in between, is given back first.
func (f *fsm) PrepareSnapshot() (any, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.giveBack()
	if f.closed {
		return nil, dragonboat.ErrSnapshotStopped
	}
	defer f.lastWord("snapshot")
	f.mark = &mark{write: f.machine.snapshot()}
	return f.mark, nil
}

// giveBack wants f.mu held.
func (f *fsm) giveBack() {
	if f.mark != nil {
		_ = f.mark.write(nil, nil)
		f.mark = nil
	}
}

// take makes the caller the one who must call the mark's function.
func (f *fsm) take(ctx any) (*mark, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m, ok := ctx.(*mark)
	if !ok || m == nil || f.mark != m || f.closed {
		return nil, false
	}
	f.mark = nil
	f.saves.Add(1)
	return m, true
}

// SaveSnapshot writes what PrepareSnapshot marked, beside Update.
func (f *fsm) SaveSnapshot(ctx any, w io.Writer, _ dragonboat.ISnapshotFileCollection, stop <-chan struct{}) error {
	m, ok := f.take(ctx)
	if !ok {
		return dragonboat.ErrSnapshotStopped
	}
	defer f.saves.Done()
	defer f.lastWord("write snapshot")
	if err := m.write(w, stop); err != nil {
		return f.snapshotError("write snapshot", err)
	}
	return nil
}

// RecoverFromSnapshot replaces the state. The engine stops the process over any
// error but a stop: a snapshot that cannot be read leaves no state to go on
// with.
func (f *fsm) RecoverFromSnapshot(r io.Reader, _ []dragonboat.SnapshotFile, stop <-chan struct{}) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.giveBack()
	if f.closed {
		return dragonboat.ErrSnapshotStopped
	}
	defer f.lastWord("restore snapshot")
	if err := f.machine.restore(r, stop); err != nil {
		return f.snapshotError("restore snapshot", err)
	}
	return nil
}

func (f *fsm) snapshotError(doing string, err error) error {
	if errors.Is(err, errStopped) {
		return dragonboat.ErrSnapshotStopped
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// Close is the engine's; the replica's own is shut.
func (f *fsm) Close() error { return nil }

// shut returns when the machine is not called any more, and never will be.
func (f *fsm) shut() {
	f.mu.Lock()
	f.closed = true
	f.giveBack()
	f.mu.Unlock()
	f.saves.Wait()
	f.mu.Lock()
	f.machine, f.voice = nil, nil // see replica.shutdown
	f.mu.Unlock()
}
