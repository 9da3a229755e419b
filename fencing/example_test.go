package fencing_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/quorumlock/quorumlock/fencing"
)

// A holder that was frozen past its lease wakes up and writes.
func ExampleMemGuard_Do() {
	ctx := context.Background()
	var guard fencing.MemGuard
	price := 0
	set := func(token fencing.Token, to int) error {
		return guard.Do(ctx, "price", token, func() error {
			price = to
			return nil
		})
	}

	frozen, next := fencing.Token(33), fencing.Token(34)
	fmt.Println(set(next, 200))
	err := set(frozen, 100)
	fmt.Println(err)
	fmt.Println(errors.Is(err, fencing.ErrStale), price)
	// Output:
	// <nil>
	// fencing: stale token 33 for "price": 34 was admitted
	// true 200
}

// The provider sees the same key from every holder that tries this item.
func ExampleIdempotencyKey() {
	fmt.Println(fencing.IdempotencyKey("payout", "INV-2024-0001"))
	// Output: qunovrfkd7odt5xtmkeirqzy3koxqzz2
}
