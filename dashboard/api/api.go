// Package api is what the pages of package dashboard are as JSON, for programs that read
// them, and what a client and a page say to each other while it holds a lock there.
// Tokens are strings: they are 64 bits wide, and many readers of JSON keep 53 of a number.
package api

import "time"

// BackupType is the Content-Type of what a POST to "backup" is answered with.
const BackupType = "application/vnd.quorumlock.backup"

// A Cluster is cluster.json: the cluster as one replica sees it.
type Cluster struct {
	Health   string   `json:"health"` // ok, starting, no majority, failed
	Detail   string   `json:"detail,omitempty"`
	Replica  uint64   `json:"replica"`
	Epoch    uint64   `json:"epoch"`
	Ready    bool     `json:"ready"`
	Leader   uint64   `json:"leader"`
	Term     uint64   `json:"term"`
	Applied  uint64   `json:"applied"`
	Locks    int      `json:"locks"`
	Sessions int      `json:"sessions"` // of this process
	Holds    int      `json:"holds"`    // and its holds and waits
	Token    string   `json:"token"`
	Level    int      `json:"level"`              // the feature level in force
	MaxLevel int      `json:"maxLevel"`           // the highest that this replica speaks
	Warnings []string `json:"warnings,omitempty"` // what does not hurt yet
	Groups   []Group  `json:"groups,omitempty"`   // if there are several; leader, term and applied above are of the first
	Members  []Member `json:"members"`            // while no majority answers, the voting ones that this replica knows
}

// A Group is one Raft group of several, as one replica sees it.
type Group struct {
	Leader   uint64 `json:"leader"`
	Term     uint64 `json:"term"`
	Applied  uint64 `json:"applied"`
	Locks    int    `json:"locks"`
	Majority bool   `json:"majority"` // one answered
}

// A Member is a replica of the cluster.
type Member struct {
	Replica  uint64 `json:"replica"`
	Address  string `json:"address"`
	Zone     string `json:"zone,omitempty"`     // absent while no majority answers, too
	Voting   bool   `json:"voting"`             // it counts for a majority
	NoVote   bool   `json:"noVote,omitempty"`   // it takes no vote that comes free
	Leader   bool   `json:"leader"`             // of several groups, of the first
	Leads    []int  `json:"leads,omitempty"`    // of several groups, those that it leads, from 0
	MaxLevel int    `json:"maxLevel,omitempty"` // the highest feature level that it speaks; absent if unknown
	Self     bool   `json:"self"`
	Trouble  string `json:"trouble,omitempty"`  // why a connection to it failed within the last minute
	Sessions *int   `json:"sessions,omitempty"` // absent while no majority answers
	Holds    *int   `json:"holds,omitempty"`
	Waits    *int   `json:"waits,omitempty"`
}

// Done is what an action is answered with.
type Done struct {
	Done    string `json:"done,omitempty"`    // the action, if it was done
	Waiting string `json:"waiting,omitempty"` // with status 202: what it waits for. To ask again goes on with it
}

// Locks are locks.json: a page of the locks in use, by name.
type Locks struct {
	Prefix string `json:"prefix"`
	Limit  int    `json:"limit"`
	After  string `json:"after,omitempty"`
	Next   string `json:"next,omitempty"` // the after of the next page, if there is one
	InUse  int    `json:"inUse"`          // how many there are in all, whatever they begin with
	Locks  []Lock `json:"locks"`
}

// A Lock is lock.json, and one of a list: who holds it, and its line.
type Lock struct {
	Name         string    `json:"name"`
	Mode         string    `json:"mode,omitempty"`
	Limit        int       `json:"limit,omitempty"`
	Taken        int       `json:"taken,omitempty"`
	DelayedUntil time.Time `json:"delayedUntil,omitzero"`
	Holders      []Holder  `json:"holders"`
	Waiters      []Waiter  `json:"waiters"`
	WaiterCount  int       `json:"waiterCount"`
	From         int       `json:"from,omitempty"` // how many waiters stand before those shown
	NextFrom     int       `json:"nextFrom,omitempty"`
}

// A Holder has a lock.
type Holder struct {
	Session      string    `json:"session"`
	Owner        string    `json:"owner"`
	Replica      uint64    `json:"replica"`
	Hold         uint64    `json:"hold"`
	Mode         string    `json:"mode"`
	Token        string    `json:"token"`
	Value        string    `json:"value,omitempty"`
	Slots        []int     `json:"slots,omitempty"`
	Names        []string  `json:"names,omitempty"`
	AcquiredAt   time.Time `json:"acquiredAt,omitzero"`
	LeaseUntil   time.Time `json:"leaseUntil,omitzero"`
	HeldUntil    time.Time `json:"heldUntil,omitzero"`
	KeptUntil    time.Time `json:"keptUntil,omitzero"`
	Released     bool      `json:"released,omitempty"`
	SessionWaits int       `json:"sessionWaits"` // places that its session has in other lines
}

// A Waiter stands in the line of a lock.
type Waiter struct {
	Session   string    `json:"session"`
	Owner     string    `json:"owner"`
	Replica   uint64    `json:"replica"`
	Hold      uint64    `json:"hold"`
	Mode      string    `json:"mode"`
	Permits   int       `json:"permits,omitempty"`
	Value     string    `json:"value,omitempty"`
	Names     []string  `json:"names,omitempty"`
	Since     time.Time `json:"since,omitzero"`
	Ahead     int       `json:"ahead"`     // how many stand before it in line
	BlockedBy []string  `json:"blockedBy"` // the sessions that hold what it waits for
}

// Sessions are sessions.json: a page of the sessions that live.
type Sessions struct {
	Owner    string    `json:"owner,omitempty"` // those shown have it in their owner
	Limit    int       `json:"limit"`
	Total    int       `json:"total"`
	Next     string    `json:"next,omitempty"`
	Sessions []Session `json:"sessions"`
}

// A Session is one that lives.
type Session struct {
	ID         string        `json:"id"`
	Owner      string        `json:"owner"`
	Replica    uint64        `json:"replica"`
	TTL        time.Duration `json:"ttlNanoseconds"`
	OpenedAt   time.Time     `json:"openedAt,omitzero"`
	RenewedAt  time.Time     `json:"renewedAt,omitzero"`
	LeaseUntil time.Time     `json:"leaseUntil,omitzero"`
	Holds      int           `json:"holds"`
	Waits      int           `json:"waits"`
}

// OneSession is session.json: a session with what it holds and waits for.
type OneSession struct {
	Session
	Held   []Lock `json:"held"`
	Waited []Lock `json:"waited"`
	Cut    bool   `json:"cut,omitempty"` // there are more than are shown
}

// Elections are elections.json: the locks whose holder publishes a value.
type Elections struct {
	Prefix    string `json:"prefix"`
	Limit     int    `json:"limit"`
	Next      string `json:"next,omitempty"`
	Elections []Lock `json:"elections"`
}

// Busiest is busiest.json: the names that are asked for most through one replica.
type Busiest struct {
	Replica uint64     `json:"replica"`
	Since   time.Time  `json:"since"` // when it began to count
	Names   []BusyName `json:"names"`
}

// A BusyName was asked for at most Calls times, and at least Calls less Over. What was
// long ago counts for less.
type BusyName struct {
	Name  string `json:"name"`
	Calls uint64 `json:"calls"`
	Over  uint64 `json:"over"`
}

// A Change is one of the events of the stream "events".
type Change struct {
	Kind    string    `json:"kind"`
	At      time.Time `json:"at"` // when this replica saw it
	Name    string    `json:"name,omitempty"`
	Session string    `json:"session,omitempty"`
	Owner   string    `json:"owner,omitempty"`
	Token   string    `json:"token,omitempty"`
	Mode    string    `json:"mode,omitempty"`
	Slots   []int     `json:"slots,omitempty"`
	Limit   int       `json:"limit,omitempty"`
	Value   string    `json:"value,omitempty"`
	Cause   string    `json:"cause,omitempty"`
	Count   int       `json:"count,omitempty"` // skipped: how many were left out
}
