//go:build !lean

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
)

const (
	// redisTTL is after what time Redis gives a lock to others.
	redisTTL = 30 * time.Second
	// redisPool is how many connections go-redis may use. It sends one command at
	// a time on each.
	redisPool = 128
	// redisFlushDelay is how long rueidis gathers commands before it writes them,
	// and redisConns how many connections it has, as a power of two. With its
	// defaults it took fewer locks a second here at 2,000 callers; one caller alone
	// waits for no company either way.
	redisFlushDelay = 20 * time.Microsecond
	redisConns      = 1
)

// compareAndDelete frees a lock if it is still the caller's.
const compareAndDelete = `if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) else return 0 end`

var errNotTaken = errors.New("not taken, or not given back")

// A redisSystem is one redis-server in a process of its own, without persistence
// and without replicas, and one client to it.
type redisSystem struct {
	server  *exec.Cmd
	version string
	rueidis rueidis.Client // one of these two
	goredis *goredis.Client
}

func startRedis(ctx context.Context, client, dir string) (system, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, errors.New("redis-server is not installed")
	}
	addresses, err := freeAddresses(1)
	if err != nil {
		return nil, err
	}
	host, port, _ := strings.Cut(addresses[0], ":")
	s := &redisSystem{}
	s.server = exec.Command(path, "--bind", host, "--port", port, "--save", "", "--appendonly", "no",
		"--dir", dir, "--maxclients", "20000")
	tied(s.server)
	if err := s.launch(ctx); err != nil {
		return nil, err
	}
	if client == rueidisName {
		s.rueidis, err = rueidis.NewClient(rueidis.ClientOption{InitAddress: addresses, DisableCache: true,
			PipelineMultiplex: redisConns, MaxFlushDelay: redisFlushDelay})
	} else {
		s.goredis = goredis.NewClient(&goredis.Options{Addr: addresses[0], PoolSize: redisPool})
		err = s.goredis.Ping(ctx).Err()
	}
	if err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

// launch starts the server and waits until it says that it listens.
func (s *redisSystem) launch(ctx context.Context) error {
	out, err := s.server.StdoutPipe()
	if err != nil {
		return err
	}
	if err := s.server.Start(); err != nil {
		return err
	}
	ready := make(chan error, 1)
	go func() {
		lines := bufio.NewScanner(out)
		last, told := "it said nothing", false
		for lines.Scan() {
			last = lines.Text()
			if _, v, ok := strings.Cut(last, "Redis version="); ok && !told {
				s.version, _, _ = strings.Cut(v, ",")
			}
			if strings.Contains(last, "Ready to accept connections") && !told {
				told = true
				ready <- nil
			}
		}
		if !told {
			ready <- fmt.Errorf("redis-server ended: %s", last)
		}
	}()
	select {
	case err = <-ready:
	case <-ctx.Done():
		err = fmt.Errorf("redis-server does not listen: %w", ctx.Err())
	}
	if err != nil {
		s.stop()
	}
	return err
}

func (s *redisSystem) about() string {
	client := fmt.Sprintf("rueidis, pipelining by itself on %d connections, flush delay %s", 1<<redisConns, redisFlushDelay)
	if s.goredis != nil {
		client = fmt.Sprintf("go-redis, %d connections", redisPool)
	}
	return fmt.Sprintf("Redis %s, one server, no persistence; %s", s.version, client)
}

func (s *redisSystem) stop() {
	_ = s.server.Process.Kill() // it has nothing to save
	_ = s.server.Wait()
}

func (s *redisSystem) lockers(_ context.Context, n int, _ string, _ bool) ([]locker, error) {
	ls := make([]locker, n)
	for i := range ls {
		id := strconv.FormatUint(rand.Uint64(), 36)
		if s.goredis != nil {
			ls[i] = &goredisLocker{c: s.goredis, id: id}
		} else {
			ls[i] = &rueidisLocker{c: s.rueidis, id: id}
		}
	}
	return ls, nil
}

var rueidisUnlock = rueidis.NewLuaScript(compareAndDelete)

// A rueidisLocker marks each of its locks with a value of its own.
type rueidisLocker struct {
	c    rueidis.Client
	id   string
	last int
}

func (l *rueidisLocker) lock(ctx context.Context, name string) (func(context.Context) error, error) {
	l.last++
	value := l.id + "-" + strconv.Itoa(l.last)
	err := l.c.Do(ctx, l.c.B().Set().Key(name).Value(value).Nx().PxMilliseconds(redisTTL.Milliseconds()).Build()).Error()
	if rueidis.IsRedisNil(err) {
		return nil, errNotTaken
	}
	return func(ctx context.Context) error {
		n, err := rueidisUnlock.Exec(ctx, l.c, []string{name}, []string{value}).AsInt64()
		return freed(n, err)
	}, err
}

var goredisUnlock = goredis.NewScript(compareAndDelete)

type goredisLocker struct {
	c    *goredis.Client
	id   string
	last int
}

func (l *goredisLocker) lock(ctx context.Context, name string) (func(context.Context) error, error) {
	l.last++
	value := l.id + "-" + strconv.Itoa(l.last)
	err := l.c.SetArgs(ctx, name, value, goredis.SetArgs{Mode: "NX", TTL: redisTTL}).Err()
	if errors.Is(err, goredis.Nil) {
		return nil, errNotTaken
	}
	return func(ctx context.Context) error {
		n, err := goredisUnlock.Run(ctx, l.c, []string{name}, value).Int64()
		return freed(n, err)
	}, err
}

func freed(n int64, err error) error {
	if err == nil && n != 1 {
		return errNotTaken
	}
	return err
}
