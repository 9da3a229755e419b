package main

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const header = "invoice,supplier,currency,amount,due\n"

func TestEmbeddedInvoices(t *testing.T) {
	invoices, err := parseInvoices("invoices.csv", embedded)
	if err != nil {
		t.Fatal(err)
	}
	if len(invoices) < 300 {
		t.Errorf("only %d invoices", len(invoices))
	}
	if !bytes.HasPrefix(embedded, []byte("\ufeff")) || !bytes.Contains(embedded, []byte("\r\n")) {
		t.Error("the file lost its byte order mark or its CRLF line ends, which are there to be read")
	}
	seen := make(map[string]bool)
	for _, inv := range invoices {
		seen[inv.Amount.Currency] = true
		for _, c := range []string{`"`, ",", "ü", "株"} {
			if strings.Contains(inv.Supplier, c) {
				seen[c] = true
			}
		}
	}
	for _, want := range []string{"EUR", "USD", "JPY", "GBP", "CHF", "KWD", `"`, ",", "ü", "株"} {
		if !seen[want] {
			t.Errorf("no invoice with %s", want)
		}
	}
}

func TestParseInvoices(t *testing.T) {
	data := "\ufeffInvoice, Supplier ,CURRENCY,amount,due\r\n" +
		"R-1,\"Müller, \"\"Söhne\"\" & Co.\",EUR,10.50,2026-01-31\r\n" +
		"\r\n" +
		" 請求書-2 ,\"two\nlines\",JPY,1200,2026-02-28\r\n" +
		"   \r\n" +
		"R-3,last line without an end,KWD,1.005,2028-02-29"
	invoices, err := parseInvoices("f.csv", []byte(data))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, inv := range invoices {
		got = append(got, fmt.Sprintf("%s|%s|%s|%s", inv.Number, inv.Supplier, inv.Amount, inv.Due.Format("Jan 2 2006")))
	}
	want := []string{
		`R-1|Müller, "Söhne" & Co.|EUR 10.50|Jan 31 2026`,
		"請求書-2|two\nlines|JPY 1200|Feb 28 2026",
		"R-3|last line without an end|KWD 1.005|Feb 29 2028",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestBadRows(t *testing.T) {
	good := "R-1,Acme,EUR,1.00,2026-01-31\n"
	for name, c := range map[string]struct{ data, want string }{
		"empty file":        {"", `f.csv:1: the file is empty`},
		"only a mark":       {"\ufeff", `f.csv:1: the file is empty`},
		"no rows":           {header, `f.csv: has no invoices`},
		"no header":         {good, `f.csv:1: the header is "r-1,acme`},
		"semicolons":        {"invoice;supplier;currency;amount;due\n", `f.csv:1: the header is "invoice;supplier;currency;amount;due" and must be "invoice,supplier,currency,amount,due"; its columns are separated by semicolons`},
		"UTF-16":            {"\xff\xfei\x00n\x00", `f.csv: is UTF-16`},
		"too few columns":   {header + good + "R-2,Acme,EUR,1.00\n", `f.csv:3: has 4 columns and must have 5`},
		"too many columns":  {header + "R-2,Acme, Inc.,EUR,1.00,2026-01-31\n", `f.csv:2: has 6 columns`},
		"empty number":      {header + ",Acme,EUR,1.00,2026-01-31\n", `f.csv:2: the invoice number is empty`},
		"blank number":      {header + "\" \u00a0\",Acme,EUR,1.00,2026-01-31\n", `f.csv:2: the invoice number is empty`},
		"duplicate":         {header + good + "\n" + good, `f.csv:4: invoice "R-1" was on line 2 already`},
		"duplicate, spaced": {header + good + " " + good, `f.csv:3: invoice "R-1" was on line 2 already`},
		"control character": {header + "R\x00-1,Acme,EUR,1.00,2026-01-31\n", `f.csv:2: invoice "R\x00-1" has a control character`},
		"number too long":   {header + strings.Repeat("ä", 253) + ",Acme,EUR,1.00,2026-01-31\n", `has 514 bytes, and may have 512`},
		"empty supplier":    {header + "R-1,,EUR,1.00,2026-01-31\n", `f.csv:2: the supplier is empty`},
		"not UTF-8":         {header + "R-1,M\xfcller,EUR,1.00,2026-01-31\n", `f.csv:2: supplier "M\xfcller" is not UTF-8`},
		"unknown currency":  {header + "R-1,Acme,EURO,1.00,2026-01-31\n", `f.csv:2: currency "EURO" is not known`},
		"bad amount":        {header + "R-1,Acme,EUR,ten,2026-01-31\n", `f.csv:2: amount "ten" is not a number`},
		"negative":          {header + "R-1,Acme,EUR,-1.00,2026-01-31\n", `f.csv:2: amount "-1.00" is negative`},
		"zero":              {header + "R-1,Acme,EUR,0.00,2026-01-31\n", `f.csv:2: amount "0.00" is zero`},
		"decimals":          {header + "R-1,Acme,JPY,1.00,2026-01-31\n", `f.csv:2: amount "1.00" has 2 digits after the point, and JPY has 0`},
		"bad date":          {header + "R-1,Acme,EUR,1.00,31.01.2026\n", `f.csv:2: due "31.01.2026" is not a date`},
		"impossible date":   {header + "R-1,Acme,EUR,1.00,2026-02-30\n", `f.csv:2: due "2026-02-30" is not a date`},
		"bare quote":        {header + "R-1,Ac\"me,EUR,1.00,2026-01-31\n", `f.csv:2: a " stands in a field`},
		"open quote":        {header + good + "R-2,\"Acme,EUR,1.00,2026-01-31\n" + good, `f.csv:3: a quoted field is not closed`},
		"after a long row":  {header + "R-1,\"a\nb\nc\",EUR,1.00,2026-01-31\nR-2,Acme,EUR,x,2026-01-31\n", `f.csv:5: amount "x"`},
	} {
		t.Run(name, func(t *testing.T) {
			invoices, err := parseInvoices("f.csv", []byte(c.data))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %d invoices and error\n%v\nwant\n%s", len(invoices), err, c.want)
			}
		})
	}
}

// Whoever mends a file wants to see all that is wrong with it, but not for ever.
func TestAllBadRowsAtOnce(t *testing.T) {
	_, err := parseInvoices("f.csv", []byte(header+"A,x,EUR,0,2026-01-31\nB,x,EUR,1.00,2026-01-31\nC,,XX,-1,never\n"))
	if err == nil {
		t.Fatal("no error")
	}
	want := []string{"f.csv:2: amount", "f.csv:4: the supplier", "f.csv:4: currency", "f.csv:4: due"}
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != len(want) {
		t.Fatalf("got %d faults, want %d:\n%v", len(lines), len(want), err)
	}
	for i := range want {
		if !strings.HasPrefix(lines[i], want[i]) {
			t.Errorf("fault %d is %q, want %q...", i, lines[i], want[i])
		}
	}

	_, err = parseInvoices("f.csv", []byte(header+strings.Repeat(",,,,\n", 1000)))
	lines = strings.Split(err.Error(), "\n")
	if len(lines) != maxFaults+1 || lines[maxFaults] != fmt.Sprintf("and %d more", 4*1000-maxFaults) {
		t.Errorf("got %d lines, the last one %q", len(lines), lines[len(lines)-1])
	}
}

func TestTooManyInvoices(t *testing.T) {
	var b strings.Builder
	b.WriteString(header)
	for i := range maxInvoices + 1 {
		fmt.Fprintf(&b, "R-%d,Acme,EUR,1.00,2026-01-31\n", i)
	}
	_, err := parseInvoices("f.csv", []byte(b.String()))
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("has %d invoices; at most %d", maxInvoices+1, maxInvoices)) {
		t.Error(err)
	}
}

func TestReadInvoices(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "big.csv")
	if err := os.WriteFile(path, make([]byte, maxFileSize+1), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		path:                           "is larger than 16 MiB",
		dir:                            "is a directory",
		filepath.Join(dir, "none.csv"): "no such file",
	} {
		if _, err := readInvoices(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", path, err, want)
		}
	}
}

// Whatever the bytes are, the answer is either an error, or invoices that could
// be written to a file and read again as the same.
func FuzzParseInvoices(f *testing.F) {
	f.Add(embedded[:2000])
	f.Add([]byte(header + "R-1,\"a\nb\",EUR,1.00,2026-01-31\r\n"))
	f.Add([]byte("\ufeff" + header + "R-1,Ac\"me,EUR,1.00,2026-01-31\n\"\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		invoices, err := parseInvoices("f.csv", data)
		if err != nil {
			if invoices != nil && strings.TrimSpace(err.Error()) == "" {
				t.Fatal("an error without words")
			}
			return
		}
		var b bytes.Buffer
		w := csv.NewWriter(&b)
		_ = w.Write(columns)
		for _, inv := range invoices {
			_, amount, _ := strings.Cut(inv.Amount.String(), " ")
			_ = w.Write([]string{inv.Number, inv.Supplier, inv.Amount.Currency, amount, inv.Due.Format("2006-01-02")})
		}
		w.Flush()
		again, err := parseInvoices("f.csv", b.Bytes())
		if err != nil {
			t.Fatalf("written and read again: %v\n%s", err, b.Bytes())
		}
		if len(again) != len(invoices) {
			t.Fatalf("%d invoices became %d", len(invoices), len(again))
		}
		for i := range again {
			if again[i] != invoices[i] {
				t.Fatalf("%+v became %+v", invoices[i], again[i])
			}
		}
	})
}
