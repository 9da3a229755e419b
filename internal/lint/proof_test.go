package lint

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var testName = regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w*)`")

// unproved are the words by which a row says that it has no test, and why.
var unproved = regexp.MustCompile(`^(not built|does not apply)`)

// misproved returns what docs/PROOF.md names that is not there, and the rows of its
// reports that name nothing.
func misproved(page string, tests map[string]bool) (wrong []string, rows int) {
	for _, m := range testName.FindAllStringSubmatch(page, -1) {
		if !tests[m[1]] {
			wrong = append(wrong, "no test "+m[1])
		}
	}
	_, reports, _ := strings.Cut(page, "\n| reported as |")
	for i, line := range strings.Split(reports, "\n") {
		if i < 2 { // the rest of the head, and the rule below it
			continue
		}
		if !strings.HasPrefix(line, "|") {
			break
		}
		rows++
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		last := cells[len(cells)-1]
		if len(cells) != 3 || !testName.MatchString(last) && !unproved.MatchString(last) {
			wrong = append(wrong, "no test and no reason: "+line)
		}
	}
	return wrong, rows
}

// What docs/PROOF.md says is tested must be a test.
func TestProofNamesTests(t *testing.T) {
	tests := make(map[string]bool)
	for _, f := range tree(t) {
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && f.test && fn.Recv == nil {
				tests[fn.Name.Name] = true
			}
		}
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "PROOF.md"))
	require.NoError(t, err)
	wrong, rows := misproved(string(page), tests)
	require.Empty(t, wrong)
	require.Greater(t, rows, 50, "the table of reports was not found")
}

func TestProofNamesTestsBites(t *testing.T) {
	page := "`TestGone`\n\n| reported as | here | test |\n| --- | --- | --- |\n" +
		"| a#1 | b | `TestThere` |\n| a#2 | b | not built |\n| a#3 | b | some day |\n"
	wrong, rows := misproved(page, map[string]bool{"TestThere": true})
	require.Equal(t, 3, rows)
	require.Equal(t, []string{"no test TestGone", "no test and no reason: | a#3 | b | some day |"}, wrong)
}
