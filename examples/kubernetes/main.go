// Command kubernetes is an application as a StatefulSet runs it: a replica that takes who
// it is from its environment, a page, and an answer for each probe. quorumlock.yaml
// beside it is the manifest, and docs/KUBERNETES.md explains both.
package main

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/dashboard"
	"github.com/quorumlock/quorumlock/election"
)

// farewell is how long a pod that is to go waits for the others. The manifest's grace
// period must be longer.
var farewell = 15 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Getenv); err != nil {
		log.Fatal(err)
	}
}

// options says who this replica is. Pod name-0 is replica 1, and so on, unless
// REPLICA_IDS gives its ordinal another id: one whose volume was lost needs one.
func options(env func(string) string) (o quorumlock.Options, err error) {
	pod := env("POD_NAME")
	ordinal, err := strconv.Atoi(pod[strings.LastIndex(pod, "-")+1:])
	if err != nil {
		return o, fmt.Errorf("POD_NAME %q: no pod of a StatefulSet is called so", pod)
	}
	founders, err := strconv.Atoi(env("FOUNDERS"))
	if err != nil || founders < 1 {
		return o, fmt.Errorf("FOUNDERS %q: how many replicas founded the cluster?", env("FOUNDERS"))
	}
	address := func(ordinal int) string { return strings.ReplaceAll(env("ADDRESS"), "ORDINAL", strconv.Itoa(ordinal)) }
	o = quorumlock.Options{
		ReplicaID: uint64(ordinal) + 1, Address: address(ordinal), Listen: env("LISTEN"), Dir: env("DIR"), Owner: pod,
		Zone:   env("ZONE"),
		Logger: slog.New(slog.NewJSONHandler(os.Stderr, nil)),
	}
	if ids := env("REPLICA_IDS"); ids != "" {
		all := strings.Split(ids, ",")
		if ordinal >= len(all) {
			return o, fmt.Errorf("REPLICA_IDS %q has no id for pod %d", ids, ordinal)
		}
		if o.ReplicaID, err = strconv.ParseUint(strings.TrimSpace(all[ordinal]), 10, 64); err != nil {
			return o, fmt.Errorf("REPLICA_IDS %q: %w", ids, err)
		}
	}
	if o.ReplicaID > uint64(founders) {
		o.Join = true // it was added later
		return o, nil
	}
	o.Members = make(map[uint64]string)
	for i := range founders {
		o.Members[uint64(i)+1] = address(i)
	}
	return o, nil
}

// pageOptions lets who shows the token do everything on the page, and nobody if there is
// none. An application asks its own rights instead: who is this, and may they?
func pageOptions(token string) dashboard.Options {
	if token == "" {
		return dashboard.Options{}
	}
	return dashboard.Options{
		ChangeMembers: true,
		Authorize: func(r *http.Request, a dashboard.Action) error {
			if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte("Bearer "+token)) != 1 {
				return errors.New("the operator's token is missing or wrong")
			}
			slog.Info("operator", "action", string(a.Kind), "replica", a.Replica, "dead", a.Dead, "address", a.Address,
				"name", a.Name, "by", a.By, "reason", a.Reason)
			return nil
		},
	}
}

// A site answers the probes from the first moment on; the page is there once the
// replica's log has been read.
type site struct {
	node atomic.Pointer[quorumlock.Node]
	page atomic.Pointer[http.Handler]
}

func (s *site) mux() *http.ServeMux {
	mux := http.NewServeMux()
	// Alive is who can still do something. Not to have a majority is no reason to be
	// restarted: that would only add to the trouble.
	mux.HandleFunc("GET /live", func(w http.ResponseWriter, _ *http.Request) {
		if n := s.node.Load(); n != nil && n.Status().Err != nil {
			http.Error(w, n.Status().Err.Error(), http.StatusInternalServerError)
		}
	})
	// Ready is who has a part in the cluster: its life has begun in the log, and it knows
	// of a leader.
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, _ *http.Request) {
		if n := s.node.Load(); n == nil || !n.Status().Ready || n.Status().Leader == 0 {
			http.Error(w, "not ready", http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("/quorumlock/", func(w http.ResponseWriter, r *http.Request) {
		if page := s.page.Load(); page != nil {
			(*page).ServeHTTP(w, r)
			return
		}
		http.Error(w, "starting", http.StatusServiceUnavailable)
	})
	return mux
}

func run(ctx context.Context, env func(string) string) (err error) {
	o, err := options(env)
	if err != nil {
		return err
	}
	var s site
	server := &http.Server{Addr: env("HTTP"), Handler: s.mux(), ReadHeaderTimeout: 5 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.ListenAndServe() }()
	defer func() {
		err = errors.Join(err, server.Close())
		if e := <-served; !errors.Is(e, http.ErrServerClosed) {
			err = errors.Join(err, e)
		}
	}()
	node, err := quorumlock.Open(o)
	if err != nil {
		return err // errors.Is(err, quorumlock.ErrWiped): see docs/KUBERNETES.md
	}
	page := http.StripPrefix("/quorumlock", dashboard.New(node, pageOptions(env("OPERATOR_TOKEN"))))
	s.page.Store(&page)
	s.node.Store(node)
	err = work(ctx, node)
	// The pod is to go: locks are given back and leadership is handed over, so that the
	// others need not find out.
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer cancel()
	return errors.Join(err, node.Shutdown(bounded))
}

// work is what the application is there for: here, a job that runs on one replica.
func work(ctx context.Context, node *quorumlock.Node) error {
	err := election.Run(ctx, node, "exporter", func(ctx context.Context, term *election.Term) error {
		slog.Info("this pod exports", "token", term.Token())
		<-ctx.Done()
		return nil
	}, election.WithValue(os.Getenv("POD_NAME")))
	if ctx.Err() != nil {
		return nil // it was told to end
	}
	return err
}
