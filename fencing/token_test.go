package fencing

import (
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"
)

func TestParseToken(t *testing.T) {
	for _, want := range []Token{0, 1, 9, 10, 1 << 53, math.MaxInt64, math.MaxUint64} {
		got, err := ParseToken(want.String())
		if err != nil || got != want {
			t.Errorf("ParseToken(%q) = %d, %v", want.String(), got, err)
		}
	}
	for _, bad := range []string{
		"", " ", "-1", "+1", "01", "00", "1 ", " 1", "1\n", "1_000", "0x1", "1e3", "1.0", "٣", "1,2",
		"18446744073709551616", strings.Repeat("9", 1<<16),
	} {
		got, err := ParseToken(bad)
		if got != 0 || !errors.Is(err, ErrToken) {
			t.Errorf("ParseToken(%.40q) = %d, %v, want ErrToken", bad, got, err)
		} else if len(err.Error()) > 200 {
			t.Errorf("the error for %d bytes has %d", len(bad), len(err.Error()))
		}
	}
}

func FuzzParseToken(f *testing.F) {
	for _, seed := range []string{"", "0", "1", "01", "+1", "18446744073709551615", "18446744073709551616", "１"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		token, err := ParseToken(s)
		if err != nil {
			if token != 0 || !errors.Is(err, ErrToken) {
				t.Fatalf("ParseToken(%q) = %d, %v", s, token, err)
			}
			return
		}
		// Only one text may stand for a token.
		if token.String() != s || strconv.FormatUint(uint64(token), 10) != s {
			t.Fatalf("ParseToken(%q) = %d", s, token)
		}
	})
}

func TestTokenIsZero(t *testing.T) {
	if !Token(0).IsZero() || Token(1).IsZero() {
		t.Error("only zero is zero")
	}
}

func TestTokenJSON(t *testing.T) {
	type record struct {
		Token Token `json:"token"`
	}
	for _, want := range []Token{0, 1, math.MaxUint64} {
		text, err := json.Marshal(record{want})
		if err != nil || string(text) != `{"token":"`+want.String()+`"}` {
			t.Fatalf("marshalled %s, %v", text, err)
		}
		var got record
		if err := json.Unmarshal(text, &got); err != nil || got.Token != want {
			t.Fatalf("%s came back as %d, %v", text, got.Token, err)
		}
	}

	got := record{Token: 7}
	if err := json.Unmarshal([]byte(`{"token":"seven"}`), &got); !errors.Is(err, ErrToken) || got.Token != 7 {
		t.Errorf("a bad token gave %v and left %d", err, got.Token)
	}
}
