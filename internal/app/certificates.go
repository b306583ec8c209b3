package app

import (
	"net"

	"github.com/larder-cdn/larder/server"
	"github.com/larder-cdn/larder/server/acme"
)

// openCertificates opens the ACME client for the domains of the settings, with the certificates that are in the data folder. It
// requests none yet. It returns nil and no error if the settings name no domain.
func (r *roleRun) openCertificates() (*acme.Manager, error) {
	c := r.settings
	if len(c.ACMEDomains) == 0 {
		return nil, nil
	}
	o := acme.Options{
		Domains: c.ACMEDomains, Email: c.ACMEEmail, Directory: c.ACMEDirectory, Folder: acme.Folder(c.Data),
		Logger: r.logger.With("part", "certificates"),
	}
	o.TLS = r.supervisor.publicTCPAddr()
	if plain := r.supervisor.sockets.find(forPlain); plain != nil {
		o.HTTP, _ = plain.at.Addr().(*net.TCPAddr)
	}
	m, err := acme.New(o)
	if err != nil {
		return nil, err
	}
	r.metrics.MustRegister(m.Collector())
	r.console.addStatus(func(status *Status) { status.Certificates = m.States() })
	r.parts.Add(m.Part())
	return m, nil
}

// openPlainServer serves plain HTTP on the socket for it, if there is one: it redirects to HTTPS and responds to ACME challenges.
// It also starts the renewal of certificates, which is nil for none. It is called once the site serves.
func (r *roleRun) openPlainServer(certificates *acme.Manager) error {
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
		r.addServer("plain server", server.NewHTTPServer(handler, o), server.Limit(c.MaxConnections, l))
	}
	if certificates != nil {
		r.parts.Add(certificates.RenewalPart())
	}
	return nil
}
