package httpfence

import (
	"net/http"
	"net/url"

	"github.com/quorumlock/quorumlock/fencing"
)

// Transport sends along the token that a request's context carries (see
// [NewContext]), and leaves other requests alone. It does not look at responses:
// call [Check].
type Transport struct {
	// Base does the sending. http.DefaultTransport if nil.
	Base http.RoundTripper
}

// RoundTrip implements http.RoundTripper. The request it is given stays as it was.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if resource, token, ok := FromContext(r.Context()); ok {
		r = r.Clone(r.Context())
		if r.Header == nil {
			r.Header = make(http.Header)
		}
		Set(r.Header, resource, token)
	}
	if t.Base != nil {
		return t.Base.RoundTrip(r)
	}
	return http.DefaultTransport.RoundTrip(r)
}

// Check returns a *fencing.StaleError, which matches fencing.ErrStale, if the
// response is a refusal of the request's token by [Handler]: the caller lost its
// lock and must stop. It returns nil for any other response, be it a failure or
// not. The body is left to the caller, who closes it in either case.
func Check(resp *http.Response) error {
	if resp.StatusCode != http.StatusPreconditionFailed || len(resp.Header.Values(AdmittedHeader)) == 0 {
		return nil
	}
	// The refusal counts even if what it says about itself is garbled.
	stale := &fencing.StaleError{}
	stale.Admitted, _ = fencing.ParseToken(resp.Header.Get(AdmittedHeader))
	stale.Resource, _ = url.PathUnescape(resp.Header.Get(ResourceHeader))
	if resp.Request != nil {
		stale.Presented, _ = Token(resp.Request.Header)
	}
	return stale
}
