package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3"
	"github.com/mholt/acmez/v3/acme"
	"go.uber.org/zap"
)

// LetsEncrypt is the directory of the default ACME server.
const LetsEncrypt = certmagic.LetsEncryptProductionCA

// ACMEOptions says which certificates the manager gets, and how.
type ACMEOptions struct {
	// Domains get a certificate each. At least one; the first one's is for clients that name none of them.
	Domains []string
	// Email is where the server writes to when something is wrong with the account. Default: none.
	Email string
	// Directory is the URL of the ACME server. Default: [LetsEncrypt].
	Directory string
	// Folder keeps account, keys and certificates. It is created if missing. Required.
	Folder string
	// TLS is the address at which the certificates are used, and at which the TLS-ALPN-01 challenges of the ACME server arrive
	// (RFC 8737). Required.
	TLS *net.TCPAddr
	// HTTP is the address of [CertificateManager.Challenges], at which HTTP-01 challenges arrive. Default: the manager uses
	// only TLS-ALPN-01.
	HTTP *net.TCPAddr
	// Check is the interval between checks whether a certificate is due for renewal. Default: 10 minutes.
	Check time.Duration
	// Logger gets what happens to certificates. Default: nothing is logged.
	Logger *slog.Logger
}

// A CertificateManager has the certificates of the public address, gets those that it lacks from an ACME server (RFC 8555) such as Let's
// Encrypt, and renews them in time.
//
// A certificate is served until its renewal succeeds; only their owner may read the files of keys and certificates. Errors name the
// cause, for example the domain's address, the limits of the server, or the network, and the next step.
type CertificateManager struct {
	domains []string
	folder  string
	logger  *slog.Logger
	cache   *certmagic.Cache
	config  *certmagic.Config
	issuer  *certmagic.ACMEIssuer

	mu       sync.Mutex
	problems map[string]string // by domain, why the last attempt failed
}

// NewCertificateManager makes Folder if it is missing, and returns a manager with the certificates that it has. It returns an error if one of
// them exists and cannot be read. Only [CertificateManager.Run] gets missing certificates. The manager's cache checks every ACMEOptions.Check
// whether a certificate is due for renewal, from now on. The caller must call Close.
func NewCertificateManager(o ACMEOptions) (*CertificateManager, error) {
	if err := os.MkdirAll(o.Folder, 0o700); err != nil {
		return nil, fmt.Errorf("acme: couldn't make the folder of the certificates: %w", err)
	}
	m := &CertificateManager{
		domains: o.Domains, folder: o.Folder, problems: map[string]string{},
		logger: cmp.Or(o.Logger, slog.New(slog.DiscardHandler)),
	}
	quiet := zap.New(&zapCore{m.logger}) // its own messages are for those who look closely
	m.cache = certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert:   func(certmagic.Certificate) (*certmagic.Config, error) { return m.config, nil },
		RenewCheckInterval: o.Check,
		Logger:             quiet,
	})
	config := certmagic.Config{
		Storage:            certificateStorage{&certmagic.FileStorage{Path: o.Folder}},
		DefaultServerName:  o.Domains[0],
		FallbackServerName: o.Domains[0],
		OnEvent:            m.handleEvent,
		ShouldEmitFunc:     func(event string) bool { return event != "tls_get_certificate" }, // it is costly, and handleEvent ignores it
		Logger:             quiet,
	}
	m.config = certmagic.New(m.cache, config)
	// Orders do not say what they replace (RFC 9773, section 5): a server that has forgotten that certificate would refuse
	// every renewal. When it wants renewals early is asked all the same.
	config.DisableARI = true
	ordering := certmagic.New(m.cache, config)
	template := certmagic.ACMEIssuer{
		CA: cmp.Or(o.Directory, LetsEncrypt), Email: o.Email, Agreed: true, Logger: quiet,
		ListenHost: listenHost(o.TLS), AltTLSALPNPort: o.TLS.Port, DisableHTTPChallenge: o.HTTP == nil,
	}
	if o.HTTP != nil {
		template.AltHTTPPort = o.HTTP.Port
	}
	m.issuer = certmagic.NewACMEIssuer(ordering, template)
	m.issuer.TestCA = "" // a retry asks the same server, so that messages are about one
	m.config.Issuers = []certmagic.Issuer{m.issuer}
	ordering.Issuers = m.config.Issuers
	for _, domain := range m.domains {
		_, err := m.config.CacheManagedCertificate(context.Background(), domain)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			m.cache.Stop()
			return nil, fmt.Errorf("acme: couldn't read the certificate of %s below %s: %w; move that folder away to get new ones", domain, o.Folder, err)
		}
	}
	return m, nil
}

// certificateStorage has account, keys and certificates in files.
type certificateStorage struct{ *certmagic.FileStorage }

// maxCertificatePoll is the longest interval between two requests for the time at which the ACME server wants a certificate renewed (RFC 9773,
// section 4.3.2).
const maxCertificatePoll = 24 * time.Hour

// Load implements certmagic.Storage: it returns the value of a key. From what the ACME server said about a certificate's renewal
// it removes the time of the next request if that is later than maxCertificatePoll from now, because a clock that was ahead has stored
// it: then certmagic requests at once. An earlier time in its place would not do, as certmagic takes a later one on disk for a
// newer response, and sends no request.
func (s certificateStorage) Load(ctx context.Context, key string) ([]byte, error) {
	value, err := s.FileStorage.Load(ctx, key)
	if err != nil || path.Ext(key) != ".json" {
		return value, err
	}
	var resource certmagic.CertificateResource
	var certificate acme.Certificate
	if json.Unmarshal(value, &resource) != nil || json.Unmarshal(resource.IssuerData, &certificate) != nil {
		return value, nil // it is about something else, such as the account
	}
	info := certificate.RenewalInfo
	if info == nil || info.RetryAfter == nil || !info.RetryAfter.After(time.Now().Add(maxCertificatePoll)) {
		return value, nil
	}
	info.RetryAfter = nil
	if resource.IssuerData, err = json.Marshal(certificate); err != nil {
		return nil, err
	}
	return json.Marshal(resource)
}

// listenHost returns the host of the address at which certificates are used, "" for all addresses. certmagic tries to listen
// there for challenges; if it cannot, it relies on the listener that exists.
func listenHost(a *net.TCPAddr) string {
	if a.IP == nil || a.IP.IsUnspecified() {
		return ""
	}
	return a.IP.String()
}

// certificateRetryInterval is the time until the next attempt for a domain for which certmagic has given up.
const certificateRetryInterval = time.Hour

// Run gets the certificates of domains that have none, and renews each certificate when a third of its lifetime remains, or earlier if the
// ACME server asks for that. It returns when ctx ends. After a failure it logs why and tries again, at first after a minute, later after
// hours. It can be called once.
func (m *CertificateManager) Run(ctx context.Context) {
	var all sync.WaitGroup
	for _, domain := range m.domains {
		all.Go(func() { m.obtain(ctx, domain) })
	}
	all.Go(func() { // those that expired while no process ran; from then on the cache looks by itself
		if err := m.cache.RenewManagedCertificates(ctx); err != nil && ctx.Err() == nil {
			m.logger.Warn("couldn't look for certificates that have to be renewed", "err", err)
		}
	})
	all.Wait()
	<-ctx.Done()
}

// Close releases the cache of certificates. Run must have returned. It always returns nil.
func (m *CertificateManager) Close() error {
	m.cache.Stop()
	return nil
}

// obtain gets the certificate of a domain from the ACME server, unless Folder has one, and adds it to the cache. It tries until that succeeds
// or ctx ends, and records each failure.
func (m *CertificateManager) obtain(ctx context.Context, domain string) {
	for ctx.Err() == nil {
		err := m.config.ObtainCertAsync(ctx, domain) // it comes back when there is one, or after weeks
		if err == nil {
			_, err = m.config.CacheManagedCertificate(ctx, domain)
		}
		if err == nil || ctx.Err() != nil {
			return
		}
		m.recordFailure(domain, err)
		select {
		case <-ctx.Done():
		case <-time.After(certificateRetryInterval):
		}
	}
}

// TLS returns a configuration that serves the certificates, the present one at each handshake, and responds to TLS-ALPN-01
// challenges of the ACME server.
func (m *CertificateManager) TLS() *tls.Config {
	challenge := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{acmez.ACMETLS1Protocol}, GetCertificate: m.config.GetCertificate}
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: m.getCertificate,
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			if slices.Equal(hello.SupportedProtos, challenge.NextProtos) {
				return challenge, nil // and the connection ends after the handshake
			}
			return nil, nil
		},
	}
}

// getCertificate returns the certificate for the server name of a TLS handshake; for a name that is not a domain of the manager, or none, that
// of the first domain. It returns an error if that one does not exist yet.
func (m *CertificateManager) getCertificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	certificate, err := m.config.GetCertificate(hello)
	if err != nil {
		return nil, errors.New("acme: there is no certificate yet")
	}
	return certificate, nil
}

// Challenges returns a handler that responds to HTTP-01 challenges of the ACME server and passes other requests to next.
func (m *CertificateManager) Challenges(next http.Handler) http.Handler {
	return m.issuer.HTTPChallengeHandler(next)
}

// A CertificateState is the state of a domain's certificate.
type CertificateState struct {
	Domain string `json:"domain"`
	// Until is when the certificate expires, zero without a certificate.
	Until time.Time `json:"until,omitzero"`
	// Problem is why the last attempt to get or renew it failed, "" if that succeeded or this process has made none.
	Problem string `json:"problem,omitempty"`
}

// States returns the state of each domain's certificate, in the order of ACMEOptions.Domains.
func (m *CertificateManager) States() []CertificateState {
	var all []CertificateState
	for _, domain := range m.domains {
		m.mu.Lock()
		s := CertificateState{Domain: domain, Problem: m.problems[domain]}
		m.mu.Unlock()
		s.Until = m.expiry(domain)
		all = append(all, s)
	}
	return all
}

// expiry returns when the domain's certificate expires, zero if it has none.
func (m *CertificateManager) expiry(domain string) (until time.Time) {
	for _, c := range m.cache.AllMatchingCertificates(domain) {
		if c.Leaf != nil && c.Leaf.NotAfter.After(until) {
			until = c.Leaf.NotAfter
		}
	}
	return until
}

// handleEvent is called by certmagic for each event. It records and logs that a domain got a certificate, or why it did not, unless the
// attempt was cancelled. It ignores other events. It always returns nil.
func (m *CertificateManager) handleEvent(_ context.Context, event string, data map[string]any) error {
	domain, _ := data["identifier"].(string)
	switch event {
	case "cert_obtained":
		m.mu.Lock()
		delete(m.problems, domain)
		m.mu.Unlock()
		m.logger.Info("has a new certificate", "domain", domain, "renewal", data["renewal"])
	case "cert_failed":
		if err, ok := data["error"].(error); ok && !errors.Is(err, context.Canceled) {
			m.recordFailure(domain, err)
		}
	}
	return nil
}

// recordFailure records for States, and logs, why a domain got no certificate, and what is served meanwhile.
func (m *CertificateManager) recordFailure(domain string, err error) {
	problem := explainACMEFailure(m.issuer.CA, domain, err)
	m.mu.Lock()
	m.problems[domain] = problem
	m.mu.Unlock()
	attributes := []any{"domain", domain, "err", problem}
	switch until := m.expiry(domain); {
	case until.IsZero():
		attributes = append(attributes, "meanwhile", "there is no certificate, so TLS connections for it fail")
	case until.Before(time.Now()):
		attributes = append(attributes, "meanwhile", "the old certificate is served, which expired at "+until.UTC().Format(time.RFC3339))
	default:
		attributes = append(attributes, "meanwhile", "the old certificate is served, which ends at "+until.UTC().Format(time.RFC3339))
	}
	m.logger.Error("couldn't get a certificate; it is tried again", attributes...)
}

// explainACMEFailure returns a text for the operator: why the domain got no certificate from the ACME server, whose URL is directory,
// and what helps. err is certmagic's error.
func explainACMEFailure(directory, domain string, err error) string {
	var problem acme.Problem
	var network net.Error
	switch {
	case errors.As(err, &problem) && problem.Type == acme.ProblemTypeRateLimited:
		return fmt.Sprintf("the ACME server has had too many requests for this domain or account: %s; that passes by itself, more attempts prolong it", describeACMEProblem(problem))
	case errors.As(err, &problem) && slices.Contains(unreachedACMEProblems, problem.Type):
		return fmt.Sprintf("the ACME server couldn't convince itself that %s is this machine: %s; its DNS records (A and AAAA) must lead here, with port 443 to the public address or port 80 to --http-listen", domain, describeACMEProblem(problem))
	case errors.As(err, &problem) && problem.Type == acme.ProblemTypeCAA:
		return fmt.Sprintf("the CAA record of %s forbids this ACME server: %s; add the server to the record, or choose another with --acme-directory", domain, describeACMEProblem(problem))
	case errors.As(err, &problem) && slices.Contains(refusedACMEProblems, problem.Type):
		return fmt.Sprintf("the ACME server gives no certificate for %s: %s; see that the name is right and that its DNS records lead here, or choose another server with --acme-directory where its policy forbids the name", domain, describeACMEProblem(problem))
	case errors.As(err, &problem):
		return fmt.Sprintf("the ACME server refused: %s", describeACMEProblem(problem))
	case errors.As(err, &network):
		return fmt.Sprintf("couldn't reach the ACME server %s: %v", directory, network)
	}
	return err.Error()
}

var (
	// unreachedACMEProblems are problems of the way from the ACME server to this one.
	unreachedACMEProblems = []string{acme.ProblemTypeDNS, acme.ProblemTypeConnection, acme.ProblemTypeUnauthorized, acme.ProblemTypeIncorrectResponse, acme.ProblemTypeTLS}
	// refusedACMEProblems are problems with the name.
	refusedACMEProblems = []string{acme.ProblemTypeRejectedIdentifier, acme.ProblemTypeUnsupportedIdentifier, acme.ProblemTypeMalformed}
)

// describeACMEProblem returns the text of a problem that the ACME server reports, cut to 600 bytes and then quoted, because it is untrusted.
func describeACMEProblem(p acme.Problem) string {
	said := cmp.Or(p.Detail, p.Title, p.Type)
	for _, s := range p.Subproblems {
		if s.Detail != "" {
			said += "; " + s.Detail
		}
	}
	const most = 600
	if len(said) > most {
		said = said[:most] + "…"
	}
	return fmt.Sprintf("%q", said)
}

// CertificateFolder returns the folder in the data folder data in which a CertificateManager stores account, keys and certificates.
func CertificateFolder(data string) string { return filepath.Join(data, "acme") }
