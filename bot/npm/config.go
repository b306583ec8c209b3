package npm

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"strings"

	"github.com/google/osv-scalibr/clients/datasource"

	"github.com/larder-cdn/larder/bot/fetch"
)

// Config is npm's configuration, as far as registries are concerned.
type Config struct {
	registry *url.URL            // where packages without a scope are, and those of scopes not named
	scopes   map[string]*url.URL // "@scope" to its registry
	auths    datasource.NPMRegistryAuths
	// public is the host of the registry that npm uses where nothing is configured.
	public string
}

// LoadConfig reads npm's configuration as npm run in the folder dir would: npm_config_… variables (in any
// case), then .npmrc of the folder, of the user, and the global and built-in ones, the first that has
// a setting deciding. npm itself need not be there; without any configuration the registry is npm's own.
func LoadConfig(dir string) (*Config, error) {
	loaded, err := datasource.LoadNPMRegistryConfig(dir)
	if err != nil {
		var path *fs.PathError
		if errors.As(err, &path) {
			return nil, fmt.Errorf("couldn't read npm's configuration: %w", path)
		}
		// Not err itself: it quotes the line, which may hold a token.
		return nil, errors.New("couldn't read npm's configuration: every line of an .npmrc file (the folder's, the user's, the global one) has to be key=value or a comment")
	}
	return newConfig(loaded)
}

func newConfig(loaded datasource.NPMRegistryConfig) (*Config, error) {
	c := &Config{scopes: make(map[string]*url.URL), auths: loaded.Auths}
	if c.auths == nil {
		c.auths = make(datasource.NPMRegistryAuths)
	}
	// The library knows npm's default registry, so that no host has to stand here.
	if public, err := url.Parse(datasource.ParseNPMRegistryInfo(nil).ScopeURLs[""]); err == nil {
		c.public = public.Host
	}
	for scope, address := range loaded.ScopeURLs {
		key := scope + ":registry"
		if scope == "" {
			key = "registry"
		}
		registry, err := url.Parse(address)
		if err != nil || registry.Scheme != "https" && registry.Scheme != "http" || registry.Hostname() == "" {
			return nil, fmt.Errorf("npm's configuration has no usable registry: the value of %q is no http or https URL; "+
				"set it in .npmrc, or as npm_config_registry in the environment", key)
		}
		c.moveUserinfo(registry)
		if scope == "" {
			c.registry = registry
		} else {
			c.scopes[scope] = registry
		}
	}
	if c.registry == nil {
		return nil, errors.New(`npm's configuration has no registry: set "registry" in .npmrc, or npm_config_registry in the environment`)
	}
	return c, nil
}

// moveUserinfo takes user and password out of a registry's URL and keeps them where npm's configuration
// keeps credentials, so that they travel under the same rules and no URL has them.
func (c *Config) moveUserinfo(registry *url.URL) {
	if registry.User == nil {
		return
	}
	password, _ := registry.User.Password()
	key := "//" + registry.Host + strings.TrimSuffix(registry.EscapedPath(), "/") + "/"
	if _, ok := c.auths[key]; !ok {
		c.auths[key] = &datasource.HTTPAuthentication{Username: registry.User.Username(), Password: password}
	}
	registry.User = nil
}

// Anonymous returns the configuration without its credentials, for what anybody may ask for.
func (c *Config) Anonymous() *Config {
	anonymous := *c
	anonymous.auths = make(datasource.NPMRegistryAuths)
	return &anonymous
}

// Registry gives the address of the registry for a package, for people to read.
func (c *Config) Registry(name string) string { return fetch.Show(c.registryFor(name)) }

func (c *Config) registryFor(name string) *url.URL {
	if scope, _, scoped := strings.Cut(name, "/"); scoped {
		if registry, ok := c.scopes[scope]; ok {
			return registry
		}
	}
	return c.registry
}

// trusted reports whether a URL is on the origin of a configured registry.
func (c *Config) trusted(u *url.URL) bool {
	if fetch.SameOrigin(u, c.registry) {
		return true
	}
	for _, registry := range c.scopes {
		if fetch.SameOrigin(u, registry) {
			return true
		}
	}
	return false
}

// authorization gives the Authorization header for a URL: what the configuration holds for its host and
// the nearest path above it. They never go over plain http, except to a registry that is configured so.
func (c *Config) authorization(u *url.URL) string {
	if u.Scheme != "https" && !c.trusted(u) {
		return ""
	}
	at := *u
	at.Host = strings.ToLower(at.Host)
	at.RawQuery, at.Fragment, at.User = "", "", nil
	// Dot segments could name one path here and another to the server.
	if strings.Contains(at.Path+"/", "/../") || strings.Contains(at.Path+"/", "/./") {
		return ""
	}
	switch auth := c.auths.GetAuth(at.String()); {
	case auth == nil:
		return ""
	case auth.BearerToken != "":
		return "Bearer " + auth.BearerToken
	case auth.BasicAuth != "":
		return "Basic " + auth.BasicAuth
	default:
		return "Basic " + base64.StdEncoding.EncodeToString([]byte(auth.Username+":"+auth.Password))
	}
}

// NameError says that a name is none that npm could have.
type NameError struct{ Name string }

func (e *NameError) Error() string {
	return fmt.Sprintf("%q is not the name of an npm package: want name or @scope/name, of letters, digits and -._~", e.Name)
}

// ValidName reports whether npm could have a package of that name, by the rules for old names, which are
// wider than those for new ones.
func ValidName(name string) bool {
	if scoped, ok := strings.CutPrefix(name, "@"); ok {
		scope, rest, _ := strings.Cut(scoped, "/")
		return len(name) <= 214 && validPart(scope) && validPart(rest)
	}
	return len(name) <= 214 && validPart(name)
}

func validPart(part string) bool {
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

// packumentURL is where a package's packument is. The slash of a scoped name is written as npm writes it.
func (c *Config) packumentURL(name string) (*url.URL, error) {
	if !ValidName(name) {
		return nil, &NameError{Name: name}
	}
	base := *c.registryFor(name)
	base.RawQuery, base.Fragment = "", ""
	return url.Parse(strings.TrimRight(base.String(), "/") + "/" + strings.Replace(name, "/", "%2f", 1))
}

// keysURL is where the registry for a package publishes the keys that it signs with.
func (c *Config) keysURL(name string) *url.URL {
	base := *c.registryFor(name)
	base.RawQuery, base.Fragment = "", ""
	return base.JoinPath("-/npm/v1/keys")
}

// tarballURL gives the place to get a tarball from. A mirror may pass on packuments that name npm's own
// registry: those tarballs are asked from the configured one, as npm does (replace-registry-host).
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
