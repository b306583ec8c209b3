package npm

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/internal/testkit/npmtest"
)

var published = time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC)

// client makes a client for the registry that the test's environment names.
func client(t *testing.T, o Options) *Client {
	t.Helper()
	config, err := LoadConfig(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	f, err := fetch.New(fetch.Options{
		Stall: 200 * time.Millisecond,
		Sleep: func(context.Context, time.Duration) error { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return NewClient(config, f, o)
}

func start(t *testing.T, o Options) (*npmtest.Registry, *Client) {
	t.Helper()
	r := npmtest.New(t)
	r.Setenv(t)
	return r, client(t, o)
}

func temp(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "tarball"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// temporary reports whether err is a failure of fetch's that may pass.
func temporary(err error) bool {
	var failure *fetch.Error
	return errors.As(err, &failure) && failure.Temporary
}

func TestPackument(t *testing.T) {
	r, c := start(t, Options{})
	r.Add("left", "1.0.0", published, map[string]string{"a.js": "1"}, npmtest.Deprecated("use right"))
	r.Add("left", "2.0.0-beta", published.Add(time.Hour), map[string]string{"a.js": "2"},
		npmtest.Dist("unpackedSize", 12), npmtest.Dist("signatures", []string{"x"}))
	r.Tag("left", "latest", "1.0.0")
	r.Add("@a/b", "1.0.0", published, nil)

	p, validators, err := c.Packument(t.Context(), "left", Validators{})
	if err != nil {
		t.Fatal(err)
	}
	if p.Name != "left" || p.DistTags["latest"] != "1.0.0" || len(p.Versions) != 2 {
		t.Errorf("got %+v", p)
	}
	v := p.Versions["2.0.0-beta"]
	if v.Package != "left" || v.Version != "2.0.0-beta" || !v.Published.Equal(published.Add(time.Hour)) || v.Err != nil ||
		!strings.HasPrefix(v.Integrity, "sha512-") || len(v.Shasum) != 40 || v.UnpackedSize != 12 || string(v.Signatures) != `["x"]` {
		t.Errorf("got %+v", v)
	}
	if got := p.Versions["1.0.0"].Deprecated; got != "use right" {
		t.Errorf("deprecated %q", got)
	}

	if _, _, err := c.Packument(t.Context(), "left", validators); !errors.Is(err, ErrNotModified) {
		t.Errorf("asked again: %v", err)
	}
	r.Add("left", "3.0.0", published, nil)
	if _, newer, err := c.Packument(t.Context(), "left", validators); err != nil || newer == validators {
		t.Errorf("after a release: %v, %v", newer, err)
	}

	if _, _, err := c.Packument(t.Context(), "@a/b", Validators{}); err != nil || r.Count("/@a%2fb") != 1 {
		t.Errorf("scoped: %v, %v", err, r.Requests())
	}
	if _, _, err := c.Packument(t.Context(), "none", Validators{}); !errors.Is(err, ErrNotFound) || IsPermanent(err) {
		t.Errorf("unknown: %v", err)
	}
	for _, name := range []string{"", ".", "..", "../x", "a/b", "@a", "@a/", "@/b", "@a/../b", "a?b", "a#b", "a%2fb", "_a", "a b", "@a/b/c", "é", strings.Repeat("a", 215)} {
		var bad *NameError
		if _, _, err := c.Packument(t.Context(), name, Validators{}); !errors.As(err, &bad) || !IsPermanent(err) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestPackumentFaults(t *testing.T) {
	r, c := start(t, Options{PackumentBytes: 10_000})
	r.Add("a", "1.0.0", published, nil)
	get := func() error {
		_, _, err := c.Packument(t.Context(), "a", Validators{})
		return err
	}
	for _, fault := range []npmtest.Fault{
		{Times: 2, Status: 500}, {Times: 1, Status: 429, RetryAfter: "1"}, {Times: 2, Truncate: true}, {Times: 1, Hang: true},
	} {
		r.ClearFaults()
		r.Fail(fault)
		if err := get(); err != nil {
			t.Errorf("%+v: %v", fault, err)
		}
	}
	r.ClearFaults()
	r.Fail(npmtest.Fault{Truncate: true})
	if err := get(); !temporary(err) || IsPermanent(err) {
		t.Errorf("always cut off: %v", err)
	}
	r.ClearFaults()
	r.SetPackument("a", []byte(`{"readme":"`+strings.Repeat("x", 10_000)+`"}`))
	if err := get(); !errors.Is(err, fetch.ErrTooLarge) || !IsPermanent(err) {
		t.Errorf("too large: %v", err)
	}
}

func TestTarball(t *testing.T) {
	r, c := start(t, Options{TarballBytes: 5000})
	files := map[string]string{"dist/a.js": "let a", "LICENSE": "MIT"}
	r.Add("a", "1.0.0", published, files)
	get := func(version string, options ...npmtest.Option) (*os.File, error) {
		t.Helper()
		if len(options) > 0 {
			r.Add("a", version, published, files, options...)
		}
		p, _, err := c.Packument(t.Context(), "a", Validators{})
		if err != nil {
			t.Fatal(err)
		}
		f := temp(t)
		f.WriteString(strings.Repeat("what was there before", 1000))
		return f, c.Tarball(t.Context(), p.Versions[version], f)
	}
	check := func(what string, f *os.File, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
			return
		}
		f.Seek(0, io.SeekStart)
		zr, err := gzip.NewReader(f)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for tr := tar.NewReader(zr); ; {
			header, err := tr.Next()
			if err != nil {
				break
			}
			names = append(names, header.Name)
		}
		if got := strings.Join(names, " "); got != "package/package.json package/LICENSE package/dist/a.js" {
			t.Errorf("%s: the tarball holds %s", what, got)
		}
	}
	f, err := get("1.0.0")
	check("plain", f, err)

	sum := npmtest.Pack("a", "1.0.0", files)
	const zeros = "sha512-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=="
	f, err = get("1.0.1", npmtest.Tarball(sum), npmtest.Dist("integrity", nil))
	check("shasum only", f, err)
	right := func() string {
		p, _, _ := c.Packument(t.Context(), "a", Validators{})
		return p.Versions["1.0.0"].Integrity
	}()
	f, err = get("1.0.2", npmtest.Tarball(sum), npmtest.Dist("integrity", "sha1-AAAAAAAAAAAAAAAAAAAAAAAAAAA= "+zeros+" "+right+"?opt md5-x"))
	check("one of several", f, err)
	f, err = get("1.0.3", npmtest.Tarball(sum), npmtest.Dist("integrity", strings.TrimRight(right, "=")))
	check("without padding", f, err)

	for version, options := range map[string][]npmtest.Option{
		"2.0.0": {npmtest.Dist("integrity", zeros)},
		"2.0.1": {npmtest.Dist("integrity", nil), npmtest.Dist("shasum", strings.Repeat("0", 40))},
		"2.0.2": {npmtest.Dist("integrity", nil), npmtest.Dist("shasum", nil)},
		"2.0.3": {npmtest.Dist("integrity", "md5-AAAAAAAAAAAAAAAAAAAAAA==")}, // not shasum instead
		"2.0.4": {npmtest.Dist("integrity", nil), npmtest.Dist("shasum", "abc")},
	} {
		_, err := get(version, options...)
		var bad *IntegrityError
		if !errors.As(err, &bad) || IsPermanent(err) != (bad.Got == "") || !strings.Contains(err.Error(), "npm package a "+version+": integrity ") {
			t.Errorf("%v: %v", version, err)
		}
	}
	if n := r.Count("/a/-/a-2"); n != 2 {
		t.Errorf("%d requests for tarballs with wrong hashes, want one each for those that have one", n)
	}

	r.Add("a", "3.0.0", published, files)
	r.Fail(npmtest.Fault{Path: "/a/-/", Times: 1, Status: 503})
	r.Fail(npmtest.Fault{Path: "/a/-/", Times: 1, Truncate: true})
	r.Fail(npmtest.Fault{Path: "/a/-/", Times: 1, Hang: true})
	f, err = get("3.0.0")
	check("after faults", f, err)
	r.Fail(npmtest.Fault{Path: "/a/-/", Times: 1, Garble: true})
	var bad *IntegrityError
	if _, err = get("3.0.0"); !errors.As(err, &bad) || bad.Want == bad.Got || !strings.HasPrefix(bad.Got, "sha512-") {
		t.Errorf("garbled: %v", err)
	}
	if _, err := get("4.0.0", npmtest.Tarball(make([]byte, 5001))); !errors.Is(err, fetch.ErrTooLarge) || !IsPermanent(err) {
		t.Errorf("too large: %v", err)
	}
	if _, err := get("5.0.0", npmtest.Dist("tarball", "https://10.1.2.3/x.tgz")); !errors.Is(err, fetch.ErrForbidden) || !IsPermanent(err) {
		t.Errorf("private address: %v", err)
	}
	r.Fail(npmtest.Fault{Path: "/a/-/", Times: 1, Redirect: "http://127.0.0.1:1/x.tgz"})
	if _, err := get("3.0.0"); !errors.Is(err, fetch.ErrForbidden) {
		t.Errorf("redirected to a private address: %v", err)
	}
	var malformed *MalformedError
	if _, err := get("6.0.0", npmtest.Dist("tarball", nil)); !errors.As(err, &malformed) {
		t.Errorf("no tarball: %v", err)
	}
	if _, err := get("6.0.1", npmtest.Dist("tarball", "x.tgz")); !errors.As(err, &malformed) {
		t.Errorf("relative tarball: %v", err)
	}
}

// TestLocalFault gets a tarball into files that cannot take it.
func TestLocalFault(t *testing.T) {
	r, c := start(t, Options{})
	r.Add("a", "1.0.0", published, nil)
	p, _, err := c.Packument(t.Context(), "a", Validators{})
	if err != nil {
		t.Fatal(err)
	}
	closed := temp(t)
	closed.Close()
	readOnly, err := os.Open(temp(t).Name())
	if err != nil {
		t.Fatal(err)
	}
	defer readOnly.Close()
	for want, file := range map[error]*os.File{os.ErrClosed: closed, syscall.EINVAL: readOnly} {
		before := r.Count("/a/-/")
		err := c.Tarball(t.Context(), p.Versions["1.0.0"], file)
		checkLocal(t, err, want, file)
		if n := r.Count("/a/-/") - before; n != 1 {
			t.Errorf("%v: %d requests, want 1", want, n)
		}
	}
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0) // it cannot be truncated, only written
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	_, err = fetch.LocalWriter(full).Write([]byte("x"))
	checkLocal(t, err, syscall.ENOSPC, full)
	if err != nil && err.Error() != "couldn't write the download: no space left on device" {
		t.Error(err)
	}
}

func checkLocal(t *testing.T, err, want error, file *os.File) {
	t.Helper()
	var local *fetch.LocalError
	var failure *fetch.Error
	if !errors.As(err, &local) || !errors.Is(err, want) || errors.As(err, &failure) || IsPermanent(err) {
		t.Errorf("got %v, want a local fault: %v", err, want)
	}
	if err != nil && strings.Contains(err.Error(), file.Name()) {
		t.Errorf("%v tells where the file is", err)
	}
}

// TestCredentials watches where a token goes.
func TestCredentials(t *testing.T) {
	r := npmtest.New(t)
	r.Setenv(t)
	r.RequireToken("secret")
	var stranger []string // Authorization headers
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		stranger = append(stranger, request.Header.Get("Authorization"))
		http.Redirect(w, request, r.URL+"/a/-/a-1.0.0.tgz", http.StatusFound)
	}))
	defer other.Close()
	r.Add("a", "1.0.0", published, nil)
	r.Add("a", "2.0.0", published, nil, npmtest.Dist("tarball", other.URL+"/a.tgz"))

	if _, _, err := client(t, Options{}).Packument(t.Context(), "a", Validators{}); err == nil || IsPermanent(err) || !strings.Contains(err.Error(), "401") {
		t.Errorf("without a token: %v", err)
	}

	dir := t.TempDir()
	host := strings.TrimPrefix(r.URL, "http:")
	npmrc := host + "/:_authToken=${TOKEN_FOR_TEST}\n@other:registry=" + other.URL + "\n"
	if err := os.WriteFile(filepath.Join(dir, ".npmrc"), []byte(npmrc), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TOKEN_FOR_TEST", "secret")
	config, err := LoadConfig(dir)
	if err != nil {
		t.Fatal(err)
	}
	c := client(t, Options{})
	c.config = config
	p, _, err := c.Packument(t.Context(), "a", Validators{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Tarball(t.Context(), p.Versions["1.0.0"], temp(t)); err != nil {
		t.Error(err)
	}
	if err := c.Tarball(t.Context(), p.Versions["2.0.0"], temp(t)); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("by way of a stranger: %v", err)
	}
	if len(stranger) != 1 || stranger[0] != "" {
		t.Errorf("a stranger saw %q", stranger)
	}
	last := r.Requests()[len(r.Requests())-1]
	if last.Path != "/a/-/a-1.0.0.tgz" || last.Header.Get("Authorization") != "" {
		t.Errorf("a stranger's redirect made a request with credentials: %v", last)
	}
}

// TestConfiguredRegistry asks the registry that npm is configured with on this machine.
func TestConfiguredRegistry(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: not asking the configured registry")
	}
	config, err := LoadConfig(".")
	if err != nil {
		t.Skipf("npm's configuration is not usable here: %v", err)
	}
	f, err := fetch.New(fetch.Options{Tries: 1, Stall: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c := NewClient(config, f, Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	p, _, err := c.Packument(ctx, "jquery", Validators{})
	if temporary(err) || errors.Is(err, fetch.ErrForbidden) {
		t.Skipf("the configured registry, %s, cannot be reached: %v", config.Registry("jquery"), err)
	}
	if err != nil {
		t.Fatal(err)
	}
	v := p.Versions["3.7.1"]
	if v.Err != nil || v.Tarball == "" || len(p.Versions) < 50 {
		t.Fatalf("%d versions, 3.7.1: %+v", len(p.Versions), v)
	}
	file := temp(t)
	if err := c.Tarball(ctx, v, file); temporary(err) {
		t.Skipf("the configured registry, %s, cannot be reached: %v", config.Registry("jquery"), err)
	} else if err != nil {
		t.Fatal(err)
	}
	info, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("jquery: %d versions, %d with a time; 3.7.1 is %d bytes", len(p.Versions), len(p.Time), info.Size())
}

func Example() {
	config, err := LoadConfig(".")
	if err != nil {
		fmt.Println(err)
		return
	}
	f, err := fetch.New(fetch.Options{UserAgent: "larder/1.0"})
	if err != nil {
		fmt.Println(err)
		return
	}
	client := NewClient(config, f, Options{})
	packument, _, err := client.Packument(context.Background(), "jquery", Validators{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(packument.DistTags["latest"])
}
