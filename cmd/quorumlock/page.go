package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

const (
	urlVar    = "QUORUMLOCK_URL"
	headerVar = "QUORUMLOCK_HEADER"
	maxAnswer = 256 << 20 // bytes
)

// pages are those of one or several replicas, which are asked in turn.
type pages struct {
	urls    string
	headers []string
	ca      string
	cert    string
	key     string
	timeout time.Duration

	client *http.Client // once they are opened
	list   []*url.URL
	header http.Header
}

// register adds the flags of whatever looks at pages.
func (p *pages) register(flags *flag.FlagSet) {
	flags.StringVar(&p.urls, "url", "", "where the `pages` are: one or several, separated by commas, which are asked in turn\n(default: $"+urlVar+")")
	flags.Func("header", "send this header too, such as `\"Authorization: Bearer ...\"`; may be repeated\n(default: $"+headerVar+", one header, which no list of processes shows)", func(s string) error {
		p.headers = append(p.headers, s)
		return nil
	})
	flags.StringVar(&p.ca, "cacert", "", "trust the certificates in this `file` in place of the system's")
	flags.StringVar(&p.cert, "cert", "", "show the certificate in this `file`")
	flags.StringVar(&p.key, "key", "", "and its key is in this `file`")
	flags.DurationVar(&p.timeout, "timeout", 15*time.Second, "wait for an answer for so long")
}

// open reads what the flags say.
func (p *pages) open() error {
	if p.urls == "" {
		p.urls = os.Getenv(urlVar)
	}
	if p.urls == "" {
		return fmt.Errorf("%w: where are the pages? Say -url, or set %s", errUsage, urlVar)
	}
	for s := range strings.SplitSeq(p.urls, ",") {
		u, err := url.Parse(strings.TrimSpace(s))
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return fmt.Errorf("%w: %q is no URL like http://host:8080/quorumlock/", errUsage, s)
		}
		u.Path = strings.TrimSuffix(u.Path, "/") + "/"
		u.RawQuery, u.Fragment = "", ""
		p.list = append(p.list, u)
	}
	if env := os.Getenv(headerVar); len(p.headers) == 0 && env != "" {
		p.headers = []string{env}
	}
	p.header = make(http.Header)
	for _, line := range p.headers {
		key, value, ok := strings.Cut(line, ":")
		if !ok {
			return fmt.Errorf("%w: a header has a name, a colon and a value", errUsage) // not shown: it may be a secret
		}
		p.header.Add(strings.TrimSpace(key), strings.TrimSpace(value))
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DialContext = (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}).DialContext
	conf, err := p.tls()
	if err != nil {
		return err
	}
	transport.TLSClientConfig = conf
	p.client = &http.Client{Transport: transport}
	return nil
}

func (p *pages) tls() (*tls.Config, error) {
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if p.ca != "" {
		pem, err := os.ReadFile(p.ca)
		if err != nil {
			return nil, err
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s holds no certificate", p.ca)
		}
	}
	if p.cert != "" || p.key != "" {
		pair, err := tls.LoadX509KeyPair(p.cert, p.key)
		if err != nil {
			return nil, err
		}
		conf.Certificates = []tls.Certificate{pair}
	}
	return conf, nil
}

// A refusal is an answer of a page that says no: the others would say the same.
type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

// send sends a request to one page, and returns its answer if the page agrees. The body
// of what is returned is to be closed.
func (p *pages) send(ctx context.Context, method string, base *url.URL, path string, q url.Values, contentType string, body io.Reader) (*http.Response, error) {
	at := *base
	at.Path += path
	at.RawQuery = q.Encode()
	r, err := http.NewRequestWithContext(ctx, method, at.String(), body)
	if err != nil {
		return nil, err
	}
	r.Header = p.header.Clone()
	r.Header.Set("Accept", "application/json") // refusals too
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
		// So that whoever refuses need not read a body first that has no end.
		r.Header.Set("Expect", "100-continue")
	}
	answer, err := p.client.Do(r)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode == http.StatusOK || answer.StatusCode == http.StatusAccepted {
		return answer, nil
	}
	defer func() { _ = answer.Body.Close() }()
	var said struct{ Error string }
	_ = json.NewDecoder(io.LimitReader(answer.Body, 64<<10)).Decode(&said) // it may come from somebody else
	err = fmt.Errorf("%s: %s", at.Redacted(), strings.TrimSpace(answer.Status+" "+said.Error))
	if answer.StatusCode < 500 {
		err = refusal{err}
	}
	return nil, err
}

// read reads the JSON of one page.
func (p *pages) read(ctx context.Context, base *url.URL, path string, q url.Values, into any) error {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	answer, err := p.send(ctx, http.MethodGet, base, path, q, "", nil)
	if err != nil {
		return err
	}
	return decode(base, answer, into)
}

func decode(base *url.URL, answer *http.Response, into any) error {
	defer func() { _ = answer.Body.Close() }()
	if err := json.NewDecoder(io.LimitReader(answer.Body, maxAnswer)).Decode(into); err != nil {
		return fmt.Errorf("%s: this is no page of quorumlock: %w", base.Redacted(), err)
	}
	return nil
}

// first asks the pages in turn, until one does not fail.
func (p *pages) first(ctx context.Context, ask func(*url.URL) error) error {
	var all []error
	for _, u := range p.list {
		err := ask(u)
		if err == nil {
			return nil
		}
		all = append(all, err)
		if errors.As(err, new(refusal)) || ctx.Err() != nil {
			break
		}
	}
	return errors.Join(all...)
}

func (p *pages) get(ctx context.Context, path string, q url.Values, into any) error {
	return p.first(ctx, func(u *url.URL) error { return p.read(ctx, u, path, q, into) })
}

// self is who asks, if no flag says so: the user and the host. Not every shell sets USER;
// a cron job's and a container's do not.
func self() string {
	name := os.Getenv("USER")
	if name == "" {
		name = "uid " + strconv.Itoa(os.Getuid())
	}
	host, err := os.Hostname()
	if err != nil {
		return name
	}
	return name + "@" + host
}
