package peer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"unicode"
)

// uriScheme begins the names by which a certificate may name replicas:
// quorumlock://CLUSTER/ID.
const uriScheme = "quorumlock"

// application is what a handshake is told to be for, so that no other service
// which has a certificate of the same host is taken for a replica.
const application = "quorumlock-peer"

var (
	// errUnproven: one side could not prove to the other who it is.
	errUnproven = errors.New("peer: not proven by TLS")
	errOnlyTLS  = fmt.Errorf("%w: the other side uses TLS, and this replica does not", errUnproven)
	errNoTLS    = fmt.Errorf("%w: the other side does not use TLS, and this replica does", errUnproven)
)

// secure makes a fresh connection an authenticated one, if this replica uses TLS.
// Who dialled knows from whom the certificate must be; who was dialled knows when
// it has heard the greeting, and calls vouch.
func (t *Transport) secure(ctx context.Context, raw net.Conn, dialled uint64) (net.Conn, error) {
	if t.cfg.TLS == nil {
		return raw, nil
	}
	now := t.cfg.TLS.now.Load()
	use := x509.ExtKeyUsageClientAuth
	if dialled != 0 {
		use = x509.ExtKeyUsageServerAuth
	}
	conf := &tls.Config{
		MinVersion:                  tls.VersionTLS13,
		Certificates:                []tls.Certificate{now.own},
		NextProtos:                  []string{application},
		ClientAuth:                  tls.RequireAnyClientCert,
		InsecureSkipVerify:          true, // by us, since the name is that of the replica and not of the address
		SessionTicketsDisabled:      true,
		DynamicRecordSizingDisabled: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			if s.NegotiatedProtocol != application {
				return fmt.Errorf("it is for %q, not %q", s.NegotiatedProtocol, application)
			}
			if err := now.verify(s.PeerCertificates, use); err != nil || dialled == 0 {
				return err
			}
			return t.speaksFor(s.PeerCertificates[0], dialled)
		},
	}
	conn := tls.Server(raw, conf)
	if dialled != 0 {
		conn = tls.Client(raw, conf)
	}
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, unproven(err)
	}
	return conn, nil
}

// vouch checks that the certificate behind conn is one of replica's.
func (t *Transport) vouch(conn net.Conn, replica uint64) error {
	if t.cfg.TLS == nil {
		return nil
	}
	return t.speaksFor(conn.(*tls.Conn).ConnectionState().PeerCertificates[0], replica)
}

func (t *Transport) speaksFor(leaf *x509.Certificate, replica uint64) error {
	return speaksFor(leaf, t.cfg.Self.Cluster, replica, t.cfg.Told(replica))
}

// speaksFor decides whether a certificate, whose chain was verified, is one of
// replica's. If it names replicas, by URI, it speaks for these and no other.
// Otherwise it speaks for whoever is dialled, as this replica was told, at a host
// that it names. What the other says of its own address is no part of this.
func speaksFor(leaf *x509.Certificate, cluster string, replica uint64, told []string) error {
	id, named, other := strconv.FormatUint(replica, 10), false, uint64(0)
	for _, u := range leaf.URIs {
		if u.Scheme != uriScheme {
			continue
		}
		named = true
		if u.Host != cluster {
			continue
		}
		if u.Path == "/"+id {
			return nil
		}
		other, _ = strconv.ParseUint(strings.TrimPrefix(u.Path, "/"), 10, 64)
	}
	var hosts []string
	for _, addr := range told {
		host := hostOf(addr)
		hosts = append(hosts, host)
		if !named && leaf.VerifyHostname(host) == nil {
			return nil
		}
	}
	wanted := fmt.Sprintf("%s://%s/%s", uriScheme, cluster, id)
	if len(hosts) > 0 && !named {
		wanted = strings.Join(hosts, ", ") + " or " + wanted
	}
	err := fmt.Errorf("the certificate is for %s, but replica %s needs one for %s", namesIn(leaf), id, wanted)
	if other != 0 {
		return &otherReplica{err, other}
	}
	return err
}

// otherReplica is the error for a certificate of another replica of the cluster.
type otherReplica struct {
	error
	replica uint64
}

func hostOf(addr string) string {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.WithZone("").String() // a certificate knows no zones
	}
	return host
}

// namesIn returns what a certificate is for, as short as fits in a line of a log.
func namesIn(leaf *x509.Certificate) string {
	var names []string
	for _, ip := range leaf.IPAddresses {
		names = append(names, ip.String())
	}
	for _, u := range leaf.URIs {
		names = append(names, u.String())
	}
	const most = 300
	s := strings.Join(append(names, leaf.DNSNames...), ", ")
	if len(s) > most {
		s = s[:most] + "..."
	}
	if s == "" {
		return "no host and no replica"
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?' // it comes from a stranger
	}, s)
}

// unproven tells failures of the handshake for which somebody must do something
// from connections that merely ended.
func unproven(err error) error {
	var (
		header tls.RecordHeaderError
		other  net.Error
	)
	switch {
	case errors.As(err, &header):
		return fmt.Errorf("%w: %w", errNoTLS, err)
	case errors.Is(declined(err), errUnproven):
		return declined(err)
	case errors.As(err, &other), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, context.Canceled):
		return fmt.Errorf("TLS handshake, which the other side may not know: %w", err)
	}
	return fmt.Errorf("%w: %w", errUnproven, err)
}

// declined recognizes what the other side says when it ends a handshake.
func declined(err error) error {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "remote error" {
		return fmt.Errorf("%w: the other side does not accept this replica's certificate or handshake, and its log says why: %w", errUnproven, op.Err)
	}
	return err
}

// reproach tells whether err says that one side did not believe the other.
func reproach(err error) bool {
	var r *Refusal
	return errors.Is(err, errUnproven) || errors.As(err, &r) && r.Code == CodeCertificate
}

// linger lets the other side read what it was told last: were the connection
// closed with something unread, a reset would overtake it. The deadline of conn
// and a greeting's length bound it.
func linger(conn net.Conn) {
	if half, ok := conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		_, _ = io.CopyN(io.Discard, conn, maxGreeting)
	}
}
