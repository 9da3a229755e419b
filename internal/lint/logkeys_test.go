package lint

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// logged returns the keys of the log lines of a file, and where each is. What is no
// constant is returned as "".
func logged(f *file) map[string][]string {
	keys := map[string][]string{}
	ast.Inspect(f.File, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		s, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || !isLogger(s.X) {
			return true
		}
		first := map[string]int{"With": 0, "Debug": 1, "Info": 1, "Warn": 1, "Error": 1}
		from, ok := first[s.Sel.Name]
		if !ok || call.Ellipsis.IsValid() {
			return true
		}
		for i := from; i < len(call.Args); i += 2 {
			key := ""
			if l, ok := call.Args[i].(*ast.BasicLit); ok {
				key, _ = strconv.Unquote(l.Value)
			}
			keys[key] = append(keys[key], f.at(call.Args[i]))
		}
		return true
	})
	return keys
}

// isLogger reports whether x is what this code calls its loggers.
func isLogger(x ast.Expr) bool {
	name := ""
	switch x := x.(type) {
	case *ast.Ident:
		name = x.Name
	case *ast.SelectorExpr:
		name = x.Sel.Name
	}
	return slices.Contains([]string{"log", "logger", "Logger"}, name)
}

// Who searches logs, or alarms by them, relies on their keys: they are what
// docs/NUMBERS.md says, no more and no less.
func TestLogKeysAreDocumented(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "NUMBERS.md"))
	require.NoError(t, err)
	_, table, ok := strings.Cut(string(page), "## Log lines")
	require.True(t, ok)
	documented := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllStringSubmatch(table, -1) {
		documented[row[1]] = true
	}
	used := map[string]bool{"engine": true, "repeated": true} // replica_log.go collects them first
	for _, f := range tree(t) {
		if f.test || f.program() || strings.HasPrefix(f.dir, "adapters") {
			continue
		}
		for key, places := range logged(f) {
			used[key] = true
			require.True(t, documented[key], "%v: key %q is not in docs/NUMBERS.md", places, key)
		}
	}
	for key := range documented {
		require.True(t, used[key], "no log line has the key %q", key)
	}
	require.Greater(t, len(used), 5)
}

func TestLogKeysAreFound(t *testing.T) {
	f, err := parse("x.go", []byte(`package p
func f() {
	n.log.Info("a", "one", 1, "two", 2)
	r.logger.With("three", 3)
	cfg.Logger.Debug("b", key, 4)
	t.Error("no", "key", 5)
}`))
	require.NoError(t, err)
	keys := logged(f)
	require.Len(t, keys, 4)
	for _, key := range []string{"one", "two", "three", ""} {
		require.Contains(t, keys, key)
	}
}
