package main

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/quorumlock/quorumlock/dashboard"
)

var env = map[string]string{
	"POD_NAME": "app-3", "FOUNDERS": "5", "ADDRESS": "app-ORDINAL.app-replicas:7000", "LISTEN": ":7000", "DIR": "/data",
}

func with(changes map[string]string) func(string) string {
	all := maps.Clone(env)
	maps.Copy(all, changes)
	return func(name string) string { return all[name] }
}

// A pod keeps its id as long as it keeps its volume; one that lost it gets a new id and
// joins, at the same address.
func TestOptions(t *testing.T) {
	o, err := options(with(nil))
	if err != nil || o.ReplicaID != 4 || o.Join || len(o.Members) != 5 || o.Members[4] != o.Address || o.Members[1] != "app-0.app-replicas:7000" {
		t.Error(o, err)
	}
	o, err = options(with(map[string]string{"ZONE": "eu-1b"}))
	if err != nil || o.Zone != "eu-1b" {
		t.Error(o, err)
	}
	o, err = options(with(map[string]string{"REPLICA_IDS": "1,2,3,6,5"}))
	if err != nil || o.ReplicaID != 6 || !o.Join || o.Members != nil || o.Address != "app-3.app-replicas:7000" {
		t.Error(o, err)
	}
	o, err = options(with(map[string]string{"REPLICA_IDS": "1,2,3,6,5", "POD_NAME": "app-0"}))
	if err != nil || o.ReplicaID != 1 || o.Join || o.Members[4] != "app-3.app-replicas:7000" {
		t.Error("the founders are the same for ever", o, err)
	}
	o, err = options(with(map[string]string{"POD_NAME": "app-5"}))
	if err != nil || o.ReplicaID != 6 || !o.Join {
		t.Error("a sixth pod was added later", o, err)
	}
	for _, bad := range []map[string]string{
		{"POD_NAME": "app"}, {"POD_NAME": ""}, {"FOUNDERS": ""}, {"FOUNDERS": "0"}, {"REPLICA_IDS": "1,2"}, {"REPLICA_IDS": "1,2,3,x,5"},
	} {
		if _, err := options(with(bad)); err == nil {
			t.Error("accepted", bad)
		}
	}
}

// Nobody changes anything unless there is a token, and then only who shows it.
func TestOperatorToken(t *testing.T) {
	if o := pageOptions(""); o.Authorize != nil || o.ChangeMembers {
		t.Error("without a token nobody may change anything")
	}
	o := pageOptions("secret")
	for header, want := range map[string]bool{"": false, "Bearer ": false, "Bearer other": false, "secret": false, "Bearer secret": true} {
		r := httptest.NewRequest(http.MethodPost, "/replace-replica", nil)
		r.Header.Set("Authorization", header)
		if err := o.Authorize(r, dashboard.Action{Kind: dashboard.ReplaceReplica}); (err == nil) != want {
			t.Errorf("%q: %v", header, err)
		}
	}
}
