package npm

import (
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"

	"golang.org/x/net/http/httpproxy"

	"github.com/larder-cdn/larder/bot/fetch"
)

// Config is npm's configuration, as far as registries and the way to them are concerned.
type Config struct {
	registry *url.URL            // where packages without a scope are, and those of scopes not named
	scopes   map[string]*url.URL // "@scope" to its registry
	auths    map[string]string   // "//host/path/" to an Authorization header
	network  fetch.Network
	// public is the host of the registry that npm uses if nothing is configured.
	public string
}

// LoadConfig reads npm's configuration as npm does in the folder dir: npm_config_… variables (in any case), then the .npmrc files of the
// folder, of the user, the global and the built-in one. The first that has a setting decides. npm need not be installed. Without any
// configuration the registry is npm's own. Errors name the file and the key, and never quote a value.
func LoadConfig(dir string) (*Config, error) {
	settings, err := loadSettings(dir)
	if err != nil {
		return nil, err
	}
	return newConfig(settings)
}

// newConfig returns the configuration of settings. The last setting of a key decides.
func newConfig(settings []setting) (*Config, error) {
	decisive := make(map[string]setting)
	for _, s := range settings {
		key := s.key
		if key == "cafile" {
			if isReset(s) {
				continue
			}
			key = "ca" // the later of both decides
		}
		decisive[key] = s
	}
	public, err := url.Parse(publicRegistry())
	if err != nil {
		return nil, err
	}
	c := &Config{registry: public, scopes: make(map[string]*url.URL), public: public.Host}
	if err := c.setAuths(decisive); err != nil {
		return nil, err
	}
	if err := c.setRegistries(decisive); err != nil {
		return nil, err
	}
	c.network, err = newNetwork(decisive)
	return c, err
}

// newSettingError returns the error of an invalid setting. It does not quote the value, which may contain a password.
func newSettingError(s setting, why string) error {
	return fmt.Errorf("npm's configuration: %s: %q is %s", s.origin, s.key, why)
}

// isReset reports whether a setting resets an earlier one, with the value "null" or an empty one.
func isReset(s setting) bool { return s.lastValue() == "" || s.lastValue() == "null" }

// cutKey splits the key of a setting at its last colon: //host/path/:key and @scope:key into the registry or scope, of, and the name. It
// does not check that of is either. Without a colon, of is "".
func cutKey(key string) (of, name string) {
	at := strings.LastIndexByte(key, ':')
	if at < 0 {
		return "", key
	}
	return key[:at], key[at+1:]
}

// setAuths sets the credentials of registries from the settings that decide: for each registry _authToken, else _auth, else username and _password,
// which is base64. A _password that is not is an error, unless one of the others counts.
func (c *Config) setAuths(decisive map[string]setting) error {
	c.auths = make(map[string]string)
	for _, key := range slices.Sorted(maps.Keys(decisive)) {
		of, name := cutKey(key)
		value := decisive[key].lastValue()
		if of == "" || value == "" {
			continue
		}
		// Sorted, _auth comes before _authToken and _password, and the strongest is set last.
		switch name {
		case "_authToken":
			c.auths[of] = "Bearer " + value
		case "_auth":
			c.auths[of] = "Basic " + value
		case "_password":
			user, ok := decisive[of+":username"]
			if _, stronger := c.auths[of]; stronger || !ok || user.lastValue() == "" {
				continue
			}
			password, err := decodePassword(value)
			if err != nil {
				return newSettingError(decisive[key], "not base64")
			}
			c.auths[of] = basicAuth(user.lastValue(), password)
		}
	}
	return nil
}

// basicAuth returns the value of an Authorization header for a user and a password.
func basicAuth(user, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
}

// decodePassword decodes base64 in either alphabet, with or without padding, as npm does.
func decodePassword(text string) (string, error) {
	text = strings.NewReplacer("-", "+", "_", "/").Replace(strings.TrimRight(text, "="))
	password, err := base64.RawStdEncoding.DecodeString(text)
	return string(password), err
}

// setRegistries sets the registries of all packages and of scopes from the settings that decide. It moves user and password from their URLs to the
// credentials. An address that is no http or https URL with a host is an error.
func (c *Config) setRegistries(decisive map[string]setting) error {
	for _, key := range slices.Sorted(maps.Keys(decisive)) {
		scope, name := cutKey(key)
		if name != "registry" || scope != "" && !strings.HasPrefix(scope, "@") {
			continue
		}
		registry, err := url.Parse(decisive[key].lastValue())
		if err != nil || registry.Scheme != "https" && registry.Scheme != "http" || registry.Hostname() == "" {
			return newSettingError(decisive[key], "no http or https URL")
		}
		c.moveUserinfo(registry)
		if scope == "" {
			c.registry = registry
		} else {
			c.scopes[scope] = registry
		}
	}
	return nil
}

// moveUserinfo removes user and password from the URL of a registry, so that no URL contains them. It stores them as the credentials for
// that registry, unless there are some already or either is empty.
func (c *Config) moveUserinfo(registry *url.URL) {
	if registry.User == nil {
		return
	}
	password, _ := registry.User.Password()
	key := "//" + registry.Host + strings.TrimSuffix(registry.EscapedPath(), "/") + "/"
	if _, ok := c.auths[key]; !ok && registry.User.Username() != "" && password != "" {
		c.auths[key] = basicAuth(registry.User.Username(), password)
	}
	registry.User = nil
}

// Anonymous returns the configuration without its credentials, for requests that anonymous clients cause.
func (c *Config) Anonymous() *Config {
	anonymous := *c
	anonymous.auths = nil
	return &anonymous
}

// Registry returns the address of a package's registry without credentials, to display.
func (c *Config) Registry(name string) string { return fetch.Redact(c.registryFor(name)) }

// registryFor returns the URL of a package's registry.
func (c *Config) registryFor(name string) *url.URL {
	if scope, _, scoped := strings.Cut(name, "/"); scoped {
		if registry, ok := c.scopes[scope]; ok {
			return registry
		}
	}
	return c.registry
}

// isTrusted reports whether a URL has the origin of a configured registry.
func (c *Config) isTrusted(u *url.URL) bool {
	for _, registry := range c.scopes {
		if fetch.SameOrigin(u, registry) {
			return true
		}
	}
	return fetch.SameOrigin(u, c.registry)
}

// authorizationFor returns the Authorization header for a URL: the credentials of its host and the nearest path above it, "" for none. It
// sends credentials over plain http only to a registry that is configured so.
func (c *Config) authorizationFor(u *url.URL) string {
	if u.Scheme != "https" && !c.isTrusted(u) {
		return ""
	}
	at := *u
	at.Host = strings.ToLower(at.Host)
	at.RawQuery, at.Fragment, at.User = "", "", nil
	// Dot segments could name one path here and another to the server.
	if strings.Contains(at.Path+"/", "/../") || strings.Contains(at.Path+"/", "/./") {
		return ""
	}
	// //host/path/ comes before //host/path, and both before //host/.
	for key := "//" + at.Host + at.EscapedPath(); key != "//"; {
		if authorization, ok := c.auths[key]; ok {
			return authorization
		}
		parent, folder := strings.CutSuffix(key, "/")
		if !folder {
			parent = key[:strings.LastIndexByte(key, '/')+1]
		}
		key = parent
	}
	return ""
}

// NameError says that a name is none that npm could have.
type NameError struct{ Name string }

// Error names the name, and says which names are valid.
func (e *NameError) Error() string {
	return fmt.Sprintf("%q is not the name of an npm package: want name or @scope/name, of letters, digits and -._~", e.Name)
}

// ValidName reports whether npm could have a package of that name, by the rules for old names, which allow more than those for new ones.
func ValidName(name string) bool {
	if scoped, ok := strings.CutPrefix(name, "@"); ok {
		scope, rest, _ := strings.Cut(scoped, "/")
		return len(name) <= 214 && isValidPart(scope) && isValidPart(rest)
	}
	return len(name) <= 214 && isValidPart(name)
}

// isValidPart reports whether a scope or a name without scope is valid.
func isValidPart(part string) bool {
	if part == "" || part[0] == '.' || part[0] == '_' {
		return false
	}
	for i := range len(part) {
		switch c := part[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case strings.IndexByte("-._~!*'()", c) >= 0:
		default:
			return false
		}
	}
	return true
}

// packumentURL returns the URL of a package's packument.
func (c *Config) packumentURL(name string) (*url.URL, error) {
	return c.endpoint(name, escapeName(name))
}

// escapeName encodes the slash of a scoped name as npm does.
func escapeName(name string) string { return strings.Replace(name, "/", "%2f", 1) }

// endpoint returns the URL of a path, which is escaped, at the registry of a package. As in npm, the host in the packument does not count.
func (c *Config) endpoint(name, path string) (*url.URL, error) {
	if !ValidName(name) {
		return nil, &NameError{Name: name}
	}
	base := *c.registryFor(name)
	base.RawQuery, base.Fragment = "", ""
	return url.Parse(strings.TrimRight(base.String(), "/") + "/" + path)
}

// keysURL returns where the registry of a package publishes its signing keys.
func (c *Config) keysURL(name string) *url.URL {
	base := *c.registryFor(name)
	base.RawQuery, base.Fragment = "", ""
	return base.JoinPath("-/npm/v1/keys")
}

// tarballURL returns the URL to download a tarball of a package from, given the one in its packument. A mirror may forward packuments that
// name npm's own registry. Those tarballs are requested from the configured registry, as npm does (replace-registry-host). An http URL at the
// host of an https registry becomes https.
func (c *Config) tarballURL(name, tarball string) (*url.URL, error) {
	target, err := url.Parse(tarball)
	if err != nil || target.Host == "" {
		return nil, errors.New("dist.tarball is no URL")
	}
	registry := c.registryFor(name)
	switch {
	case strings.EqualFold(target.Host, c.public):
		moved := url.URL{Scheme: registry.Scheme, Host: registry.Host, Path: target.Path, RawPath: target.RawPath}
		return &moved, nil
	case target.Scheme == "http" && registry.Scheme == "https" && strings.EqualFold(target.Host, registry.Host):
		target.Scheme = "https" // as old packuments have it
	}
	return target, nil
}

// newNetwork returns how registries and tarballs are reached according to the settings strict-ssl, ca, cafile, proxy, https-proxy and noproxy,
// and the environment. It reads the file of cafile.
func newNetwork(decisive map[string]setting) (fetch.Network, error) {
	var n fetch.Network
	var err error
	if n.Unverified, err = parseUnverified(decisive["strict-ssl"]); err != nil {
		return n, err
	}
	if n.RootCAs, err = parseAuthorities(decisive["ca"]); err != nil {
		return n, err
	}
	n.Proxy, err = newProxy(decisive)
	return n, err
}

// parseUnverified returns the text "strict-ssl=false in ORIGIN" if the setting strict-ssl disables the verification of certificates, "" if it does
// not or is not set.
func parseUnverified(s setting) (string, error) {
	if s.key == "" {
		return "", nil
	}
	switch s.lastValue() {
	case "false":
		return s.key + "=false in " + s.origin, nil
	case "true", "null", "":
		return "", nil
	}
	return "", newSettingError(s, "neither true nor false")
}

// parseAuthorities returns the certificate authorities of the setting ca or cafile; nil, for the system's, if neither is set. As in npm, no others
// count then.
func parseAuthorities(s setting) (*x509.CertPool, error) {
	if s.key == "" || isReset(s) {
		return nil, nil
	}
	texts := s.values
	if s.key == "cafile" {
		text, err := os.ReadFile(expandHome(s.lastValue()))
		if err != nil {
			return nil, fmt.Errorf("npm's configuration: %s: %q: %w", s.origin, s.key, err)
		}
		texts = []string{string(text)}
	}
	pool := x509.NewCertPool()
	for _, text := range texts {
		if !pool.AppendCertsFromPEM([]byte(text)) {
			return nil, newSettingError(s, "no certificate in PEM format")
		}
	}
	return pool, nil
}

// newProxy returns the function that chooses the proxy for a request. As in npm, https-proxy decides, else proxy, for both kinds of URLs;
// else the environment, where npm uses HTTPS_PROXY for both kinds, and HTTP_PROXY and PROXY for http. Hosts in noproxy, or else in the variable
// NO_PROXY, have no proxy.
func newProxy(decisive map[string]setting) (func(*http.Request) (*url.URL, error), error) {
	var configured *url.URL
	for _, key := range []string{"proxy", "https-proxy"} {
		s, ok := decisive[key]
		if !ok || isReset(s) || s.lastValue() == "false" {
			continue
		}
		proxy, err := url.Parse(s.lastValue())
		if err != nil || proxy.Hostname() == "" {
			return nil, newSettingError(s, "no URL of a proxy")
		}
		switch proxy.Scheme {
		case "http", "https", "socks5", "socks5h":
		default:
			return nil, newSettingError(s, "no URL of a proxy over http, https or socks5")
		}
		configured = proxy
	}
	direct := strings.Join(decisive["noproxy"].values, ",")
	if direct == "" {
		direct = lookUpVariable("no_proxy")
	}
	environment := (&httpproxy.Config{
		HTTPSProxy: lookUpVariable("https_proxy"),
		HTTPProxy:  lookUpVariable("https_proxy", "http_proxy", "proxy"),
		NoProxy:    direct,
	}).ProxyFunc()
	return func(r *http.Request) (*url.URL, error) {
		switch {
		case isDirect(r.URL.Hostname(), direct):
			return nil, nil
		case configured != nil:
			return configured, nil
		}
		return environment(r.URL)
	}, nil
}

// lookUpVariable returns the value of the first environment variable in names that is not empty, each in lower case, then in upper case; "" for
// none.
func lookUpVariable(names ...string) string {
	for _, name := range names {
		for _, name := range []string{name, strings.ToUpper(name)} {
			if value := os.Getenv(name); value != "" {
				return value
			}
		}
	}
	return ""
}

// isDirect reports whether a list of domains, with commas between them, contains a host or a domain above it, in any case. Dots around a domain
// have no meaning.
func isDirect(host, domains string) bool {
	host = "." + strings.ToLower(strings.TrimSuffix(host, "."))
	for domain := range strings.SplitSeq(domains, ",") {
		domain = strings.ToLower(strings.Trim(trimSpace(domain), "."))
		if domain != "" && strings.HasSuffix(host, "."+domain) {
			return true
		}
	}
	return false
}
