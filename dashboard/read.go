package dashboard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/dashboard/api"
	"github.com/quorumlock/quorumlock/sessions"
)

const (
	defaultLimit = 50
	maxLimit     = 500
	lineLimit    = 100 // waiters that the page of one lock shows
	perSession   = 200 // locks that the page of one session shows
)

func quote(n uint64) string { return strconv.FormatUint(n, 10) }

// query reads the parameters, and refuses those that cannot be read or are given twice.
func query(r *http.Request) (url.Values, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, badRequest("The address cannot be read: %v.", err)
	}
	for key, values := range q {
		if len(values) > 1 {
			return nil, badRequest("%q is given %d times.", key, len(values))
		}
	}
	return q, nil
}

// number reads a whole number between two bounds.
func number(q url.Values, key string, otherwise, least, most int) (int, error) {
	if !q.Has(key) {
		return otherwise, nil
	}
	n, err := strconv.Atoi(q.Get(key))
	if err != nil || n < least || n > most {
		return 0, badRequest("%s must be a whole number from %d to %d, not %q.", key, least, most, q.Get(key))
	}
	return n, nil
}

func text(q url.Values, key string) (string, error) {
	s := q.Get(key)
	if len(s) > quorumlock.MaxNameLen {
		return "", badRequest("%s has %d bytes, and no name more than %d.", key, len(s), quorumlock.MaxNameLen)
	}
	return s, nil
}

// paging reads what all pages of lists understand.
func paging(r *http.Request, search string) (match, after string, limit int, err error) {
	q, err := query(r)
	if err != nil {
		return "", "", 0, err
	}
	if match, err = text(q, search); err != nil {
		return "", "", 0, err
	}
	if after, err = text(q, "after"); err != nil {
		return "", "", 0, err
	}
	limit, err = number(q, "limit", defaultLimit, 1, maxLimit)
	return match, after, limit, err
}

func (h *handler) cluster(ctx context.Context, r *http.Request) (any, error) {
	q, err := query(r)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	answers := h.node.Quorum(ctx)
	err = noMajority(answers)
	var roll []quorumlock.SessionInfo
	if err == nil {
		roll, err = h.node.Sessions(ctx)
	}
	var members []quorumlock.Member
	if err == nil {
		members, err = h.node.Members(ctx)
	}
	s := h.node.Status()
	v := api.Cluster{
		Health: "ok", Replica: s.ReplicaID, Epoch: s.Epoch, Ready: s.Ready, Leader: s.Leader, Term: s.Term, Applied: s.Applied,
		Locks: s.Locks, Sessions: s.Sessions, Holds: s.Holds, Token: token(s.Token),
		Level: s.Level, MaxLevel: s.MaxLevel, Warnings: s.Warnings, Members: []api.Member{},
	}
	for i, g := range s.Groups {
		v.Groups = append(v.Groups, api.Group{Leader: g.Leader, Term: g.Term, Applied: g.Applied, Locks: g.Locks, Majority: answers[i] == nil})
	}
	switch {
	case s.Err != nil:
		v.Health, v.Detail = "failed", s.Err.Error()
	case errors.Is(err, quorumlock.ErrNoQuorum) && len(s.Groups) == 0:
		v.Health = "no majority" // there is no more to say
	case err != nil:
		v.Health, v.Detail = "no majority", err.Error()
	case !s.Ready:
		v.Health = "starting"
	}
	if err != nil { // what it knows by itself
		for _, id := range slices.Sorted(maps.Keys(s.Members)) {
			v.Members = append(v.Members, viewMember(s, quorumlock.Member{ID: id, Address: s.Members[id], Voting: true}))
		}
	}
	for _, member := range members {
		m := viewMember(s, member)
		var counts [3]int
		for _, i := range roll {
			if i.Replica == member.ID {
				counts[0], counts[1], counts[2] = counts[0]+1, counts[1]+i.Holds, counts[2]+i.Waits
			}
		}
		m.Sessions, m.Holds, m.Waits = &counts[0], &counts[1], &counts[2]
		v.Members = append(v.Members, m)
	}
	p := clusterPage{Cluster: v, Done: doneTexts[q.Get("done")]}
	for _, m := range v.Members {
		p.Newest = max(p.Newest, m.MaxLevel)
	}
	return p, nil
}

// noMajority says why a majority of the cluster, or of which groups of several, did not
// answer, if it did not.
func noMajority(answers []error) error {
	var failed []int
	for i, err := range answers {
		if err != nil {
			failed = append(failed, i)
		}
	}
	switch {
	case failed == nil:
		return nil
	case len(answers) == 1:
		return answers[0]
	}
	if err := answers[failed[0]]; !errors.Is(err, quorumlock.ErrNoQuorum) {
		return fmt.Errorf("groups %v of %d: %w", failed, len(answers), err)
	}
	return fmt.Errorf("groups %v of %d", failed, len(answers))
}

// busiest are the names that are asked for most through this replica. The first who looks
// makes it count.
func (h *handler) busiest(context.Context, *http.Request) (any, error) {
	s := h.node.Stats()
	v := api.Busiest{Replica: h.node.Status().ReplicaID, Since: s.Since, Names: []api.BusyName{}}
	for _, n := range s.Busiest[:min(len(s.Busiest), defaultLimit)] {
		v.Names = append(v.Names, api.BusyName{Name: n.Name, Calls: n.Calls, Over: n.Over})
	}
	return v, nil
}

// walk takes one of the few places for what looks at all locks.
func (h *handler) walk(ctx context.Context) (done func(), err error) {
	select {
	case h.walks <- struct{}{}:
		return func() { <-h.walks }, nil
	case <-ctx.Done():
		return nil, &failure{http.StatusServiceUnavailable, "Too many pages are being read at once. Try again in a while."}
	}
}

func (h *handler) locks(ctx context.Context, r *http.Request) (any, error) {
	prefix, after, limit, err := paging(r, "prefix")
	if err != nil {
		return nil, err
	}
	done, err := h.walk(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	// One more than is shown tells whether there is a next page.
	infos, err := h.node.List(ctx, prefix, quorumlock.After(after), quorumlock.Limit(limit+1))
	if err != nil {
		return nil, err
	}
	v := api.Locks{Prefix: prefix, Limit: limit, After: after, InUse: h.node.Status().Locks, Locks: []api.Lock{}}
	if len(infos) > limit {
		infos = infos[:limit]
		v.Next = infos[limit-1].Name
	}
	for _, i := range infos {
		v.Locks = append(v.Locks, viewLock(i, 0, lineLimit))
	}
	return v, nil
}

func (h *handler) lock(ctx context.Context, r *http.Request) (any, error) {
	q, err := query(r)
	if err != nil {
		return nil, err
	}
	from, err := number(q, "from", 0, 0, 1<<30)
	if err != nil {
		return nil, err
	}
	info, err := h.node.Describe(ctx, q.Get("name"))
	if err != nil {
		return nil, err
	}
	v := lockPage{Lock: viewLock(info, from, lineLimit), Done: doneTexts[q.Get("done")]}
	if len(v.Holders) == 0 {
		return v, nil
	}
	roll, err := h.node.Sessions(ctx)
	if err != nil {
		return nil, err
	}
	waits := make(map[string]int)
	for _, i := range roll {
		waits[i.ID.String()] = i.Waits
	}
	for i := range v.Holders {
		v.Holders[i].SessionWaits = waits[v.Holders[i].Session]
	}
	return v, nil
}

func (h *handler) sessions(ctx context.Context, r *http.Request) (any, error) {
	owner, after, limit, err := paging(r, "owner")
	if err != nil {
		return nil, err
	}
	var last sessions.ID
	if after != "" {
		if last, err = sessionID(after); err != nil {
			return nil, err
		}
	}
	roll, err := h.node.Sessions(ctx)
	if err != nil {
		return nil, err
	}
	v := api.Sessions{Owner: owner, Limit: limit, Sessions: []api.Session{}}
	for _, i := range roll {
		if !strings.Contains(i.Owner, owner) {
			continue
		}
		v.Total++
		switch {
		case i.ID.Compare(last) <= 0:
		case len(v.Sessions) < limit:
			v.Sessions = append(v.Sessions, viewSession(i))
		case v.Next == "":
			v.Next = v.Sessions[limit-1].ID
		}
	}
	return v, nil
}

func (h *handler) session(ctx context.Context, r *http.Request) (any, error) {
	q, err := query(r)
	if err != nil {
		return nil, err
	}
	id, err := sessionID(q.Get("id"))
	if err != nil {
		return nil, err
	}
	roll, err := h.node.Sessions(ctx)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(roll, func(i quorumlock.SessionInfo) bool { return i.ID == id })
	if at < 0 {
		return nil, &failure{http.StatusNotFound, "There is no session " + id.String() + ": it has ended, or never was."}
	}
	v := sessionPage{OneSession: api.OneSession{Session: viewSession(roll[at]), Held: []api.Lock{}, Waited: []api.Lock{}}, Done: doneTexts[q.Get("done")]}
	if v.Holds+v.Waits == 0 {
		return v, nil
	}
	err = h.picture(ctx, "", func(info *quorumlock.LockInfo) {
		holds := slices.ContainsFunc(info.Holders, func(h quorumlock.Holder) bool { return h.Session == id })
		place := slices.IndexFunc(info.Waiters, func(w quorumlock.Waiter) bool { return w.Session == id })
		if len(v.Held)+len(v.Waited) >= perSession {
			v.Cut = v.Cut || holds || place >= 0
			return
		}
		if holds {
			v.Held = append(v.Held, viewLock(*info, 0, 1))
		}
		if place >= 0 {
			v.Waited = append(v.Waited, viewLock(*info, place, 1))
		}
	})
	byName(v.Held)
	byName(v.Waited)
	return v, err
}

// elections are the locks whose holder publishes a value.
func (h *handler) elections(ctx context.Context, r *http.Request) (any, error) {
	prefix, after, limit, err := paging(r, "prefix")
	if err != nil {
		return nil, err
	}
	v := api.Elections{Prefix: prefix, Limit: limit, Elections: []api.Lock{}}
	trim := func() {
		byName(v.Elections)
		if len(v.Elections) > limit {
			v.Elections = v.Elections[:limit]
			v.Next = v.Elections[limit-1].Name
		}
	}
	err = h.picture(ctx, prefix, func(info *quorumlock.LockInfo) {
		if info.Name <= after || !slices.ContainsFunc(info.Holders, func(h quorumlock.Holder) bool { return h.Value != "" }) {
			return
		}
		if v.Elections = append(v.Elections, viewLock(*info, 0, lineLimit)); len(v.Elections) > 2*maxLimit {
			trim()
		}
	})
	trim()
	return v, err
}

func byName(locks []api.Lock) {
	slices.SortFunc(locks, func(a, b api.Lock) int { return cmp.Compare(a.Name, b.Name) })
}

func (h *handler) live(_ context.Context, r *http.Request) (any, error) {
	prefix, _, _, err := paging(r, "prefix")
	return livePage{Prefix: prefix}, err
}

// picture shows every lock once, in no order: the picture that a watch begins with.
// Unlike a List of all, it takes one walk over the table and no memory for its whole.
func (h *handler) picture(ctx context.Context, prefix string, each func(*quorumlock.LockInfo)) error {
	done, err := h.walk(ctx)
	if err != nil {
		return err
	}
	defer done()
	for e, err := range h.node.Watch(ctx, prefix) {
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			return &failure{http.StatusServiceUnavailable, "There are more locks than could be looked at in time, or no majority answers."}
		case err != nil:
			return err
		case e.Kind == quorumlock.EventSynced:
			return nil
		case e.Kind == quorumlock.EventMissed:
			return &failure{http.StatusServiceUnavailable, "The locks changed faster than they could be looked at. Try again."}
		}
		for i := range e.Locks {
			each(&e.Locks[i])
		}
	}
	return nil
}

// sessionID reads what sessions.ID.String writes.
func sessionID(s string) (id sessions.ID, err error) {
	parts := strings.Split(s, ".")
	if len(parts) == 3 {
		for i, field := range []*uint64{&id.Replica, &id.Epoch, &id.Seq} {
			if *field, err = strconv.ParseUint(parts[i], 10, 64); err != nil {
				break
			}
		}
		if err == nil && id.String() == s {
			return id, nil
		}
	}
	return sessions.ID{}, badRequest("A session is named like 3.1.2, not %q.", s)
}
