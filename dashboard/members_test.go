package dashboard

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/dashboard/api"
)

// Members without a vote are shown too, with zones, what there is to warn of, and each
// group; without a majority it is what the replica knows by itself.
func TestMembersZonesGroupsAndWarnings(t *testing.T) {
	all, err := openWith(t.TempDir(), 3, func(o *quorumlock.Options) {
		o.Groups = 3
		o.Zone = []string{"", "zone <a>", "zone <a>", "zone b"}[o.ReplicaID]
	})
	for _, n := range all {
		defer n.Close()
	}
	require.NoError(t, err)
	h := New(all[0], Options{})
	require.NoError(t, all[0].AddReplica(ctxOf(t), 4, "127.0.0.1:1"))
	v := decoded[api.Cluster](t, get(h, "/cluster.json"))
	require.Equal(t, "ok", v.Health)
	require.Len(t, v.Members, 4)
	require.Equal(t, "zone <a>", v.Members[0].Zone)
	require.True(t, v.Members[0].Voting)
	require.True(t, v.Members[0].Self)
	require.False(t, v.Members[3].Voting)
	require.Equal(t, "127.0.0.1:1", v.Members[3].Address)
	require.Zero(t, *v.Members[3].Sessions)
	require.Len(t, v.Groups, 3)
	require.NotZero(t, v.Groups[2].Leader)
	require.NotZero(t, v.Groups[2].Applied)
	require.True(t, v.Groups[2].Majority)
	for i, g := range v.Groups {
		require.Contains(t, v.Members[g.Leader-1].Leads, i)
	}
	require.Equal(t, v.MaxLevel, v.Members[0].MaxLevel)
	require.Zero(t, v.Members[3].MaxLevel, "it was never met")
	require.Equal(t, v.MaxLevel, all[0].Status().MaxLevel)
	require.Len(t, v.Warnings, 1)
	page := get(h, "/cluster").Body.String()
	for _, shown := range []string{"zone &lt;a&gt;", "zone b", "no vote", "has 2 of 3 votes", "<caption>Groups</caption>", "Feature level",
		"A majority of each of 3 groups answers.", "<dt>Groups</dt><dd>3</dd>"} {
		require.Contains(t, page, shown)
	}
	require.Equal(t, 3, strings.Count(page, `<span class="badge good">answers</span>`))
	require.NotContains(t, page, "<dt>Leader</dt>", "there are three")
	require.NotContains(t, get(New(all[0], Options{Authorize: allowAll}), "/cluster").Body.String(), "Let replica 4 lead", "it has no vote")
	page = get(New(nodes[0], Options{Authorize: allowAll}), "/cluster").Body.String()
	for _, several := range []string{"<caption>Groups</caption>", "Majority", "<dt>Groups</dt>", `name="group"`} {
		require.NotContains(t, page, several, "it has one")
	}
	require.Contains(t, page, "<dt>Leader</dt>")

	require.NoError(t, all[1].Close())
	require.NoError(t, all[2].Close())
	v = decoded[api.Cluster](t, get(h, "/cluster.json"))
	require.Equal(t, "no majority", v.Health)
	require.Contains(t, v.Detail, "groups [0 1 2] of 3")
	require.False(t, v.Groups[2].Majority)
	require.Len(t, v.Members, 3, "those who vote")
	require.True(t, v.Members[2].Voting)
	require.Len(t, v.Warnings, 1)
}

// The page shows who still runs an older version, and of whom it is not known.
func TestOlderVersionIsShown(t *testing.T) {
	s := quorumlock.Status{ReplicaID: 1, Leader: 1}
	p := clusterPage{Newest: 4}
	for id, level := range []int{4, 3, 0} {
		p.Members = append(p.Members, viewMember(s, quorumlock.Member{ID: uint64(id + 1), Voting: true, MaxLevel: level}))
	}
	w := httptest.NewRecorder()
	(&reply{h: newHandler(nodes[0], Options{}), w: w, r: httptest.NewRequest(http.MethodGet, "/cluster", nil), at: "cluster"}).
		page(http.StatusOK, pages["cluster"], p)
	page := w.Body.String()
	require.Contains(t, page, `data-label="Level">4</td>`)
	require.Contains(t, page, `data-label="Level">3 <span class="badge warn">older version</span></td>`)
	require.Contains(t, page, `data-label="Level"><span class="quiet">unknown</span></td>`)
}

// Leadership of one group is handed over by JSON or by the form, and that of the others
// stays where it is.
func TestTransferOfOneGroup(t *testing.T) {
	all, err := openWith(t.TempDir(), 3, func(o *quorumlock.Options) { o.Groups = 2 })
	for _, n := range all {
		defer n.Close()
	}
	require.NoError(t, err)
	var asked Action
	h := New(all[0], Options{Authorize: func(_ *http.Request, a Action) error { asked = a; return nil }})
	leaders := func() (ids [2]uint64) {
		for i, g := range all[0].Status().Groups {
			ids[i] = g.Leader
		}
		return ids
	}
	require.Eventually(t, func() bool { // a loaded replica may decline
		return all[0].TransferLeadership(ctxOf(t), 1) == nil
	}, patience, time.Millisecond)
	require.Eventually(t, func() bool {
		w := ask(h, http.MethodPost, "/transfer", `{"replica":"2","group":"1","by":"anna","reason":"spread"}`, "Content-Type", asJSON)
		return w.Code == http.StatusOK
	}, patience, time.Millisecond)
	require.Equal(t, Action{Kind: Transfer, Replica: 2, Groups: []int{1}, By: "anna", Reason: "spread"}, asked)
	require.Equal(t, [2]uint64{1, 2}, leaders())
	for _, group := range []string{"2", "-1", "x"} {
		w := ask(h, http.MethodPost, "/transfer", `{"replica":"2","group":"`+group+`","by":"anna","reason":"spread"}`, "Content-Type", asJSON)
		require.Equal(t, http.StatusBadRequest, w.Code, group)
	}
	require.Equal(t, [2]uint64{1, 2}, leaders())

	server := httptest.NewServer(h)
	defer server.Close()
	browser, read := visitor(t)
	page := read(browser.Get(server.URL + "/cluster"))
	require.Equal(t, 3, strings.Count(page, `action="transfer?`), "nobody leads both")
	require.Contains(t, page, `<span class="badge good">leader</span> <span class="quiet">of group 1</span>`)
	_, token := formOf(t, page, "transfer")
	fields := url.Values{"form-token": {token}, "by": {"ann"}, "reason": {"maintenance"}, "group": {""}}
	require.Eventually(t, func() bool {
		return strings.Contains(read(browser.PostForm(server.URL+"/transfer?replica=3", fields)), "The chosen replica leads")
	}, patience, time.Millisecond)
	require.Nil(t, asked.Groups)
	require.Equal(t, [2]uint64{3, 3}, leaders())
}

// A change that takes longer than a request may says what it waits for, and that it is
// not done; what cannot be is refused.
func TestMembersActions(t *testing.T) {
	one, err := open(t.TempDir(), 1)
	require.NoError(t, err)
	defer one[0].Close()
	var asked Action
	h := New(one[0], Options{ChangeMembers: true, Authorize: func(_ *http.Request, a Action) error { asked = a; return nil }})
	do := func(kind Kind, body string) (int, string) {
		w := ask(h, http.MethodPost, "/"+string(kind), body, "Content-Type", asJSON)
		return w.Code, w.Body.String()
	}
	code, body := do(AddReplica, `{"replica":"2","address":"127.0.0.1:1","by":"anna","reason":"growing"}`)
	require.Equal(t, 200, code, body)
	require.Equal(t, Action{Kind: AddReplica, Replica: 2, Address: "127.0.0.1:1", By: "anna", Reason: "growing"}, asked)
	code, body = do(RemoveReplica, `{"replica":"1","by":"a","reason":"b"}`)
	require.Equal(t, 409, code, body)
	require.Contains(t, body, "last voting")

	// Replica 3 is not started: the page answers when the request is over, at the latest
	// after its own ten seconds.
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/replace-replica",
		strings.NewReader(`{"dead":"2","replica":"3","address":"127.0.0.1:2","by":"a","reason":"b"}`))
	r.Header.Set("Content-Type", asJSON)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	require.Equal(t, http.StatusAccepted, w.Code, w.Body)
	require.Contains(t, w.Body.String(), "replica 3 to be started")
	code, body = do(ReplaceReplica, `{"dead":"2","replica":"2","address":"127.0.0.1:2","by":"a","reason":"b"}`)
	require.Equal(t, 400, code, body)
	code, body = do(RemoveReplica, `{"replica":"3","by":"a","reason":"b"}`)
	require.Equal(t, 200, code, body)
	code, body = do(AddReplica, `{"replica":"3","address":"127.0.0.1:2","by":"a","reason":"b"}`)
	require.Equal(t, 400, code, body)
	require.Contains(t, body, "used before")
}
