package server

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// certificateRecheck is how often the files are looked at for a newer certificate.
const certificateRecheck = 10 * time.Second

// Certificate returns a TLS configuration with the certificate in two PEM files.
// When they change they are read again, within ten seconds of use, so a renewed
// certificate needs no restart; while they do not fit together the old one is kept
// and logger is told.
func Certificate(certFile, keyFile string, logger *slog.Logger) (*tls.Config, error) {
	c := &certificate{certFile: certFile, keyFile: keyFile, logger: logger, now: time.Now}
	if c.logger == nil {
		c.logger = slog.New(slog.DiscardHandler)
	}
	c.changed, c.checked = c.modified(), c.now()
	if err := c.load(); err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.get}, nil
}

type certificate struct {
	certFile, keyFile string
	logger            *slog.Logger
	now               func() time.Time

	mu      sync.Mutex
	current *tls.Certificate
	checked time.Time
	changed [2]time.Time // of the files when they were last read
}

func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.now(); now.Sub(c.checked) >= certificateRecheck {
		c.checked = now
		if changed := c.modified(); changed != c.changed {
			// One file may be written before the other; then the next look helps.
			if err := c.load(); err != nil {
				c.logger.Error("server: keeping the old certificate", "err", err)
			} else {
				c.changed = changed
				c.logger.Info("server: read a new certificate", "file", c.certFile, "until", c.current.Leaf.NotAfter)
			}
		}
	}
	return c.current, nil
}

func (c *certificate) load() error {
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return fmt.Errorf("server: couldn't read the certificate %s with the key %s: %w", c.certFile, c.keyFile, err)
	}
	c.current = &pair
	return nil
}

// modified returns when the files changed. A file that cannot be looked at has the
// zero time, which is a change too.
func (c *certificate) modified() (times [2]time.Time) {
	for i, name := range []string{c.certFile, c.keyFile} {
		if info, err := os.Stat(name); err == nil {
			times[i] = info.ModTime()
		}
	}
	return times
}
