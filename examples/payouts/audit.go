package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/quorumlock/quorumlock/fencing"
)

// maxFindings is how many findings of one kind the audit spells out.
const maxFindings = 5

// An audit compares what was to be paid with what was written.
type audit struct {
	Invoices int
	PaidOnce int
	Twice    []string // paid more than once: the invoice, and by whom
	Missing  []string // never paid
	Wrong    []string // a payment of another amount, or of no known invoice
	Reused   []string // two payments with one token
	Owed     map[string]int64
	Paid     map[string]int64
	Refused  int // stale writes
}

// auditLedger judges the ledger by the invoices as they were read from the file,
// not by what the ledger or the workers say of them.
func auditLedger(ctx context.Context, l *ledger, invoices []invoice) (*audit, error) {
	payments, err := l.payments(ctx)
	if err != nil {
		return nil, err
	}
	refused, err := l.refusalCount(ctx)
	if err != nil {
		return nil, err
	}
	return newAudit(invoices, payments, refused), nil
}

func newAudit(invoices []invoice, payments []payment, refused int) *audit {
	a := &audit{
		Invoices: len(invoices),
		Owed:     make(map[string]int64),
		Paid:     make(map[string]int64),
		Refused:  refused,
	}
	known := make(map[string]invoice, len(invoices))
	for _, inv := range invoices {
		known[inv.Number] = inv
		a.Owed[inv.Amount.Currency] += inv.Amount.Minor
	}
	written := make(map[string][]payment)
	byToken := make(map[fencing.Token]string)
	for _, p := range payments {
		written[p.Invoice] = append(written[p.Invoice], p)
		a.Paid[p.Amount.Currency] += p.Amount.Minor
		switch inv, ok := known[p.Invoice]; {
		case !ok:
			a.Wrong = append(a.Wrong, fmt.Sprintf("%s for %q, which is no invoice of the file", p.Amount, p.Invoice))
		case p.Amount != inv.Amount:
			a.Wrong = append(a.Wrong, fmt.Sprintf("%s for %q, which is over %s", p.Amount, p.Invoice, inv.Amount))
		}
		// A grant is for one invoice and pays it once, so a token that comes
		// again was given to two holders.
		if other, again := byToken[p.Token]; again {
			a.Reused = append(a.Reused, fmt.Sprintf("token %s paid %q and %q", p.Token, other, p.Invoice))
		}
		byToken[p.Token] = p.Invoice
	}
	for _, inv := range invoices {
		switch rows := written[inv.Number]; len(rows) {
		case 0:
			a.Missing = append(a.Missing, fmt.Sprintf("%q of %s, %s", inv.Number, inv.Supplier, inv.Amount))
		case 1:
			a.PaidOnce++
		default:
			a.Twice = append(a.Twice, describeTwice(inv, rows))
		}
	}
	return a
}

func describeTwice(inv invoice, rows []payment) string {
	by := make([]string, len(rows))
	for i, p := range rows {
		by[i] = fmt.Sprintf("worker %d with token %s", p.Worker, p.Token)
	}
	return fmt.Sprintf("%q of %s, %s: by %s", inv.Number, inv.Supplier, inv.Amount, strings.Join(by, ", then by "))
}

// balanced reports whether every invoice was paid exactly once, and right.
func (a *audit) balanced() bool {
	return a.PaidOnce == a.Invoices && len(a.Twice)+len(a.Missing)+len(a.Wrong)+len(a.Reused) == 0 &&
		maps.Equal(a.Owed, a.Paid)
}

// print writes the audit down.
func (a *audit) print(w io.Writer) {
	printCount(w, "invoices", a.Invoices)
	printCount(w, "paid exactly once", a.PaidOnce)
	printFindings(w, "paid more than once", a.Twice)
	printFindings(w, "not paid", a.Missing)
	printFindings(w, "payments of a wrong amount", a.Wrong)
	printFindings(w, "tokens used by two payments", a.Reused)
	printCount(w, "stale writes refused", a.Refused)
	fmt.Fprintln(w, "  total per currency, owed and paid:")
	all := maps.Clone(a.Owed)
	maps.Copy(all, a.Paid)
	for _, currency := range slices.Sorted(maps.Keys(all)) {
		owed, paid := money{currency, a.Owed[currency]}, money{currency, a.Paid[currency]}
		verdict := "equal"
		if owed != paid {
			verdict = "DIFFERENT by " + money{currency, paid.Minor - owed.Minor}.String()
		}
		fmt.Fprintf(w, "    %20s  %20s  %s\n", owed, paid, verdict)
	}
}

func printCount(w io.Writer, what string, n int) { fmt.Fprintf(w, "  %-28s %5d\n", what, n) }

func printFindings(w io.Writer, what string, findings []string) {
	printCount(w, what, len(findings))
	for i, f := range findings {
		if i == maxFindings {
			fmt.Fprintf(w, "    and %d more\n", len(findings)-maxFindings)
			return
		}
		fmt.Fprintf(w, "    %s\n", f)
	}
}
