package main

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The program starts itself once more as a child, and in a test that is the test.
func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		os.Exit(serve(os.Stdin, os.Stdout))
	}
	os.Exit(m.Run())
}

// tiny is a bench that takes a moment.
func tiny(t *testing.T, systems []string, jobs ...string) *bench {
	p := shortPlan()
	p.limit, p.rounds, p.callers = 30*time.Second, 1, []int{10}
	p.turn, p.lone, p.floor = 300*time.Millisecond, 300*time.Millisecond, 20*time.Millisecond
	p.costRounds, p.costCallers, p.costTurn = 1, 50, 200*time.Millisecond
	p.locks, p.kindCallers = []int{1000}, 2*countedPerName
	return &bench{plan: p, systems: systems, jobs: jobs, dir: t.TempDir(), progress: t.Output()}
}

func TestSmoke(t *testing.T) {
	b := tiny(t, []string{quorumlockName}, pairsJob, latencyJob, contendedJob, sharedJob, countedJob, severalJob, groupsJob, memoryJob)
	b.run(t.Context())
	require.Empty(t, b.missing)
	require.Empty(t, b.running, "every child is ended")
	for job, value := range map[string]string{
		sharedJob: "pairs_per_s", countedJob: "pairs_per_s", severalJob: "pairs_per_s", groupsJob: "idle_heap_mb",
		pairsJob: "pairs_per_s", latencyJob: "p50_ms", contendedJob: "entries_per_handoff", memoryJob: "bytes_per_lock",
	} {
		found := b.rows.of(job)
		require.NotEmpty(t, found, job)
		for _, r := range found {
			require.Positive(t, r.Values[value], "%s of %s", value, job)
			require.Zero(t, r.Values["errors"])
		}
	}
	fs := b.rows.figures()
	require.NotNil(t, figureOf(fs, "p50_leader_vs_floor"))
	require.NotNil(t, figureOf(fs, "handoff_p50_vs_one_caller"))
	require.Nil(t, figureOf(fs, "handoffs_vs_etcd"), "etcd did not take part")
}

func TestCostSmoke(t *testing.T) {
	if _, ok := userTime(); !ok {
		t.Skip("no processor time is told here")
	}
	b := tiny(t, []string{quorumlockName}, costJob)
	b.run(t.Context())
	require.Empty(t, b.missing)
	for _, r := range b.rows.of(costJob) {
		if r.Where == profiled {
			require.Positive(t, r.Values["samples"])
			continue
		}
		require.Positive(t, r.Values["user_us_per_pair"], r.Where)
		require.Equal(t, r.Where != "with "+withNothing, r.Values["ratio"] > 0, r.Where)
	}
	require.NotNil(t, figureOf(b.rows.figures(), "cost_of_counting_and_quotas"))
	require.Nil(t, figureOf(b.rows.figures(), "cost_of_counting"), "not with -short")
}

func TestPeersSmoke(t *testing.T) {
	for _, name := range systemNames[1:] {
		t.Run(name, func(t *testing.T) {
			if _, err := exec.LookPath("redis-server"); err != nil && name != etcdName {
				t.Skip("redis-server is not installed: Debian's package redis-server has it")
			}
			b := tiny(t, []string{name}, pairsJob, sharedJob)
			b.plan.kindCallers = readersPerName
			b.run(t.Context())
			require.Empty(t, b.missing)
			for _, r := range b.rows.of(sharedJob) {
				require.Positive(t, r.Values["pairs_per_s"])
				require.Zero(t, r.Values["errors"])
			}
			require.Positive(t, b.rows.of(pairsJob)[0].Values["pairs_per_s"])
			require.Zero(t, b.rows.of(pairsJob)[0].Values["errors"])
		})
	}
}

func TestAPeerThatCannotStartIsMissing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	b := tiny(t, []string{rueidisName}, pairsJob)
	b.run(t.Context())
	require.Empty(t, b.rows.list)
	require.Equal(t, []absence{{"", rueidisName, "start: redis-server is not installed"}}, b.missing)
}

func TestAChildThatDiesIsReported(t *testing.T) {
	c, err := startChild("/bin/false", t.TempDir()+"/log")
	if err != nil {
		t.Skip("no /bin/false here")
	}
	defer c.end()
	_, err = c.ask(t.Context(), order{Do: "start"})
	require.Error(t, err)
}
