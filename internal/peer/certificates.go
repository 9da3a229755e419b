package peer

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

// TLSFiles are files in PEM.
type TLSFiles struct {
	Cert string // of this replica, and what it takes to get from it to an authority
	Key  string // of that certificate
	CA   string // the authorities by whom the others' certificates may be signed
}

// Certificates are what TLSFiles hold. They are looked at again and again, and
// what is new there is used by every connection that is made from then on.
type Certificates struct {
	files TLSFiles
	who   Identity // whose certificate it must be

	now atomic.Pointer[credentials]

	// Of the goroutine that looks.
	fault  string       // why what was found last cannot be used
	warned bool         // of fault
	aging  *credentials // of which was said that they end soon
}

// credentials are one reading of the files.
type credentials struct {
	from  contents
	own   tls.Certificate
	roots *x509.CertPool
}

type contents struct{ cert, key, ca string }

// LoadCertificates reads the files. The certificate must be one by which the
// others will know who: see speaksFor. They were told no other address than that
// of who. The error lists every fault.
func LoadCertificates(files TLSFiles, who Identity) (*Certificates, error) {
	c := &Certificates{files: files, who: who}
	from, err := files.read()
	if err != nil {
		return nil, err
	}
	now, err := c.parse(from)
	if err != nil {
		return nil, err
	}
	c.now.Store(now)
	return c, nil
}

func (f TLSFiles) read() (c contents, err error) {
	var faults []error
	for _, file := range []struct {
		field, name string
		to          *string
	}{{"Cert", f.Cert, &c.cert}, {"Key", f.Key, &c.key}, {"CA", f.CA, &c.ca}} {
		if file.name == "" {
			faults = append(faults, fmt.Errorf("TLS.%s is empty: must be a file in PEM", file.field))
			continue
		}
		raw, err := os.ReadFile(file.name)
		if err != nil {
			faults = append(faults, fmt.Errorf("TLS.%s: %w", file.field, err))
		}
		*file.to = string(raw)
	}
	return c, errors.Join(faults...)
}

// parse accepts only what the other replicas will accept too, if they have the
// same authorities: better an error here than a replica that nobody talks to.
func (c *Certificates) parse(from contents) (*credentials, error) {
	own, ownErr := tls.X509KeyPair([]byte(from.cert), []byte(from.key))
	if ownErr != nil {
		ownErr = fmt.Errorf("TLS.Cert %q with TLS.Key %q: %w", c.files.Cert, c.files.Key, ownErr)
	}
	roots, err := authorities([]byte(from.ca))
	if err != nil {
		err = fmt.Errorf("TLS.CA %q: %w", c.files.CA, err)
	}
	if err := errors.Join(ownErr, err); err != nil {
		return nil, err
	}
	now := &credentials{from: from, own: own, roots: roots}
	if err := c.check(now); err != nil {
		return nil, fmt.Errorf("TLS.Cert %q: %w", c.files.Cert, err)
	}
	return now, nil
}

func (c *Certificates) check(now *credentials) error {
	var chain []*x509.Certificate
	for _, der := range now.own.Certificate {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return err
		}
		chain = append(chain, cert)
	}
	for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		if err := now.verify(chain, use); err != nil {
			return fmt.Errorf("it must be for server and client authentication, and signed by an authority in TLS.CA %q: %w", c.files.CA, err)
		}
	}
	var told []string
	if c.who.Address != "" {
		told = append(told, c.who.Address)
	}
	return speaksFor(now.own.Leaf, c.who.Cluster, c.who.Replica, told)
}

func authorities(raw []byte) (*x509.CertPool, error) {
	pool, found := x509.NewCertPool(), 0
	for raw = bytes.TrimSpace(raw); len(raw) > 0; {
		var block *pem.Block
		if block, raw = pem.Decode(raw); block == nil {
			break // text behind the last one
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		found++
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", found, err)
		}
		pool.AddCert(cert)
	}
	if found == 0 {
		return nil, errors.New("it holds no certificate in PEM")
	}
	return pool, nil
}

// verify checks that a chain leads to one of the authorities. Its errors do not
// change with the time, so that the same one is known again.
func (c *credentials) verify(chain []*x509.Certificate, use x509.ExtKeyUsage) error {
	if len(chain) == 0 {
		return errors.New("there is no certificate")
	}
	between := x509.NewCertPool()
	for _, cert := range chain[1:] {
		between.AddCert(cert)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{Roots: c.roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{use}})
	if invalid := (x509.CertificateInvalidError{}); errors.As(err, &invalid) && invalid.Reason == x509.Expired {
		of := invalid.Cert
		return fmt.Errorf("the certificate of %q is valid from %s to %s only", of.Subject, of.NotBefore.UTC().Format(time.RFC3339), of.NotAfter.UTC().Format(time.RFC3339))
	}
	return err
}

// Holds tells whether cert, in PEM, is what is shown to others.
func (c *Certificates) Holds(cert []byte) bool { return c.now.Load().from.cert == string(cert) }

// lookPause is how soon a new file is seen.
const lookPause = 500 * time.Millisecond

// watch looks at the files until stop is closed.
func (c *Certificates) watch(stop <-chan struct{}, logger *slog.Logger) {
	tick := time.NewTicker(lookPause)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
			c.look(logger)
		}
	}
}

// look takes over what the files hold now. If that cannot be used, what was
// there before stays. It is said when a second look finds the same, since the
// files may not all be replaced at one moment.
func (c *Certificates) look(logger *slog.Logger) {
	now := c.now.Load()
	from, err := c.files.read()
	if err == nil && from != now.from {
		var next *credentials
		if next, err = c.parse(from); err == nil {
			now = next
			c.now.Store(now)
			logger.Info("new TLS files are in use", "until", now.own.Leaf.NotAfter)
		}
	}
	if err == nil {
		c.fault, c.warned = "", false
	} else if fault := err.Error(); fault != c.fault {
		c.fault, c.warned = fault, false
	} else if !c.warned {
		c.warned = true
		logger.Warn("the TLS files cannot be used; what they held before is used on", "err", strings.ReplaceAll(fault, "\n", "; "))
	}
	c.mindAge(now, logger)
}

// mindAge warns once, when a tenth of the certificate's time is left.
func (c *Certificates) mindAge(now *credentials, logger *slog.Logger) {
	leaf := now.own.Leaf
	if c.aging == now || time.Until(leaf.NotAfter) > leaf.NotAfter.Sub(leaf.NotBefore)/10 {
		return
	}
	c.aging = now
	logger.Warn("the TLS certificate of this replica ends soon; without a new one nobody connects to it then", "until", leaf.NotAfter)
}
