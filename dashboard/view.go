package dashboard

import (
	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/dashboard/api"
	"github.com/quorumlock/quorumlock/fencing"
)

// What the pages show is in package api. Here is what only the HTML has, and how the
// rest is made.

type clusterPage struct {
	api.Cluster
	Done   string `json:"-"` // what was just done here
	Newest int    `json:"-"` // the highest feature level that any member speaks
}

type lockPage struct {
	api.Lock
	Done string `json:"-"`
}

type sessionPage struct {
	api.OneSession
	Done string `json:"-"`
}

type livePage struct {
	Prefix string `json:"prefix"`
}

func token(t fencing.Token) string { return quote(uint64(t)) }

func viewMember(s quorumlock.Status, member quorumlock.Member) api.Member {
	m := api.Member{
		Replica: member.ID, Address: member.Address, Zone: member.Zone, Voting: member.Voting, NoVote: member.NoVote,
		Leader: member.ID == s.Leader, Self: member.ID == s.ReplicaID,
		MaxLevel: member.MaxLevel,
	}
	for i, g := range s.Groups {
		if g.Leader == member.ID {
			m.Leads = append(m.Leads, i)
		}
	}
	if trouble := s.Unreachable[member.ID]; trouble != nil {
		m.Trouble = trouble.Error()
	}
	return m
}

// viewLock shows a lock and, of its line, at most limit waiters from a place on.
func viewLock(info quorumlock.LockInfo, from, limit int) api.Lock {
	v := api.Lock{
		Name: info.Name, Limit: info.Limit, Taken: info.Taken, DelayedUntil: info.DelayedUntil,
		Holders: make([]api.Holder, 0, len(info.Holders)), Waiters: []api.Waiter{},
		WaiterCount: len(info.Waiters), From: min(from, len(info.Waiters)),
	}
	if info.Mode != 0 {
		v.Mode = info.Mode.String()
	}
	blockers := make([]string, 0, len(info.Holders))
	for _, h := range info.Holders {
		blockers = append(blockers, h.Session.String())
		v.Holders = append(v.Holders, api.Holder{
			Session: h.Session.String(), Owner: h.Owner, Replica: h.Replica, Hold: h.Hold, Mode: h.Mode.String(),
			Token: token(h.Token), Value: h.Value, Slots: h.Slots, Names: h.Names, AcquiredAt: h.AcquiredAt,
			LeaseUntil: h.LeaseUntil, HeldUntil: h.HeldUntil, KeptUntil: h.KeptUntil, Released: h.Released,
		})
	}
	end := min(v.From+limit, len(info.Waiters))
	for i, w := range info.Waiters[v.From:end] {
		v.Waiters = append(v.Waiters, api.Waiter{
			Session: w.Session.String(), Owner: w.Owner, Replica: w.Replica, Hold: w.Hold, Mode: w.Mode.String(),
			Permits: w.Permits, Value: w.Value, Names: w.Names, Since: w.Since, Ahead: v.From + i, BlockedBy: blockers,
		})
	}
	if end < len(info.Waiters) {
		v.NextFrom = end
	}
	return v
}

func viewSession(i quorumlock.SessionInfo) api.Session {
	return api.Session{
		ID: i.ID.String(), Owner: i.Owner, Replica: i.Replica, TTL: i.TTL, OpenedAt: i.OpenedAt, RenewedAt: i.RenewedAt,
		LeaseUntil: i.LeaseUntil, Holds: i.Holds, Waits: i.Waits,
	}
}
