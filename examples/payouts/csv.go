package main

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/quorumlock/quorumlock"
)

const (
	// maxInvoices keeps the run within its minute.
	maxInvoices = 1000
	// maxFileSize is far more than maxInvoices need.
	maxFileSize = 16 << 20
	// maxFaults is how many bad rows are listed before the rest is only counted.
	maxFaults = 20
)

// columns is the header that a file of invoices begins with.
var columns = []string{"invoice", "supplier", "currency", "amount", "due"}

// An invoice is one row of the file.
type invoice struct {
	Number   string
	Supplier string
	Amount   money
	Due      time.Time
}

// lockName is the lock under which the invoice is settled, and the resource that
// the ledger keeps its newest token for.
func lockName(number string) string { return "invoice/" + number }

// readInvoices reads a file of the user's.
func readInvoices(path string) ([]invoice, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // read only: nothing to lose
	data, err := io.ReadAll(io.LimitReader(f, maxFileSize+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxFileSize {
		return nil, fmt.Errorf("%s: is larger than %d MiB", path, maxFileSize>>20)
	}
	return parseInvoices(path, data)
}

// parseInvoices reads the rows of data, which name calls its file. Its error
// lists every bad row with its line, since whoever has to mend a file would
// rather do it once.
func parseInvoices(name string, data []byte) ([]invoice, error) {
	p := parser{name: name, lineOf: make(map[string]int)}
	if bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff")) {
		return nil, fmt.Errorf("%s: is UTF-16; save it as CSV in UTF-8", name)
	}
	p.read(bytes.TrimPrefix(data, []byte("\ufeff"))) // the byte order mark of a spreadsheet
	switch {
	case p.faultCount > maxFaults:
		p.faults = append(p.faults, fmt.Errorf("and %d more", p.faultCount-maxFaults))
	case p.faultCount == 0 && len(p.invoices) == 0:
		return nil, fmt.Errorf("%s: has no invoices: below the header %q comes one row for each", name, strings.Join(columns, ","))
	case p.faultCount == 0 && len(p.invoices) > maxInvoices:
		return nil, fmt.Errorf("%s: has %d invoices; at most %d can be settled within the minute that a run may take",
			name, len(p.invoices), maxInvoices)
	}
	return p.invoices, errors.Join(p.faults...)
}

type parser struct {
	name       string
	invoices   []invoice
	lineOf     map[string]int // where an invoice number was seen first
	faults     []error        // the first maxFaults of them
	faultCount int
}

func (p *parser) fault(line int, format string, args ...any) {
	p.faultCount++
	if p.faultCount <= maxFaults {
		p.faults = append(p.faults, fmt.Errorf("%s:%d: %s", p.name, line, fmt.Sprintf(format, args...)))
	}
}

func (p *parser) read(data []byte) {
	r := csv.NewReader(bytes.NewReader(data))
	r.FieldsPerRecord = -1 // counted here, for a message that says what was wanted
	r.ReuseRecord = true
	header := false
	for {
		record, err := r.Read()
		if err == io.EOF {
			if !header {
				p.fault(1, "the file is empty: it begins with the header %q", strings.Join(columns, ","))
			}
			return
		}
		if err != nil {
			p.syntaxFault(err)
			if !header {
				return
			}
			continue // the reader goes on with the next line
		}
		line, _ := r.FieldPos(0)
		for i := range record {
			record[i] = strings.TrimSpace(record[i])
		}
		switch {
		case !header:
			if !p.checkHeader(line, record) {
				return // whatever follows would be misread
			}
			header = true
		case len(record) == 1 && record[0] == "":
			// A line of spaces, as they are left at the end of a file.
		default:
			p.row(line, record)
		}
	}
}

// syntaxFault reports text that is not CSV.
func (p *parser) syntaxFault(err error) {
	var bad *csv.ParseError
	if !errors.As(err, &bad) {
		p.fault(1, "%v", err)
		return
	}
	why := bad.Err.Error()
	switch bad.Err {
	case csv.ErrQuote:
		why = `a quoted field is not closed, or has a single " within: it is written ""`
	case csv.ErrBareQuote:
		why = `a " stands in a field that does not begin with one: quote the whole field, and write "" within`
	}
	p.fault(bad.StartLine, "%s", why)
}

func (p *parser) checkHeader(line int, record []string) bool {
	got, want := strings.ToLower(strings.Join(record, ",")), strings.Join(columns, ",")
	if got == want {
		return true
	}
	hint := ""
	if len(record) == 1 && strings.Count(got, ";") == len(columns)-1 {
		hint = "; its columns are separated by semicolons, and commas are needed"
	}
	p.fault(line, "the header is %q and must be %q%s", brief(got), want, hint)
	return false
}

func (p *parser) row(line int, record []string) {
	before := p.faultCount
	if len(record) != len(columns) {
		p.fault(line, "has %d columns and must have %d: %s; a comma within a field needs quotes around the field",
			len(record), len(columns), strings.Join(columns, ","))
		return
	}
	for i, field := range record {
		if !utf8.ValidString(field) {
			p.fault(line, "%s %q is not UTF-8; save the file as CSV in UTF-8", columns[i], brief(field))
		}
	}
	if p.faultCount > before {
		return // the other checks would only say the same again
	}
	inv := invoice{Number: record[0], Supplier: record[1]}
	p.checkNumber(line, inv.Number)
	if inv.Supplier == "" {
		p.fault(line, "the supplier is empty")
	}
	var err error
	if inv.Amount, err = parseMoney(record[2], record[3]); err != nil {
		p.fault(line, "%v", err)
	}
	if inv.Due, err = time.Parse(time.DateOnly, record[4]); err != nil {
		p.fault(line, "due %q is not a date such as 2026-03-31", brief(record[4]))
	}
	if p.faultCount == before {
		p.invoices = append(p.invoices, inv)
	}
}

// checkNumber reports an invoice number that cannot name a lock, or that was
// there before: two rows for one invoice would be two payments.
func (p *parser) checkNumber(line int, number string) {
	first, seen := p.lineOf[number]
	switch name := lockName(number); {
	case number == "":
		p.fault(line, "the invoice number is empty")
	case seen:
		p.fault(line, "invoice %q was on line %d already", brief(number), first)
	case len(name) > quorumlock.MaxNameLen:
		p.fault(line, "invoice %q: the lock name made of it has %d bytes, and may have %d",
			brief(number), len(name), quorumlock.MaxNameLen)
	case strings.ContainsFunc(number, unicode.IsControl):
		p.fault(line, "invoice %q has a control character", brief(number))
	default:
		p.lineOf[number] = line
	}
}

// brief shortens text of the user's for a message.
func brief(s string) string {
	const most = 40
	r := []rune(s)
	if len(r) <= most {
		return s
	}
	return string(r[:most]) + "..."
}
