package dashboard

import (
	"context"
	"net/http"
	"net/http/httptest"
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
	require.Equal(t, v.MaxLevel, all[0].Status().MaxLevel)
	require.Len(t, v.Warnings, 1)
	page := get(h, "/cluster").Body.String()
	for _, shown := range []string{"zone &lt;a&gt;", "zone b", "no vote", "has 2 of 3 votes", "<caption>Groups</caption>", "Feature level"} {
		require.Contains(t, page, shown)
	}
	require.NotContains(t, get(New(all[0], Options{Authorize: allowAll}), "/cluster").Body.String(), "Let replica 4 lead", "it has no vote")
	require.NotContains(t, get(New(nodes[0], Options{}), "/cluster").Body.String(), "<caption>Groups</caption>", "it has one")

	require.NoError(t, all[1].Close())
	require.NoError(t, all[2].Close())
	v = decoded[api.Cluster](t, get(h, "/cluster.json"))
	require.Equal(t, "no majority", v.Health)
	require.Len(t, v.Members, 3, "those who vote")
	require.True(t, v.Members[2].Voting)
	require.Len(t, v.Warnings, 1)
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
