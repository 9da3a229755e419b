package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"testing"
	"time"
)

const patience = 30 * time.Second

// A pod is one run of the application.
type pod struct {
	web  string
	stop context.CancelFunc
	over chan error
}

func start(ordinal int, web, port, dir string) *pod {
	ctx, cancel := context.WithCancel(context.Background())
	p := &pod{web: web, stop: cancel, over: make(chan error, 1)}
	env := with(map[string]string{
		"POD_NAME": fmt.Sprintf("app-%d", ordinal), "FOUNDERS": "3", "ADDRESS": "127.0.1.ORDINAL:" + port,
		"LISTEN": fmt.Sprintf("127.0.1.%d:%s", ordinal, port), "HTTP": web, "DIR": dir,
	})
	go func() { p.over <- run(ctx, env) }()
	return p
}

// answers waits until a path is answered with a status, which must be before the pod ends.
func (p *pod) answers(t *testing.T, path string, want int) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for limit := time.After(patience); ; {
		if r, err := http.Get("http://" + p.web + path); err == nil {
			_ = r.Body.Close()
			if r.StatusCode == want {
				return
			}
		}
		select {
		case <-tick.C:
		case err := <-p.over:
			t.Fatalf("it ended: %v", err)
		case <-limit:
			t.Fatalf("%s is not answered with %d", path, want)
		}
	}
}

func (p *pod) end(t *testing.T) {
	t.Helper()
	p.stop()
	select {
	case err := <-p.over:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(patience):
		t.Fatal("it does not end")
	}
}

func free(t *testing.T, host string) string {
	l, err := net.Listen("tcp", host+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// What a StatefulSet does: all start at once, and are ready together; then each is
// replaced in turn, and the others stay ready; who is alone lives, and is not ready.
func TestRollingUpdate(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs three addresses on loopback")
	}
	_, port, err := net.SplitHostPort(free(t, "127.0.1.0"))
	if err != nil {
		t.Fatal(err)
	}
	farewell = 3 * time.Second
	var pods [3]*pod
	var dirs [3]string
	for i := range pods {
		dirs[i] = t.TempDir()
		pods[i] = start(i, free(t, "127.0.0.1"), port, dirs[i])
	}
	for _, p := range pods {
		p.answers(t, "/live", http.StatusOK)
		p.answers(t, "/ready", http.StatusOK)
	}
	for i := len(pods) - 1; i >= 0; i-- {
		pods[i].end(t)
		pods[i] = start(i, pods[i].web, port, dirs[i])
		for _, p := range pods {
			p.answers(t, "/ready", http.StatusOK)
		}
	}
	pods[1].end(t)
	pods[2].end(t)
	pods[0].answers(t, "/ready", http.StatusServiceUnavailable)
	pods[0].answers(t, "/live", http.StatusOK)
	pods[0].stop()
	<-pods[0].over // that nobody answers its farewell is no surprise
}
