package asynqlock

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/adapters/internal/five"
	"github.com/quorumlock/quorumlock/adapters/internal/once"
)

// speed is how fast the replicas' clocks run, so that a test sees more ticks.
const speed = 2

// startRedis starts a Redis of the test's own, which keeps nothing.
func startRedis(t *testing.T) asynq.RedisClientOpt {
	t.Helper()
	path, err := exec.LookPath("redis-server")
	if err != nil {
		t.Skip("there is no redis-server in PATH: apt-get install redis-server")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	require.NoError(t, l.Close())
	cmd := exec.Command(path, "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", t.TempDir())
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	ready := make(chan struct{})
	go func() {
		said := false
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if !said && strings.Contains(lines.Text(), "eady to accept connections") {
				said = true
				close(ready)
			}
		}
	}()
	select {
	case <-ready:
	case <-time.After(10 * time.Second):
		t.Fatal("redis-server does not start")
	}
	return asynq.RedisClientOpt{Addr: address}
}

// startServer processes tasks at once, and asynq forgets them: so their ids alone
// keep nobody from enqueuing them again. It notes for when they were planned.
func startServer(t *testing.T, redis asynq.RedisClientOpt, ledger *five.Ledger) {
	t.Helper()
	server := asynq.NewServer(redis, asynq.Config{Concurrency: 4, LogLevel: asynq.FatalLevel, TaskCheckInterval: 50 * time.Millisecond})
	require.NoError(t, server.Start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		name, at, _ := strings.Cut(id, "@")
		planned, err := time.Parse(time.RFC3339Nano, at)
		if err != nil || name != task.Type() {
			t.Errorf("task %s has the id %q", task.Type(), id)
		}
		ledger.Ran(task.Type(), planned, 0)
		return nil
	})))
	t.Cleanup(server.Shutdown)
}

// Five schedulers, clocks that are up to 4 s apart, tasks that take no time; the
// leader of the log dies while a tick is being claimed, and later the one that leads
// the schedulers, while it claims.
func TestOneTaskPerPlannedTime(t *testing.T) {
	const ticks = 24
	redis := startRedis(t)
	ctx, cancel := context.WithTimeout(t.Context(), 24*time.Second)
	defer cancel()
	nodes, err := five.Open(ctx, t.TempDir())
	require.NoError(t, err)
	defer func() { require.NoError(t, nodes.Close()) }()
	killer, ledger := five.NewKiller(nodes, 8, time.Second/speed), five.NewLedger()
	startServer(t, redis, ledger)
	jobs := map[string]time.Duration{"one": time.Second, "two": 2 * time.Second}
	var led [five.Replicas]atomic.Bool
	for i, clock := range five.Clocks(speed) {
		lead := func(began func()) *once.Leader {
			return once.Lead(nodes.Node(i), "scheduler", func() { led[i].Store(true); began() })
		}
		o := Options{Clock: clock.Now, Scheduler: asynq.SchedulerOpts{LogLevel: asynq.FatalLevel}}
		s := newScheduler(killer.Register(i), redis, o, lead)
		for name, interval := range jobs {
			_, err := s.Register(name, "@every "+interval.String(), asynq.NewTask(name, nil))
			require.NoError(t, err)
		}
		require.NoError(t, s.Start())
		defer func() { _ = s.Shutdown() }()
	}
	for job, step := range jobs {
		require.NoError(t, ledger.Await(ctx, job, int(ticks*time.Second/step), step))
	}
	killed, lost := killer.Killed()
	led2 := 0
	for i := range led {
		if led[i].Load() {
			led2++
		}
	}
	t.Logf("killed %v, claims of %v died with them; %d replicas led", killed, lost, led2)
	require.Len(t, killed, 2)
	require.Greater(t, led2, 1)
	for job, step := range jobs {
		require.Empty(t, ledger.Check(job, int(ticks*time.Second/step), step, lost))
	}
	inspector := asynq.NewInspector(redis)
	defer inspector.Close()
	for name, tasks := range map[string]func(string, ...asynq.ListOption) ([]*asynq.TaskInfo, error){
		"archived": inspector.ListArchivedTasks, "retry": inspector.ListRetryTasks, "scheduled": inspector.ListScheduledTasks,
	} {
		left, err := tasks("default")
		require.NoError(t, err)
		require.Empty(t, left, fmt.Sprint(name, ": the stand-ins are never enqueued"))
	}
}
