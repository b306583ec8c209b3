package npm

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/internal/testkit/npmtest"
)

// startTLS starts a registry over https. Its certificate is for 127.0.0.1 and example.com, and signed by no
// authority that a system knows. The other result is that certificate, in PEM.
func startTLS(t *testing.T) (*npmtest.Registry, string) {
	t.Helper()
	r := npmtest.New(t)
	server := httptest.NewUnstartedServer(r)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0) // of handshakes that the client breaks off
	server.StartTLS()
	t.Cleanup(server.Close)
	r.URL = server.URL
	r.Add("a", "1.0.0", published, map[string]string{"a.js": "1"})
	return r, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
}

// A proxy records what it is asked for and passes it all on to one server.
type proxy struct {
	URL  string
	to   string // host and port
	mu   sync.Mutex
	seen []string // "METHOD target authorization"
}

func startProxy(t *testing.T, to string) *proxy {
	t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{to: u.Host}
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	p.URL = server.URL
	return p
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.seen = append(p.seen, strings.TrimSpace(r.Method+" "+r.RequestURI+" "+r.Header.Get("Proxy-Authorization")))
	p.mu.Unlock()
	if r.Method != http.MethodConnect {
		(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.Out.URL.Host = p.to }}).ServeHTTP(w, r)
		return
	}
	server, err := net.Dial("tcp", p.to)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer server.Close()
	w.WriteHeader(http.StatusOK)
	client, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer client.Close()
	go func() {
		io.Copy(server, buffered)
		server.Close()
	}()
	io.Copy(client, server)
}

func (p *proxy) requests() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.seen)
}

// configured makes a client of the lines of an .npmrc file, and the client of package fetch below it.
func configured(t *testing.T, o fetch.Options, lines ...string) (*Client, *fetch.Client) {
	t.Helper()
	config, err := load(t, lines...)
	if err != nil {
		t.Fatal(err)
	}
	o.Sleep = func(context.Context, time.Duration) error { return nil }
	f, err := fetch.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return NewClient(config, f, Options{}), f
}

// getBoth gets a packument and a tarball.
func getBoth(t *testing.T, c *Client) error {
	t.Helper()
	p, _, err := c.Packument(t.Context(), "a", Validators{})
	if err != nil {
		return err
	}
	return c.Tarball(t.Context(), p.Versions["1.0.0"], temp(t))
}

func inFile(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func quoted(text string) string {
	line, _ := json.Marshal(text)
	return string(line)
}

func TestAuthorities(t *testing.T) {
	r, ca := startTLS(t)
	other := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: otherCertificate(t)}))
	home := t.TempDir()
	t.Setenv("HOME", home)
	if err := os.WriteFile(filepath.Join(home, "ca.pem"), []byte(ca), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("FOLDER", home)
	for _, test := range []struct {
		name  string
		lines []string
		ok    bool
	}{
		{"the system's", nil, false},
		{"cafile", []string{"cafile=" + inFile(t, ca)}, true},
		{"cafile with several", []string{"cafile = " + inFile(t, other+"\n"+ca)}, true},
		{"cafile at home", []string{"cafile=~/ca.pem"}, true},
		{"cafile by a variable", []string{"cafile=${FOLDER}/ca.pem"}, true},
		{"another cafile", []string{"cafile=" + inFile(t, other)}, false},
		{"ca", []string{"ca=" + quoted(ca)}, true},
		{"several ca", []string{"ca[]=" + quoted(other), "ca[] = " + quoted(ca)}, true},
		{"another ca", []string{"ca=" + quoted(other)}, false},
		{"the later", []string{"cafile=" + inFile(t, other), "ca=" + quoted(ca)}, true},
		{"the later", []string{"ca=" + quoted(ca), "cafile=" + inFile(t, other)}, false},
		{"taken back", []string{"ca=" + quoted(ca), "ca=null"}, false},
		{"not taken back", []string{"ca=" + quoted(ca), "cafile=null"}, true},
		{"none verified", []string{"strict-ssl=false"}, true},
		{"verified", []string{"strict-ssl=true"}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, f := configured(t, fetch.Options{}, append(test.lines, "registry="+r.URL)...)
			err := getBoth(t, c)
			var certificate *tls.CertificateVerificationError
			if test.ok && err != nil || !test.ok && (!errors.As(err, &certificate) || temporary(err)) {
				t.Errorf("%q: %v", test.lines, err)
			}
			// What is not npm's is reached as before.
			err = f.Get(t.Context(), fetch.Request{URL: r.URL + "/a", Trusted: func(*url.URL) bool { return true }}, func(*fetch.Response) error { return nil })
			if !errors.As(err, &certificate) {
				t.Errorf("another client has the certificates: %v", err)
			}
		})
	}
	t.Run("environment", func(t *testing.T) {
		if _, err := load(t); err != nil {
			t.Fatal(err)
		}
		t.Setenv("npm_config_registry", r.URL)
		t.Setenv("NPM_CONFIG_CAFILE", inFile(t, ca))
		if err := getBoth(t, client(t, Options{})); err != nil {
			t.Error(err)
		}
		t.Setenv("NPM_CONFIG_CAFILE", "")
		t.Setenv("npm_config_strict_ssl", "false")
		if err := getBoth(t, client(t, Options{})); err != nil {
			t.Error(err)
		}
	})
}

// otherCertificate is one that signs nothing here.
func otherCertificate(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true}
	made, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func TestUnverifiedWarning(t *testing.T) {
	r, _ := startTLS(t)
	r.RequireToken("secret")
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	token := "//" + strings.TrimPrefix(r.URL, "https://") + "/:_authToken=secret"
	c, f := configured(t, fetch.Options{Logger: logger}, "registry="+r.URL, "strict-ssl=false", token)
	for _, c := range []*Client{c, NewClient(c.config, f, Options{}), NewClient(c.config.Anonymous(), f, Options{})} {
		getBoth(t, c)
		getBoth(t, c)
	}
	if strings.Count(log.String(), "certificates are not verified") != 1 || !strings.Contains(log.String(), ".npmrc:2") {
		t.Errorf("the log has %q", log.String())
	}
	if strings.Contains(log.String(), "secret") {
		t.Errorf("the log has the token: %q", log.String())
	}
}

func TestProxyChoice(t *testing.T) {
	const proxy = "http://proxy.example:8080"
	for _, test := range []struct {
		lines, environment []string
		secure, plain      bool // whether the proxy is used for https, for http
	}{
		{},
		{lines: []string{"proxy=" + proxy}, secure: true, plain: true},
		{lines: []string{"https-proxy = " + proxy}, secure: true, plain: true},
		{lines: []string{"https-proxy=" + proxy, "proxy=http://other.example"}, secure: true, plain: true},
		{lines: []string{"proxy=" + proxy}, environment: []string{"HTTPS_PROXY=http://other.example"}, secure: true, plain: true},
		{lines: []string{"proxy=" + proxy, "noproxy=.example, x"}},
		{lines: []string{"proxy=" + proxy, "noproxy=registry.example"}},
		{lines: []string{"proxy=" + proxy, "noproxy[]=a", "noproxy[]=EXAMPLE."}},
		{lines: []string{"proxy=" + proxy, "noproxy=try.example,x.registry.example,*"}, secure: true, plain: true},
		{lines: []string{"proxy=" + proxy}, environment: []string{"no_proxy=example"}},
		{lines: []string{"proxy=" + proxy, "noproxy=x"}, environment: []string{"NO_PROXY=example"}, secure: true, plain: true},
		{lines: []string{"proxy=" + proxy, "proxy=false"}},
		{lines: []string{"proxy=" + proxy, "proxy=null"}, environment: []string{"https_proxy=" + proxy}, secure: true, plain: true},
		{environment: []string{"npm_config_https_proxy=" + proxy}, secure: true, plain: true},
		{environment: []string{"NPM_CONFIG_PROXY=" + proxy, "npm_config_noproxy=registry.example"}},
		{environment: []string{"HTTPS_PROXY=" + proxy}, secure: true, plain: true},
		{environment: []string{"HTTP_PROXY=" + proxy}, plain: true},
		{environment: []string{"PROXY=" + proxy}, plain: true},
		{environment: []string{"HTTPS_PROXY=" + proxy, "HTTP_PROXY=http://other.example"}, secure: true, plain: true},
		{environment: []string{"HTTPS_PROXY=" + proxy, "NO_PROXY=*"}},
		{environment: []string{"HTTPS_PROXY=" + proxy}, lines: []string{"noproxy=example"}},
	} {
		config, err := loadWith(t, test.environment, test.lines...)
		if err != nil {
			t.Fatal(err)
		}
		for address, want := range map[string]bool{
			"https://registry.example/a": test.secure, "http://registry.example/a": test.plain,
		} {
			got, err := config.network.Proxy(httptest.NewRequest("GET", address, nil))
			if err != nil || want != (got != nil) || want && got.String() != proxy {
				t.Errorf("%q, %q: %s goes through %v, %v; want a proxy: %v", test.lines, test.environment, address, got, err, want)
			}
		}
	}
}

func TestHTTPProxy(t *testing.T) {
	r := npmtest.New(t)
	p := startProxy(t, r.URL)
	r.URL = "http://registry.invalid" // which only the proxy finds
	r.Add("a", "1.0.0", published, map[string]string{"a.js": "1"})
	c, _ := configured(t, fetch.Options{}, "registry="+r.URL, "proxy="+p.URL, "//registry.invalid/:_authToken=secret")
	if err := getBoth(t, c); err != nil {
		t.Error(err)
	}
	if got, want := p.requests(), []string{"GET http://registry.invalid/a", "GET http://registry.invalid/a/-/a-1.0.0.tgz"}; !slices.Equal(got, want) {
		t.Errorf("the proxy was asked %q, want %q", got, want)
	}
	if got := r.Requests()[0].Header.Get("Authorization"); got != "Bearer secret" {
		t.Errorf("the registry was asked with %q", got)
	}
}

func TestConnectProxy(t *testing.T) {
	r, ca := startTLS(t)
	p := startProxy(t, r.URL)
	direct := r.URL
	lines := []string{"ca=" + quoted(ca), "https-proxy=" + strings.Replace(p.URL, "//", "//me:secret@", 1)}

	r.URL = "https://example.com" // which the proxy takes for the registry
	r.Add("a", "1.0.0", published, map[string]string{"a.js": "1"})
	c, _ := configured(t, fetch.Options{}, append(lines, "registry="+r.URL)...)
	if err := getBoth(t, c); err != nil {
		t.Error(err)
	}
	if got, want := p.requests(), []string{"CONNECT example.com:443 Basic bWU6c2VjcmV0"}; !slices.Equal(got, want) {
		t.Errorf("the proxy was asked %q, want %q", got, want)
	}

	r.URL = direct
	r.Add("a", "1.0.0", published, map[string]string{"a.js": "1"})
	before := len(p.requests())
	c, _ = configured(t, fetch.Options{}, append(lines, "registry="+r.URL, "noproxy=0.0.1")...)
	if err := getBoth(t, c); err != nil {
		t.Error(err)
	}
	if got := p.requests()[before:]; len(got) > 0 {
		t.Errorf("the proxy was asked %q in spite of noproxy", got)
	}
	c, _ = configured(t, fetch.Options{}, append(lines, "registry="+r.URL)...)
	if err := getBoth(t, c); err != nil {
		t.Error(err)
	}
	if got := p.requests()[before:]; len(got) != 1 {
		t.Errorf("the proxy was asked %q", got)
	}

	// The environment's proxies are not for this machine itself.
	before = len(p.requests())
	t.Setenv("HTTPS_PROXY", p.URL)
	c, _ = configured(t, fetch.Options{}, lines[0], "registry="+r.URL)
	if err := getBoth(t, c); err != nil || len(p.requests()) != before {
		t.Errorf("%v; the proxy was asked %q", err, p.requests()[before:])
	}

	// A proxy that cannot be reached is told of without its password.
	c, _ = configured(t, fetch.Options{Tries: 1}, lines[0], "registry="+r.URL, "proxy=http://me:secret@127.0.0.1:1")
	if err := getBoth(t, c); !temporary(err) || strings.Contains(err.Error(), "secret") {
		t.Error(err)
	}
}

// TestProxyAddresses makes sure that a proxy opens no way to addresses that only the operator may name.
func TestProxyAddresses(t *testing.T) {
	r := npmtest.New(t)
	p := startProxy(t, r.URL)
	r.URL = "http://registry.invalid"
	for at, tarball := range map[string]string{
		"private":  "https://10.0.0.1/x.tgz",
		"loopback": "https://127.0.0.1/x.tgz",
		"metadata": "https://169.254.169.254/x.tgz",
		"plain":    "http://8.8.8.8/x.tgz",
	} {
		r.Add(at, "1.0.0", published, nil, npmtest.Dist("tarball", tarball))
	}
	r.Add("redirected", "1.0.0", published, nil)
	r.Fail(npmtest.Fault{Path: "/redirected/-/", Redirect: "https://[::1]/"})
	c, _ := configured(t, fetch.Options{}, "registry="+r.URL, "proxy="+p.URL)
	for _, name := range []string{"private", "loopback", "metadata", "plain", "redirected"} {
		packument, _, err := c.Packument(t.Context(), name, Validators{})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Tarball(t.Context(), packument.Versions["1.0.0"], temp(t)); !errors.Is(err, fetch.ErrForbidden) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, asked := range p.requests() {
		if !strings.HasPrefix(asked, "GET http://registry.invalid/") {
			t.Errorf("the proxy was asked %q", asked)
		}
	}
	c, _ = configured(t, fetch.Options{Allow: []string{"10.0.0.1"}}, "registry="+r.URL, "proxy="+p.URL)
	packument, _, err := c.Packument(t.Context(), "private", Validators{})
	if err != nil {
		t.Fatal(err)
	}
	c.Tarball(t.Context(), packument.Versions["1.0.0"], temp(t))
	if !slices.Contains(p.requests(), "CONNECT 10.0.0.1:443") {
		t.Errorf("the proxy was asked %q, not for the host that is allowed", p.requests())
	}
}
