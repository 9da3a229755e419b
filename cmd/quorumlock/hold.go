package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/quorumlock/quorumlock/dashboard/api"
)

// A line is a connection over which a page holds a lock for us.
type line struct {
	heard  chan api.HoldAnswer // closed when the connection is over, for err
	err    error
	say    chan api.HoldMessage // the latest only; nobody waits for the network
	cancel context.CancelFunc
	over   chan struct{} // closed when nothing of it is left
}

var errCut = errors.New("the connection to the page was cut")

// dial asks one page for a lock. It returns once the page has agreed to ask the cluster.
func (p *pages) dial(ctx context.Context, u *url.URL, ask api.HoldRequest) (*line, error) {
	ctx, cancel := context.WithCancel(ctx)
	body, say := io.Pipe()
	context.AfterFunc(ctx, func() { _ = say.CloseWithError(errCut) }) // or the transport would wait for it
	patience := time.AfterFunc(p.timeout, cancel)
	go func() { _ = json.NewEncoder(say).Encode(ask) }() // it fails if the page refuses before it has read
	answer, err := p.send(ctx, http.MethodPost, u, "hold", nil, api.HoldType, body)
	inTime := patience.Stop()
	if err == nil && !inTime {
		_ = answer.Body.Close()
		err = context.Canceled
	}
	if err != nil {
		cancel()
		if !inTime {
			err = fmt.Errorf("%s: no answer in %v. Does something between here and the page keep requests back until they are complete? Then give the replica's own address: %w", u.Redacted(), p.timeout, err)
		}
		return nil, err
	}
	l := &line{heard: make(chan api.HoldAnswer), say: make(chan api.HoldMessage, 1), cancel: cancel, over: make(chan struct{})}
	go l.write(ctx, say)
	go l.read(ctx, answer.Body)
	return l, nil
}

// write sends what is to be said, until the line is closed.
func (l *line) write(ctx context.Context, to *io.PipeWriter) {
	e := json.NewEncoder(to)
	for {
		select {
		case m := <-l.say:
			if e.Encode(m) != nil {
				return // who reads hears of it
			}
		case <-ctx.Done():
			return
		}
	}
}

func (l *line) read(ctx context.Context, from io.ReadCloser) {
	defer close(l.over)
	defer close(l.heard)
	defer func() { _ = from.Close() }()
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		var a api.HoldAnswer
		if l.err = json.Unmarshal(lines.Bytes(), &a); l.err != nil {
			return
		}
		select {
		case l.heard <- a:
		case <-ctx.Done():
			return
		}
	}
	if l.err = lines.Err(); l.err == nil {
		l.err = errCut
	}
}

// tell says something without waiting for the network. It takes the place of what has not
// been sent yet.
func (l *line) tell(m api.HoldMessage) {
	select {
	case <-l.say:
	default:
	}
	l.say <- m
}

func (l *line) close() {
	l.cancel()
	<-l.over
}

// A lease is what may be believed of the lock, by our own clock.
type lease struct {
	length time.Duration
	grace  time.Duration
	asked  uint64                   // the latest ping
	at     time.Duration            // when it was sent
	heard  time.Duration            // when the page last said something
	sent   map[uint64]time.Duration // when each was sent that no later one's answer has overtaken
	since  time.Duration            // when the ping was sent whose answer we rely on
}

// begin forgets what was asked over another line.
func (l *lease) begin() {
	*l = lease{length: l.length, grace: l.grace, sent: make(map[uint64]time.Duration), heard: now()}
}

// ping returns the next ping. Its answer counts from before it is sent.
func (l *lease) ping() api.HoldMessage {
	l.asked++
	l.at = now()
	l.sent[l.asked] = l.at
	return api.HoldMessage{Ping: l.asked}
}

func (l *lease) due() bool { return now() >= l.at+l.length/10 }

// answered notes an answer to a ping, and returns when that was sent. The latest may be
// answered twice: while we wait, and when the lock is granted.
func (l *lease) answered(ping uint64) (at time.Duration, ok bool) {
	l.heard = now()
	at, ok = l.sent[ping]
	for n := range l.sent {
		if n < ping {
			delete(l.sent, n)
		}
	}
	return at, ok
}

// kill is when what runs under the lock must be gone: a quarter of the lease is left
// then, for clocks of different rates and for the system to end it.
func (l *lease) kill() time.Duration { return l.since + l.length*3/4 }

// term is when it is told to end.
func (l *lease) term() time.Duration { return l.kill() - l.grace }
