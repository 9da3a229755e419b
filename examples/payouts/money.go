package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// money is an exact amount: a whole number of the currency's smallest unit, so
// that 0.10 EUR is 10 and 120 JPY is 120. It never passes through a float, in
// which a sum of invoices would soon be a cent away from the truth.
type money struct {
	Currency string // ISO 4217 code
	Minor    int64
}

// maxMinor bounds one amount. With at most maxInvoices of them, no total can
// overflow an int64.
const maxMinor = 1_000_000_000_000_000

// decimals says how many digits a currency has after the point.
var decimals = map[string]int{
	"AED": 2, "ARS": 2, "AUD": 2, "BGN": 2, "BRL": 2, "CAD": 2, "CHF": 2, "CNY": 2,
	"COP": 2, "CZK": 2, "DKK": 2, "EGP": 2, "EUR": 2, "GBP": 2, "HKD": 2, "HUF": 2,
	"IDR": 2, "ILS": 2, "INR": 2, "KES": 2, "MAD": 2, "MXN": 2, "MYR": 2, "NGN": 2,
	"NOK": 2, "NZD": 2, "PEN": 2, "PHP": 2, "PLN": 2, "QAR": 2, "RON": 2, "RSD": 2,
	"SAR": 2, "SEK": 2, "SGD": 2, "THB": 2, "TRY": 2, "TWD": 2, "UAH": 2, "USD": 2,
	"ZAR": 2,

	"CLP": 0, "ISK": 0, "JPY": 0, "KRW": 0, "PYG": 0, "RWF": 0, "UGX": 0, "VND": 0,
	"XAF": 0, "XOF": 0, "XPF": 0,

	"BHD": 3, "IQD": 3, "JOD": 3, "KWD": 3, "LYD": 3, "OMR": 3, "TND": 3,
}

// parseMoney reads an amount to be paid: digits, and at most as many of them
// after the point as the currency has.
func parseMoney(currency, amount string) (money, error) {
	digits, ok := decimals[currency]
	if !ok {
		return money{}, fmt.Errorf("currency %q is not known: three capital letters such as EUR are", currency)
	}
	if strings.HasPrefix(amount, "-") {
		return money{}, fmt.Errorf("amount %q is negative: only what is owed can be paid", amount)
	}
	whole, part, point := strings.Cut(amount, ".")
	if !isDigits(whole) || point && !isDigits(part) {
		return money{}, fmt.Errorf("amount %q is not a number such as 1234.50: digits and one point only", amount)
	}
	if len(part) > digits {
		return money{}, fmt.Errorf("amount %q has %d digits after the point, and %s has %d", amount, len(part), currency, digits)
	}
	minor, err := strconv.ParseInt(whole+part+strings.Repeat("0", digits-len(part)), 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange), minor > maxMinor:
		return money{}, fmt.Errorf("amount %q is more than this program pays at once", amount)
	case err != nil:
		return money{}, fmt.Errorf("amount %q: %w", amount, err)
	case minor == 0:
		return money{}, fmt.Errorf("amount %q is zero: there is nothing to pay", amount)
	}
	return money{Currency: currency, Minor: minor}, nil
}

// isDigits reports whether s is one or more of 0 to 9, and nothing else.
func isDigits(s string) bool {
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return false
		}
	}
	return s != ""
}

// String writes m the way parseMoney reads it, after its currency.
func (m money) String() string {
	digits := decimals[m.Currency]
	if digits == 0 {
		return fmt.Sprintf("%s %d", m.Currency, m.Minor)
	}
	sign, minor := "", m.Minor
	if minor < 0 {
		sign, minor = "-", -minor
	}
	text := fmt.Sprintf("%0*d", digits+1, minor)
	point := len(text) - digits
	return m.Currency + " " + sign + text[:point] + "." + text[point:]
}
