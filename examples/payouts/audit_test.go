package main

import (
	"bytes"
	"strings"
	"testing"
)

var (
	eur = func(minor int64) money { return money{"EUR", minor} }
	jpy = func(minor int64) money { return money{"JPY", minor} }

	threeInvoices = []invoice{
		{Number: "A", Supplier: "Acme", Amount: eur(1050)},
		{Number: "B", Supplier: "Brüggli", Amount: eur(10)},
		{Number: "C", Supplier: "山田", Amount: jpy(1200)},
	}
	threePayments = []payment{
		{"A", eur(1050), 7, 1},
		{"B", eur(10), 9, 2},
		{"C", jpy(1200), 11, 1},
	}
)

// Each kind of damage to the ledger is found, and said in words.
func TestAudit(t *testing.T) {
	with := func(more ...payment) []payment { return append(append([]payment(nil), threePayments...), more...) }
	for name, c := range map[string]struct {
		payments []payment
		want     []string
	}{
		"balanced": {threePayments, nil},
		"a double payment": {
			with(payment{"B", eur(10), 12, 3}),
			[]string{`"B" of Brüggli, EUR 0.10: by worker 2 with token 9, then by worker 3 with token 12`, "DIFFERENT by EUR 0.10"},
		},
		"a missing one": {
			threePayments[:2],
			[]string{`"C" of 山田, JPY 1200`, "DIFFERENT by JPY -1200"},
		},
		"a wrong amount": {
			append(with()[:2], payment{"C", jpy(1201), 11, 1}),
			[]string{`JPY 1201 for "C", which is over JPY 1200`, "DIFFERENT by JPY 1"},
		},
		"a wrong currency": {
			append(with()[:2], payment{"C", eur(1200), 11, 1}),
			[]string{`EUR 12.00 for "C", which is over JPY 1200`, "DIFFERENT by JPY -1200"},
		},
		"two wrong amounts that cancel out": {
			[]payment{{"A", eur(1040), 7, 1}, {"B", eur(20), 9, 2}, {"C", jpy(1200), 11, 1}},
			[]string{`EUR 10.40 for "A"`, `EUR 0.20 for "B"`},
		},
		"of no known invoice": {
			with(payment{"D", jpy(1), 13, 5}),
			[]string{`JPY 1 for "D", which is no invoice of the file`},
		},
		"one token for two": {
			append(with()[:2], payment{"C", jpy(1200), 9, 1}),
			[]string{`token 9 paid "B" and "C"`},
		},
		"nothing at all": {nil, []string{"not paid                         3"}},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAudit(threeInvoices, c.payments, 0)
			if a.balanced() != (c.want == nil) {
				t.Errorf("balanced: %v", a.balanced())
			}
			var b bytes.Buffer
			a.print(&b)
			for _, want := range c.want {
				if !strings.Contains(b.String(), want) {
					t.Errorf("no %q in\n%s", want, b.String())
				}
			}
		})
	}
}

// Only a ledger that balances and has refused something is a success, and only
// with the fence.
func TestConclude(t *testing.T) {
	balanced := threePayments
	twice := append(append([]payment(nil), threePayments...), payment{"A", eur(1050), 20, 4})
	for _, c := range []struct {
		payments []payment
		refused  int
		fenced   bool
		status   int
		words    string
	}{
		{balanced, 1, true, exitOK, "HOLDS"},
		{balanced, 0, true, exitFailed, "no stale write was tried"},
		{twice, 1, true, exitFailed, "This is a bug"},
		{twice, 0, false, exitFailed, "what -unfenced is there to show"},
		{balanced, 0, false, exitFailed, "no invoice was paid twice"},
		{twice[1:], 0, false, exitFailed, "no invoice was paid twice"},
		{twice[2:], 0, false, exitFailed, "This is a bug"},
	} {
		var b bytes.Buffer
		status := conclude(&b, newAudit(threeInvoices, c.payments, c.refused), c.fenced)
		if status != c.status || !strings.Contains(b.String(), c.words) {
			t.Errorf("%+v: status %d, %s", c, status, b.String())
		}
	}
}
