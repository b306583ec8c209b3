package settings

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// Every setting can be changed in the file of a process that runs, or is named as one that needs a restart; what a flag
// says stays.
func TestReload(t *testing.T) {
	page, err := os.ReadFile("../../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	said := regexp.MustCompile("(?:`[a-z-]+`(?:,| and)?\\s+)+need a restart").FindString(string(page))
	var named []string
	for _, m := range regexp.MustCompile("`([a-z-]+)`").FindAllStringSubmatch(said, -1) {
		named = append(named, m[1])
	}
	slices.Sort(named)
	if want := slices.Sorted(maps.Keys(fixed)); !slices.Equal(named, want) {
		t.Errorf("docs/operating.md says that %q need a restart, and it is %q", named, want)
	}

	other := map[string]string{
		"listen": "127.0.0.1:1", "private-listen": "off", "private-hosts": "ops.example", "forwarded-header": "Forwarded", "trusted-proxies": "10.0.0.0/8", "proxy-protocol": "false",
		"asset-base": "https://a.example", "site-base": "https://b.example", "api-host": "c.example", "feed": "https://d.example",
		"downloads-url": "https://e.example", "github-url": "https://f.example", "log-format": "json", "log-level": "debug", "log-repository": "a/b",
		"purge-hook": "PURGE https://g.example{path}", "log-origin": "h.example/log", "tls-cert": "", "tls-key": "", "hook-secret-file": "secret",
		"acme-domain": "i.example", "acme-email": "a@i.example", "acme-directory": "https://j.example/directory", "http-listen": "127.0.0.1:2",
		"access-log-format": "combined", "access-log-addresses": "none", "bucket": "file:///other", "backup": "file:///other", "node-url": "https://k.example:8443",
	}
	// What settings need beside them.
	beside := map[string]string{
		"acme-email": "acme-domain: i.example\n", "acme-directory": "acme-domain: i.example\n", "http-listen": "acme-domain: i.example\n",
		"node-url":          "bucket: file:///bucket\n",
		"access-log-format": "access-log: '-'\n", "access-log-addresses": "access-log: '-'\n",
	}
	New().Flags.VisitAll(func(f *pflag.Flag) {
		if f.Name == "config" || f.Name == "profile" || f.Name == "tls-cert" || f.Name == "tls-key" || f.Name == "bucket-endpoint" { // which come with others
			return
		}
		t.Run(f.Name, func(t *testing.T) {
			text, ok := other[f.Name]
			switch kind := f.Value.Type(); {
			case ok:
			case kind == "bool":
				text = map[string]string{"true": "false", "false": "true"}[f.DefValue]
			case kind == "int", kind == "size" || kind == "duration":
				text = map[string]string{"int": "77", "size": "77MiB", "duration": "77s"}[kind]
			default:
				text = "other"
			}
			file := filepath.Join(t.TempDir(), "larder.yaml")
			write := func(text string) {
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write(beside[f.Name])
			old := New()
			for name, text := range map[string]string{"config": file, "releases": "5"} {
				if err := old.Flags.Set(name, text); err != nil {
					t.Fatal(err)
				}
			}
			if err := old.Load([]string{"LARDER_INTERVAL=9s"}); err != nil {
				t.Fatal(err)
			}
			write(beside[f.Name] + f.Name + ": " + text + "\n")
			fresh, err := old.Reload()
			if err != nil {
				t.Fatal(err)
			}
			if fresh.Releases != 5 || fresh.Interval != old.Interval {
				t.Errorf("a flag or the environment does not count any more: %d, %v", fresh.Releases, fresh.Interval)
			}
			var want []string
			if f.Name != "releases" && f.Name != "interval" && text != f.DefValue {
				want = []string{f.Name}
			}
			changes := fresh.DiffFrom(old)
			changed, restart := changes.Names, changes.Fixed
			if wants := want != nil && !fixed[f.Name] && !live[f.Name]; changes.Run != wants {
				t.Errorf("another run is needed: %v, want %v", changes.Run, wants)
			}
			if !slices.Equal(changed, want) {
				t.Errorf("changed: %q, want %q", changed, want)
			}
			now := fresh.Flags.Lookup(f.Name).Value.String()
			switch {
			case want == nil:
			case !fixed[f.Name] && (len(restart) > 0 || now == old.Flags.Lookup(f.Name).Value.String()):
				t.Errorf("it is %s, and %q need a restart", now, restart)
			case fixed[f.Name] && (!slices.Equal(restart, want) || now != old.Flags.Lookup(f.Name).Value.String()):
				t.Errorf("it is %s, and %q need a restart", now, restart)
			}
			write("name: x\n" + f.Name + "s: 1\n")
			if _, err := old.Reload(); err == nil || !strings.Contains(err.Error(), "larder.yaml:2: ") {
				t.Errorf("of a broken file: %v", err)
			}
		})
	})
}
