// Package dashboard shows a lock cluster in the browser: its members, who holds what,
// who waits for whom, which sessions live, and what changes at this moment.
//
//	mux.Handle("/quorumlock/", http.StripPrefix("/quorumlock", dashboard.New(node, dashboard.Options{})))
//
// The pages can be read without JavaScript, and each is there as JSON too: with .json
// behind its path, or for who accepts application/json and no HTML. All links are
// relative, so that the handler can stand under any path.
//
// # Who may read
//
// The handler asks nobody who reads: names of locks and owners are shown to whoever
// reaches it. Wrap it in the application's own authentication, or listen on a port
// that only operators reach.
//
// # Who may change
//
// Nothing can be changed unless Options.Authorize is set, and then only what it
// allows. A request from another site is refused: by net/http's
// CrossOriginProtection, and for forms by a token that must equal a cookie which
// browsers send to this site alone (SameSite=Strict). Both hold when several replicas
// serve the page behind one balancer, since they keep nothing. A request of type
// application/json needs no token: a browser sends one to another site only if that
// site agrees, which this one never does.
//
// # Holding a lock for a client
//
// With Options.MaxHolds, a client outside of the process can hold a lock for as long as
// its request to "hold" lives, as "quorumlock run" does. Authorize is asked for that too,
// and the same requests are refused. The request must be let through unbuffered, in both
// directions at once. Package api says how to speak it, and docs/ARCHITECTURE.md why it
// is safe.
//
// # What it costs
//
// Every replica can serve the page. Reading one lock is one linearizable read. A page
// of locks walks over the names of all, and elections and a single session over a
// picture of all locks: never more than two such walks run at once, and none holds up
// the log. Each open page of live changes is one reader of Node.Watch.
package dashboard
