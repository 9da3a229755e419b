// Package testca signs certificates for tests. Its keys are in files and in no
// way guarded.
package testca

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"
)

// An Authority signs certificates.
type Authority struct {
	PEM  []byte // its certificate
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// New makes an authority that is signed by itself.
func New(name string) (*Authority, error) {
	return authority(name, nil)
}

// Below makes an authority that is signed by a.
func (a *Authority) Below(name string) (*Authority, error) {
	return authority(name, a)
}

func authority(name string, above *Authority) (*Authority, error) {
	template := fill(&x509.Certificate{Subject: pkix.Name{CommonName: name}})
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage, template.ExtKeyUsage = x509.KeyUsageCertSign, nil
	der, key, err := sign(template, above)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return &Authority{PEM: encode("CERTIFICATE", der), cert: cert, key: key}, err
}

// Hosts is a template of a certificate for hosts, names or IPs.
func Hosts(hosts ...string) *x509.Certificate {
	c := &x509.Certificate{}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			c.IPAddresses = append(c.IPAddresses, ip)
		} else {
			c.DNSNames = append(c.DNSNames, host)
		}
	}
	return c
}

// URI adds one to a template.
func URI(c *x509.Certificate, uri string) *x509.Certificate {
	u, err := url.Parse(uri)
	if err == nil {
		c.URIs = append(c.URIs, u)
	}
	return c
}

// Sign makes a certificate and its key, in PEM. What the template does not say is
// right: for an hour, and for both sides of a connection.
func (a *Authority) Sign(template *x509.Certificate) (cert, key []byte, err error) {
	der, private, err := sign(fill(template), a)
	if err != nil {
		return nil, nil, err
	}
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	return encode("CERTIFICATE", der), encode("PRIVATE KEY", raw), err
}

func fill(c *x509.Certificate) *x509.Certificate {
	filled := *c
	filled.SerialNumber, _ = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 100))
	if filled.NotBefore.IsZero() {
		filled.NotBefore = time.Now().Add(-time.Hour)
	}
	if filled.NotAfter.IsZero() {
		filled.NotAfter = time.Now().Add(time.Hour)
	}
	if filled.ExtKeyUsage == nil {
		filled.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	}
	filled.KeyUsage = x509.KeyUsageDigitalSignature
	return &filled
}

// sign has a certificate signed by above, or by itself.
func sign(template *x509.Certificate, above *Authority) (der []byte, key *ecdsa.PrivateKey, err error) {
	if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, nil, err
	}
	parent, signer := template, key
	if above != nil {
		parent, signer = above.cert, above.key
	}
	der, err = x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	return der, key, err
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// The names that Write gives its files: those of a Kubernetes secret.
const (
	Cert = "tls.crt"
	Key  = "tls.key"
	CA   = "ca.crt"
)

// Write puts a certificate, its key and the authorities into dir, in place of what
// was there.
func Write(dir string, cert, key, ca []byte) error {
	for name, data := range map[string][]byte{Cert: cert, Key: key, CA: ca} {
		tmp := filepath.Join(dir, ".tmp-"+name)
		if err := os.WriteFile(tmp, data, 0o600); err != nil {
			return err
		}
		if err := os.Rename(tmp, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}
