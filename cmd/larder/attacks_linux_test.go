package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestSecretsStayIn has the real program use credentials of each kind against servers that refuse them, answer with them and redirect with them, at the most talkative level of logs.
// None of them may be in what it writes, in its store, or in its arguments.
func TestSecretsStayIn(t *testing.T) {
	t.Parallel()
	const secret = "hunter2-hunter2"
	dir := t.TempDir()
	var arguments []string // of all processes of this program, while one asks
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		processes, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, name := range processes {
			if line, err := os.ReadFile(name); err == nil && bytes.Contains(line, []byte(dir)) {
				arguments = append(arguments, string(line))
			}
		}
		w.Header().Set("WWW-Authenticate", r.Header.Get("Authorization"))
		w.Header().Set("Location", "https://user:"+secret+"@127.0.0.1:1/?token="+secret)
		w.WriteHeader(map[bool]int{true: 302, false: 401}[strings.Contains(r.URL.Path, "redirected")])
		fmt.Fprint(w, "you sent ", r.Header, r.URL)
	}))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	npmrc := write("npmrc", "registry="+server.URL+"/\n//"+host+"/:_authToken="+secret+"\n")
	for _, name := range []string{"refused", "redirected"} {
		write(name+".json", strings.ReplaceAll(faultPackage, `"demo"`, `"`+name+`"`))
	}
	cmd := exec.Command("larder", "bot", "--once", "--catalogue", dir, "--private-listen", "off", "--data", filepath.Join(dir, "data"), "--log-level", "debug")
	cmd.Env = append(os.Environ(), "HOME="+dir, "NPM_CONFIG_USERCONFIG="+npmrc, "LARDER_GITHUB_TOKEN="+secret, "GITHUB_TOKEN="+secret, "LARDER_HOOK_SECRET="+secret,
		"AWS_SECRET_ACCESS_KEY="+secret, "NPM_TOKEN="+secret)
	out, _ := cmd.CombinedOutput() // it fails, since nothing could be fetched
	if len(arguments) == 0 || len(out) == 0 {
		t.Fatalf("%d requests; it wrote\n%s", len(arguments), out)
	}
	if bytes.Contains(out, []byte(secret)) {
		t.Errorf("it writes a secret:\n%s", out)
	}
	if i := slices.IndexFunc(arguments, func(a string) bool { return strings.Contains(a, secret) }); i >= 0 {
		t.Errorf("the list of processes has a secret: %q", arguments[i])
	}
	err := filepath.WalkDir(filepath.Join(dir, "data"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if bytes.Contains(data, []byte(secret)) {
			t.Errorf("%s has a secret", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestAttacksAreTested holds that each test that SECURITY.md names exists.
func TestAttacksAreTested(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long in one goroutine, where the race detector has nothing to find")
	}
	t.Parallel()
	text, err := os.ReadFile("../../SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(text), "\n| attack | what stops it | test |\n")
	if !ok {
		t.Fatal("SECURITY.md has no table of attacks")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	tests := map[string]bool{}
	err = filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, found := range regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`).FindAllSubmatch(source, -1) {
			tests[string(found[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z]\w+`)
	for row := range strings.Lines(table) {
		names := named.FindAllString(row[strings.LastIndex(strings.TrimRight(row, " |\n"), "|")+1:], -1)
		if strings.HasPrefix(row, "| ---") {
			continue
		}
		if len(names) == 0 {
			t.Errorf("an attack without a test: %s", row)
		}
		for _, name := range names {
			if !tests[name] {
				t.Errorf("there is no %s, which SECURITY.md names", name)
			}
		}
	}
	for _, name := range named.FindAllString(string(text), -1) {
		if !tests[name] {
			t.Errorf("there is no %s, which SECURITY.md names", name)
		}
	}
}
