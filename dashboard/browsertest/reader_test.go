package browsertest

import (
	"encoding/json"
	"regexp"
	"slices"
	"testing"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// A heard is what a screen reader is told of one part of a page.
type heard struct{ role, name string }

// listen returns what a screen reader is told of the page that is open.
func (b *browser) listen() (all []heard) {
	b.t.Helper()
	tree, err := chromedp.Call(b.ctx, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
	require.NoError(b.t, err)
	text := func(v *accessibility.Value) (s string) {
		if v != nil && len(v.Value) > 0 {
			_ = json.Unmarshal(v.Value, &s) // other values are no names
		}
		return s
	}
	for _, n := range tree.Nodes {
		if !n.Ignored {
			all = append(all, heard{text(n.Role), text(n.Name)})
		}
	}
	return all
}

// Every page has its landmarks and one heading of the first rank, says where one is, and
// has a name for all that can be used and for each table and its columns, on a phone too,
// where tables are shown as cards.
func TestScreenReader(t *testing.T) {
	b := openBrowser(t)
	for _, width := range []int64{1200, 360} {
		for _, page := range everyPage {
			b.look(page, "light", width, 800)
			all := b.listen()
			count := func(role string) (n int) {
				for _, h := range all {
					if h.role == role {
						n++
					}
				}
				return n
			}
			require.Equal(t, 1, count("main"), page)
			require.Equal(t, 1, count("banner"), page)
			require.Contains(t, all, heard{"navigation", "Pages"}, page)
			for _, h := range all {
				if slices.Contains([]string{"link", "button", "textbox", "searchbox", "checkbox", "table", "columnheader", "rowheader", "heading", "DisclosureTriangle"}, h.role) {
					require.NotEmpty(t, h.name, "%s: %s", page, h.role)
				}
			}
			if count("table") > 0 {
				require.NotZero(t, count("row"), page)
				require.NotZero(t, count("rowheader")+count("columnheader"), page)
				require.NotZero(t, count("cell")+count("gridcell"), page)
			}
		}
	}
	b.look("locks", "light", 1200, 800)
	all := b.listen()
	require.True(t, slices.ContainsFunc(all, func(h heard) bool {
		return h.role == "table" && regexp.MustCompile(`^All locks in use, by name: \d\d\d$`).MatchString(h.name)
	}), "%v", all)
	require.Contains(t, all, heard{"columnheader", "Held by"})
	require.Contains(t, all, heard{"searchbox", "Names that begin with"})
}
