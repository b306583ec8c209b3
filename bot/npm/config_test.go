package npm

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// load makes a Config of lines of an .npmrc file, without what this machine is configured with.
func load(t *testing.T, lines ...string) (*Config, error) {
	t.Helper()
	return loadWith(t, nil, lines...)
}

// loadWith does it with an environment ("NAME=value") of its own.
func loadWith(t *testing.T, environment []string, lines ...string) (*Config, error) {
	t.Helper()
	for _, variable := range os.Environ() {
		if name, value, _ := strings.Cut(variable, "="); strings.HasPrefix(strings.ToLower(name), "npm_config_") {
			t.Setenv(name, value)
			os.Unsetenv(name)
		}
	}
	for _, name := range []string{"https_proxy", "http_proxy", "no_proxy", "proxy"} {
		t.Setenv(name, "")
		t.Setenv(strings.ToUpper(name), "")
	}
	for _, variable := range environment {
		name, value, _ := strings.Cut(variable, "=")
		t.Setenv(name, value)
	}
	dir := t.TempDir()
	t.Setenv("npm_config_userconfig", filepath.Join(dir, "user"))
	t.Setenv("npm_config_globalconfig", filepath.Join(dir, "global"))
	if err := os.WriteFile(filepath.Join(dir, ".npmrc"), []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	return LoadConfig(dir)
}

func TestConfig(t *testing.T) {
	t.Setenv("PART", "mirror")
	c, err := load(t,
		"; a comment",
		"registry=https://${PART}.example/npm/",
		"@a:registry = http://localhost:4873",
		"//mirror.example/npm/:_authToken=one",
		"//mirror.example/npm/private/:_auth=dHdvOnR3bw==",
		"//mirror.example/other/:username=me",
		"//mirror.example/other/:_password=c2VjcmV0",
		"//localhost:4873/:_authToken=three",
		"//tarballs.example/:_authToken=four",
	)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"x":    "https://mirror.example/npm/x",
		"@b/x": "https://mirror.example/npm/@b%2fx",
		"@a/x": "http://localhost:4873/@a%2fx",
	} {
		if got, err := c.packumentURL(name); err != nil || got.String() != want {
			t.Errorf("packument of %s: %v, %v; want %s", name, got, err, want)
		}
	}
	for address, want := range map[string]string{
		"https://mirror.example/npm/x":            "Bearer one",
		"https://MIRROR.example/npm/x?y":          "Bearer one",
		"https://mirror.example/npm/@b%2fx":       "Bearer one",
		"https://mirror.example/npm/private/x":    "Basic dHdvOnR3bw==",
		"https://mirror.example/other/x":          "Basic bWU6c2VjcmV0",
		"https://mirror.example/x":                "",
		"https://mirror.example/npmx":             "",
		"https://mirror.example/npm/../x":         "",
		"https://mirror.example/npm/%2e%2e/x":     "",
		"http://mirror.example/npm/x":             "",
		"https://mirror.example:8443/npm/x":       "",
		"https://mirror.example.evil.test/npm/x":  "",
		"https://evil.test/mirror.example/npm/x":  "",
		"https://evil.test//mirror.example/npm/x": "",
		"http://localhost:4873/x":                 "Bearer three",
		"http://localhost:4874/x":                 "",
		"https://tarballs.example/x.tgz":          "Bearer four",
		"http://tarballs.example/x.tgz":           "",
	} {
		u, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.authorizationFor(u); got != want {
			t.Errorf("%s: %q, want %q", address, got, want)
		}
	}
	for address, want := range map[string]bool{
		"https://mirror.example/anything": true, "https://mirror.example:443/": true, "http://localhost:4873/": true,
		"http://mirror.example/": false, "https://localhost:4873/": false, "http://localhost/": false, "https://tarballs.example/": false,
	} {
		u, _ := url.Parse(address)
		if c.isTrusted(u) != want {
			t.Errorf("%s: trusted %v, want %v", address, !want, want)
		}
	}
}

func TestConfigFromEnvironment(t *testing.T) {
	for _, name := range []string{"npm_config_registry", "NPM_CONFIG_REGISTRY", "Npm_Config_Registry"} {
		t.Run(name, func(t *testing.T) {
			_, err := load(t)
			if err != nil {
				t.Fatal(err)
			}
			t.Setenv(name, "http://127.0.0.1:1/x/")
			c, err := LoadConfig(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			if got := c.Registry("a"); got != "http://127.0.0.1:1/x/" {
				t.Errorf("got %s", got)
			}
		})
	}
}

func TestPrecedence(t *testing.T) {
	if _, err := load(t); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	// The npm that would be run has its configuration beside it.
	write("npm/bin/npm", "#!/bin/sh\n")
	t.Setenv("PATH", filepath.Join(dir, "npm", "bin"))
	t.Setenv("HOME", filepath.Join(dir, "home"))
	t.Setenv("SCOPE", "@s")
	os.Unsetenv("npm_config_userconfig")
	os.Unsetenv("npm_config_globalconfig")
	for i, file := range []struct{ name, text string }{
		{"npm/npmrc", "prefix=" + filepath.Join(dir, "prefix")},
		{"prefix/etc/npmrc", ""},
		{"home/.npmrc", ""},
		{"project/.npmrc", "userconfig=~/other"},
		{"home/other", "globalconfig=" + filepath.Join(dir, "global")},
		{"global", ""},
	} {
		text := fmt.Sprintf("%s\nregistry=http://127.0.0.1:%d\n", file.text, i+1)
		if i == 0 {
			text += "${SCOPE}:registry=http://127.0.0.1:9\n"
		}
		write(file.name, text)
		want := fmt.Sprintf("http://127.0.0.1:%d", min(i, 3)+1)
		c, err := LoadConfig(filepath.Join(dir, "project"))
		if err != nil || c.Registry("a") != want || c.Registry("@s/a") != "http://127.0.0.1:9" {
			t.Errorf("with %s: %v, registry %s, want %s", file.name, err, c.Registry("a"), want)
		}
	}
	// Without the project's registry, the user's counts, then the global one.
	write("project/.npmrc", "userconfig=~/other")
	if c, err := LoadConfig(filepath.Join(dir, "project")); err != nil || c.Registry("a") != "http://127.0.0.1:5" {
		t.Errorf("%v, %s", err, c.Registry("a"))
	}
	write("home/other", "globalconfig="+filepath.Join(dir, "global"))
	if c, err := LoadConfig(filepath.Join(dir, "project")); err != nil || c.Registry("a") != "http://127.0.0.1:6" {
		t.Errorf("%v, %s", err, c.Registry("a"))
	}
	t.Setenv("npm_config_registry", "http://127.0.0.1:7")
	t.Setenv("npm_config_//127.0.0.1:7/:_authToken", "token")
	c, err := LoadConfig(filepath.Join(dir, "project"))
	if err != nil || c.Registry("a") != "http://127.0.0.1:7" || c.auths["//127.0.0.1:7/"] != "Bearer token" {
		t.Errorf("%v, %s", err, c.Registry("a"))
	}
	write("home/other", "//secret")
	if _, err := LoadConfig(filepath.Join(dir, "project")); err == nil || !strings.Contains(err.Error(), "other:1") || strings.Contains(err.Error(), "secret") {
		t.Error(err)
	}
}

func TestNoConfiguration(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("PATH", "") // no npm either
	c, err := load(t)
	if err != nil {
		t.Fatal(err)
	}
	if c.registry.Scheme != "https" || c.registry.Host != c.public || c.public == "" {
		t.Errorf("the registry is %s", c.registry)
	}
	// npm's own registry is configured: its tarballs stay where they are.
	at := "https://" + c.public + "/x/-/x-1.tgz"
	if got, err := c.tarballURL("x", at); err != nil || got.String() != at {
		t.Errorf("%v, %v; want %s", got, err, at)
	}
}

func TestTarballURL(t *testing.T) {
	c, err := load(t, "registry=https://mirror.example:8443/npm/")
	if err != nil {
		t.Fatal(err)
	}
	for tarball, want := range map[string]string{
		"https://" + c.public + "/x/-/x-1.tgz":              "https://mirror.example:8443/x/-/x-1.tgz",
		"http://" + c.public + "/@a%2fx/-/x-1.tgz?secret":   "https://mirror.example:8443/@a%2fx/-/x-1.tgz",
		"https://" + c.public + "//evil.test/x":             "https://mirror.example:8443//evil.test/x",
		"https://elsewhere.example/x-1.tgz?signature":       "https://elsewhere.example/x-1.tgz?signature",
		"http://mirror.example:8443/npm/x/-/x-1.tgz":        "https://mirror.example:8443/npm/x/-/x-1.tgz",
		"http://elsewhere.example/x":                        "http://elsewhere.example/x",
		"https://user@" + c.public + "/x":                   "https://mirror.example:8443/x",
		"https://mirror.example:8443/npm/x/-/x-1.tgz#abcde": "https://mirror.example:8443/npm/x/-/x-1.tgz#abcde",
	} {
		if got, err := c.tarballURL("x", tarball); err != nil || got.String() != want {
			t.Errorf("%s: %v, %v; want %s", tarball, got, err, want)
		}
	}
	for _, tarball := range []string{"", "x.tgz", "/x.tgz", "file:///x", "%zz"} {
		if got, err := c.tarballURL("x", tarball); err == nil {
			t.Errorf("%q becomes %s", tarball, got)
		}
	}
}

func TestBadConfig(t *testing.T) {
	for _, lines := range [][]string{
		{"registry="}, {"registry=secret"}, {"registry=ftp://secret/"}, {"registry=file:///secret"}, {"registry=https:///secret"},
		{"registry=https://a:secret@%zz/"}, {"@a:registry=secret"}, {"secret-without-equals-sign"}, {"=secret"},
		{"//a.example/:username=a", "//a.example/:_password=secret!"}, {"strict-ssl=secret"},
		{"ca=secret"}, {"cafile=/none"}, {"cafile=config_test.go"}, {"proxy=secret"}, {"https-proxy=socks4://a:secret@b"}, {"proxy=http://a:secret@"},
	} {
		c, err := load(t, lines...)
		if err == nil {
			t.Errorf("%q passes: %s", lines, c.registry)
		} else if strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), ".npmrc") {
			t.Errorf("%q: %v", lines, err)
		}
	}
}

func TestUserinfo(t *testing.T) {
	c, err := newConfig([]setting{{key: "registry", values: []string{"https://me:secret@mirror.example/npm"}}})
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Registry("x"); got != "https://mirror.example/npm" {
		t.Errorf("the registry shows as %s", got)
	}
	u, _ := c.packumentURL("x")
	if got := c.authorizationFor(u); got != "Basic bWU6c2VjcmV0" {
		t.Errorf("%s: %q", u, got)
	}
	if u, _ = url.Parse("https://mirror.example/x"); c.authorizationFor(u) != "" {
		t.Errorf("%s: credentials go beyond their path", u)
	}
}
