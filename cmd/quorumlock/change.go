package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/dashboard/api"
)

// A change is one of the members: the page's action for it, what that wants, and what to
// say when it is done.
type change struct {
	name, action string
	wants        []string
	done         string
}

var changes = []change{
	{"add", "add-replica", []string{"replica", "address"}, "it is a member, and may be started with Options.Join"},
	{"remove", "remove-replica", []string{"replica"}, "it is no member any more"},
	{"replace", "replace-replica", []string{"dead", "replica", "address"}, "the new one has the dead one's place"},
	{"lead", "transfer", []string{"replica"}, "it leads"},
}

func (t *tool) members() func(context.Context, []string) error {
	t.look()
	by := t.flags.String("by", self(), "`who` wants a change: the application may ask")
	reason := t.flags.String("reason", "by quorumlock members", "and why")
	wait := t.flags.Duration("wait", 10*time.Minute, "wait for a change to be complete for so long")
	return func(ctx context.Context, args []string) error {
		if len(args) == 0 {
			return firstError(t.pages.open(), func() error { return t.showMembers(ctx) })
		}
		at := slices.IndexFunc(changes, func(c change) bool { return c.name == args[0] })
		if at < 0 {
			return none(args)
		}
		c := changes[at]
		if args = args[1:]; len(args) != len(c.wants) {
			return fmt.Errorf("%w: %s wants %s", errUsage, c.name, strings.ToUpper(strings.Join(c.wants, " ")))
		}
		fields := map[string]string{"by": *by, "reason": *reason}
		for i, key := range c.wants {
			fields[key] = args[i]
		}
		if err := t.pages.open(); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, *wait)
		defer cancel()
		return t.pursue(ctx, c, fields)
	}
}

// pursue asks for a change until it is complete: each answer comes within some seconds,
// and to ask again goes on with what was begun.
func (t *tool) pursue(ctx context.Context, c change, fields map[string]string) error {
	body, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	for told := ""; ; {
		var is api.Done
		if err := t.pages.first(ctx, func(u *url.URL) error { return t.pages.act(ctx, u, c.action, body, &is) }); err != nil {
			if told != "" {
				err = fmt.Errorf("%w (%s)", err, told)
			}
			return err
		}
		switch {
		case is.Waiting == "" && t.json:
			return t.encode(is)
		case is.Waiting == "":
			_, err := fmt.Fprintf(t.out, "done: %s: %s\n", is.Done, c.done)
			return err
		case waitingFor(is.Waiting) != told:
			told = waitingFor(is.Waiting)
			fmt.Fprintln(t.err, api.Printable(told))
		}
	}
}

// waitingFor leaves out of an answer what all of them say: that the change is not complete,
// and how the page's own patience ended, which differs from one to the next.
func waitingFor(answer string) string {
	_, what, found := strings.Cut(answer, quorumlock.ErrUnfinished.Error()+": ")
	if !found {
		return answer
	}
	what, _, _ = strings.Cut(what, ": "+context.DeadlineExceeded.Error())
	what, _, _ = strings.Cut(what, ": "+quorumlock.ErrNoQuorum.Error())
	return what
}

// act has one page do something, and reads what it says.
func (p *pages) act(ctx context.Context, base *url.URL, action string, body []byte, into any) error {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	answer, err := p.send(ctx, http.MethodPost, base, action, nil, "application/json", bytes.NewReader(body))
	if err != nil {
		return err
	}
	return decode(base, answer, into)
}

func (t *tool) showMembers(ctx context.Context) error {
	var c api.Cluster
	if err := t.pages.get(ctx, "cluster.json", nil, &c); err != nil {
		return err
	}
	if t.json {
		return t.encode(c.Members)
	}
	var rows []string
	for _, m := range c.Members {
		rows = append(rows, row(m.Replica, m.Address, m.Zone, role(c, m), level(m), count(m.Sessions), count(m.Holds), count(m.Waits), m.Trouble))
	}
	if err := t.table("REPLICA\tADDRESS\tZONE\tROLE\tLEVEL\tSESSIONS\tHOLDS\tWAITS\tTROUBLE", rows...); err != nil {
		return err
	}
	return t.warn("", c.Warnings)
}

// role is what a page of the cluster says too.
func role(c api.Cluster, m api.Member) string {
	switch {
	case len(m.Leads) > 0:
		return "leader of " + strings.Trim(fmt.Sprint(m.Leads), "[]")
	case m.Leader && len(c.Groups) == 0:
		return "leader"
	case m.Voting:
		return "follower"
	case m.NoVote:
		return "no vote, takes none"
	}
	return "no vote"
}

// warn shows what does not hurt yet.
func (t *tool) warn(who string, warnings []string) error {
	for _, w := range warnings {
		if _, err := fmt.Fprintln(t.out, "warning:", who+api.Printable(w)); err != nil {
			return err
		}
	}
	return nil
}

// level is the highest that a member speaks: in an upgrade it tells who is still old.
func level(m api.Member) string {
	if m.MaxLevel == 0 {
		return "unknown"
	}
	return fmt.Sprint(m.MaxLevel)
}

func count(n *int) string {
	if n == nil {
		return "unknown"
	}
	return fmt.Sprint(*n)
}
