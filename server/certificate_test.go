package server_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit/bubble"
	"github.com/larder-cdn/larder/server"
)

// writeCertificate writes a new certificate for 127.0.0.1 and its key.
func writeCertificate(t *testing.T, certFile, keyFile string, serial int64) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial),
		Subject:      pkix.Name{CommonName: "test"},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA:         true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}

func selfSigned(t *testing.T) (*tls.Config, *x509.CertPool) {
	t.Helper()
	certFile, keyFile := filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	roots := x509.NewCertPool()
	roots.AddCert(writeCertificate(t, certFile, keyFile, 1))
	c, err := server.OpenCertificate(certFile, keyFile, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c.TLS(), roots
}

func TestCertificateErrorNamesFiles(t *testing.T) {
	_, err := server.OpenCertificate("nowhere/cert.pem", "nowhere/key.pem", nil)
	if err == nil || !strings.Contains(err.Error(), "nowhere/cert.pem") {
		t.Errorf("the error is %v, want one that names the file", err)
	}
}

func TestEndOfCertificateIsTold(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	bubble.Test(t, func(t *testing.T) {
		writeCertificate(t, certFile, keyFile, 1) // for an hour
		logger, lines := logged()
		opened, err := server.OpenCertificate(certFile, keyFile, logger)
		if err != nil {
			t.Fatal(err)
		}
		if lines.String() != "" {
			t.Errorf("there is nothing to tell yet: %q", lines)
		}
		time.Sleep(25 * time.Hour)
		if c, err := opened.TLS().GetCertificate(&tls.ClientHelloInfo{}); c == nil || err != nil {
			t.Errorf("a certificate that has ended isn't served: %v", err)
		}
		if said := lines.String(); !strings.Contains(said, "the certificate has expired") || !strings.Contains(said, certFile) {
			t.Errorf("nothing tells the operator that the certificate has expired: %q", said)
		}
	})
}

// TestMissingCertificateIsLogged tests that a reload with names of files that do not exist is logged, and keeps the certificate.
func TestMissingCertificateIsLogged(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	writeCertificate(t, certFile, keyFile, 1)
	logger, lines := logged()
	opened, err := server.OpenCertificate(certFile, keyFile, logger)
	if err != nil {
		t.Fatal(err)
	}
	opened.Reload(certFile+".new", keyFile+".new")
	if said := lines.String(); !strings.Contains(said, "keeping the old certificate") {
		t.Errorf("the log says %q", said)
	}
	if _, problem := opened.State(); problem == nil {
		t.Error("the state has no problem")
	}
	if c, err := opened.TLS().GetCertificate(&tls.ClientHelloInfo{}); c == nil || err != nil {
		t.Errorf("the old certificate isn't served: %v", err)
	}
}

func TestRenewedCertificateIsRead(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	bubble.Test(t, func(t *testing.T) {
		writeCertificate(t, certFile, keyFile, 1)
		logger, lines := logged()
		opened, err := server.OpenCertificate(certFile, keyFile, logger)
		if err != nil {
			t.Fatal(err)
		}
		want := func(serial int64) {
			t.Helper()
			c, err := opened.TLS().GetCertificate(&tls.ClientHelloInfo{})
			if err != nil {
				t.Fatal(err)
			}
			if got := c.Leaf.SerialNumber.Int64(); got != serial {
				t.Errorf("the certificate is number %d, want %d", got, serial)
			}
		}
		touch := func(minutes int) { // file systems may have coarse clocks
			at := time.Now().Add(time.Duration(minutes) * time.Minute)
			for _, name := range []string{certFile, keyFile} {
				if err := os.Chtimes(name, at, at); err != nil {
					t.Fatal(err)
				}
			}
		}
		want(1)
		// A key that does not fit yet: the old pair stays.
		if err := os.WriteFile(keyFile, []byte("half a key"), 0o600); err != nil {
			t.Fatal(err)
		}
		touch(1)
		want(1) // not looked at yet
		time.Sleep(10 * time.Second)
		want(1)
		if !strings.Contains(lines.String(), "keeping the old certificate") {
			t.Errorf("the log does not say so: %s", lines)
		}
		writeCertificate(t, certFile, keyFile, 2)
		touch(2)
		time.Sleep(10 * time.Second)
		want(2)
	})
}
