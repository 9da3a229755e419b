package main

import "github.com/quorumlock/quorumlock/fencing"

// The director writes to a worker's standard input: first a workerConfig, then orders. The worker writes reports to its standard output. All are
// JSON values, one a line. When its input ends, the director is gone, and so goes the
// worker.

// workerEnv marks a process that the program started as one of its workers.
const workerEnv = "QUORUMLOCK_TORTURE_WORKER"

// A workerConfig is all that a worker needs to know. Times are in nanoseconds of the
// machine's clock since Begin.
type workerConfig struct {
	ID      uint64
	Life    int
	Members map[uint64]string // replica to address
	Dir     string            // of the replica
	Store   string            // the socket of the store
	Seed    uint64
	Begin   int64
	Verbose bool
	Rate    float64 // of its clocks; 0 to leave them alone
	Groups  int
}

type order struct {
	Do   string
	Rate float64 `json:",omitempty"`
	Keep bool    `json:",omitempty"` // hold locks for longer than a lease
}

const (
	orderEnd       = "end"        // begin no more calls, say so, and wait
	orderFailFsync = "fail fsync" // have each one fail from now on
	orderRate      = "rate"       // have the clocks go at Rate, and Keep locks or not
)

type reportKind string

const (
	reportEvent  reportKind = "event"  // of the history
	reportProbe  reportKind = "probe"  // its own locks were granted
	reportIdle   reportKind = "idle"   // all calls have ended
	reportBroken reportKind = "broken" // the worker gives up
)

// An eventKind is one thing that a client saw of one acquisition.
type eventKind string

const (
	eventAsk     eventKind = "ask"     // it asks for the lock, from At on
	eventGrant   eventKind = "grant"   // the lock was handed to it by At
	eventRefused eventKind = "refused" // its try was refused by At
	eventUnknown eventKind = "unknown" // there was no answer
	eventLook    eventKind = "look"    // its context was alive: it looked between At and Till
	eventFree    eventKind = "free"    // it gives the lock back, from At on
	eventFreed   eventKind = "freed"   // and that was confirmed by At
	eventLost    eventKind = "lost"    // or not: it lost the lock, or had no answer
)

type event struct {
	Kind   eventKind
	Op     uint64 // the acquisition, numbered within the worker's life
	At     int64
	Till   int64         `json:",omitempty"`
	Name   string        `json:",omitempty"` // ask
	Shared bool          `json:",omitempty"` // ask
	Token  fencing.Token `json:",omitempty"` // grant
	Slots  uint8         `json:",omitempty"` // grant: a bit for each permit
}

type report struct {
	What    reportKind
	Event   *event          `json:",omitempty"`
	At      int64           `json:",omitempty"` // probe: when they were asked for
	Tokens  []fencing.Token `json:",omitempty"` // probe: of each
	Leaders []uint64        `json:",omitempty"` // probe: who leads each group, as far as the worker knows
	Text    string          `json:",omitempty"` // broken
}
