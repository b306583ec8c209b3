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

// OpenCertificate reads a certificate and its key.
func OpenCertificate(certFile, keyFile string, logger *slog.Logger) (*Certificate, error) {
	c := &Certificate{certFile: certFile, keyFile: keyFile, logger: cmp.Or(logger, slog.New(slog.DiscardHandler)), now: time.Now}
	c.changed, c.checked = c.modified(), c.now()
	if err := c.load(); err != nil {
		return nil, err
	}
	return c, nil
}

// TLS returns a configuration that uses the certificate.
func (c *Certificate) TLS() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.get}
}

// Reload reads the files at once if they have changed, or are others than before. If they cannot be used, the old certificate stays in use
// until they can.
func (c *Certificate) Reload(certFile, keyFile string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if certFile != c.certFile || keyFile != c.keyFile {
		c.certFile, c.keyFile, c.changed = certFile, keyFile, [2]time.Time{}
	}
	c.refresh()
}

func (c *Certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now().Sub(c.checked) >= certificateRecheck {
		c.refresh()
	}
	if c.now().Sub(c.warned) >= endsWarning {
		c.warn()
	}
	return c.current, nil
}

// refresh reads the files if they have changed.
func (c *Certificate) refresh() {
	c.checked = c.now()
	changed := c.modified()
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

func (c *Certificate) load() error {
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return fmt.Errorf("server: couldn't read the certificate %s with the key %s: %w; both files must be PEM and belong together", c.certFile, c.keyFile, err)
	}
	c.current = &pair
	c.warn()
	return nil
}

// The time before the end of a certificate at which warnings start, at most a third of its lifetime, and their interval.
const (
	endsSoon    = 7 * 24 * time.Hour
	endsWarning = 24 * time.Hour
)

// warn logs that the certificate has expired or does so soon. Clients get it anyway: some may accept it.
func (c *Certificate) warn() {
	now, until := c.now(), c.current.Leaf.NotAfter
	if c.warned = now; now.After(until) {
		c.logger.Error("server: the certificate has ended, so that clients refuse it; renew its file", "file", c.certFile, "ended", until)
	} else if until.Sub(now) < min(endsSoon, until.Sub(c.current.Leaf.NotBefore)/3) {
		c.logger.Warn("server: the certificate ends soon; renew its file", "file", c.certFile, "until", until)
	}
}

// modified returns when the files changed. A file that cannot be looked at has the
// zero time, which is a change too.
func (c *Certificate) modified() (times [2]time.Time) {
	for i, name := range []string{c.certFile, c.keyFile} {
		if info, err := os.Stat(name); err == nil {
			times[i] = info.ModTime()
		}
	}
	return times
}
