package dashboard

import (
	"time"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/fencing"
)

// What the pages show, and what their JSON holds. Tokens are strings there: they are 64
// bits wide, and many readers of JSON keep 53 of a number.

type clusterView struct {
	Health   string       `json:"health"` // ok, starting, no majority, failed
	Detail   string       `json:"detail,omitempty"`
	Replica  uint64       `json:"replica"`
	Epoch    uint64       `json:"epoch"`
	Ready    bool         `json:"ready"`
	Leader   uint64       `json:"leader"`
	Term     uint64       `json:"term"`
	Applied  uint64       `json:"applied"`
	Locks    int          `json:"locks"`
	Sessions int          `json:"sessions"` // of this process
	Holds    int          `json:"holds"`    // and its holds and waits
	Token    string       `json:"token"`
	Members  []memberView `json:"members"`
}

type memberView struct {
	Replica  uint64 `json:"replica"`
	Address  string `json:"address"`
	Leader   bool   `json:"leader"`
	Self     bool   `json:"self"`
	Trouble  string `json:"trouble,omitempty"`  // why a connection to it failed within the last minute
	Sessions *int   `json:"sessions,omitempty"` // absent while no majority answers
	Holds    *int   `json:"holds,omitempty"`
	Waits    *int   `json:"waits,omitempty"`
}

type locksView struct {
	Prefix string     `json:"prefix"`
	Limit  int        `json:"limit"`
	After  string     `json:"after,omitempty"`
	Next   string     `json:"next,omitempty"` // the after of the next page, if there is one
	Locks  []lockView `json:"locks"`
}

type lockView struct {
	Name         string       `json:"name"`
	Mode         string       `json:"mode,omitempty"`
	Limit        int          `json:"limit,omitempty"`
	Taken        int          `json:"taken,omitempty"`
	DelayedUntil time.Time    `json:"delayedUntil,omitzero"`
	Holders      []holderView `json:"holders"`
	Waiters      []waiterView `json:"waiters"`
	WaiterCount  int          `json:"waiterCount"`
	From         int          `json:"from,omitempty"` // how many waiters stand before those shown
	NextFrom     int          `json:"nextFrom,omitempty"`
	Done         string       `json:"-"` // what was just done here
}

type holderView struct {
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

type waiterView struct {
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

type sessionsView struct {
	Owner    string        `json:"owner,omitempty"` // those shown have it in their owner
	Limit    int           `json:"limit"`
	Total    int           `json:"total"`
	Next     string        `json:"next,omitempty"`
	Sessions []sessionView `json:"sessions"`
}

type sessionView struct {
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

type oneSessionView struct {
	sessionView
	Held   []lockView `json:"held"`
	Waited []lockView `json:"waited"`
	Cut    bool       `json:"cut,omitempty"` // there are more than are shown
	Done   string     `json:"-"`
}

type electionsView struct {
	Prefix    string     `json:"prefix"`
	Limit     int        `json:"limit"`
	Next      string     `json:"next,omitempty"`
	Elections []lockView `json:"elections"`
}

type liveView struct {
	Prefix string `json:"prefix"`
}

func token(t fencing.Token) string { return quote(uint64(t)) }

// viewLock shows a lock and, of its line, at most limit waiters from a place on.
func viewLock(info quorumlock.LockInfo, from, limit int) lockView {
	v := lockView{
		Name: info.Name, Limit: info.Limit, Taken: info.Taken, DelayedUntil: info.DelayedUntil,
		Holders: make([]holderView, 0, len(info.Holders)), Waiters: []waiterView{},
		WaiterCount: len(info.Waiters), From: min(from, len(info.Waiters)),
	}
	if info.Mode != 0 {
		v.Mode = info.Mode.String()
	}
	blockers := make([]string, 0, len(info.Holders))
	for _, h := range info.Holders {
		blockers = append(blockers, h.Session.String())
		v.Holders = append(v.Holders, holderView{
			Session: h.Session.String(), Owner: h.Owner, Replica: h.Replica, Hold: h.Hold, Mode: h.Mode.String(),
			Token: token(h.Token), Value: h.Value, Slots: h.Slots, Names: h.Names, AcquiredAt: h.AcquiredAt,
			LeaseUntil: h.LeaseUntil, HeldUntil: h.HeldUntil, KeptUntil: h.KeptUntil, Released: h.Released,
		})
	}
	end := min(v.From+limit, len(info.Waiters))
	for i, w := range info.Waiters[v.From:end] {
		v.Waiters = append(v.Waiters, waiterView{
			Session: w.Session.String(), Owner: w.Owner, Replica: w.Replica, Hold: w.Hold, Mode: w.Mode.String(),
			Permits: w.Permits, Value: w.Value, Names: w.Names, Since: w.Since, Ahead: v.From + i, BlockedBy: blockers,
		})
	}
	if end < len(info.Waiters) {
		v.NextFrom = end
	}
	return v
}

func viewSession(i quorumlock.SessionInfo) sessionView {
	return sessionView{
		ID: i.ID.String(), Owner: i.Owner, Replica: i.Replica, TTL: i.TTL, OpenedAt: i.OpenedAt, RenewedAt: i.RenewedAt,
		LeaseUntil: i.LeaseUntil, Holds: i.Holds, Waits: i.Waits,
	}
}
