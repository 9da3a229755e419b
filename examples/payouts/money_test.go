package main

import (
	"strings"
	"testing"
)

func TestParseMoney(t *testing.T) {
	for _, c := range []struct {
		currency, amount string
		minor            int64
		text             string
	}{
		{"EUR", "1234.50", 123450, "EUR 1234.50"},
		{"EUR", "1234.5", 123450, "EUR 1234.50"},
		{"EUR", "1234", 123400, "EUR 1234.00"},
		{"EUR", "0.01", 1, "EUR 0.01"},
		{"EUR", "0.10", 10, "EUR 0.10"},
		{"EUR", "007.00", 700, "EUR 7.00"},
		{"JPY", "120", 120, "JPY 120"},
		{"KWD", "0.005", 5, "KWD 0.005"},
		{"KWD", "12.3", 12300, "KWD 12.300"},
		{"USD", "10000000000000.00", maxMinor, "USD 10000000000000.00"},
	} {
		m, err := parseMoney(c.currency, c.amount)
		if err != nil || m.Minor != c.minor || m.Currency != c.currency {
			t.Errorf("%s %q: got %v, %v; want %d", c.currency, c.amount, m.Minor, err, c.minor)
		}
		if m.String() != c.text {
			t.Errorf("%s %q: written as %q, want %q", c.currency, c.amount, m, c.text)
		}
	}
}

func TestParseMoneyRefuses(t *testing.T) {
	for _, c := range []struct{ currency, amount, want string }{
		{"EUR", "", "not a number"},
		{"EUR", "abc", "not a number"},
		{"EUR", "1,234.50", "not a number"},
		{"EUR", "1234,50", "not a number"},
		{"EUR", "1.234.50", "not a number"},
		{"EUR", "12.", "not a number"},
		{"EUR", ".50", "not a number"},
		{"EUR", "+5", "not a number"},
		{"EUR", "1e3", "not a number"},
		{"EUR", "0x10", "not a number"},
		{"EUR", "1_000", "not a number"},
		{"EUR", "NaN", "not a number"},
		{"EUR", "１２", "not a number"}, // digits of another script
		{"EUR", "-5.00", "negative"},
		{"EUR", "-0", "negative"},
		{"EUR", "0", "zero"},
		{"EUR", "0.00", "zero"},
		{"EUR", "1.005", "3 digits after the point"},
		{"JPY", "120.0", "1 digits after the point, and JPY has 0"},
		{"KWD", "1.0005", "4 digits"},
		{"EUR", "10000000000000.01", "more than"},
		{"EUR", strings.Repeat("9", 200), "more than"},
		{"XXX", "5", "not known"},
		{"eur", "5", "not known"},
		{"", "5", "not known"},
	} {
		m, err := parseMoney(c.currency, c.amount)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %q: got %v, %v; want an error with %q", c.currency, c.amount, m, err, c.want)
		}
	}
}

// A difference of totals may be negative, which no amount that was read is.
func TestNegativeMoney(t *testing.T) {
	for m, want := range map[money]string{
		{"EUR", -5}:    "EUR -0.05",
		{"JPY", -5}:    "JPY -5",
		{"KWD", -1234}: "KWD -1.234",
		{"EUR", 0}:     "EUR 0.00",
	} {
		if m.String() != want {
			t.Errorf("got %q, want %q", m, want)
		}
	}
}

func FuzzMoney(f *testing.F) {
	f.Add("EUR", "12.34")
	f.Add("JPY", "5")
	f.Add("KWD", "0.001")
	f.Fuzz(func(t *testing.T, currency, amount string) {
		m, err := parseMoney(currency, amount)
		if err != nil {
			return
		}
		if m.Minor <= 0 || m.Minor > maxMinor {
			t.Fatalf("%q is %d", amount, m.Minor)
		}
		_, written, _ := strings.Cut(m.String(), " ")
		again, err := parseMoney(currency, written)
		if err != nil || again != m {
			t.Fatalf("%q was read as %v, written as %q, and read again as %v, %v", amount, m, written, again, err)
		}
	})
}
