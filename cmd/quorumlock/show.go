package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/quorumlock/quorumlock/dashboard/api"
)

// look registers the flags of what only looks.
func (t *tool) look() {
	t.pages.register(t.flags)
	t.flags.BoolVar(&t.json, "json", false, "print the page's JSON")
}

func (t *tool) encode(v any) error {
	e := json.NewEncoder(t.out)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// table prints rows in columns. The cells are separated by tabs.
func (t *tool) table(head string, rows ...string) error {
	w := tabwriter.NewWriter(t.out, 0, 8, 2, ' ', 0)
	for _, row := range append([]string{head}, rows...) {
		if _, err := io.WriteString(w, row+"\n"); err != nil {
			return err
		}
	}
	return w.Flush()
}

// row makes a row of a table. What comes from the cluster may hold anything.
func row(cells ...any) string {
	var all []string
	for _, c := range cells {
		all = append(all, cmp.Or(api.Printable(fmt.Sprint(c)), "-"))
	}
	return strings.Join(all, "\t")
}

// ago says how long ago something was, by the clock of whoever said it.
func ago(at time.Time) string {
	if at.IsZero() {
		return "unknown"
	}
	return max(time.Since(at), 0).Round(time.Second).String()
}

// A seen is how one replica sees the cluster, or why it says nothing.
type seen struct {
	URL string `json:"url"`
	*api.Cluster
	Error string `json:"error,omitempty"`
}

func (t *tool) status() func(context.Context, []string) error {
	t.look()
	return func(ctx context.Context, args []string) error {
		if err := firstError(none(args), t.pages.open); err != nil {
			return err
		}
		var all []seen
		var rows []string
		well := true
		for _, u := range t.pages.list {
			s := seen{URL: u.Redacted(), Cluster: new(api.Cluster)}
			if err := t.pages.read(ctx, u, "cluster.json", nil, s.Cluster); err != nil {
				s.Cluster, s.Error = nil, err.Error()
				rows = append(rows, row(s.URL, "", "no answer: "+s.Error))
				well = false
			} else {
				c := s.Cluster
				rows = append(rows, row(s.URL, c.Replica, strings.TrimSpace(c.Health+" "+c.Detail), of(c, c.Leader), of(c, c.Term), of(c, c.Applied), c.Locks, c.Token))
				well = well && c.Health == "ok"
			}
			all = append(all, s)
		}
		err := error(nil)
		if t.json {
			err = t.encode(all)
		} else {
			err = t.table("URL\tREPLICA\tHEALTH\tLEADER\tTERM\tAPPLIED\tLOCKS\tTOKEN", rows...)
			err = firstError(err, func() error { return t.details(all) })
		}
		if err == nil && !well {
			err = &exit{exitFailed, nil}
		}
		return err
	}
}

// of shows what each of several groups has for itself.
func of(c *api.Cluster, n uint64) string {
	if len(c.Groups) > 0 {
		return "below"
	}
	return fmt.Sprint(n)
}

// details shows the groups as each replica sees them, if there are several, and what each
// warns of.
func (t *tool) details(all []seen) error {
	var rows []string
	for _, s := range all {
		if s.Cluster == nil {
			continue
		}
		for i, g := range s.Groups {
			rows = append(rows, row(s.URL, i, majority(g), g.Leader, g.Term, g.Applied, g.Locks))
		}
		if err := t.warn(fmt.Sprintf("replica %d: ", s.Replica), s.Warnings); err != nil {
			return err
		}
	}
	if len(rows) == 0 {
		return nil
	}
	return t.table("\nURL\tGROUP\tMAJORITY\tLEADER\tTERM\tAPPLIED\tLOCKS", rows...)
}

// majority is what a page of the cluster says too.
func majority(g api.Group) string {
	if g.Majority {
		return "answers"
	}
	return "does not answer"
}

// firstError returns err, or what next returns.
func firstError(err error, next func() error) error {
	if err != nil {
		return err
	}
	return next()
}

const perPage = "500" // what a page shows at most

func (t *tool) locks() func(context.Context, []string) error {
	t.look()
	most := t.flags.Int("limit", 1000, "show at most so `many`; 0 for all")
	return func(ctx context.Context, args []string) error {
		prefix, err := one(args)
		if *most < 0 {
			err = fmt.Errorf("%w: -limit is %d: must be positive, or 0 for all", errUsage, *most)
		}
		if err := firstError(err, t.pages.open); err != nil {
			return err
		}
		all := []api.Lock{}
		q := url.Values{"prefix": {prefix}, "limit": {perPage}}
		cut := false
		for more := true; more; {
			var page api.Locks
			if err := t.pages.get(ctx, "locks.json", q, &page); err != nil {
				return err
			}
			all = append(all, page.Locks...)
			q.Set("after", page.Next)
			more = page.Next != ""
			if *most > 0 && len(all) >= *most {
				cut = more || len(all) > *most
				all, more = all[:*most], false
			}
		}
		if t.json {
			return t.encode(all)
		}
		var rows []string
		for _, l := range all {
			h := firstHolder(l)
			rows = append(rows, row(l.Name, state(l), l.Mode, h.Owner, h.Token, held(h), l.WaiterCount))
		}
		if err := t.table("NAME\tSTATE\tMODE\tHELD BY\tTOKEN\tFOR\tWAITING", rows...); err != nil || !cut {
			return err
		}
		_, err = fmt.Fprintf(t.err, "There are more than %d: say -limit, or a longer prefix.\n", *most)
		return err
	}
}

// state is what a page of locks says too.
func state(l api.Lock) string {
	switch {
	case !l.DelayedUntil.IsZero():
		return "delayed"
	case len(l.Holders) == 0:
		return "free"
	case l.WaiterCount > 0:
		return "contended"
	}
	return "held"
}

func firstHolder(l api.Lock) (h api.Holder) {
	if len(l.Holders) > 0 {
		h = l.Holders[0]
	}
	if n := len(l.Holders) - 1; n > 0 {
		h.Owner += fmt.Sprintf(" and %d more", n)
	}
	return h
}

func held(h api.Holder) string {
	if h.Token == "" {
		return ""
	}
	return ago(h.AcquiredAt)
}

func (t *tool) lock() func(context.Context, []string) error {
	t.look()
	return func(ctx context.Context, args []string) error {
		name, err := need(args, "which lock?")
		if err := firstError(err, t.pages.open); err != nil {
			return err
		}
		var l api.Lock
		if err := t.pages.get(ctx, "lock.json", url.Values{"name": {name}}, &l); err != nil {
			return err
		}
		if t.json {
			return t.encode(l)
		}
		var rows []string
		for _, h := range l.Holders {
			rows = append(rows, row("holds", h.Owner, h.Session, h.Replica, h.Mode, h.Token, ago(h.AcquiredAt)))
		}
		for _, w := range l.Waiters {
			rows = append(rows, row(fmt.Sprintf("waits %d", w.Ahead+1), w.Owner, w.Session, w.Replica, w.Mode, "", ago(w.Since)))
		}
		fmt.Fprintf(t.out, "%s is %s, %d waiting\n", api.Printable(l.Name), state(l), l.WaiterCount)
		if len(rows) == 0 {
			return nil
		}
		return t.table("\tOWNER\tSESSION\tREPLICA\tMODE\tTOKEN\tFOR", rows...)
	}
}

func (t *tool) sessions() func(context.Context, []string) error {
	t.look()
	return func(ctx context.Context, args []string) error {
		owner, err := one(args)
		if err := firstError(err, t.pages.open); err != nil {
			return err
		}
		all := []api.Session{}
		q := url.Values{"owner": {owner}, "limit": {perPage}}
		for more := true; more; {
			var page api.Sessions
			if err := t.pages.get(ctx, "sessions.json", q, &page); err != nil {
				return err
			}
			all = append(all, page.Sessions...)
			q.Set("after", page.Next)
			more = page.Next != ""
		}
		if t.json {
			return t.encode(all)
		}
		var rows []string
		for _, s := range all {
			rows = append(rows, row(s.Owner, s.ID, s.Replica, ago(s.OpenedAt), s.TTL, s.Holds, s.Waits))
		}
		return t.table("OWNER\tSESSION\tREPLICA\tOPEN FOR\tTTL\tHOLDS\tWAITS", rows...)
	}
}
