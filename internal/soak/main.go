// Command soak plays the simulation of the root package from fresh seeds, one process
// for each core, for as long as it is told to. It stops at the first promise that is
// broken, and shows the seed and the script that show it.
//
//	go run ./internal/soak -for 1h
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	span := flag.Duration("for", time.Minute, "how long")
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano())>>20<<20, "the first seed")
	jobs := flag.Int("jobs", runtime.NumCPU(), "processes beside each other")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := soak(ctx, *span, *seed, *jobs); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}

// A tally is what all processes have done together.
type tally struct {
	mu           sync.Mutex
	seeds, steps map[int]int // by process
	start        time.Time
}

func (t *tally) note(job, seeds, steps int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seeds[job], t.steps[job] = seeds, steps
}

func (t *tally) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	seeds, steps := 0, 0
	for job, n := range t.seeds {
		seeds += n
		steps += t.steps[job]
	}
	return fmt.Sprintf("%d seeds, %d steps, %.0f s", seeds, steps, time.Since(t.start).Seconds())
}

func soak(ctx context.Context, span time.Duration, seed uint64, jobs int) error {
	dir, err := os.MkdirTemp("", "soak")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	binary := filepath.Join(dir, "quorumlock.test")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-o", binary, "github.com/quorumlock/quorumlock")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("build: %w", err)
	}
	fmt.Printf("soak: from seed %d for %v, %d processes\n", seed, span, jobs)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	total := &tally{seeds: map[int]int{}, steps: map[int]int{}, start: time.Now()}
	var all sync.WaitGroup
	for job := range jobs {
		all.Go(func() {
			if err := play(ctx, binary, job, span, seed+uint64(job)<<40, total); err != nil {
				cancel(err)
			}
		})
	}
	over := make(chan struct{})
	go func() { all.Wait(); close(over) }()
	for ticker := time.NewTicker(10 * time.Second); ; {
		select {
		case <-ticker.C:
			fmt.Println("soak:", total)
			continue
		case <-over:
		}
		break
	}
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("after %s: %w", total, err)
	}
	fmt.Printf("soak: no promise was broken: %s\n", total)
	return nil
}

// play runs one process, and returns its output if it failed. When ctx ends, the
// process is killed.
func play(ctx context.Context, binary string, job int, span time.Duration, seed uint64, total *tally) error {
	cmd := exec.CommandContext(ctx, binary, "-test.run=^TestSimulation$", "-test.timeout=0", "-test.v")
	cmd.Dir = filepath.Dir(binary)
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1", "QUORUMLOCK_SEED=", "QUORUMLOCK_SCRIPT=",
		fmt.Sprintf("QUORUMLOCK_SOAK=%d %d", int(span.Seconds()), seed))
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	var said strings.Builder
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 16<<20)
	last := seed
	for lines.Scan() {
		var seeds, steps int
		switch text := lines.Text(); {
		case scan(text, "soak seed %d", &last):
		case scan(text, "soak done %d %d", &seeds, &steps):
			total.note(job, seeds, steps)
		default:
			said.WriteString(text + "\n")
		}
	}
	if err := cmd.Wait(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("seed %d: %w\n%s", last, err, &said)
	}
	return nil
}

func scan(text, format string, into ...any) bool {
	n, err := fmt.Sscanf(text, format, into...)
	return err == nil && n == len(into)
}
