package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/quorumlock/quorumlock/dashboard/api"
)

// silence is after how long without a line, of which there is one each 15 s, the page is
// taken for dead.
const silence = 45 * time.Second

var errEnded = errors.New("the page ended the stream")

func (t *tool) watch() func(context.Context, []string) error {
	t.look()
	return func(ctx context.Context, args []string) error {
		prefix, err := one(args)
		if err := firstError(err, t.pages.open); err != nil {
			return err
		}
		err = t.pages.first(ctx, func(u *url.URL) error { return t.follow(ctx, u, prefix) })
		if ctx.Err() != nil {
			return nil // Ctrl-C is how one stops looking
		}
		return err
	}
}

// follow prints the changes that one page tells, until it ends.
func (t *tool) follow(ctx context.Context, u *url.URL, prefix string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watchdog := time.AfterFunc(t.pages.timeout, func() { cancel(fmt.Errorf("%s says nothing", u.Redacted())) })
	defer watchdog.Stop()
	answer, err := t.pages.send(ctx, http.MethodGet, u, "events", url.Values{"prefix": {prefix}}, "", nil)
	if err == nil {
		defer func() { _ = answer.Body.Close() }()
		lines := bufio.NewScanner(answer.Body)
		lines.Buffer(nil, 1<<20)
		for err == nil && lines.Scan() {
			watchdog.Reset(silence)
			if body, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				err = t.change(body)
			}
		}
		if err == nil {
			err = lines.Err()
		}
		if err == nil {
			err = errEnded
		}
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// change prints one change.
func (t *tool) change(body string) error {
	if t.json {
		_, err := fmt.Fprintln(t.out, body)
		return err
	}
	var c api.Change
	if err := json.Unmarshal([]byte(body), &c); err != nil {
		return err
	}
	parts := []string{c.At.Local().Format("15:04:05"), c.Kind}
	for _, p := range []struct{ what, value string }{
		{"", c.Name}, {"by ", c.Owner}, {"session ", c.Session}, {"token ", c.Token}, {"value ", c.Value}, {"", c.Cause},
	} {
		if p.value != "" {
			parts = append(parts, p.what+api.Printable(p.value))
		}
	}
	if c.Count > 0 {
		parts = append(parts, fmt.Sprintf("%d changes were left out", c.Count))
	}
	_, err := fmt.Fprintln(t.out, strings.Join(parts, "  "))
	return err
}
