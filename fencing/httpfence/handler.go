package httpfence

import (
	"errors"
	"net/http"
	"net/url"

	"github.com/quorumlock/quorumlock/fencing"
)

// Handler lets a request through to next if the guard admits its token, and puts
// the token into the request's context (see [FromContext]). What it cannot promise
// is in the package documentation.
//
// resource names what the request is about to change; it must not return "". A
// request is refused, in plain text, with
//
//   - 428 Precondition Required: it carries no token;
//   - 400 Bad Request: the token or the resource's name is malformed or too long;
//   - 412 Precondition Failed: the token is stale. AdmittedHeader has the one that
//     was admitted, ResourceHeader the resource. Trying again cannot help;
//   - 503 Service Unavailable: the guard could not tell, or the request's context
//     ended. The guard's error is not shown to the client; wrap the guard to log
//     it. The same request may be sent again.
//
// It panics if an argument is nil.
func Handler(guard fencing.Guard, resource func(*http.Request) string, next http.Handler) http.Handler {
	if guard == nil || resource == nil || next == nil {
		panic("httpfence: Handler needs a guard, a resource function and a handler")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t, err := Token(r.Header)
		if err != nil {
			Refuse(w, err)
			return
		}
		name := resource(r)
		if err := guard.Admit(r.Context(), name, t); err != nil {
			Refuse(w, err)
			return
		}
		next.ServeHTTP(w, r.WithContext(NewContext(r.Context(), name, t)))
	})
}

// Refuse answers a request with the status that [Handler] gives for an error of a
// guard, for a handler that admits the token itself where it writes.
func Refuse(w http.ResponseWriter, err error) {
	status := http.StatusServiceUnavailable
	switch {
	case errors.Is(err, ErrMissing):
		status = http.StatusPreconditionRequired
	case errors.Is(err, fencing.ErrStale):
		status = http.StatusPreconditionFailed
		// A guard may say no more than ErrStale; the header is there all the same.
		stale := new(fencing.StaleError)
		errors.As(err, &stale)
		w.Header().Set(AdmittedHeader, stale.Admitted.String())
		w.Header().Set(ResourceHeader, url.PathEscape(stale.Resource))
	case errors.Is(err, fencing.ErrToken), errors.Is(err, fencing.ErrResource):
		status = http.StatusBadRequest
	default:
		err = errors.New("httpfence: the fencing token could not be checked")
	}
	http.Error(w, err.Error(), status)
}
