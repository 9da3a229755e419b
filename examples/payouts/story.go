package main

import (
	"fmt"
	"io"
	"time"
)

// A story is what the user reads while the program runs: one line for each thing
// that was done or that followed, with the seconds since the start.
type story struct {
	w     io.Writer
	began time.Time
}

func (s *story) tell(format string, args ...any) {
	fmt.Fprintf(s.w, "%5.1fs  %s\n", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
}

// more continues the line before.
func (s *story) more(format string, args ...any) {
	fmt.Fprintf(s.w, "        %s\n", fmt.Sprintf(format, args...))
}

// seconds writes a duration for people.
func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }

// countInvoices writes a number of invoices.
func countInvoices(n int) string {
	if n == 1 {
		return "1 invoice"
	}
	return fmt.Sprintf("%d invoices", n)
}
