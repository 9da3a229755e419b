package api

// What is said over a request to "hold", one JSON object a line in each direction, while
// a client holds a lock through the page. The client counts from before it sent a ping: a
// "held" that answers it means that the lock was the client's at a moment after that, and
// that nobody else is granted it for a Lease from then on, unless the client itself
// releases it. So the client must be done by its own clock before that is over; it should
// be after three quarters, since clocks have different rates. See docs/ARCHITECTURE.md.

// HoldType is the Content-Type of the request and of its answer.
const HoldType = "application/x-ndjson"

// A HoldRequest is the first line of the client.
type HoldRequest struct {
	Name   string `json:"name"`
	By     string `json:"by"`               // who wants it: shown as its owner
	Lease  int64  `json:"leaseMs"`          // of each answer, in milliseconds
	Wait   int64  `json:"waitMs,omitempty"` // in line, at most; 0 for any time
	Try    bool   `json:"try,omitempty"`    // do not wait at all
	Shared bool   `json:"shared,omitempty"`
	// Permits and Limit are for a counted lock: so many of so many.
	Permits int `json:"permits,omitempty"`
	Limit   int `json:"limit,omitempty"`
}

// A HoldMessage is each further line of the client. The body ends without a release only
// if something went wrong: the lock then stays taken for a Lease.
type HoldMessage struct {
	Ping    uint64 `json:"ping,omitempty"` // 1, 2, 3, …, several in each Lease; silence for half of it ends the hold
	Release bool   `json:"release,omitempty"`
}

// A HoldAnswer is each line of the page.
type HoldAnswer struct {
	State string `json:"state"`
	Ping  uint64 `json:"ping,omitempty"`  // the latest that was heard: waiting, held
	Token string `json:"token,omitempty"` // held
	Held  bool   `json:"held,omitempty"`  // refused: since others have it
	Again bool   `json:"again,omitempty"` // refused: another replica may do, or this one later
	Error string `json:"error,omitempty"` // refused, lost
}

// The states of a hold. The last three are the last word.
const (
	HoldWaiting  = "waiting"
	HoldHeld     = "held"
	HoldRefused  = "refused"
	HoldLost     = "lost"
	HoldReleased = "released"
)
