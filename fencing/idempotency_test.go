package fencing

import (
	"strings"
	"testing"
)

// The keys lie in providers' databases. If this test fails, the code is wrong.
func TestIdempotencyKeyIsStable(t *testing.T) {
	for want, parts := range map[string][]string{
		"nzkbjq2qhchukwykiuiyqbpqhafnvbwl": {""},
		"qunovrfkd7odt5xtmkeirqzy3koxqzz2": {"payout", "INV-2024-0001"},
		"aym7vee6mszdggwy4xw5nh53zdaysli7": {"Zahlung", "Grün & Söhne", "\x00\xff"},
	} {
		if got := IdempotencyKey(parts...); got != want {
			t.Errorf("%q: got %q, want %q", parts, got, want)
		}
	}
}

func TestIdempotencyKeyIsUnambiguous(t *testing.T) {
	seen := make(map[string][]string)
	for _, parts := range [][]string{
		{""}, {"", ""}, {"a"}, {"a", ""}, {"", "a"}, {"ab", "c"}, {"a", "bc"}, {"abc"}, {"A"}, {"a "},
		{"a", "b", "c"}, {"a\x00b"}, {"a", "b"}, {"\x00\x00\x00\x00\x00\x00\x00\x01a"},
		{strings.Repeat("x", 1<<20)},
	} {
		key := IdempotencyKey(parts...)
		if other, ok := seen[key]; ok {
			t.Errorf("%.40q and %.40q share a key", parts, other)
		}
		seen[key] = parts
		if len(key) != 32 || strings.Trim(key, "abcdefghijklmnopqrstuvwxyz234567") != "" {
			t.Errorf("%.40q: the key is %q", parts, key)
		}
	}
}

func TestIdempotencyKeyNeedsParts(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("one key for all work was handed out")
		}
	}()
	IdempotencyKey()
}
