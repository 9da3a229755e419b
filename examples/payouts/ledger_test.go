package main

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/quorumlock/quorumlock/fencing"
)

func newTestLedger(t *testing.T, fenced bool) *ledger {
	t.Helper()
	// A name that a file: URL must not take apart.
	path := filepath.Join(t.TempDir(), "led?ger #1 %41.db")
	if err := createLedger(t.Context(), path, threeInvoices); err != nil {
		t.Fatal(err)
	}
	l, err := openLedger(path, fenced)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.close() })
	return l
}

func TestLedger(t *testing.T) {
	l := newTestLedger(t, true)
	ctx := t.Context()
	for _, p := range threePayments[:2] {
		if err := l.pay(ctx, p); err != nil {
			t.Fatal(err)
		}
	}
	open, err := l.unpaid(ctx, 10)
	if err != nil || len(open) != 1 || open[0].Number != "C" || open[0].Amount != jpy(1200) {
		t.Errorf("unpaid: %+v, %v", open, err)
	}
	for number, want := range map[string]bool{"A": true, "C": false, "none": false} {
		if paid, err := l.isPaid(ctx, number); err != nil || paid != want {
			t.Errorf("%s paid: %v, %v", number, paid, err)
		}
		if paid, err := l.takeOver(ctx, number, 20); err != nil || paid != want {
			t.Errorf("%s paid, under the lock: %v, %v", number, paid, err)
		}
	}
	if n, err := l.paidCount(ctx); err != nil || n != 2 {
		t.Errorf("paid: %d, %v", n, err)
	}
	a, err := auditLedger(ctx, l, threeInvoices)
	if err != nil || a.PaidOnce != 2 || len(a.Missing) != 1 {
		t.Errorf("audit: %+v, %v", a, err)
	}
}

// The fence refuses the payment of an older token, all of it, and counts it.
func TestStalePayment(t *testing.T) {
	l := newTestLedger(t, true)
	ctx := t.Context()
	if err := l.pay(ctx, payment{"A", eur(1050), 9, 2}); err != nil {
		t.Fatal(err)
	}
	err := l.pay(ctx, payment{"A", eur(1050), 7, 1})
	var stale *fencing.StaleError
	if !errors.As(err, &stale) || stale.Admitted != 9 {
		t.Fatalf("got %v", err)
	}
	a, err := auditLedger(ctx, l, threeInvoices[:1])
	if err != nil || !a.balanced() || a.Refused != 1 {
		t.Errorf("audit: %+v, %v", a, err)
	}
}

// A holder that has looked at an invoice shuts out those from before, even if it
// has not written yet: or both would write on what they saw.
func TestTakeOver(t *testing.T) {
	l := newTestLedger(t, true)
	ctx := t.Context()
	for _, token := range []fencing.Token{7, 9} {
		if paid, err := l.takeOver(ctx, "A", token); err != nil || paid {
			t.Fatalf("token %s: paid %v, %v", token, paid, err)
		}
	}
	if err := l.pay(ctx, payment{"A", eur(1050), 7, 1}); !errors.Is(err, fencing.ErrStale) {
		t.Errorf("payment of the older one: %v", err)
	}
	if _, err := l.takeOver(ctx, "A", 7); !errors.Is(err, fencing.ErrStale) {
		t.Errorf("look of the older one: %v", err)
	}
	if err := l.pay(ctx, payment{"A", eur(1050), 9, 2}); err != nil {
		t.Error(err)
	}
	a, err := auditLedger(ctx, l, threeInvoices[:1])
	if err != nil || !a.balanced() || a.Refused != 1 {
		t.Errorf("audit: %+v, %v", a, err)
	}
}

// Without the fence nothing in the ledger stops the second payment, or the run
// without it would show nothing.
func TestUnfencedDoublePayment(t *testing.T) {
	l := newTestLedger(t, false)
	ctx := t.Context()
	for _, token := range []fencing.Token{9, 7} {
		if err := l.pay(ctx, payment{"A", eur(1050), token, 1}); err != nil {
			t.Fatal(err)
		}
	}
	a, err := auditLedger(ctx, l, threeInvoices[:1])
	if err != nil || a.balanced() || len(a.Twice) != 1 || a.Refused != 0 {
		t.Errorf("audit: %+v, %v", a, err)
	}
}
