package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/pprof"
	"time"
)

// A host is a child's side: it carries out orders, one at a time.
type host struct {
	sys    system
	member *member
}

// serve carries out orders from in until it ends, and returns an exit status.
func serve(in io.Reader, out io.Writer) int {
	// A Redis server is tied to the thread that starts it.
	runtime.LockOSThread()
	const patience = 3 * time.Second
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	h := &host{}
	orders := make(chan order)
	go func() {
		defer close(orders)
		dec := json.NewDecoder(in)
		for {
			var o order
			if dec.Decode(&o) != nil {
				break
			}
			orders <- o
		}
		cancel() // the parent has gone, or wants this to end
		time.AfterFunc(patience, func() { os.Exit(1) })
	}()
	enc := json.NewEncoder(out)
	for o := range orders {
		var r reply
		if err := h.do(ctx, o, &r); err != nil {
			r.Error = err.Error()
		}
		if enc.Encode(r) != nil {
			break
		}
	}
	if h.sys != nil {
		h.sys.stop()
	}
	return 0
}

func (h *host) do(ctx context.Context, o order, r *reply) error {
	if o.Profile != "" {
		stop, err := writeProfile(o.Profile)
		if err != nil {
			return err
		}
		defer stop()
	}
	r.Values = make(map[string]float64)
	if o.Do == "start" {
		sys, err := startSystem(ctx, o)
		if err == nil {
			h.sys, r.Text = sys, sys.about()
		}
		return err
	}
	if f := systemOrders[o.Do]; f != nil {
		if h.sys == nil {
			return fmt.Errorf("no system was started")
		}
		return f(ctx, h.sys, o, r.Values)
	}
	if f := memberOrders[o.Do]; f != nil {
		if h.member == nil {
			h.member = &member{}
		}
		return f(h.member, ctx, o, r.Values)
	}
	return fmt.Errorf("unknown order")
}

// systemOrders are the orders to a whole system, by name.
var systemOrders = map[string]func(ctx context.Context, s system, o order, values map[string]float64) error{
	"pairs":     pairsTurn,
	"latency":   latencyTurn,
	"contended": contendedTurn,
	"kind":      kindTurn,
	"overload":  overloadTurn,
	"fill":      fillTurn,
	"heap":      heapTurn,
	"cost":      costTurn,
	"rest":      restTurn,
}

func writeProfile(path string) (stop func(), err error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, err
	}
	return func() {
		pprof.StopCPUProfile()
		_ = f.Close() // a profile that is cut short shows itself
	}, nil
}
