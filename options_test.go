package quorumlock

import (
	"math"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func good() Options {
	return Options{
		ReplicaID: 2, Address: "b:7000", Dir: "somewhere",
		Members: map[uint64]string{1: "a:7000", 2: "b:7000", 3: "[::1]:7000"},
	}
}

func TestOptionsDefaults(t *testing.T) {
	o, err := good().complete()
	require.NoError(t, err)
	require.Equal(t, o.Address, o.Listen)
	require.Equal(t, "quorumlock", o.Cluster)
	require.NotEmpty(t, o.Owner)
	require.Equal(t, 10*time.Second, o.SessionTTL)
	require.Equal(t, time.Second, o.ElectionTimeout)
	require.NotNil(t, o.Logger)
	require.True(t, filepath.IsAbs(o.Dir), "the working directory may change")

	given := good()
	o.Members[9] = "x:1"
	require.Len(t, given.Members, 3, "the caller's map is not kept")
}

func setQuotas(q ...Quota) func(*Options) { return func(o *Options) { o.Quotas = q } }

func TestOptionsFaults(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*Options)
		want  string
	}{
		"replica id 0":       {func(o *Options) { o.ReplicaID = 0 }, "ReplicaID is 0"},
		"not a member":       {func(o *Options) { o.ReplicaID = 7 }, "ReplicaID 7 is not among Members [1 2 3]"},
		"another address":    {func(o *Options) { o.Address = "c:7000" }, `Members[2] is "b:7000" but Address is "c:7000"`},
		"no address":         {func(o *Options) { o.Address = "" }, "Address is empty"},
		"no port":            {func(o *Options) { o.Address = "b" }, `Address "b": must be host:port`},
		"bad port":           {func(o *Options) { o.Listen = ":99999" }, `Listen ":99999": port must be a number from 1 to 65535`},
		"no host":            {func(o *Options) { o.Members[3] = ":7000" }, `Members[3] ":7000": the host is missing`},
		"address twice":      {func(o *Options) { o.Members[3] = "a:7000" }, `Members[1] and Members[3] have the same address "a:7000"`},
		"member 0":           {func(o *Options) { o.Members[0] = "z:1" }, "Members has replica id 0"},
		"join and members":   {func(o *Options) { o.Join = true }, "Join is set and Members has 3 entries"},
		"no directory":       {func(o *Options) { o.Dir = "" }, "Dir is empty"},
		"owner":              {func(o *Options) { o.Owner = "\xff" }, `Owner "\xff"`},
		"cluster":            {func(o *Options) { o.Cluster = "\xff" }, `Cluster "\xff"`},
		"TTL too short":      {func(o *Options) { o.SessionTTL = 4 * time.Second }, "SessionTTL is 4s: must be at least 5 times the election timeout of 1s"},
		"TTL too long":       {func(o *Options) { o.SessionTTL = 48 * time.Hour }, "must be at most 24h"},
		"election too short": {func(o *Options) { o.ElectionTimeout = time.Millisecond }, "ElectionTimeout is 1ms: must be at least 100ms"},
		"negative":           {func(o *Options) { o.ElectionTimeout = -1 }, "ElectionTimeout is -1ns"},
		"quota of nothing":   {setQuotas(Quota{Prefix: "a"}), `Quotas[0], for names that begin with "a": Rate, Holds and Waiters are all 0`},
		"negative holds":     {setQuotas(Quota{Holds: -1}), "Quotas[0], for all names: Holds is -1: must be positive"},
		"negative waiters":   {setQuotas(Quota{Holds: 1, Waiters: -2}), "Waiters is -2: must be positive"},
		"negative rate":      {setQuotas(Quota{Rate: -0.5}), "Rate is -0.5: must be a positive number of acquires a second"},
		"rate NaN":           {setQuotas(Quota{Rate: math.NaN()}), "Rate is NaN: must be a positive number"},
		"rate without end":   {setQuotas(Quota{Rate: math.Inf(1)}), "Rate is +Inf: must be a positive number"},
		"negative burst":     {setQuotas(Quota{Rate: 1, Burst: -1}), "Burst is -1: must be positive"},
		"burst alone":        {setQuotas(Quota{Holds: 1, Burst: 5}), "Burst is 5 without a Rate"},
		"quota twice":        {setQuotas(Quota{Holds: 1}, Quota{Prefix: "a", Rate: 1}, Quota{Prefix: "a", Holds: 1}), `Quotas[2], for names that begin with "a": Quotas[1] is for the same`},
		"quota per session":  {setQuotas(Quota{PerSession: true}), "Quotas[0], for all names, per session: Rate, Holds"},
		"quota of no name":   {setQuotas(Quota{Prefix: "\xff", Holds: 1}), "Prefix must be UTF-8 of at most 512 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			o := good()
			c.spoil(&o)
			_, err := Open(o)
			require.ErrorIs(t, err, ErrOptions)
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestOptionsListEveryFault(t *testing.T) {
	_, err := Open(Options{})
	for _, want := range []string{"ReplicaID", "Address", "Dir"} {
		require.ErrorContains(t, err, want)
	}
}
