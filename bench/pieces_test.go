package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

const benchmarkOutput = `goos: linux
goarch: amd64
pkg: example.com/x
cpu: something - 2
BenchmarkApply/held=1000-2         	  200000	       812.5 ns/op	      35 B/op	       1 allocs/op
BenchmarkApply/held=2000000-2      	  200000	      1001 ns/op	      35 B/op	       1 allocs/op
BenchmarkApply/held=3000000-2      	--- FAIL
BenchmarkSnapshotStall 	       1	1234567890 ns/op	         4.250 max-stall-ms
BenchmarkRestore-2     	       1	2234567890 ns/op	         2.230 s/restore	2000000 locks
BenchmarkApplyWatched/watchers=0-2         	  300000	      1000 ns/op	   2000000 locks	       963.1 median-ns/op	         0 missed	         0 watchers
BenchmarkApplyWatched/watchers=100-2       	  300000	      1050 ns/op	   2000000 locks	       993.9 median-ns/op	         0 missed	       100.0 watchers
PASS
ok  	example.com/x	12.3s
`

func TestParseBenchmarks(t *testing.T) {
	got := parseBenchmarks(benchmarkOutput)
	require.Len(t, got, 6)
	require.Equal(t, benchLine{"BenchmarkApply/held=1000", 200000,
		map[string]float64{"ns/op": 812.5, "B/op": 35, "allocs/op": 1}}, got[0])
	require.Equal(t, "BenchmarkSnapshotStall", got[2].name)
	require.Equal(t, 4.25, got[2].metrics["max-stall-ms"])
	require.Equal(t, 2.23, got[3].metrics["s/restore"])
	require.Empty(t, parseBenchmarks("PASS\n"))
}

func TestPiecesBecomeRows(t *testing.T) {
	b := &bench{}
	lines := parseBenchmarks(benchmarkOutput)
	for _, p := range allPieces {
		require.NoError(t, b.notePiece(p, lines))
		require.ErrorContains(t, b.notePiece(p, nil), p.benchmark)
	}
	at := func(job string, locks int) map[string]float64 {
		return b.rows.find(key{job, quorumlockName, 0, locks, "state machine"}).Values
	}
	require.Equal(t, map[string]float64{"ns_per_pair": 1001, "allocs_per_pair": 1}, at(applyJob, 2_000_000))
	require.Equal(t, map[string]float64{"max_stall_ms": 4.25}, at(stallJob, 0))
	require.Equal(t, map[string]float64{"restore_s": 2.23}, at(restoreJob, 2_000_000))
	f := figureOf(b.rows.figures(), "watch_100_vs_0")
	require.Equal(t, 1.05, f.value)
	require.True(t, f.goal.met(f.value))
}
