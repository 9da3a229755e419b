package quorumlock

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lni/dragonboat/v4/logger"
)

// Importing the engine takes the standard logger of the whole process over.
// This gives it back, as it is when a program starts. What a program sets later
// stands; what it set before the engine was initialised cannot be known.
func init() {
	if fmt.Sprintf("%T", log.Writer()) == "capnslog.packageWriter" {
		log.SetOutput(os.Stderr)
		log.SetFlags(log.LstdFlags)
		log.SetPrefix("")
	}
}

// lastWordTime is what OnFatal gets before the process is stopped.
const lastWordTime = 2 * time.Second

// process is what all replicas of this process share because the engine does.
var process = &shared{}

type shared struct {
	once sync.Once

	mu     sync.Mutex
	voices []*voice // of the open replicas, the newest last
}

// voice is how a replica speaks to its program.
type voice struct {
	logger  *slog.Logger
	onFatal func(error)
}

// prepare sets the engine's loggers, once: a second time it would panic, as it
// does when the program has set its own, which is then left alone.
func (s *shared) prepare() {
	s.once.Do(func() {
		defer func() { _ = recover() }()
		logger.SetLoggerFactory(func(area string) logger.ILogger { return &engineLog{area: area} })
	})
}

func (s *shared) add(v *voice) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.voices = append(s.voices, v)
}

func (s *shared) remove(v *voice) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.voices = slices.DeleteFunc(slices.Clone(s.voices), func(other *voice) bool { return other == v })
}

// logger returns where the engine's lines go: it does not say whose they are.
func (s *shared) logger() *slog.Logger {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.voices); n > 0 {
		return s.voices[n-1].logger
	}
	return nil
}

// fatal gives every open replica its last word, at the same time.
func (s *shared) fatal(err error) {
	s.mu.Lock()
	voices := s.voices
	s.mu.Unlock()
	lastWords(err, voices...)
}

// lastWords calls OnFatal of each and waits for lastWordTime at most.
func lastWords(err error, voices ...*voice) {
	var said sync.WaitGroup
	for _, v := range voices {
		v.logger.Error("the replica cannot go on, the process stops", "err", err)
		if v.onFatal != nil {
			said.Go(func() {
				defer func() { _ = recover() }() // the process stops with the first panic, not with this one
				v.onFatal(err)
			})
		}
	}
	done := make(chan struct{})
	go func() {
		said.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(lastWordTime):
	}
}

// engineLog takes the lines of one area of the engine.
type engineLog struct {
	area string

	mu    sync.Mutex
	lines map[string]*line // warnings and errors by format
}

// line is how often a repeated warning was held back.
type line struct {
	next time.Time
	held int
}

// repeatPause is how often the same warning is logged: a replica without a
// leader makes one for each call.
const repeatPause = time.Second

func (l *engineLog) SetLevel(logger.LogLevel) {} // the slog.Handler decides

func (l *engineLog) Debugf(format string, args ...any) { l.log(slog.LevelDebug, 0, format, args) }
func (l *engineLog) Infof(format string, args ...any)  { l.log(slog.LevelInfo, 0, format, args) }

func (l *engineLog) Errorf(format string, args ...any) { l.repeated(slog.LevelError, format, args) }

func (l *engineLog) Warningf(format string, args ...any) {
	if format == noTLS {
		return
	}
	l.repeated(slog.LevelWarn, format, args)
}

// noTLS is said at each start of an option of the engine's own transport, which
// is not in use.
const noTLS = "mutual TLS disabled, communication is insecure"

// Panicf must not return: the engine relies on it to stop at a broken
// invariant. The value is an error, since NewNodeHost swallows strings.
func (l *engineLog) Panicf(format string, args ...any) {
	format = strings.ReplaceAll(format, "%+v", "%v") // the panic has a stack of its own
	err := fmt.Errorf("quorumlock: engine (%s): "+format, append([]any{l.area}, args...)...)
	if !guardedCaller() {
		process.fatal(err)
	}
	panic(err)
}

func (l *engineLog) repeated(level slog.Level, format string, args []any) {
	l.mu.Lock()
	if l.lines == nil {
		l.lines = make(map[string]*line)
	}
	known := l.lines[format] // formats are constants of the engine: a bounded number
	if known == nil {
		known = &line{}
		l.lines[format] = known
	}
	now := time.Now()
	if now.Before(known.next) {
		known.held++
		l.mu.Unlock()
		return
	}
	held := known.held
	known.next, known.held = now.Add(repeatPause), 0
	l.mu.Unlock()
	l.log(level, held, format, args)
}

func (l *engineLog) log(level slog.Level, held int, format string, args []any) {
	out := process.logger()
	if out == nil || !out.Enabled(context.Background(), level) {
		return
	}
	attrs := []any{"engine", l.area}
	if held > 0 {
		attrs = append(attrs, "repeated", held)
	}
	out.Log(context.Background(), level, fmt.Sprintf(format, args...), attrs...)
}

// guarded runs a call of the engine and turns its panic into an error.
func guarded(doing string, call func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = asError(doing, p)
		}
	}()
	return call()
}

func asError(doing string, p any) error {
	if err, ok := p.(error); ok {
		return fmt.Errorf("quorumlock: %s: %w", doing, err)
	}
	return fmt.Errorf("quorumlock: %s: %v", doing, p)
}

// guardedCaller tells whether the panic about to happen ends in guarded: then
// the process goes on, and nobody has a last word to say.
func guardedCaller() bool {
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	for {
		frame, more := frames.Next()
		if strings.HasSuffix(frame.Function, "quorumlock.guarded") {
			return true
		}
		if !more {
			return false
		}
	}
}

var errNoHost = errors.New("the engine did not start and did not say why: its files are damaged, or were written by something else")
