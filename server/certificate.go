package server

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// certificateRecheck is the interval at which the files are checked for a newer certificate.
const certificateRecheck = 10 * time.Second

// A Certificate is that of a server, in two PEM files. When they change they are read again, within ten seconds of use, so a renewed
// certificate needs no restart. While they do not belong together, the old one stays in use, and the log says so.
type Certificate struct {
	logger *slog.Logger
	now    func() time.Time

	mu                sync.Mutex
	certFile, keyFile string
	current           *tls.Certificate
	checked           time.Time
	warned            time.Time    // when it was last checked whether it ends
	changed           [2]time.Time // of the files when they were last read
	problem           error        // why the changed files cannot be used; nil if they can, or have not changed
}

// OpenCertificate reads a certificate and its key from two PEM files. A nil logger discards messages.
func OpenCertificate(certFile, keyFile string, logger *slog.Logger) (*Certificate, error) {
	c := &Certificate{certFile: certFile, keyFile: keyFile, logger: cmp.Or(logger, slog.New(slog.DiscardHandler)), now: time.Now}
	c.changed, c.checked = c.modifiedTimes(), c.now()
	if err := c.load(); err != nil {
		return nil, err
	}
	return c, nil
}

// TLS returns a TLS configuration that uses the certificate in use at each handshake, and TLS 1.2 or later.
func (c *Certificate) TLS() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.get}
}

// Reload makes the server use the certificate and key in the given files, which may be others than before, if they have changed. If they cannot be
// used, Reload logs that, the old certificate stays in use, and they are tried again later.
func (c *Certificate) Reload(certFile, keyFile string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if certFile != c.certFile || keyFile != c.keyFile {
		c.certFile, c.keyFile, c.changed = certFile, keyFile, [2]time.Time{}
	}
	c.reloadIfChanged()
}

// get implements tls.Config.GetCertificate: it returns the certificate in use. Every ten seconds at most it also checks whether the files have
// changed, and once a day whether the certificate expires soon.
func (c *Certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now().Sub(c.checked) >= certificateRecheck {
		c.reloadIfChanged()
	}
	if c.now().Sub(c.warned) >= endsWarning {
		c.warnOfExpiry()
	}
	return c.current, nil
}

// reloadIfChanged reads the files if their modification times have changed since they were last read successfully. If they cannot be used or
// are missing, it logs an error at each call, records it in c.problem, and the old certificate stays in use. The caller holds mu.
func (c *Certificate) reloadIfChanged() {
	c.checked = c.now()
	changed := c.modifiedTimes()
	if changed == c.changed && changed != [2]time.Time{} {
		c.problem = nil
		return
	}
	if c.problem = c.load(); c.problem != nil { // one file may be written before the other; then the next check helps
		c.logger.Error("server: keeping the old certificate", "err", c.problem)
		return
	}
	c.changed = changed
	c.logger.Info("server: read a new certificate", "file", c.certFile, "until", c.current.Leaf.NotAfter)
}

// load reads the certificate and its key from the files, puts them in use, and logs if the certificate expires soon. On an error nothing changes.
func (c *Certificate) load() error {
	pair, err := ReadCertificate(c.certFile, c.keyFile)
	if err != nil {
		return err
	}
	c.current = &pair
	c.warnOfExpiry()
	return nil
}

// ReadCertificate reads a certificate and its key from two PEM files, once. Its error says that both must belong together.
func ReadCertificate(certFile, keyFile string) (tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return pair, fmt.Errorf("server: couldn't read the certificate %s with the key %s: %w; both files must be PEM and belong together", certFile, keyFile, err)
	}
	return pair, nil
}

// The time before the expiry of a certificate at which warnings start, at most a third of its lifetime, and their interval.
const (
	endsSoon    = 7 * 24 * time.Hour
	endsWarning = 24 * time.Hour
)

// ExpiresSoon reports whether a certificate has expired at now, or will within a week or the last third of its lifetime, whichever is
// shorter.
func ExpiresSoon(c *x509.Certificate, now time.Time) bool {
	return c.NotAfter.Sub(now) < min(endsSoon, c.NotAfter.Sub(c.NotBefore)/3)
}

// warnOfExpiry logs an error if the certificate has expired, and a warning if it expires soon, and records in c.warned that it has checked. Clients
// get an expired certificate anyway: some may accept it. The caller holds mu.
func (c *Certificate) warnOfExpiry() {
	now, leaf := c.now(), c.current.Leaf
	if c.warned = now; now.After(leaf.NotAfter) {
		c.logger.Error("server: the certificate has expired, so that clients refuse it; renew its file", "file", c.certFile, "expired", leaf.NotAfter)
	} else if ExpiresSoon(leaf, now) {
		c.logger.Warn("server: the certificate expires soon; renew its file", "file", c.certFile, "until", leaf.NotAfter)
	}
}

// State reads the files now if they have changed, and returns the certificate in use. problem is why changed files cannot replace it, nil if they
// can or have not changed.
func (c *Certificate) State() (leaf *x509.Certificate, problem error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reloadIfChanged()
	return c.current.Leaf, c.problem
}

// modifiedTimes returns when the two files were modified; the zero time for a file that cannot be read, which counts as a change.
func (c *Certificate) modifiedTimes() (times [2]time.Time) {
	for i, name := range []string{c.certFile, c.keyFile} {
		if info, err := os.Stat(name); err == nil {
			times[i] = info.ModTime()
		}
	}
	return times
}
