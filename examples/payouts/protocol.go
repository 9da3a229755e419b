package main

import (
	"time"

	"github.com/quorumlock/quorumlock/fencing"
)

// The director writes to a worker's standard input: first a workerConfig, then
// orders. The worker writes reports to its standard output. All are JSON values,
// one a line. When its input ends, the director is gone, and so goes the worker.

// workerEnv marks a process that the program started as one of its workers.
const workerEnv = "QUORUMLOCK_PAYOUTS_WORKER"

// A workerConfig is all that a worker needs to know.
type workerConfig struct {
	ID      uint64
	Members map[uint64]string // replica to address
	Dir     string            // of the replica
	Ledger  string            // path of the SQLite file
	Fenced  bool
	Lease   time.Duration // SessionTTL
	Bank    time.Duration // what a payment takes at the bank
	Verbose bool
}

type orderKind string

const (
	orderStart    orderKind = "start"    // settle invoices until told to quit
	orderPause    orderKind = "pause"    // stop before the next payment is written
	orderGoOn     orderKind = "go on"    // and write it
	orderSettle   orderKind = "settle"   // wait in line for one invoice and settle it
	orderProbe    orderKind = "probe"    // take a lock, to show that locking works
	orderStatus   orderKind = "status"   // say who leads
	orderDescribe orderKind = "describe" // say who holds an invoice and who waits for it
	orderQuit     orderKind = "quit"
)

type order struct {
	Do      orderKind
	Invoice string `json:",omitempty"` // settle, describe
}

type reportKind string

const (
	reportReady   reportKind = "ready"   // the replica answers, and settling may start
	reportPausing reportKind = "pausing" // holds Invoice, found it unpaid, waits for "go on"
	reportGranted reportKind = "granted" // answers settle: the wait in line is over
	reportPaid    reportKind = "paid"
	reportRefused reportKind = "refused" // the ledger refused a stale token
	reportBelief  reportKind = "belief"  // what a woken holder's own library says
	reportProbed  reportKind = "probed"  // answers probe
	reportStatus  reportKind = "status"
	reportSeen    reportKind = "seen"   // answers describe
	reportBroken  reportKind = "broken" // the worker gives up
	reportExited  reportKind = "exited" // made by the director when a process has ended
	reportBye     reportKind = "bye"    // answers quit
)

// awaited says in words what the director waits for, if it waits in vain.
var awaited = map[reportKind]string{
	reportReady:   "a worker to be ready",
	reportPausing: "a worker to be about to write a payment",
	reportGranted: "the frozen worker's lock to be granted to the next in line",
	reportPaid:    "a payment to be written",
	reportBelief:  "the woken worker to go on",
	reportProbed:  "a lock to be granted",
	reportStatus:  "a worker to say who leads",
	reportSeen:    "a worker to describe a lock",
	reportExited:  "a killed process to end",
	reportBye:     "a worker to end",
}

type report struct {
	What    reportKind
	Invoice string        `json:",omitempty"`
	Token   fencing.Token `json:",omitempty"`
	Newest  fencing.Token `json:",omitempty"` // refused: the token that stood in the way
	Leader  uint64        `json:",omitempty"` // status
	Term    uint64        `json:",omitempty"` // status
	Text    string        `json:",omitempty"` // belief: Hold.Err; seen; broken
	Cause   string        `json:",omitempty"` // belief: why the hold's context ended
	Turned  int           `json:",omitempty"` // bye: how often another held the lock

	Worker uint64 `json:"-"` // filled in by the director
	Life   int    `json:"-"` // which process of that worker's
}
