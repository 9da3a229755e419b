package fencing

import (
	"fmt"
	"strconv"
)

// Token numbers a grant of a lock. For one name each exclusive grant has a
// higher token than every grant before it, whatever happened to the cluster in
// between. Tokens have gaps, and say nothing about time. Zero is no token.
//
// In JSON a Token is a string, since many readers of JSON round numbers above
// 2^53.
type Token uint64

// ParseToken is the inverse of [Token.String]. It takes that form only: decimal
// digits with no sign, space or leading zero. Anything else, and a number above
// 64 bits, is an error that matches [ErrToken]. "0" parses, as the zero Token,
// which every [Guard] refuses.
func ParseToken(s string) (Token, error) {
	n, err := strconv.ParseUint(s, 10, 64)
	// Two spellings of one token would be two tokens to whoever compares text.
	if err != nil || strconv.FormatUint(n, 10) != s {
		return 0, fmt.Errorf("%w: %s", ErrToken, abridge(s))
	}
	return Token(n), nil
}

// String returns the token in decimal.
func (t Token) String() string { return strconv.FormatUint(uint64(t), 10) }

// IsZero reports whether t is no token at all.
func (t Token) IsZero() bool { return t == 0 }

// MarshalText returns what String does. It never fails.
func (t Token) MarshalText() ([]byte, error) {
	return strconv.AppendUint(nil, uint64(t), 10), nil
}

// UnmarshalText reads what MarshalText wrote, with the errors of [ParseToken].
// On an error *t is unchanged.
func (t *Token) UnmarshalText(text []byte) error {
	parsed, err := ParseToken(string(text))
	if err != nil {
		return err
	}
	*t = parsed
	return nil
}

// abridge quotes text of unknown origin for an error, which must not grow with it.
func abridge(s string) string {
	const most = 64
	if len(s) <= most {
		return strconv.Quote(s)
	}
	return fmt.Sprintf("%q and %d bytes more", s[:most], len(s)-most)
}
