package settings

import (
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// loaded parses flags and loads the rest, as a command does. file is the configuration file's text, or "" for none.
func loaded(t *testing.T, flags, environ []string, file string) (*Settings, error) {
	t.Helper()
	s := New()
	if file != "" {
		t.Chdir(t.TempDir())
		if err := os.WriteFile("larder.yaml", []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		flags = append([]string{"--config", "larder.yaml"}, flags...)
	}
	if err := s.Flags.Parse(flags); err != nil {
		return s, err
	}
	return s, s.Load(environ)
}

func TestPrecedence(t *testing.T) {
	s, err := loaded(t,
		[]string{"--releases", "1"},
		[]string{"LARDER_RELEASES=2", "LARDER_MAX_CONNECTIONS=2", "LARDER_ALLOW_HOST=a, b", "OTHER=x"},
		`
releases: 3
max-connections: 3
interval: 15m
h2c: true
memory: 64MiB
allow-host: [c]
log-level: warn
private-listen: off
`)
	if err != nil {
		t.Fatal(err)
	}
	if s.Releases != 1 || s.MaxConnections != 2 || s.Interval != 15*time.Minute || s.StoreCache != 128*Mebibyte {
		t.Errorf("releases %d, max-connections %d, interval %v, store-cache %d", s.Releases, s.MaxConnections, s.Interval, s.StoreCache)
	}
	if !s.H2C || s.Memory != 64*Mebibyte || s.PrivateListen != Off {
		t.Errorf("h2c %v, memory %d, private-listen %s", s.H2C, s.Memory, s.PrivateListen)
	}
	if want := []string{"a", "b"}; !slices.Equal(s.AllowHosts, want) {
		t.Errorf("allow-host %q, want %q", s.AllowHosts, want)
	}
	for name, want := range map[string]string{"releases": "--releases", "max-connections": "LARDER_MAX_CONNECTIONS", "interval": "larder.yaml:4"} {
		if got := s.Origin(name); got != want {
			t.Errorf("%s comes from %s, want %s", name, got, want)
		}
	}
	if s.IsSet("cache") || !s.IsSet("releases") || !s.IsSet("max-connections") || !s.IsSet("interval") {
		t.Error("given does not tell defaults from what was asked for")
	}
}

func TestLists(t *testing.T) {
	for _, tt := range []struct {
		flags []string
		file  string
		want  []string
	}{
		{nil, "allow-host: [a, b]", []string{"a", "b"}},
		{nil, "allow-host: a", []string{"a"}},
		{nil, "hosts: &h [a]\nallow-host: *h", nil},
		{[]string{"--allow-host", "x", "--allow-host", "y"}, "allow-host: [a, b]", []string{"x", "y"}},
	} {
		s, err := loaded(t, tt.flags, nil, tt.file)
		if tt.want == nil {
			if err == nil || strings.Contains(err.Error(), "allow-host") {
				t.Errorf("%q: %v", tt.file, err)
			}
			continue
		}
		if err != nil || !slices.Equal(s.AllowHosts, tt.want) {
			t.Errorf("%q %q: %q, %v", tt.flags, tt.file, s.AllowHosts, err)
		}
	}
}

func TestEmptyFile(t *testing.T) {
	for _, file := range []string{"\n", "# nothing\n", "---\n", "null\n", "{}\n"} {
		if _, err := loaded(t, nil, nil, file); err != nil {
			t.Errorf("%q: %v", file, err)
		}
	}
}

// TestMistakes holds each message to naming where the mistake stands and what to do.
func TestMistakes(t *testing.T) {
	for _, tt := range []struct {
		name    string
		flags   []string
		environ []string
		file    string
		want    []string
	}{
		{"unknown key", nil, nil, "data: x\nrelaeses: 3\n", []string{`larder.yaml:2: no such setting as "relaeses"; did you mean releases?`}},
		{"unknown key, nothing near", nil, nil, "colour: red\n", []string{`larder.yaml:1: no such setting as "colour"; remove it`}},
		{"the file in the file", nil, nil, "config: x\n", []string{`larder.yaml:1: no such setting as "config"`}},
		{"twice", nil, nil, "data: x\nlisten: :80\ndata: y\n", []string{"larder.yaml:3: data is set already in line 1"}},
		{"bad value", nil, nil, "data: x\nreleases: many\n", []string{`larder.yaml:2: releases: "many" must be a whole number, 1 or more`}},
		{"list", nil, nil, "name: [a]\n", []string{"larder.yaml:1: name: must be a single value"}},
		{"mapping", nil, nil, "allow-host: {a: b}\n", []string{"larder.yaml:1: allow-host: must be a single value"}},
		{"nothing", nil, nil, "listen:\n", []string{"larder.yaml:1: listen: has no value"}},
		{"not a mapping", nil, nil, "- listen\n", []string{"larder.yaml:1: must hold settings"}},
		{"not YAML", nil, nil, "listen: [\n", []string{"larder.yaml: line"}},
		{"two documents", nil, nil, "listen: :80\n---\ndata: x\n", []string{"more than one YAML document"}},
		{"several", nil, []string{"LARDER_H2C=maybe"}, "h2d: 1\ncache: 1\n", []string{
			`LARDER_H2C="maybe": must be true or false`, "larder.yaml:1:", "did you mean h2c?", `larder.yaml:2: cache: "1" must be a size such as 256MiB or 1GB, at least 1.0MiB`}},
		{"missing file", []string{"--config", "missing.yaml"}, nil, "", []string{"--config: open missing.yaml"}},
		{"missing file from the environment", nil, []string{"LARDER_CONFIG=missing.yaml"}, "", []string{"LARDER_CONFIG: open missing.yaml"}},
		{"unknown variable", nil, []string{"LARDER_LISSEN=x"}, "", []string{"LARDER_LISSEN: no such setting; did you mean LARDER_LISTEN?"}},
		{"address", nil, []string{"LARDER_LISTEN=8080"}, "", []string{`LARDER_LISTEN="8080": must be an address such as`}},
		{"port", nil, []string{"LARDER_LISTEN=:99999"}, "", []string{`"99999" is not a port`}},
		{"level", []string{"--log-level", "loud"}, nil, "", []string{`"loud" for "--log-level" flag: must be one of debug, info, warn, error`}},
		{"format", []string{"--log-format", "xml"}, nil, "", []string{"must be one of text, json"}},
		{"duration", []string{"--interval", "1"}, nil, "", []string{"must be a duration such as 90s, 15m or 1h, at least 1s"}},
		{"empty", []string{"--data", ""}, nil, "", []string{"must not be empty"}},
		{"base without scheme", []string{"--asset-base", "cdn.example.com"}, nil, "", []string{"must be a URL such as https://cdn.example.com"}},
		{"base of another scheme", nil, []string{"LARDER_SITE_BASE=ftp://example.com"}, "", []string{`LARDER_SITE_BASE="ftp://example.com": must be a URL`}},
		{"base with a query", nil, nil, "asset-base: https://example.com/?v=1\n", []string{"larder.yaml:1: asset-base:", "no query and no fragment"}},
		{"base with a fragment", nil, nil, "asset-base: \"https://example.com#\"\n", []string{"no query and no fragment"}},
		{"base with a password", []string{"--site-base", "https://me:secret@example.com"}, nil, "", []string{"would be sent to every visitor"}},
		{"base with a bad port", []string{"--site-base", "https://example.com:99999"}, nil, "", []string{`"99999" is not a port`}},
		{"base that moves", []string{"--site-base", "https://example.com/a/../b"}, nil, "", []string{"a browser leaves as it is"}},
		{"host with a scheme", []string{"--api-host", "https://api.example.com"}, nil, "", []string{"must be a host such as api.example.com"}},
		{"host with a blank", []string{"--api-host", "api example"}, nil, "", []string{"must be a host"}},
		{"host and malformed port", []string{"--api-host", "api.example.com:http"}, nil, "", []string{`"http" is not a port`}},
		{"no name", []string{"--name", " "}, nil, "", []string{"must be text of one line, at most 60 characters"}},
		{"two names", nil, nil, "name: |\n  a\n  b\n", []string{"larder.yaml:1: name:", "must be text of one line"}},
		{"half of TLS", []string{"--tls-cert", "c"}, nil, "", []string{"--tls-cert needs --tls-key too"}},
		{"two kinds of certificates", []string{"--acme-domain", "cdn.example.com", "--tls-cert", "c", "--tls-key", "k"}, nil, "", []string{"--acme-domain and --tls-cert both have a certificate"}},
		{"domain with a port", []string{"--acme-domain", "cdn.example.com:443"}, nil, "", []string{"must be a domain such as cdn.example.com"}},
		{"domain with a star", nil, []string{"LARDER_ACME_DOMAIN=a.example.com,*.example.com"}, "", []string{`"*.example.com" is not`}},
		{"address for a domain", nil, nil, "acme-domain: 192.0.2.1\n", []string{"larder.yaml:1: acme-domain:", "must be a domain"}},
		{"domain of this machine", []string{"--acme-domain", "localhost"}, nil, "", []string{"must be a domain"}},
		{"directory without TLS", []string{"--acme-domain", "cdn.example.com", "--acme-directory", "http://acme.example.com/dir"}, nil, "", []string{"--acme-directory must be the https URL"}},
		{"email for no domain", []string{"--acme-email", "me@example.com"}, nil, "", []string{"--acme-email needs --acme-domain too"}},
		{"leads to HTTPS that is not there", nil, nil, "http-listen: :80\n", []string{"larder.yaml:1 needs a certificate too"}},
		{"the other half", nil, nil, "tls-key: k\n", []string{"larder.yaml:1 needs --tls-cert too"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := loaded(t, tt.flags, tt.environ, tt.file)
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v\nlacks %q", err, want)
				}
			}
		})
	}
}

func TestServiceLinks(t *testing.T) {
	for _, name := range []string{"SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT", "PORT_8080_TCP",
		"PORT_8080_TCP_PROTO", "PORT_8080_TCP_PORT", "PORT_8080_TCP_ADDR", "BOT_SERVICE_HOST", "BOT_PORT"} {
		if _, err := loaded(t, nil, []string{"LARDER_" + name + "=tcp://10.0.0.1:8080"}, ""); err != nil {
			t.Errorf("a variable set by the container's surroundings: %v", err)
		}
	}
}

// TestSettingsSurviveText holds every default to being a value that its own setting accepts, and prints again.
func TestSettingsSurviveText(t *testing.T) {
	s := New()
	for _, pair := range [][2]string{{"cache", "1.5GiB"}, {"memory", "64MiB"}, {"interval", "1h30m"}, {"interval", "45s"}, {"interval", "2h"},
		{"private-listen", "[::1]:0"}, {"private-listen", "off"}, {"log-level", "debug"}, {"h2c", "true"}, {"releases", "3"},
		{"asset-base", "https://cdn.example.com/larder"}, {"site-base", "http://localhost:8080"}, {"api-host", "api.example.com"}, {"name", "Our shelf"}} {
		f := s.Flags.Lookup(pair[0])
		for _, text := range []string{f.DefValue, pair[1]} {
			if err := f.Value.Set(text); err != nil || f.Value.String() != text {
				t.Errorf("%s: %q became %q, %v", f.Name, text, f.Value, err)
			}
		}
	}
}

func TestSwitches(t *testing.T) {
	for text, want := range map[string]bool{"on": true, "off": false, "true": true, "false": false, "1": true} {
		s, err := loaded(t, nil, []string{"LARDER_DICTIONARIES=" + text}, "")
		if err != nil || s.Dictionaries != want {
			t.Errorf("%s: %v; want %v", text, err, want)
		}
	}
}

func TestBases(t *testing.T) {
	for text, want := range map[string]string{
		"":                              "",
		"https://cdn.example.com":       "https://cdn.example.com",
		"https://cdn.example.com/":      "https://cdn.example.com",
		"HTTPS://CDN.Example.com:8443/": "https://cdn.example.com:8443",
		"http://[::1]:8080":             "http://[::1]:8080",
		"http://localhost/larder//":     "http://localhost/larder",
		"https://example.com/a%20b/c d": "https://example.com/a%20b/c%20d",
		"https://xn--bcher-kva.example": "https://xn--bcher-kva.example",
	} {
		if got, err := parseBaseURL(text); err != nil || got != want {
			t.Errorf("%q: %q, %v; want %q", text, got, err, want)
		}
		if again, err := parseBaseURL(want); err != nil || again != want {
			t.Errorf("%q becomes %q, %v", want, again, err)
		}
	}
	for _, text := range []string{"https://", "https:///x", "//example.com", "https:example.com", "mailto:me@example.com", "https://exa mple.com",
		"https://bücher.example", "https://example.com//a", "https://example.com/./a", "https://example.com/%2E./a", "https://-a.example", "https://a..b", "http://[::1%25eth0]",
		"http://[::1", "http://example.com:", "http://example.com:0", "https://\"><script>"} {
		if got, err := parseBaseURL(text); err == nil {
			t.Errorf("%q is taken for %q", text, got)
		}
	}
}

func TestHosts(t *testing.T) {
	for text, want := range map[string]string{
		"API.example.com": "api.example.com", "localhost:8080": "localhost:8080", "127.0.0.1": "127.0.0.1", "[2001:DB8::1]:80": "[2001:db8::1]:80", "a_b.internal.": "a_b.internal.",
	} {
		if got, err := parseHost(text); err != nil || got != want {
			t.Errorf("%q: %q, %v; want %q", text, got, err, want)
		}
	}
	for _, text := range []string{"", ":80", "a/b", "a@b", "a,b", "*.example.com", "::1", "[127.0.0.1]", "a:b:c", strings.Repeat("a", 64), strings.Repeat("a.", 127) + "a"} {
		if got, err := parseHost(text); err == nil {
			t.Errorf("%q is taken for %q", text, got)
		}
	}
}

func TestAssetBase(t *testing.T) {
	for _, tt := range []struct{ base, address, listen, cert, want string }{
		{"https://cdn.example.com", "http://127.0.0.1:8080", ":80", "", "https://cdn.example.com"},
		{"", "http://127.0.0.1:8080", ":80", "", "http://127.0.0.1:8080"},
		{"", "", "127.0.0.1:8080", "", "http://127.0.0.1:8080"},
		{"", "", ":8080", "", "http://localhost:8080"},
		{"", "", "[::]:443", "cert.pem", "https://localhost:443"},
		{"", "", "[::1]:80", "", "http://[::1]:80"},
		{"", "", "127.0.0.1:0", "", ""},
		{"", "", "unix:/run/larder.sock", "", ""},
	} {
		s := &Settings{AssetBase: tt.base, Listen: []string{tt.listen}, TLSCert: tt.cert}
		if got := s.AssetBaseAt(tt.address); got != tt.want {
			t.Errorf("%+v: %q", tt, got)
		}
	}
}

func FuzzBase(f *testing.F) {
	f.Add("https://cdn.example.com/a%2Fb/")
	f.Add("http://[::1]:80/?#")
	f.Add("https://cdn.example.com/a%2F'0")
	f.Fuzz(func(t *testing.T, text string) {
		base, err := parseBaseURL(text)
		if err != nil || base == "" {
			return
		}
		if again, err := parseBaseURL(base); err != nil || again != base {
			t.Errorf("%q became %q, which becomes %q, %v", text, base, again, err)
		}
		u, err := url.Parse(base + "/ajax/libs/a/1/a.js")
		if err != nil || u.Host == "" || !strings.HasSuffix(u.Path, "/ajax/libs/a/1/a.js") || strings.ContainsAny(base, "\"<> ?#\\") {
			t.Errorf("%q became %q, behind which there is no path: %v", text, base, err)
		}
	})
}

func FuzzConfigFile(f *testing.F) {
	f.Add("data: x\nlisten: :80\nallow-host: [a, b]\n")
	f.Add("a: &a [1]\nallow-host: *a\n? [x]\n: y\n")
	f.Fuzz(func(t *testing.T, text string) {
		file := filepath.Join(t.TempDir(), "larder.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		New().loadFile(file, nil)
	})
}

// The presets of a profile count after what the operator sets, and are valid values themselves.
func TestProfiles(t *testing.T) {
	for name, presets := range Profiles {
		s := New()
		environ := []string{"LARDER_PROFILE=" + name, "LARDER_MAX_CONNECTIONS=77", "LARDER_ACME_DOMAIN=cdn.example.com"}
		if err := s.Load(environ); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for setting, want := range presets {
			if setting == "max-connections" {
				want = "77"
			}
			preset := New().Flags.Lookup(setting).Value
			if err := preset.Set(want); err != nil {
				t.Errorf("%s: %s: %v", name, setting, err)
			}
			if got := s.Flags.Lookup(setting).Value.String(); got != preset.String() || s.IsSet(setting) != (want == "77") {
				t.Errorf("%s: %s is %s, want %s; set by the operator: %v", name, setting, got, want, s.IsSet(setting))
			}
		}
	}
	if err := New().Load([]string{"LARDER_PROFILE=public"}); err == nil || !strings.Contains(err.Error(), "needs a certificate: set acme-domain") {
		t.Errorf("public without a certificate: %v", err)
	}
	s := New()
	if err := s.Load([]string{"LARDER_PROFILE=public", "LARDER_LISTEN=:8000"}); err != nil || s.HTTPListen != "" || s.Listen[0] != ":8000" {
		t.Errorf("public behind a proxy: %v, listens on %q and %q", err, s.Listen, s.HTTPListen)
	}
}
