package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/dashboard"
	"github.com/quorumlock/quorumlock/dashboard/api"
	"github.com/quorumlock/quorumlock/locktest"
)

// founders opens replicas with directories on the real disk.
func founders(t *testing.T, replicas uint64) (nodes []*quorumlock.Node, options []quorumlock.Options) {
	members := make(map[uint64]string)
	var bound []net.Listener
	for id := range replicas {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		bound = append(bound, l)
		members[id+1] = l.Addr().String()
	}
	for _, l := range bound {
		require.NoError(t, l.Close())
	}
	for id := range replicas {
		o := quorumlock.Options{
			ReplicaID: id + 1, Address: members[id+1], Members: members, Dir: t.TempDir(), Cluster: "tried",
			Zone: fmt.Sprint("zone-", id%2), ElectionTimeout: 500 * time.Millisecond, Groups: 2,
		}
		n, err := quorumlock.Open(o)
		require.NoError(t, err)
		t.Cleanup(func() { _ = n.Close() })
		nodes, options = append(nodes, n), append(options, o)
	}
	for _, n := range nodes {
		require.NoError(t, n.Ready(soon(t)))
	}
	return nodes, options
}

// A replica's directory is lost. It comes back under a new id at the same address, as a
// pod does, and an operator puts it in the place of the old one.
func TestMembersReplaced(t *testing.T) {
	nodes, options := founders(t, 3)
	first := serve(t, nodes[0])
	held, err := nodes[1].Acquire(soon(t), "held")
	require.NoError(t, err)
	members := func() (all []api.Member) {
		t.Helper()
		code, out, errs := tried(t, "members", "-json", "-url", first.URL)
		require.Zero(t, code, errs)
		require.NoError(t, json.Unmarshal([]byte(out), &all))
		return all
	}
	code, out, errs := tried(t, "status", "-url", first.URL)
	require.Zero(t, code, errs)
	require.Contains(t, out, `warning: replica 1: zone "zone-0" has 2 of 3 votes`)
	require.Regexp(t, `REPLICA +HEALTH +LEADER +TERM[^\n]*\n\S+ +1 +ok +below +below +below `, out)
	require.Regexp(t, `GROUP +MAJORITY +LEADER[^\n]*\n\S+ +0 +answers +[123] [^\n]*\n\S+ +1 +answers +[123] `, out)
	require.Eventually(t, func() bool { return nodes[0].TransferLeadership(soon(t), 2) == nil }, patience, time.Millisecond)
	code, out, errs = tried(t, "members", "-url", first.URL)
	require.Zero(t, code, errs)
	require.Regexp(t, `\n1 [^\n]* follower +\d+ [^\n]*\n2 [^\n]* leader of 0 1 +\d+ `, out)

	at := options[2].Address
	replace := func(args ...string) (int, string, string) {
		return tried(t, append([]string{"members", "replace", "-url", "http://127.0.0.1:1/," + first.URL, "-by", "anna", "3", "4"}, args...)...)
	}
	code, _, errs = replace(at)
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "replica is alive")
	require.Equal(t, []uint64{1, 2, 3}, ids(members()))

	require.NoError(t, nodes[2].Close())
	require.NoError(t, os.RemoveAll(options[2].Dir))
	o := options[2]
	o.ReplicaID, o.Members, o.Join, o.Zone = 4, nil, true, "zone-2"
	joins, err := quorumlock.Open(o)
	require.NoError(t, err)
	t.Cleanup(func() { _ = joins.Close() })
	require.Eventually(t, func() bool {
		code, out, errs = replace(at)
		return !strings.Contains(errs, "replica is alive")
	}, patience, 50*time.Millisecond)
	require.Zero(t, code, errs)
	require.Contains(t, out, "done: replace-replica")
	require.NoError(t, joins.Ready(soon(t)))

	all := members()
	require.Equal(t, []uint64{1, 2, 4}, ids(all))
	require.True(t, all[2].Voting)
	require.Equal(t, joins.Status().MaxLevel, all[2].MaxLevel)
	require.Equal(t, "zone-2", all[2].Zone)
	require.NoError(t, held.Err())
	_, err = joins.Acquire(soon(t), "by the new one")
	require.NoError(t, err)
	require.Empty(t, nodes[0].Status().Warnings)
	code, _, errs = replace(at)
	require.Zero(t, code, "again, it is done already: %s", errs)
}

func ids(all []api.Member) (ids []uint64) {
	for _, m := range all {
		ids = append(ids, m.Replica)
	}
	return ids
}

// A member is added and removed; what waits says so, and goes on when it is asked again.
func TestMembersAddedAndRemoved(t *testing.T) {
	t.Setenv("USER", "anna") // who asks, if it is not said
	nodes, options := founders(t, 1)
	s := serve(t, nodes[0])
	at := "127.0.0.1:1" // nobody is there
	code, out, errs := tried(t, "members", "-url", s.URL, "add", "2", at)
	require.Zero(t, code, errs)
	require.Contains(t, out, "done: add-replica")
	code, out, errs = tried(t, "members", "-url", s.URL)
	require.Zero(t, code, errs)
	require.Contains(t, out, "no vote")
	require.Contains(t, out, at)
	require.Contains(t, out, "zone-0")
	code, out, errs = tried(t, "members", "lead", "1", "-url", s.URL)
	require.Zero(t, code, errs)
	require.Equal(t, "done: transfer: it leads\n", out)
	code, out, errs = tried(t, "members", "remove", "-json", "2", "-url", s.URL)
	require.Zero(t, code, errs)
	require.Contains(t, out, `"done": "remove-replica"`)

	for args, says := range map[string]string{
		"remove 1":                    "last voting replica",
		"lead 2":                      "no such member",
		"remove 9":                    "no such member",
		"add 2 " + at:                 "used before",
		"add 3 nowhere":               "nowhere",
		"add 0 " + at:                 "positive number",
		"replace 1 1 " + at:           "is the one to be replaced",
		"replace x 3 " + at:           "dead must be",
		"add 4 " + options[0].Address: "address of replica 1",
	} {
		code, _, errs := tried(t, append([]string{"members", "-url", s.URL}, strings.Fields(args)...)...)
		require.Equal(t, exitFailed, code, args)
		require.Contains(t, errs, says, args)
	}
	for args, says := range map[string]string{
		"members add 2": "add wants REPLICA ADDRESS", "members replace 1 2": "DEAD REPLICA ADDRESS", "members remove": "remove wants",
		"members change": `what is "change" for`, "members remove -nothing 2": "not defined",
	} {
		code, _, errs := tried(t, strings.Fields(args)...)
		require.Equal(t, exitUsage, code, args)
		require.Contains(t, errs, says, args)
	}
	require.Len(t, mustMembers(t, nodes[0]), 1)
}

// Flags may stand anywhere before a "--", but for run, whose command has its own.
func TestFlagsAmongArguments(t *testing.T) {
	for args, want := range map[string][]string{
		"-by x remove 2":      {"remove", "2"},
		"remove 2 -by x":      {"remove", "2"},
		"remove -by x 2":      {"remove", "2"},
		"-by x -- remove -by": {"remove", "-by"},
		"remove -by x -- -by": {"remove", "-by"},
	} {
		t.Run(args, func(t *testing.T) {
			own := &tool{flags: flag.NewFlagSet("test", flag.ContinueOnError)}
			by := own.flags.String("by", "", "")
			others, err := own.parse(strings.Fields(args), true)
			require.NoError(t, err)
			require.Equal(t, want, others)
			require.Equal(t, "x", *by)
		})
	}
	own := &tool{flags: flag.NewFlagSet("run", flag.ContinueOnError)}
	shared := own.flags.Bool("shared", false, "")
	others, err := own.parse([]string{"-shared", "name", "--", "ls", "-shared=false"}, false)
	require.NoError(t, err)
	require.Equal(t, []string{"name", "--", "ls", "-shared=false"}, others)
	require.True(t, *shared)
}

func mustMembers(t *testing.T, n *quorumlock.Node) []quorumlock.Member {
	t.Helper()
	all, err := n.Members(soon(t))
	require.NoError(t, err)
	return all
}

// A replacement that nobody has started waits, says for what, and is complete once it is
// asked for again.
func TestMembersUnfinished(t *testing.T) {
	t.Setenv("USER", "anna")
	answers := []struct {
		status int
		body   string
	}{
		{202, `{"waiting":"quorumlock: change of members is not complete: waiting for replica 4 to be started: context deadline exceeded"}`},
		{202, `{"waiting":"quorumlock: change of members is not complete: waiting for replica 4 to be started: quorumlock: no quorum: context deadline exceeded"}`},
		{503, `{"error":"no majority"}`},
		{202, `{"waiting":"quorumlock: change of members is not complete: waiting for replica 4 to catch up"}`},
		{200, `{"done":"replace-replica"}`},
	}
	asked := 0
	page := func(w http.ResponseWriter, _ *http.Request) {
		a := answers[asked]
		asked++
		w.WriteHeader(a.status)
		_, _ = w.Write([]byte(a.body))
	}
	c := locktest.New(t, locktest.Config{Replicas: 1})
	s := serve(t, c.Node(1))
	h := http.Handler(http.HandlerFunc(page))
	s.page.Store(&h)
	code, out, errs := tried(t, "members", "replace", "-url", s.URL+","+s.URL, "3", "4", "127.0.0.1:1")
	require.Zero(t, code, errs)
	require.Equal(t, len(answers), asked)
	require.Equal(t, "done: replace-replica: the new one has the dead one's place\n", out)
	require.Equal(t, 1, strings.Count(errs, "to be started"))
	require.Equal(t, 1, strings.Count(errs, "to catch up"))
}

// Who may not change the members does not.
func TestMembersNotAllowed(t *testing.T) {
	c := locktest.New(t, locktest.Config{Replicas: 1})
	s := serve(t, c.Node(1))
	for says, o := range map[string]dashboard.Options{
		"not enabled": {Authorize: func(*http.Request, dashboard.Action) error { return nil }},
		"not on duty": {ChangeMembers: true, Authorize: func(_ *http.Request, a dashboard.Action) error {
			if a.Kind != dashboard.AddReplica || a.Replica != 2 || a.Address != "127.0.0.1:1" || a.By != "bob" || a.Reason != "more" {
				return fmt.Errorf("%+v", a)
			}
			return errors.New("not on duty")
		}},
	} {
		page := dashboard.New(c.Node(1), o)
		s.page.Store(&page)
		code, _, errs := tried(t, "members", "add", "-url", s.URL, "-by", "bob", "-reason", "more", "2", "127.0.0.1:1")
		require.Equal(t, exitFailed, code)
		require.Contains(t, errs, says)
	}
	require.Len(t, mustMembers(t, c.Node(1)), 1)
}
