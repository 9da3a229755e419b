// Package httpfence carries fencing tokens over HTTP: from a holder's requests to
// the service that protects a resource.
//
// The client puts the token into a header, with [Set] for one request or with
// [Transport] for every request whose context has one, and [Check] turns the
// service's refusal back into an error that matches fencing.ErrStale. The service
// puts [Handler] before what is protected.
//
// # What the handler cannot promise
//
// Handler checks the token before the protected handler runs. By the time that
// one writes, a newer token may have been admitted, by this process or another,
// and its holder may have written: check and write are two steps. That stops a
// holder that woke up long after it lost its lock, which is most of them. It does
// not stop one that loses it in between.
//
// Where that matters, the handler takes the token from [FromContext] and admits
// it once more in the step that writes: with sqlfence.Fence.Admit inside its own
// transaction, or with fencing.MemGuard.Do. An equal token is admitted any number
// of times, so both checks agree. [Refuse] answers for the second one as Handler
// does for the first.
//
// Nor does the header prove anything about its sender. Anyone who can send a
// made-up token can bar the real holders with a huge one, so authenticate before
// Handler, and take the resource from what the request is about to change rather
// than from what it says about itself.
package httpfence
