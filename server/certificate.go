package server

import (
	"cmp"
	"crypto/tls"
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
}

// OpenCertificate reads a certificate and its key from two files.
func OpenCertificate(certFile, keyFile string, logger *slog.Logger) (*Certificate, error) {
	c := &Certificate{certFile: certFile, keyFile: keyFile, logger: cmp.Or(logger, slog.New(slog.DiscardHandler)), now: time.Now}
	c.changed, c.checked = c.modifiedTimes(), c.now()
	if err := c.load(); err != nil {
		return nil, err
	}
	return c, nil
}

// TLS returns a TLS configuration that always uses the present certificate.
func (c *Certificate) TLS() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.get}
}

// Reload reads the certificate and key from files, which may be others than before. If they cannot be used, the old certificate
// stays in use, and they are tried again later.
func (c *Certificate) Reload(certFile, keyFile string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if certFile != c.certFile || keyFile != c.keyFile {
		c.certFile, c.keyFile, c.changed = certFile, keyFile, [2]time.Time{}
	}
	c.reloadIfChanged()
}

// get returns the present certificate for a handshake. Once in a while it checks whether the files have changed.
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

// reloadIfChanged reads the files if they have changed since they were read.
func (c *Certificate) reloadIfChanged() {
	c.checked = c.now()
	changed := c.modifiedTimes()
	if changed == c.changed {
		return
	}
	if err := c.load(); err != nil { // one file may be written before the other; then the next check helps
		c.logger.Error("server: keeping the old certificate", "err", err)
		return
	}
	c.changed = changed
	c.logger.Info("server: read a new certificate", "file", c.certFile, "until", c.current.Leaf.NotAfter)
}

// load reads the certificate and its key.
func (c *Certificate) load() error {
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return fmt.Errorf("server: couldn't read the certificate %s with the key %s: %w; both files must be PEM and belong together", c.certFile, c.keyFile, err)
	}
	c.current = &pair
	c.warnOfExpiry()
	return nil
}

// The time before the end of a certificate at which warnings start, at most a third of its lifetime, and their interval.
const (
	endsSoon    = 7 * 24 * time.Hour
	endsWarning = 24 * time.Hour
)

// warnOfExpiry logs if the certificate has expired or expires soon. Clients get it anyway: some may accept it.
func (c *Certificate) warnOfExpiry() {
	now, until := c.now(), c.current.Leaf.NotAfter
	if c.warned = now; now.After(until) {
		c.logger.Error("server: the certificate has ended, so that clients refuse it; renew its file", "file", c.certFile, "ended", until)
	} else if until.Sub(now) < min(endsSoon, until.Sub(c.current.Leaf.NotBefore)/3) {
		c.logger.Warn("server: the certificate ends soon; renew its file", "file", c.certFile, "until", until)
	}
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
