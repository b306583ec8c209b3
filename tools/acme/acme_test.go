// Package acme_test has Larder get certificates from Pebble, Let's Encrypt's own test server, over loopback: with a DNS
// server, an ACME server and a public address that are real. It is a module of its own because of what Pebble needs.
package acme_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/larder-cdn/larder/server"
	"github.com/letsencrypt/pebble/v2/ca"
	"github.com/letsencrypt/pebble/v2/db"
	"github.com/letsencrypt/pebble/v2/va"
	"github.com/letsencrypt/pebble/v2/wfe"
	"github.com/miekg/dns"
)

// authority answers as the ACME server, for whichever test runs; the tests run one after the other.
var authority struct {
	handler atomic.Pointer[http.Handler]
	server  *httptest.Server
}

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	for name, value := range map[string]string{
		"PEBBLE_VA_NOSLEEP": "1", "PEBBLE_WFE_NONCEREJECT": "0", "PEBBLE_AUTHZREUSE": "0",
	} {
		os.Setenv(name, value)
	}
	authority.server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		(*authority.handler.Load()).ServeHTTP(w, r)
	}))
	defer authority.server.Close()
	authority.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	// The ACME server's own certificate is one that this system trusts.
	dir, err := os.MkdirTemp("", "larder-acme-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	trusted := filepath.Join(dir, "roots.pem")
	root := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.server.Certificate().Raw})
	if err := os.WriteFile(trusted, root, 0o600); err != nil {
		log.Fatal(err)
	}
	os.Setenv("SSL_CERT_FILE", trusted)
	return m.Run()
}

// A world is one ACME server, one DNS and one machine that serves.
type world struct {
	t       *testing.T
	domain  string
	folder  string
	logged  *lines
	roots   *x509.CertPool
	address atomic.Pointer[net.IP]       // what DNS says; nil for nothing
	limited atomic.Bool                  // whether new orders are too many
	serving atomic.Pointer[http.Handler] // on the address without TLS
	https   net.Listener                 // where the ACME server looks by TLS-ALPN-01
	http    net.Listener                 // and by HTTP-01
	acme    http.Handler
	found   func() // sets up an ACME server with a new key, which keeps only the accounts of the one that was there
}

// lines collects a log.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// domains counts worlds: certmagic remembers for the whole process which domain's renewal has failed.
var domains atomic.Int64

func newWorld(t *testing.T) *world { return newWorldWith(t, 0) }

// newWorldWith has the ACME server look for challenges by TLS at another port than that of the public address.
func newWorldWith(t *testing.T, otherPort int) *world {
	t.Helper()
	w := &world{t: t, domain: fmt.Sprintf("cdn%d.larder.example", domains.Add(1)), folder: filepath.Join(t.TempDir(), "acme"), logged: &lines{}, roots: x509.NewCertPool()}
	w.pointAt(net.IPv4(127, 0, 0, 1))
	w.https, w.http = listen(t), listen(t)
	quiet := log.New(io.Discard, "", 0)
	store := db.NewMemoryStore()
	w.found = func() {
		issuer := ca.New(quiet, store, "", "ecdsa", 0, 1, map[string]ca.Profile{"default": {Description: "the default", ValidityPeriod: 90 * 24 * 3600}})
		validator := va.New(quiet, port(w.http), cmp.Or(otherPort, port(w.https)), true, w.resolver(), store)
		front := wfe.New(quiet, store, validator, issuer, []string{"pebble.letsencrypt.org"}, true, false, 0, 0)
		w.roots.AddCert(parse(t, issuer.GetRootCert(0).PEM()))
		w.acme = front.Handler()
	}
	w.found()
	w.answer()

	plain := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if h := w.serving.Load(); h != nil {
			(*h).ServeHTTP(rw, r)
		}
	}))
	plain.Listener.Close()
	plain.Listener = w.http
	plain.Start()
	t.Cleanup(plain.Close)
	return w
}

// answer has the ACME server be there.
func (w *world) answer() {
	var handler http.Handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if w.limited.Load() && r.URL.Path == "/order-plz" {
			rw.Header().Set("Content-Type", "application/problem+json")
			rw.WriteHeader(http.StatusTooManyRequests)
			io.WriteString(rw, `{"type":"urn:ietf:params:acme:error:rateLimited","detail":"too many certificates already issued","status":429}`)
			return
		}
		w.acme.ServeHTTP(rw, r)
	})
	authority.handler.Store(&handler)
}

// vanish has the ACME server hang up on everyone.
func (w *world) vanish() {
	var handler http.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	authority.handler.Store(&handler)
}

func (w *world) pointAt(ip net.IP) {
	if ip == nil {
		w.address.Store(nil)
		return
	}
	w.address.Store(&ip)
}

// resolver starts the DNS server and returns its address.
func (w *world) resolver() string {
	l := listen(w.t)
	s := &dns.Server{Listener: l, Handler: dns.HandlerFunc(func(rw dns.ResponseWriter, query *dns.Msg) {
		answer := new(dns.Msg)
		answer.SetReply(query)
		ip := w.address.Load()
		if ip == nil {
			answer.Rcode = dns.RcodeNameError
		} else if q := query.Question[0]; q.Qtype == dns.TypeA {
			answer.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1}, A: *ip}}
		}
		_ = rw.WriteMsg(answer)
	})}
	go s.ActivateAndServe() //nolint:errcheck // it ends with Shutdown
	w.t.Cleanup(func() { _ = s.Shutdown() })
	return l.Addr().String()
}

// A machine is Larder's server with a CertificateManager.
type machine struct {
	*server.CertificateManager
	w    *world
	stop func()
}

// start starts a machine on the world's public address, which does not look for certificates before run.
func (w *world) start(o server.ACMEOptions) *machine {
	w.t.Helper()
	o.Domains, o.Folder, o.Directory, o.Email = []string{w.domain}, w.folder, authority.server.URL+wfe.DirectoryPath, "operator@larder.example"
	o.Logger = slog.New(slog.NewTextHandler(w.logged, nil))
	m, err := server.NewCertificateManager(o)
	if err != nil {
		w.t.Fatal(err)
	}
	challenges := m.Challenges(http.NotFoundHandler())
	w.serving.Store(&challenges)
	// The world's listeners outlive machines, as those of a service manager do.
	s := server.NewHTTPServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { io.WriteString(rw, r.Proto) }), server.HTTPOptions{TLS: m.TLS()})
	kept := &kept{TCPListener: w.https.(*net.TCPListener)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(kept)
	}()
	all := &machine{CertificateManager: m, w: w}
	all.stop = sync.OnceFunc(func() {
		s.Close()
		<-done
		m.Close()
	})
	w.t.Cleanup(all.stop)
	return all
}

// run has the machine get certificates until the test ends, or stop is called.
func (m *machine) run() {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { m.Run(ctx) })
	stop := m.stop
	m.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		stop()
	})
	m.w.t.Cleanup(m.stop)
}

// kept is a listener that stays open when a server that accepts from it ends: then the server gets no connection more.
type kept struct {
	*net.TCPListener
	mu     sync.Mutex // held while Accept waits
	closed atomic.Bool
}

func (k *kept) Accept() (net.Conn, error) {
	for {
		c, err := k.accept()
		if e, ok := err.(net.Error); !ok || !e.Timeout() {
			return c, err
		}
	}
}

func (k *kept) accept() (net.Conn, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed.Load() {
		return nil, net.ErrClosed
	}
	_ = k.SetDeadline(time.Now().Add(20 * time.Millisecond))
	return k.TCPListener.Accept()
}

func (k *kept) Close() error {
	k.closed.Store(true)
	k.mu.Lock()
	defer k.mu.Unlock()
	return nil
}

// served returns the certificate that a new client gets, which verifies it.
func (w *world) served(o *tls.Config) (*tls.ConnectionState, error) {
	config := &tls.Config{RootCAs: w.roots, ServerName: w.domain}
	if o != nil {
		config = o.Clone()
		config.RootCAs, config.ServerName = w.roots, w.domain
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true, ForceAttemptHTTP2: true}, Timeout: time.Minute}
	answer, err := client.Get("https://" + w.https.Addr().String() + "/")
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, answer.Body)
	return answer.TLS, err
}

func (w *world) serial() string {
	w.t.Helper()
	state, err := w.served(nil)
	if err != nil {
		w.t.Fatalf("%v; the log:\n%s", err, w.logged)
	}
	return state.PeerCertificates[0].SerialNumber.String()
}

// await waits until a thing holds, for so long that only one that never holds is noticed.
func (w *world) await(what string, holds func() bool) {
	w.t.Helper()
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if holds() {
			return
		}
	}
	w.t.Fatalf("%s: not within two minutes; the log:\n%s", what, w.logged)
}

// issue has a machine get the first certificate.
func (m *machine) issue() {
	m.w.t.Helper()
	m.run()
	m.w.await("a certificate", func() bool { return !m.States()[0].Until.IsZero() })
}

// overdue is a time between two looks after which every certificate of Pebble would have to be renewed, so that the look
// at the start of [server.CertificateManager.Run] renews it, and nothing else does.
const overdue = 1000 * 24 * time.Hour

func (w *world) tlsALPN() server.ACMEOptions {
	return server.ACMEOptions{TLS: w.https.Addr().(*net.TCPAddr), Check: overdue}
}

func TestIssuedByTLSALPN(t *testing.T) {
	w := newWorld(t)
	m := w.start(w.tlsALPN())
	if _, err := w.served(nil); err == nil {
		t.Error("a client got a certificate before there is one")
	}
	m.issue()
	sessions := &tls.Config{ClientSessionCache: tls.NewLRUClientSessionCache(8)}
	state, err := w.served(sessions)
	if err != nil {
		t.Fatal(err)
	}
	if state.NegotiatedProtocol != "h2" {
		t.Errorf("clients speak %q", state.NegotiatedProtocol)
	}
	if again, err := w.served(sessions); err != nil || !again.DidResume {
		t.Errorf("a client's second connection does not resume its session: %v", err)
	}
	// A name that there is no certificate for gets the first one, as clients that name none do.
	c, err := tls.Dial("tcp", w.https.Addr().String(), &tls.Config{InsecureSkipVerify: true, ServerName: "other.larder.example"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if name := c.ConnectionState().PeerCertificates[0].DNSNames[0]; name != w.domain {
		t.Errorf("a client that names another domain gets the certificate of %s", name)
	}
	// Nothing is served where a challenge would arrive.
	challenge, err := tls.Dial("tcp", w.https.Addr().String(), &tls.Config{InsecureSkipVerify: true, ServerName: w.domain, NextProtos: []string{"acme-tls/1"}})
	if err == nil {
		io.WriteString(challenge, "GET / HTTP/1.1\r\nHost: "+w.domain+"\r\n\r\n")
		if answer, _ := io.ReadAll(challenge); len(answer) > 0 {
			t.Errorf("a connection for challenges was answered with %q", answer)
		}
		challenge.Close()
	}
	checkModes(t, w.folder)
	if log := w.logged.String(); strings.Count(log, "has a new certificate") != 1 || strings.Contains(log, "ERROR") {
		t.Errorf("the log:\n%s", log)
	}
}

func TestIssuedByHTTP(t *testing.T) {
	deaf := listen(t) // challenges by TLS are hung up on
	go func() {
		for {
			c, err := deaf.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	w := newWorldWith(t, port(deaf))
	o := w.tlsALPN()
	o.HTTP = w.http.Addr().(*net.TCPAddr)
	m := w.start(o)
	m.issue()
	w.serial()
}

func TestRenewedUnderLoad(t *testing.T) {
	w := newWorld(t)
	first := w.start(w.tlsALPN())
	first.issue()
	old := w.serial()
	first.stop()

	m := w.start(w.tlsALPN())
	if got := w.serial(); got != old {
		t.Fatalf("after a restart the certificate is another one, %s instead of %s", got, old)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var load sync.WaitGroup
	var asked, renewed atomic.Int64
	for range 8 {
		load.Go(func() {
			for ctx.Err() == nil {
				state, err := w.served(nil)
				if err != nil {
					t.Errorf("a client was not served: %v", err)
					return
				}
				asked.Add(1)
				if state.PeerCertificates[0].SerialNumber.String() != old {
					renewed.Add(1)
				}
			}
		})
	}
	m.run()
	w.await("a renewed certificate", func() bool { return renewed.Load() >= 16 })
	cancel()
	load.Wait()
	t.Logf("%d clients were served, %d with the new certificate", asked.Load(), renewed.Load())
	if log := w.logged.String(); !strings.Contains(log, "renewal=true") || strings.Contains(log, "ERROR") {
		t.Errorf("the log:\n%s", log)
	}
}

// TestRenewedByForgetfulServer has the ACME server lose its key, and so the certificates that it has made: it must not refuse
// renewals of what it does not know.
func TestRenewedByForgetfulServer(t *testing.T) {
	w := newWorld(t)
	first := w.start(w.tlsALPN())
	first.issue()
	old := w.serial()
	first.stop()

	w.found()
	w.start(w.tlsALPN()).run()
	w.await("a renewed certificate", func() bool { return w.serial() != old })
}

// A clock that was a year ahead has stored that the ACME server is requested for the time of a renewal in a year.
func TestRenewalInfoAfterClockAhead(t *testing.T) {
	w := newWorld(t)
	o := server.ACMEOptions{TLS: w.https.Addr().(*net.TCPAddr)}
	first := w.start(o)
	first.issue()
	first.stop()

	ahead := time.Now().AddDate(1, 0, 0).UTC()
	changed := 0
	walk(t, w.folder, func(path string, info fs.FileInfo) {
		if filepath.Base(path) != w.domain+".json" {
			return
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var resource, issuer, renewal map[string]json.RawMessage
		unmarshal(t, data, &resource)
		unmarshal(t, resource["issuer_data"], &issuer)
		unmarshal(t, issuer["renewal_info"], &renewal)
		renewal["_retryAfter"] = marshal(t, ahead)
		issuer["renewal_info"] = marshal(t, renewal)
		resource["issuer_data"] = marshal(t, issuer)
		if err := os.WriteFile(path, marshal(t, resource), 0o600); err != nil {
			t.Fatal(err)
		}
		changed++
	})
	if changed != 1 {
		t.Fatalf("%d files with renewal information, want 1", changed)
	}
	var requests atomic.Int64
	var handler http.Handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/renewalInfo/") {
			requests.Add(1)
		}
		w.acme.ServeHTTP(rw, r)
	})
	authority.handler.Store(&handler)
	w.start(o).run()
	w.await("a request for the time of renewal", func() bool { return requests.Load() > 0 })
}

func marshal(t *testing.T, v any) json.RawMessage {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func unmarshal(t *testing.T, data []byte, v any) {
	t.Helper()
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatalf("%v in %s", err, data)
	}
}

func TestFailedRenewal(t *testing.T) {
	for _, tt := range []struct {
		name string
		harm func(*world)
		want []string
	}{
		{"no DNS record", func(w *world) { w.pointAt(nil) },
			[]string{"Could not resolve", "its DNS records lead here"}},
		{"DNS leads elsewhere", func(w *world) { w.pointAt(net.IPv4(127, 0, 0, 99)) },
			[]string{"couldn't convince itself that DOMAIN is this machine", "its DNS records (A and AAAA) must lead here"}},
		{"rate limit", func(w *world) { w.limited.Store(true) },
			[]string{"has had too many requests", "too many certificates already issued"}},
		{"server away", (*world).vanish,
			[]string{"couldn't reach the ACME server " + authority.server.URL}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			first := w.start(w.tlsALPN())
			first.issue()
			old := w.serial()
			first.stop()

			tt.harm(w)
			m := w.start(w.tlsALPN())
			m.run()
			w.await("a problem", func() bool { return m.States()[0].Problem != "" })
			problem := m.States()[0].Problem
			t.Log(problem)
			for _, want := range tt.want {
				if want = strings.ReplaceAll(want, "DOMAIN", w.domain); !strings.Contains(problem, want) {
					t.Errorf("%q is not in %q", want, problem)
				}
			}
			if got := w.serial(); got != old {
				t.Errorf("the certificate is another one")
			}
			if log := w.logged.String(); !strings.Contains(log, "the old certificate is served, which ends at") {
				t.Errorf("the log does not say what is served:\n%s", log)
			}
		})
	}
}

func TestNoFirstCertificate(t *testing.T) {
	w := newWorld(t)
	w.pointAt(nil)
	m := w.start(w.tlsALPN())
	m.run()
	w.await("a problem", func() bool { return m.States()[0].Problem != "" })
	if log := w.logged.String(); !strings.Contains(log, "there is no certificate, so TLS connections for it fail") {
		t.Errorf("the log:\n%s", log)
	}
	m.stop()
	// The next start gets it.
	w.pointAt(net.IPv4(127, 0, 0, 1))
	w.start(w.tlsALPN()).issue()
	w.serial()
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func port(l net.Listener) int { return l.Addr().(*net.TCPAddr).Port }

func parse(t *testing.T, text []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(text)
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
