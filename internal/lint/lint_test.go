// Package lint holds the rules of the architecture, as tests. An arrow that a rule
// forbids is a change of the design: argue for it there, and not with an exception.
package lint

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/quorumlock/quorumlock"

// mayImport says which packages of this module each package may import: the root is
// ".", and a trailing "/..." stands for all that lie below. Imports point one way.
var mayImport = map[string][]string{
	"sessions":         {},
	"fencing":          {},
	"fencing/...":      {"fencing", "fencing/..."}, // whoever checks tokens links no Raft
	"queue":            {"sessions", "fencing"},
	"internal/wire":    {"queue", "sessions", "fencing"},
	"internal/peer":    {},
	"internal/raftlog": {},
	"internal/lint":    {},
	"internal/harm":    {},                // for tests and examples/torture only
	"internal/testca":  {},                // for tests only
	"internal/soak":    {},                // runs the test binary, and imports nothing of it
	"internal/lab":     {"internal/peer"}, // the hardware of tests
	".":                {"internal/lab", "internal/wire", "internal/peer", "internal/raftlog", "queue", "sessions", "fencing"},
	"election":         {".", "sessions", "fencing"}, // only what any user has
	"locktest":         {".", "internal/lab", "sessions", "fencing"},
	"dashboard":        {".", "dashboard/api", "sessions", "fencing"},
	"dashboard/api":    {}, // what the pages say as JSON: for programs that link no Raft
	"dashboard/...":    {}, // a browser, which looks from outside
	"examples/...":     {".", "election", "locktest", "dashboard", "sessions", "fencing", "fencing/...", "examples/internal/..."},
	"examples/torture": {".", "fencing", "fencing/...", "internal/harm", "examples/internal/..."},
	"bench":            {".", "fencing"},
	"adapters/...":     {".", "adapters/internal/..."},
	"metrics":          {"."}, // only what any user has
	"metrics/...":      {".", "metrics", "locktest", "fencing"},
	"cmd/...":          {".", "dashboard/api"},
	"tracing":          {"."}, // only what any user has
}

// mayLink says what else, beside the standard library, a package may import. What
// is not named here may import what go.mod has.
var mayLink = map[string][]string{
	"sessions":          {},
	"queue":             {},
	"fencing":           {},
	"fencing/sqlfence":  {},
	"fencing/httpfence": {},
	"internal/wire":     {"github.com/vmihailenco/msgpack/v5"},
	"internal/peer":     {"golang.org/x/sys/unix"},
	"internal/lab":      {"github.com/lni/vfs"},
	"internal/harm":     {"golang.org/x/sys/unix"},
	"tracing": {"go.opentelemetry.io/otel/attribute", "go.opentelemetry.io/otel/codes", "go.opentelemetry.io/otel/trace",
		"go.opentelemetry.io/otel/trace/noop"}, // the API, and no SDK
	"internal/raftlog": {"github.com/lni/dragonboat/v4/config", "github.com/lni/dragonboat/v4/raftio",
		"github.com/lni/dragonboat/v4/raftpb", "github.com/lni/vfs"}, // what the engine asks of a store, and no more
}

// raft is whose packages only replica*.go may know, and the store behind it.
const raft = "github.com/lni/"

// pure are the files that are told and never ask: of their answers, all replicas
// must have the same.
var pure = []string{"lockfsm.go", "lockfsm_jobs.go", "lockfsm_restore.go", "lockfsm_take.go", "lockfsm_terms.go", "table.go", "member.go", "page.go", "capture.go", "restore.go", "effect.go", "queue/*.go", "sessions/*.go", "internal/wire/*.go"}

// impureImports are what the pure files have no use for.
var impureImports = []string{"os", "net", "log", "math/rand", "crypto/rand", "context", "runtime", "syscall", "testing", "hash/maphash"}

// impureTime is what of package time asks the clock or waits for it.
var impureTime = []string{"Now", "Since", "Until", "After", "AfterFunc", "Sleep", "Tick", "NewTimer", "NewTicker"}

const (
	maxFunction = 70  // lines
	maxFile     = 500 // lines
)

// tooLong are functions and files that cannot be shorter, with the reason. None yet.
var tooLong = map[string]string{}

// maySleep are the files that may call time.Sleep, with the reason, beside those
// that run in the bubbles of testing/synctest, where no real time passes. To wait
// for something is none: wait for the event.
var maySleep = map[string]string{
	"process_child_test.go": "a process that works in small steps until it is stopped; nothing waits for it",
	"replica_test.go":       "a caller that pauses before it tries again, as real ones do",
}

// A file is one Go file of the tree.
type file struct {
	path  string // from the root of the module
	dir   string
	test  bool
	lines int
	set   *token.FileSet
	*ast.File
}

// program reports whether a file is of a program and not of the library.
func (f *file) program() bool {
	return strings.HasPrefix(f.dir, "examples") || strings.HasPrefix(f.dir, "cmd/") || f.dir == "bench" || f.dir == "internal/soak"
}

func parse(name string, src []byte) (*file, error) {
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, name, src, parser.SkipObjectResolution|parser.ParseComments)
	if err != nil {
		return nil, err
	}
	return &file{path: name, dir: path.Dir(name), test: strings.HasSuffix(name, "_test.go"),
		lines: strings.Count(string(src), "\n"), set: set, File: f}, nil
}

// imports returns the paths of what f imports, and those of this module apart, as
// mayImport has them.
func (f *file) imports() (own, other []string) {
	for _, i := range f.Imports {
		p, _ := strconv.Unquote(i.Path.Value)
		switch rest, ours := strings.CutPrefix(p, module); {
		case ours && rest == "":
			own = append(own, ".")
		case ours && rest[0] == '/':
			own = append(own, rest[1:])
		default:
			other = append(other, p)
		}
	}
	return own, other
}

// at tells where n begins.
func (f *file) at(n ast.Node) string {
	return fmt.Sprintf("%s:%d", f.path, f.set.Position(n.Pos()).Line)
}

// covers reports whether a package is meant by a key of mayImport.
func covers(key, dir string) bool {
	below, all := strings.CutSuffix(key, "...")
	return key == dir || all && strings.HasPrefix(dir, below)
}

func coveredBy(keys []string, dir string) bool {
	return slices.ContainsFunc(keys, func(key string) bool { return covers(key, dir) })
}

// A rule returns what is wrong with a file.
type rule func(*file) []string

var rules = map[string]rule{
	"imports point one way": oneWay,
	"leaves link little":    linksLittle,
	"fencing knows no Raft": fencingApart,
	"one place for Raft":    raftInReplica,
	"the core is told":      coreIsTold,
	"small":                 small,
	"packages are named":    named,
	"wait for the event":    noSleep,
	"testify is for tests":  noTestLibraries,
	"a library is silent":   noExit,
}

func oneWay(f *file) (wrong []string) {
	if f.test {
		return nil
	}
	known := false
	var allowed []string
	for key, list := range mayImport {
		if covers(key, f.dir) && (!known || key == f.dir) {
			known, allowed = true, list
		}
	}
	if !known {
		return []string{fmt.Sprintf("%s: package %s is new: say in mayImport where it stands", f.path, f.dir)}
	}
	own, _ := f.imports()
	for _, p := range own {
		if !coveredBy(allowed, p) {
			wrong = append(wrong, fmt.Sprintf("%s: %s may not import %s", f.path, f.dir, p))
		}
	}
	return wrong
}

func linksLittle(f *file) (wrong []string) {
	allowed, limited := mayLink[f.dir]
	if f.test || !limited {
		return nil
	}
	_, other := f.imports()
	for _, p := range other {
		if strings.Contains(strings.Split(p, "/")[0], ".") && !slices.Contains(allowed, p) {
			wrong = append(wrong, fmt.Sprintf("%s: %s may not import %s", f.path, f.dir, p))
		}
	}
	return wrong
}

// fencingApart goes for tests too: they are part of what a user of fencing builds.
func fencingApart(f *file) (wrong []string) {
	if !covers("fencing", f.dir) && !covers("fencing/...", f.dir) {
		return nil
	}
	own, other := f.imports()
	for _, p := range append(own, other...) {
		if p == "." || strings.HasPrefix(p, raft) || strings.HasPrefix(p, "internal/") {
			wrong = append(wrong, fmt.Sprintf("%s: imports %s", f.path, p))
		}
	}
	return wrong
}

func raftInReplica(f *file) (wrong []string) {
	if f.test || f.dir == "." && strings.HasPrefix(f.path, "replica") || f.dir == "internal/raftlog" || f.dir == "internal/lab" {
		return nil
	}
	_, other := f.imports()
	for _, p := range other {
		if strings.HasPrefix(p, raft) {
			wrong = append(wrong, fmt.Sprintf("%s: imports %s: only replica*.go may", f.path, p))
		}
	}
	return wrong
}

func isPure(name string) bool {
	return slices.ContainsFunc(pure, func(pattern string) bool {
		ok, err := path.Match(pattern, name)
		return ok && err == nil
	})
}

func coreIsTold(f *file) (wrong []string) {
	if f.test || !isPure(f.path) {
		return nil
	}
	_, other := f.imports()
	for _, p := range other {
		if slices.ContainsFunc(impureImports, func(bad string) bool { return p == bad || strings.HasPrefix(p, bad+"/") }) {
			wrong = append(wrong, fmt.Sprintf("%s: imports %s", f.path, p))
		}
	}
	ast.Inspect(f.File, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			wrong = append(wrong, f.at(n)+": starts a goroutine")
		case *ast.SendStmt:
			wrong = append(wrong, f.at(n)+": sends on a channel")
		case *ast.CallExpr:
			if name, ok := n.Fun.(*ast.Ident); ok && name.Name == "make" && len(n.Args) > 0 {
				if _, ok := n.Args[0].(*ast.ChanType); ok {
					wrong = append(wrong, f.at(n)+": makes a channel")
				}
			}
		case *ast.SelectorExpr:
			if isTime(n, impureTime...) {
				wrong = append(wrong, f.at(n)+": time."+n.Sel.Name)
			}
		}
		return true
	})
	return wrong
}

// isTime reports whether n is one of these names of package time.
func isTime(n *ast.SelectorExpr, names ...string) bool {
	x, ok := n.X.(*ast.Ident)
	return ok && x.Name == "time" && slices.Contains(names, n.Sel.Name)
}

func small(f *file) (wrong []string) {
	if f.test {
		return nil
	}
	if f.lines > maxFile && tooLong[f.path] == "" {
		wrong = append(wrong, fmt.Sprintf("%s: %d lines, more than %d", f.path, f.lines, maxFile))
	}
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		lines := f.set.Position(fn.End()).Line - f.set.Position(fn.Pos()).Line + 1
		if lines > maxFunction && tooLong[f.path+" "+fn.Name.Name] == "" {
			wrong = append(wrong, fmt.Sprintf("%s: %s has %d lines, more than %d", f.at(fn), fn.Name.Name, lines, maxFunction))
		}
	}
	return wrong
}

func named(f *file) []string {
	name := strings.TrimSuffix(f.Name.Name, "_test")
	for _, bad := range []string{"util", "utils", "common", "helper", "helpers", "misc", "base", "shared", "types"} {
		if name == bad || path.Base(f.dir) == bad {
			return []string{fmt.Sprintf("%s: package %s says nothing of what is in it", f.path, name)}
		}
	}
	return nil
}

func noSleep(f *file) (wrong []string) {
	_, other := f.imports()
	if f.program() || maySleep[f.path] != "" || f.test && slices.Contains(other, "testing/synctest") {
		return nil
	}
	ast.Inspect(f.File, func(n ast.Node) bool {
		if n, ok := n.(*ast.SelectorExpr); ok && isTime(n, "Sleep") {
			wrong = append(wrong, f.at(n)+": time.Sleep: wait for the event, or say in maySleep why not")
		}
		return true
	})
	return wrong
}

// historyJudge is the program whose very job is to judge histories: what checks them is
// not a test's tool there. No library may link it.
const historyJudge = "examples/torture"

// noTestLibraries: what only tests need must not reach the binaries of users.
func noTestLibraries(f *file) (wrong []string) {
	if f.test || f.dir == "locktest" {
		return nil
	}
	_, other := f.imports()
	for _, p := range other {
		if p == "testing" || strings.HasPrefix(p, "github.com/stretchr/") || strings.HasPrefix(p, "go.uber.org/goleak") ||
			strings.HasPrefix(p, "github.com/anishathalye/") && f.dir != historyJudge {
			wrong = append(wrong, fmt.Sprintf("%s: imports %s", f.path, p))
		}
	}
	return wrong
}

// noExit: a library ends nobody's process, and prints nothing.
func noExit(f *file) (wrong []string) {
	if f.test || f.program() {
		return nil
	}
	ast.Inspect(f.File, func(n ast.Node) bool {
		s, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		x, ok := s.X.(*ast.Ident)
		if !ok {
			return true
		}
		switch name := x.Name + "." + s.Sel.Name; name {
		case "os.Exit", "log.Fatal", "log.Fatalf", "fmt.Print", "fmt.Println", "fmt.Printf":
			wrong = append(wrong, f.at(s)+": "+name)
		}
		return true
	})
	return wrong
}

// tree parses every Go file of the checkout, those of the nested modules too.
func tree(t *testing.T) []*file {
	root := filepath.Join("..", "..")
	var files []*file
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || p != root && strings.HasPrefix(d.Name(), ".")) {
			return fs.SkipDir
		}
		if d.IsDir() || filepath.Ext(p) != ".go" {
			return nil
		}
		src, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		f, err := parse(filepath.ToSlash(name), src)
		if err != nil {
			return err
		}
		files = append(files, f)
		return nil
	})
	require.NoError(t, err)
	require.Greater(t, len(files), 20, "this is not the whole tree")
	return files
}

func TestRules(t *testing.T) {
	files := tree(t)
	for name, r := range rules {
		t.Run(name, func(t *testing.T) {
			for _, f := range files {
				for _, wrong := range r(f) {
					t.Error(wrong)
				}
			}
		})
	}
}

// The rules name files: what they name must be there, or they guard nothing.
func TestRulesGuardSomething(t *testing.T) {
	files := tree(t)
	for _, pattern := range pure {
		require.True(t, slices.ContainsFunc(files, func(f *file) bool {
			ok, _ := path.Match(pattern, f.path)
			return ok && !f.test
		}), "no file matches %s", pattern)
	}
	replicas := slices.ContainsFunc(files, func(f *file) bool {
		_, other := f.imports()
		return strings.HasPrefix(f.path, "replica") && slices.ContainsFunc(other, func(p string) bool { return strings.HasPrefix(p, raft) })
	})
	require.True(t, replicas, "no replica*.go imports Raft any more")
}

// Each rule finds what it forbids, and lets pass what it does not.
func TestRulesBite(t *testing.T) {
	bitten := map[string]bool{}
	longFunction := "package p\nfunc f() {\n" + strings.Repeat("\n", maxFunction-1) + "}\n"
	for _, c := range []struct {
		rule, path, src string
		wrong           bool
	}{
		{"imports point one way", "sessions/x.go", `package sessions; import _ "` + module + `/queue"`, true},
		{"imports point one way", "queue/x.go", `package queue; import _ "` + module + `/sessions"`, false},
		{"imports point one way", "queue/x.go", `package queue; import _ "` + module + `"`, true},
		{"imports point one way", "internal/wire/x.go", `package wire; import _ "` + module + `"`, true},
		{"imports point one way", "x.go", `package quorumlock; import _ "` + module + `/election"`, true},
		{"imports point one way", "election/x.go", `package election; import _ "` + module + `/internal/wire"`, true},
		{"imports point one way", "election/x.go", `package election; import _ "` + module + `"`, false},
		{"imports point one way", "fencing/sqlfence/x.go", `package sqlfence; import _ "` + module + `"`, true},
		{"imports point one way", "fencing/sqlfence/x.go", `package sqlfence; import _ "` + module + `/fencing"`, false},
		{"imports point one way", "examples/new/x.go", `package main; import _ "` + module + `/locktest"`, false},
		{"imports point one way", "newcomer/x.go", `package newcomer`, true},
		{"leaves link little", "queue/x.go", `package queue; import _ "golang.org/x/sync/errgroup"`, true},
		{"leaves link little", "queue/x.go", `package queue; import _ "encoding/binary"`, false},
		{"leaves link little", "tracing/x.go", `package tracing; import _ "go.opentelemetry.io/otel/sdk/trace"`, true},
		{"leaves link little", "internal/wire/x.go", `package wire; import _ "github.com/vmihailenco/msgpack/v5"`, false},
		{"fencing knows no Raft", "fencing/x_test.go", `package fencing; import _ "github.com/lni/dragonboat/v4"`, true},
		{"fencing knows no Raft", "fencing/a/b/x.go", `package b; import _ "` + module + `"`, true},
		{"one place for Raft", "node.go", `package quorumlock; import _ "github.com/lni/dragonboat/v4/config"`, true},
		{"one place for Raft", "internal/peer/replica.go", `package peer; import _ "github.com/lni/dragonboat/v4/config"`, true},
		{"one place for Raft", "internal/raftlog/x.go", `package raftlog; import _ "github.com/lni/dragonboat/v4/raftpb"`, false},
		{"leaves link little", "internal/raftlog/x.go", `package raftlog; import _ "github.com/lni/dragonboat/v4"`, true},
		{"one place for Raft", "replica_x.go", `package quorumlock; import _ "github.com/lni/dragonboat/v4/config"`, false},
		{"the core is told", "lockfsm.go", `package quorumlock; import "time"; var _ = time.Now()`, true},
		{"the core is told", "table.go", `package quorumlock; import "time"; var now = time.Now`, true},
		{"the core is told", "effect.go", `package quorumlock; func f() { go f() }`, true},
		{"the core is told", "queue/x.go", `package queue; func f(c chan int) { c <- 1 }`, true},
		{"the core is told", "queue/x.go", `package queue; var c = make(chan int)`, true},
		{"the core is told", "sessions/x.go", `package sessions; import "math/rand/v2"; var _ = rand.Int()`, true},
		{"the core is told", "sessions/x.go", `package sessions; import _ "log/slog"`, true},
		{"the core is told", "internal/wire/x.go", `package wire; import _ "os"`, true},
		{"the core is told", "internal/wire/x.go", `package wire; import "time"; var ttl time.Duration = time.Second`, false},
		{"the core is told", "internal/wire/x_test.go", `package wire; import "time"; var _ = time.Now()`, false},
		{"the core is told", "node.go", `package quorumlock; import "time"; var _ = time.Now()`, false},
		{"small", "x.go", longFunction, true},
		{"small", "x.go", strings.Replace(longFunction, "\n\n", "\n", 1), false},
		{"small", "x_test.go", longFunction, false},
		{"small", "x.go", "package p\n" + strings.Repeat("\n", maxFile), true},
		{"packages are named", "internal/x/x.go", `package util`, true},
		{"packages are named", "internal/helpers/x.go", `package x`, true},
		{"packages are named", "queue/x_test.go", `package queue_test`, false},
		{"wait for the event", "x_test.go", `package p; import "time"; func f() { time.Sleep(1) }`, true},
		{"wait for the event", "x_test.go", `package p; import ("time"; "testing/synctest"); func f() { synctest.Wait(); time.Sleep(1) }`, false},
		{"wait for the event", "x.go", `package p; import "time"; func f() { time.Sleep(1) }`, true},
		{"wait for the event", "examples/x/x.go", `package p; import "time"; func f() { time.Sleep(1) }`, false},
		{"testify is for tests", "x.go", `package p; import _ "github.com/stretchr/testify/require"`, true},
		{"testify is for tests", "examples/x/x.go", `package p; import _ "github.com/anishathalye/porcupine"`, true},
		{"testify is for tests", "examples/torture/x.go", `package p; import _ "github.com/anishathalye/porcupine"`, false},
		{"testify is for tests", "examples/torture/x.go", `package p; import _ "github.com/stretchr/testify/require"`, true},
		{"testify is for tests", "x_test.go", `package p; import _ "github.com/stretchr/testify/require"`, false},
		{"a library is silent", "x.go", `package p; import "os"; func f() { os.Exit(1) }`, true},
		{"a library is silent", "x.go", `package p; import "fmt"; func f() { fmt.Println(1) }`, true},
		{"a library is silent", "examples/x/x.go", `package p; import "fmt"; func f() { fmt.Println(1) }`, false},
	} {
		f, err := parse(c.path, []byte(c.src))
		require.NoError(t, err)
		require.NotNil(t, rules[c.rule], c.rule)
		found := len(rules[c.rule](f)) > 0
		require.Equal(t, c.wrong, found, "%s: %s: %.80s", c.rule, c.path, c.src)
		bitten[c.rule] = bitten[c.rule] || found
	}
	for name := range rules {
		require.True(t, bitten[name], "nothing was tried on rule %q", name)
	}
}
