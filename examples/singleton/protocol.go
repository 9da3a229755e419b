package main

import "github.com/quorumlock/quorumlock/fencing"

// The director writes to a worker's standard input: first a workerConfig, then
// orders. The worker writes reports to its standard output. All are JSON values,
// one a line. When its input ends, the director is gone, and so goes the worker.

// workerEnv marks a process that the program started as one of its workers.
const workerEnv = "QUORUMLOCK_SINGLETON_WORKER"

// A workerConfig is all that a worker needs to know.
type workerConfig struct {
	ID      uint64
	Members map[uint64]string // replica to address
	Dir     string            // of the replica
	Store   string            // path of the SQLite file
	Fenced  bool
	Verbose bool
}

type orderKind string

const (
	orderPause orderKind = "pause" // stop before the next record is written
	orderGoOn  orderKind = "go on" // and write it
	orderEnd   orderKind = "end"   // end cleanly: the others go on
)

type order struct{ Do orderKind }

type reportKind string

const (
	reportReady   reportKind = "ready"   // the replica answers
	reportExports reportKind = "exports" // leads, and has written the first record of its term
	reportPausing reportKind = "pausing" // was about to write a record, and waits for "go on"
	reportWrote   reportKind = "wrote"   // the record it was about to write
	reportRefused reportKind = "refused" // the store refused a stale token
	reportBelief  reportKind = "belief"  // what a woken leader's own library says
	reportBroken  reportKind = "broken"  // the worker gives up
	reportExited  reportKind = "exited"  // made by the director's side when a process has ended
)

type report struct {
	What   reportKind
	Number int64         `json:",omitempty"` // of the record
	Token  fencing.Token `json:",omitempty"`
	Newest fencing.Token `json:",omitempty"` // refused: the token that stood in the way
	Text   string        `json:",omitempty"` // belief, broken, exited

	Worker uint64 `json:"-"` // filled in by the director's side
	Life   int    `json:"-"` // which process of that worker's
}
