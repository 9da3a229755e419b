package dbtest

import (
	"context"
	"database/sql"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/fencing/sqlfence"
)

// refused fails the test unless err is the refusal of presented by admitted.
func refused(t *testing.T, err error, resource string, presented, admitted fencing.Token) {
	t.Helper()
	var stale *fencing.StaleError
	if !errors.Is(err, fencing.ErrStale) || !errors.As(err, &stale) {
		t.Fatalf("token %d: %v, want ErrStale", presented, err)
	}
	want := fencing.StaleError{Resource: resource, Presented: presented, Admitted: admitted}
	if *stale != want {
		t.Fatalf("got %+v, want %+v", *stale, want)
	}
}

func TestAdmit(t *testing.T) {
	on(t, func(t *testing.T, d *database) {
		must(t, d.admit(t, "a", 5))
		must(t, d.admit(t, "a", 5)) // the same holder writes again
		must(t, d.admit(t, "a", 9))
		refused(t, d.admit(t, "a", 5), "a", 5, 9)
		refused(t, d.admit(t, "a", 8), "a", 8, 9)
		must(t, d.admit(t, "a", 9)) // the refusals left nothing
		must(t, d.admit(t, "b", 1))
	})
}

// Neighbours at the top of the range are one number to whoever compares floats.
func TestAdmitHighTokens(t *testing.T) {
	on(t, func(t *testing.T, d *database) {
		const top = sqlfence.MaxToken
		must(t, d.admit(t, "a", top-1))
		must(t, d.admit(t, "a", top))
		must(t, d.admit(t, "a", top))
		refused(t, d.admit(t, "a", top-1), "a", top-1, top)
		for _, above := range []fencing.Token{top + 1, math.MaxUint64} {
			if err := d.admit(t, "a", above); !errors.Is(err, fencing.ErrToken) || errors.Is(err, fencing.ErrStale) {
				t.Errorf("token %d: %v, want ErrToken", above, err)
			}
		}
	})
}

func TestAdmitTwiceInOneTransaction(t *testing.T) {
	on(t, func(t *testing.T, d *database) {
		tx := d.begin(t, sql.LevelDefault)
		must(t, d.fence.Admit(t.Context(), tx, "a", 5))
		must(t, d.fence.Admit(t.Context(), tx, "a", 5))
		must(t, d.fence.Admit(t.Context(), tx, "b", 3))
		must(t, d.fence.Admit(t.Context(), tx, "a", 9))
		refused(t, d.fence.Admit(t.Context(), tx, "a", 5), "a", 5, 9)
	})
}

func TestRollbackForgets(t *testing.T) {
	on(t, func(t *testing.T, d *database) {
		for _, standing := range []fencing.Token{0, 3} { // without a row, and with one
			tx := d.begin(t, sql.LevelDefault)
			must(t, d.fence.Admit(t.Context(), tx, "a", 9))
			must(t, tx.Rollback())
			must(t, d.admit(t, "a", standing+1))
			must(t, d.admit(t, "a", standing+3))
			refused(t, d.admit(t, "a", standing+2), "a", standing+2, standing+3)
		}
	})
}

// A refused upsert may have raised nothing, even if the caller commits after it.
func TestRefusalThatIsCommitted(t *testing.T) {
	on(t, func(t *testing.T, d *database) {
		must(t, d.admit(t, "a", 9))
		tx := d.begin(t, sql.LevelDefault)
		refused(t, d.fence.Admit(t.Context(), tx, "a", 5), "a", 5, 9)
		must(t, tx.Commit())
		refused(t, d.admit(t, "a", 8), "a", 8, 9)
		must(t, d.admit(t, "a", 9))
	})
}

func TestResourceNamesAreBytes(t *testing.T) {
	long := strings.Repeat("x", fencing.MaxResourceLen-1)
	names := []string{
		"a", "A", "a ", "a  ", " a", "a\t", "a\n", "a\x00", "a\x00\x00", "\x00",
		"á", "a\u0301", "Á", "ß", "ss", "ı", "i", "I", "İ", "😀", "\xff", "\xff\xfe", "\xc3",
		`a'b`, `a"b`, "a`b", `a\b`, `a\\b`, `a''b`, "%", "_", "?", "$1", ":a", "'; DROP TABLE x; --",
		"1", "01", "1.0", "NULL", "\\x61", "0x61", "invoice/4711",
		long, long + "x", long + "X", long + " ", strings.Repeat("é", fencing.MaxResourceLen/2),
	}
	on(t, func(t *testing.T, d *database) {
		// Falling tokens: of two names taken for one, the later would be refused.
		for i, name := range names {
			if err := d.admit(t, name, fencing.Token(1000-i)); err != nil {
				t.Errorf("%.20q is taken for another: %v", name, err)
			}
		}
		for i, name := range names {
			token := fencing.Token(1000 - i)
			refused(t, d.admit(t, name, token-1), name, token-1, token)
		}
	})
}

func TestAdmitRefusesBadInput(t *testing.T) {
	on(t, func(t *testing.T, d *database) {
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		tx := d.begin(t, sql.LevelDefault)
		for _, c := range []struct {
			ctx      context.Context
			tx       *sql.Tx
			resource string
			token    fencing.Token
			want     error // nil: any
		}{
			{t.Context(), tx, "a", 0, fencing.ErrToken},
			{t.Context(), tx, "", 1, fencing.ErrResource},
			{t.Context(), tx, strings.Repeat("x", fencing.MaxResourceLen+1), 1, fencing.ErrResource},
			{t.Context(), nil, "a", 1, nil},
			{nil, tx, "a", 1, nil},
			{ended, tx, "a", 9, context.Canceled},
		} {
			err := d.fence.Admit(c.ctx, c.tx, c.resource, c.token)
			if err == nil || errors.Is(err, fencing.ErrStale) || (c.want != nil && !errors.Is(err, c.want)) {
				t.Errorf("Admit(%.10q, %d) = %v, want %v", c.resource, c.token, err, c.want)
			}
		}
		// None of them reached the database, so tx is as good as new.
		must(t, d.fence.Admit(t.Context(), tx, "a", 5))
		must(t, tx.Commit())
	})
}

// What keeps the token from being checked is not a stale token.
func TestAdmitWithoutVerdict(t *testing.T) {
	on(t, func(t *testing.T, d *database) {
		missing, err := sqlfence.New(d.dialect, sqlfence.WithTable("no_such_table"))
		must(t, err)
		tx := d.begin(t, sql.LevelDefault)
		if err := missing.Admit(t.Context(), tx, "a", 1); err == nil || errors.Is(err, fencing.ErrStale) {
			t.Errorf("no table: %v", err)
		}
		tx = d.begin(t, sql.LevelDefault)
		must(t, tx.Rollback())
		if err := d.fence.Admit(t.Context(), tx, "a", 1); !errors.Is(err, sql.ErrTxDone) {
			t.Errorf("a transaction that is over: %v", err)
		}
	})
}

func TestGuard(t *testing.T) {
	on(t, func(t *testing.T, d *database) {
		guard := d.fence.Guard(d.DB)
		must(t, guard.Admit(t.Context(), "a", 5))
		must(t, guard.Admit(t.Context(), "a", 9))
		refused(t, guard.Admit(t.Context(), "a", 5), "a", 5, 9)
		must(t, d.admit(t, "a", 9)) // the handler admits again where it writes
		if err := guard.Admit(t.Context(), "", 9); !errors.Is(err, fencing.ErrResource) {
			t.Error(err)
		}
		if n := d.Stats().InUse; n != 0 {
			t.Errorf("%d connections are still taken", n)
		}
	})
}
