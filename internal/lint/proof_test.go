package lint

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"slices"
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

// report is how a report of another project's users is named: the repository, and numbers
// in it.
var report = regexp.MustCompile(`([\w.-]+)((?:#\d+,? ?)+)`)

// reportsIn lists the reports that a text names, without their owners, which some leave out.
func reportsIn(text string) (all []string) {
	for _, m := range report.FindAllStringSubmatch(text, -1) {
		for _, number := range strings.FieldsFunc(m[2], func(r rune) bool { return r == ',' || r == ' ' }) {
			all = append(all, m[1]+number)
		}
	}
	return all
}

// unlisted returns the reports that tests say they are about while no row with them names
// the test.
func unlisted(page string, comments map[string]string) (wrong []string) {
	listed := make(map[string]bool)
	for line := range strings.SplitSeq(page, "\n") {
		for _, r := range reportsIn(line) {
			for _, m := range testName.FindAllStringSubmatch(line, -1) {
				listed[r+" "+m[1]] = true
			}
		}
	}
	for test, comment := range comments {
		for _, r := range reportsIn(comment) {
			if !listed[r+" "+test] {
				wrong = append(wrong, test+" is about "+r+", and no row says so")
			}
		}
	}
	slices.Sort(wrong)
	return wrong
}

// What docs/PROOF.md says is tested must be a test, and what a test says it is about must
// be there.
func TestProofNamesTests(t *testing.T) {
	tests, comments := make(map[string]bool), make(map[string]string)
	for _, f := range tree(t) {
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && f.test && fn.Recv == nil {
				tests[fn.Name.Name] = true
				comments[fn.Name.Name] += fn.Doc.Text()
			}
		}
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "PROOF.md"))
	require.NoError(t, err)
	wrong, rows := misproved(string(page), tests)
	require.Empty(t, wrong)
	require.Greater(t, rows, 50, "the table of reports was not found")
	require.Empty(t, unlisted(string(page), comments))
}

func TestProofNamesTestsBites(t *testing.T) {
	page := "`TestGone`\n\n| reported as | here | test |\n| --- | --- | --- |\n" +
		"| a#1 | b | `TestThere` |\n| a#2 | b | not built |\n| a#3 | b | some day |\n"
	wrong, rows := misproved(page, map[string]bool{"TestThere": true})
	require.Equal(t, 3, rows)
	require.Equal(t, []string{"no test TestGone", "no test and no reason: | a#3 | b | some day |"}, wrong)
	require.Equal(t, []string{"TestThere is about a#5, and no row says so", "TestThere is about c#1, and no row says so"},
		unlisted(page, map[string]string{"TestThere": "Something.\n\nx/a#1, #5; y/c#1\n"}))
}
