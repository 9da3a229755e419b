package httpfence

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/quorumlock/quorumlock/fencing"
)

const (
	// TokenHeader of a request has the token, in decimal.
	TokenHeader = "Quorumlock-Fencing-Token"
	// ResourceHeader of a request, and of a refusal, has the resource's name,
	// percent-encoded like a segment of a path.
	ResourceHeader = "Quorumlock-Fencing-Resource"
	// AdmittedHeader of a refusal has the token that stands in the way, or 0 if
	// the guard could not tell. It is what tells a stale token from any other
	// precondition that failed.
	AdmittedHeader = "Quorumlock-Fencing-Admitted"
)

// ErrMissing is returned when a request carries no token.
var ErrMissing = errors.New("httpfence: no fencing token")

// Set puts the token into the header of a request, and the resource's name too
// unless it is empty, as it may be for a service that knows the resource anyhow.
// What was there before is replaced. The zero token takes both headers away.
func Set(h http.Header, resource string, t fencing.Token) {
	h.Del(TokenHeader)
	h.Del(ResourceHeader)
	if t.IsZero() {
		return
	}
	h.Set(TokenHeader, t.String())
	if resource != "" {
		h.Set(ResourceHeader, url.PathEscape(resource))
	}
}

// Token reads the token from the header of a request. The error matches
// ErrMissing if there is none, and fencing.ErrToken if it is malformed, zero, or
// there more than once.
func Token(h http.Header) (fencing.Token, error) {
	values := h.Values(TokenHeader)
	switch len(values) {
	case 0:
		return 0, fmt.Errorf("%w: header %s is missing", ErrMissing, TokenHeader)
	case 1:
	default:
		return 0, fmt.Errorf("%w: header %s is there %d times", fencing.ErrToken, TokenHeader, len(values))
	}
	t, err := fencing.ParseToken(values[0])
	if err == nil && t.IsZero() {
		err = fmt.Errorf("%w: header %s is zero", fencing.ErrToken, TokenHeader)
	}
	return t, err
}

// Resource reads the resource's name from the header of a request: a resource
// function for [Handler] where clients can be trusted to name what they change.
// It returns "", which Handler refuses, if the name is missing, malformed or there
// more than once.
func Resource(r *http.Request) string {
	values := r.Header.Values(ResourceHeader)
	if len(values) != 1 {
		return ""
	}
	name, err := url.PathUnescape(values[0])
	if err != nil {
		return ""
	}
	return name
}
