package fencing

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestStaleError(t *testing.T) {
	var err error = &StaleError{Resource: "invoice/1", Presented: 5, Admitted: 9}
	if got, want := err.Error(), `fencing: stale token 5 for "invoice/1": 9 was admitted`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	err = &StaleError{Resource: strings.Repeat("x", 100), Presented: 5}
	if got := err.Error(); !strings.HasSuffix(got, `36 bytes more: a newer one was admitted`) {
		t.Errorf("got %s", got)
	}
	err = fmt.Errorf("settle: %w", err)
	if !errors.Is(err, ErrStale) || errors.Is(err, ErrToken) {
		t.Error("it must match ErrStale and nothing else")
	}
}
