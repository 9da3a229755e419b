package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGoals(t *testing.T) {
	require.True(t, least(2).met(2))
	require.True(t, least(2).met(3))
	require.False(t, least(2).met(1.9))
	require.True(t, most(2).met(2))
	require.True(t, most(2).met(1))
	require.False(t, most(2).met(2.1))
	require.True(t, most(0).met(0))
}

func figureOf(fs []figure, name string) *figure {
	for i := range fs {
		if fs[i].key == name {
			return &fs[i]
		}
	}
	return nil
}

func TestEtcdAtItsBestIsTheBestOfItsCallers(t *testing.T) {
	var rs rows
	pairs := func(system string, callers int, v float64) {
		rs.add(row{Job: pairsJob, System: system, Callers: callers, Where: place(system, everywhere), Values: map[string]float64{"pairs_per_s": v}})
	}
	pairs(quorumlockName, 2000, 120)
	pairs(etcdName, 512, 4)
	pairs(etcdName, 2000, 3)
	fs := rs.figures()
	require.Equal(t, 30.0, figureOf(fs, "pairs_2000_vs_etcd_best").value)
	require.Equal(t, 40.0, figureOf(fs, "pairs_2000_vs_etcd").value)
	require.Nil(t, figureOf(fs, "pairs_2000_vs_redis_rueidis"), "it was not measured")
}

func TestFiguresOfNothingAreNone(t *testing.T) {
	var rs rows
	require.Empty(t, rs.figures())
}

func TestApplyCompareTheSmallestAndTheLargest(t *testing.T) {
	var rs rows
	for held, ns := range map[int]float64{1000: 500, 2_000_000: 700, 100_000: 900} {
		rs.add(row{Job: applyJob, System: quorumlockName, Locks: held, Values: map[string]float64{"ns_per_pair": ns}})
	}
	f := figureOf(rs.figures(), "apply_2000000_vs_1000")
	require.NotNil(t, f)
	require.Equal(t, 1.4, f.value)
	require.True(t, f.goal.met(f.value))
}

func TestMemoryHasAGoalAtItsSizeOnly(t *testing.T) {
	var rs rows
	for _, locks := range []int{100_000, wantLocks} {
		rs.add(row{Job: memoryJob, System: quorumlockName, Locks: locks, Values: map[string]float64{"bytes_per_lock": 200}})
	}
	fs := rs.memoryFigures()
	require.Len(t, fs, 2)
	require.Nil(t, fs[0].goal)
	require.False(t, fs[1].goal.met(fs[1].value))
}
