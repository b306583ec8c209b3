package app

import (
	"cmp"
	"crypto/x509"
	"net"
	"strings"
	"time"

	"github.com/larder-cdn/larder/server"
)

// openCertificates opens the ACME client for the domains of the settings, with the certificates that are in the data folder. It
// adds its part, its metrics and its status to the run, and requests no certificate yet. It returns nil and no error if the
// settings name no domain.
func (r *roleRun) openCertificates() (*server.CertificateManager, error) {
	c := r.settings
	if len(c.ACMEDomains) == 0 {
		return nil, nil
	}
	o := server.ACMEOptions{
		Domains: c.ACMEDomains, Email: c.ACMEEmail, Directory: c.ACMEDirectory, Folder: server.CertificateFolder(c.Data),
		Logger: r.logger.With("part", "certificates"),
	}
	o.TLS = r.supervisor.publicTCPAddr()
	if plain := r.supervisor.sockets.find(forPlain); plain != nil {
		o.HTTP, _ = plain.at.Addr().(*net.TCPAddr)
	}
	m, err := server.NewCertificateManager(o)
	if err != nil {
		return nil, err
	}
	r.addCertificates(m.States)
	r.parts.Add(m.Part())
	return m, nil
}

// openPlainServer serves plain HTTP on the socket for it, if there is one: it redirects to HTTPS and responds to ACME
// challenges. It also adds the part that requests and renews certificates, unless certificates, the ACME client, is nil. The
// role calls it once the site serves.
func (r *roleRun) openPlainServer(certificates *server.CertificateManager) error {
	if plain := r.supervisor.sockets.find(forPlain); plain != nil {
		l, err := plain.newListener()
		if err != nil {
			return err
		}
		handler := server.RedirectToHTTPS(r.supervisor.publicTCPAddr())
		if certificates != nil {
			handler = certificates.Challenges(handler)
		}
		c := r.settings
		o := server.HTTPOptions{
			Proxies: c.Proxies, ProxyProtocol: c.ProxyProtocol, Logger: r.logger.With("part", "plain server"),
		}
		r.addServer("plain server", server.NewHTTPServer(handler, o), server.LimitConnections(c.MaxConnections, l))
	}
	if certificates != nil {
		r.parts.Add(certificates.RenewalPart())
	}
	return nil
}

// addCertificates adds the states of certificates to the metrics and to the status of the process. states is called for each
// report.
func (r *roleRun) addCertificates(states func() []server.CertificateState) {
	r.metrics.MustRegister(server.NewCertificateCollector(states))
	r.console.addStatus(func(status *Status) { status.Certificates = states() })
}

// certificateState returns the state of the certificate in the file at path, as a list of one. leaf is the certificate in use.
// problem is why the file, or its new content, cannot be used, nil for none; leaf may be nil only with a problem. The state's
// Problem is problem, or else says that the certificate has expired or expires soon.
func certificateState(path string, leaf *x509.Certificate, problem error) []server.CertificateState {
	s := server.CertificateState{Domain: path}
	if leaf != nil {
		s.Domain, s.Until = cmp.Or(strings.Join(leaf.DNSNames, ","), leaf.Subject.CommonName, path), leaf.NotAfter
	}
	switch now := time.Now(); {
	case problem != nil:
		s.Problem = problem.Error()
	case now.After(leaf.NotAfter):
		s.Problem = "it has expired at " + leaf.NotAfter.UTC().Format(time.DateTime)
	case server.ExpiresSoon(leaf, now):
		s.Problem = "it expires at " + leaf.NotAfter.UTC().Format(time.DateTime)
	}
	return []server.CertificateState{s}
}
