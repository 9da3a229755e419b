package api

import (
	"strconv"
	"strings"
	"unicode"
)

// Printable makes a name readable that holds what cannot be seen, or what a terminal
// would obey. It is for display only: what names a lock is the name itself.
func Printable(name string) string {
	var b strings.Builder
	for _, r := range name {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
		} else {
			quoted := strconv.QuoteRuneToASCII(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
	}
	return b.String()
}
