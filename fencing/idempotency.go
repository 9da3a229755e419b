package fencing

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
)

// keyLabel keeps these keys apart from any other hash of the same parts. The
// keys outlive the program that made them, so neither it nor anything else below
// may ever change.
const keyLabel = "quorumlock idempotency key 1"

// keyBytes of the hash are kept. 160 bits make 32 characters, short enough for
// providers that limit the length of a key, and leave no chance of two items
// meeting in one key.
const keyBytes = 20

var keyEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// IdempotencyKey names a piece of work to a provider that cannot check a token
// but does the work only once per key, as most payment providers do. Equal parts
// give an equal key in every process and every release: 32 characters out of a-z
// and 2-7, from the SHA-256 of the parts with their lengths, so that ("ab", "c")
// and ("a", "bc") differ, and so do ("a") and ("a", "").
//
// Derive it from the work item alone: what is done, to what, in which round.
//
//	key := fencing.IdempotencyKey("payout", invoice.Number)
//
// Never put the token, a time or an attempt into it. The next holder has another
// token, and must present the same key for the provider to see that this payment
// was made already.
//
// Where the store can check a token, prefer that: a token stops a stale holder
// from doing anything at all, a key only stops it from doing this item again, and
// only for as long as the provider remembers the key. Use both where a local
// record and a remote effect belong together.
//
// It panics without parts: one key for all items would have all but the first
// silently dropped.
func IdempotencyKey(parts ...string) string {
	if len(parts) == 0 {
		panic("fencing: IdempotencyKey needs the parts that name the work item")
	}
	buf := []byte(keyLabel)
	for _, part := range parts {
		buf = binary.BigEndian.AppendUint64(buf, uint64(len(part)))
		buf = append(buf, part...)
	}
	sum := sha256.Sum256(buf)
	return keyEncoding.EncodeToString(sum[:keyBytes])
}
