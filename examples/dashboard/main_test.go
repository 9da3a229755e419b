package main

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// What a newcomer sees: the page answers, and there is something on it.
func TestRun(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	seen := false
	err := run(ctx, "127.0.0.1:0", 1, func(url string) {
		defer cancel()
		r, err := http.Get(url + "lock?name=invoice/4712")
		if err != nil {
			t.Error(err)
			return
		}
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		if err != nil || r.StatusCode != http.StatusOK || !strings.Contains(string(body), "8 waiting") {
			t.Errorf("%s %v: %s", r.Status, err, body)
		}
		seen = true
	})
	if err != nil || !seen {
		t.Fatal(err, seen)
	}
}
