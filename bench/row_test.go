package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRowsAreMediansOfRounds(t *testing.T) {
	var rs rows
	for _, v := range []float64{30, 10, 20} {
		rs.add(row{Job: pairsJob, System: etcdName, Callers: 64, Values: map[string]float64{"pairs_per_s": v}})
	}
	rs.add(row{Job: pairsJob, System: etcdName, Callers: 512, Values: map[string]float64{"pairs_per_s": 7}})
	require.Len(t, rs.list, 2)
	r := rs.find(key{pairsJob, etcdName, 64, 0, ""})
	require.Equal(t, 3, r.Rounds)
	require.Equal(t, 20.0, r.Values["pairs_per_s"])
	_, ok := rs.value(r.key(), "p50_ms")
	require.False(t, ok)
	_, ok = rs.value(key{pairsJob, etcdName, 1, 0, ""}, "pairs_per_s")
	require.False(t, ok)
}

func TestJSONHasAnObjectARowAndEndsWithRatios(t *testing.T) {
	b := &bench{plan: shortPlan(), systems: systemNames, about: map[string]string{"data": "ext4"}}
	b.rows.add(row{Job: pairsJob, System: quorumlockName, Callers: 2000, Where: everywhere,
		Values: map[string]float64{"pairs_per_s": 300, "p50_ms": 1, "p99_ms": 2, "errors": 0}})
	b.rows.add(row{Job: pairsJob, System: rueidisName, Callers: 2000, Where: oneServer,
		Values: map[string]float64{"pairs_per_s": 200}})
	b.miss("", etcdName, errors.New("it is not there"))

	var out bytes.Buffer
	require.NoError(t, b.writeJSON(&out))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, 5)
	var objects []map[string]any
	for _, l := range lines {
		var o map[string]any
		require.NoError(t, json.Unmarshal([]byte(l), &o), l)
		objects = append(objects, o)
	}
	require.Equal(t, map[string]any{"job": "pairs", "system": "quorumlock", "callers": 2000.0, "where": everywhere,
		"rounds": 1.0, "pairs_per_s": 300.0, "p50_ms": 1.0, "p99_ms": 2.0, "errors": 0.0}, objects[0])
	require.NotContains(t, objects[1], "p50_ms", "what was not measured is not printed")
	require.Equal(t, []any{map[string]any{"system": "etcd", "reason": "it is not there"}}, objects[2]["missing"])
	require.Equal(t, map[string]any{"pairs_2000_vs_redis_rueidis": 1.5}, objects[4]["ratios"])
}

func TestTableSaysWhatIsMissing(t *testing.T) {
	b := &bench{plan: shortPlan(), systems: systemNames, about: map[string]string{}}
	b.rows.add(row{Job: pairsJob, System: quorumlockName, Callers: 2000, Where: everywhere, Values: map[string]float64{"pairs_per_s": 123456.7}})
	b.miss("", rueidisName, errors.New("redis-server is not installed"))
	var out bytes.Buffer
	b.writeTable(&out)
	require.Contains(t, out.String(), "123,457")
	require.Contains(t, out.String(), "redis-rueidis: redis-server is not installed")
	require.NotContains(t, out.String(), "NaN")
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 1: "1", 35: "35", 0.0331: "0.0331", 1.4321: "1.43", 12.345: "12.3", 999.6: "1,000",
		1234567.8: "1,234,568", 1500: "1,500", 0.2: "0.200",
	} {
		require.Equal(t, want, number(v))
	}
}

func TestChosen(t *testing.T) {
	all := []string{"a", "b", "c"}
	got, err := chosen("", all)
	require.NoError(t, err)
	require.Equal(t, all, got)
	got, err = chosen("c,a", all)
	require.NoError(t, err)
	require.Equal(t, []string{"a", "c"}, got)
	_, err = chosen("a,x", all)
	require.ErrorContains(t, err, `"x"`)
}

func TestNamesAreOfOneLengthAndDiffer(t *testing.T) {
	seen := make(map[string]bool)
	for _, i := range []int{0, 1, 11, 1_999_999} {
		for _, j := range jobs {
			name := lockName(j.name, i)
			require.Len(t, name, nameLen)
			require.False(t, seen[name])
			seen[name] = true
		}
	}
}
