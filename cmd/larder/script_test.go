package main

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
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/larder-cdn/larder/internal/app"
	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/internal/testkit/npmtest"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/views"
)

func TestMain(m *testing.M) {
	if app.RunIfWorker(os.Args) { // of a larder that a script runs
		return
	}
	runMoreTestsAtOnce()
	testscript.Main(m, map[string]func(){"larder": larderMain, "tamper": testkit.Tamper, "world": testkit.World})
}

// testsAtOnce is how many parallel tests run at once for each processor. Most of the time they wait for processes.
const testsAtOnce = 4

// runMoreTestsAtOnce raises the default of -test.parallel.
func runMoreTestsAtOnce() {
	if slices.ContainsFunc(os.Args, func(arg string) bool { return strings.HasPrefix(strings.TrimLeft(arg, "-"), "test.parallel") }) {
		return
	}
	if err := flag.Set("test.parallel", strconv.Itoa(testsAtOnce*runtime.GOMAXPROCS(0))); err != nil {
		panic(err)
	}
}

// upstream is a script's registry.
type upstream struct {
	registry *npmtest.Registry
	now      time.Time // of the next release
}

type upstreamKey struct{}

// run executes one command line and returns the exit code.
func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	return newCLI(environ, stdout, stderr).run(ctx, args)
}

// TestScripts runs testdata/script, whole processes of the real program, each script with an npm registry of its own.
// Besides what testscript knows, they may say:
//
//	publish NAME VERSION FOLDER   the registry has this release from now on; each is an hour younger than the last
//	hang PATH                     the registry answers half of what is below that path from now on, and then nothing; with ! in front, all again
//	ready FILE                    wait for a ready file; $ADDRESS is what it says
//	get [METHOD] PATH [HEADER:VALUE]...
//	                              print status, headers and body of the answer of $ADDRESS (or of a whole URL)
//	certificate FILE KEY [VALID]  make a certificate for 127.0.0.1, for an hour or this duration
//	spoil DATA NAMESPACE PART...  remove a row from the store of a data folder that no process runs on, or, with ! in front, add one
//	cache FILE STATUS             start what stands in front; $CACHE is its address, FILE gets what it is asked
//	called FILE PATTERN           wait until it was asked that
//	newer DATA                    make the store of a data folder that no process runs on one of the next format, or, with ! in front, of this one again
//	flip DATA NAME VERSION FILE   change a bit of a file, as it is stored smallest, where no process runs on the data folder
//	healthy [FLAG]...             expect that larder doctor finds nothing, apart from the disk and the kernel of this machine
//	repairs CHECK [WORD=VALUE]... [-- COMMAND...]
//	                              wait until larder doctor finds CHECK, run COMMAND, which does what is to be done before, and the command
//	                              that larder doctor names, with its words replaced, and wait until the finding is gone; where the command
//	                              goes on running, while it does
//	witness NAME FILE             start a witness of the log whose verifier key is in FILE; $NAME is its URL#KEY, NAME.key its key
//	github DIR TOKEN              start a GitHub; $GITHUB is its API, DIR the bare repository example/logs
//	gitserver DIR                 serve the bare repositories below DIR; $GIT is the server's URL
//	deliver STATUS PATH SECRET EVENT PAYLOAD
//	                              send an event to a webhook of $ADDRESS, signed, and expect this status
//	same DIR DIR                  wait until two repositories are at the same commit
//	until STATUS PATH [TEXT]      ask again and again until the answer of $ADDRESS has this status, and this text
func TestScripts(t *testing.T) {
	p := scriptParams()
	p.Dir = "testdata/script"
	testscript.Run(t, p)
}

func scriptParams() testscript.Params {
	return testscript.Params{
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			registry := npmtest.Start()
			env.Defer(registry.Close)
			env.Values[upstreamKey{}] = &upstream{registry, time.Date(2024, 5, 17, 8, 30, 0, 0, time.UTC)}
			root, err := filepath.Abs("../..")
			if err != nil {
				return err
			}
			env.Setenv("ROOT", root) // of the repository
			// A script runs many short commands. At the default, garbage collection is a large part of their processor time.
			env.Setenv("GOGC", "400")
			npm := filepath.Join(env.WorkDir, ".npm")
			env.Vars = append(env.Vars, registry.Env(npm)...)
			return os.Mkdir(npm, 0o700)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"cache":       scriptCache,
			"called":      scriptCalled,
			"certificate": scriptCertificate,
			"deliver":     scriptDeliver,
			"github":      scriptGitHub,
			"gitserver":   scriptGitServer,
			"same":        scriptSame,
			"publish":     scriptPublish,
			"hang":        scriptHang,
			"newer":       scriptNewer,
			"ready":       scriptReady,
			"spoil":       scriptSpoil,
			"flip":        scriptFlip,
			"healthy":     scriptHealthy,
			"repairs":     scriptRepairs,
			"get":         scriptGet,
			"until":       scriptUntil,
			"witness":     scriptWitness,
		},
	}
}

// scriptTimeout is how long a script waits for something before it fails. It is much longer than anything takes, also on a busy machine.
const scriptTimeout = 3 * time.Minute

func scriptPublish(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: publish NAME VERSION FOLDER")
	}
	files := map[string]string{}
	root := os.DirFS(ts.MkAbs(args[2]))
	ts.Check(fs.WalkDir(root, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := fs.ReadFile(root, path)
		files[path] = string(data)
		return err
	}))
	u := ts.Value(upstreamKey{}).(*upstream)
	u.registry.Add(args[0], args[1], u.now, files)
	u.now = u.now.Add(time.Hour)
}

func scriptHang(ts *testscript.TestScript, neg bool, args []string) {
	registry := ts.Value(upstreamKey{}).(*upstream).registry
	switch {
	case neg && len(args) == 0:
		registry.ClearFaults()
	case !neg && len(args) == 1:
		registry.Fail(npmtest.Fault{Path: args[0], Hang: true})
	default:
		ts.Fatalf("usage: hang PATH, or ! hang")
	}
}

func scriptReady(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: ready FILE")
	}
	for deadline := time.Now().Add(scriptTimeout); ; time.Sleep(5 * time.Millisecond) {
		text, err := os.ReadFile(ts.MkAbs(args[0]))
		if err == nil {
			ts.Setenv("ADDRESS", strings.TrimSpace(string(text)))
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("no ready file: %v", err)
		}
	}
}

// request asks $ADDRESS for a path, or the world for a URL. It follows no redirects and undoes no coding.
func request(ts *testscript.TestScript, method, target string, header http.Header) (*http.Response, []byte, error) {
	if strings.HasPrefix(target, "/") {
		target = ts.Getenv("ADDRESS") + target
	}
	r, err := http.NewRequest(method, target, nil)
	if err != nil {
		return nil, nil, err
	}
	r.Header = header
	r.Host = header.Get("Host") // "" leaves it to the target
	transport := &http.Transport{
		DisableKeepAlives:  true,
		DisableCompression: true,
		ForceAttemptHTTP2:  true,
		TLSClientConfig:    &tls.Config{InsecureSkipVerify: true}, // a certificate of the script's own
	}
	response, err := transport.RoundTrip(r)
	if err != nil {
		return nil, nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response, body, err
}

func scriptGet(ts *testscript.TestScript, neg bool, args []string) {
	method := http.MethodGet
	if len(args) > 1 && args[0] == strings.ToUpper(args[0]) && !strings.HasPrefix(args[0], "/") {
		method, args = args[0], args[1:]
	}
	if neg || len(args) == 0 {
		ts.Fatalf("usage: get [METHOD] PATH [HEADER:VALUE]...")
	}
	header := http.Header{}
	for _, h := range args[1:] {
		name, value, _ := strings.Cut(h, ":")
		header.Add(name, value)
	}
	response, body, err := request(ts, method, args[0], header)
	ts.Check(err)
	fmt.Fprintf(ts.Stdout(), "%s\nstatus %d\n", response.Proto, response.StatusCode)
	var lines []string
	for name, values := range response.Header {
		for _, value := range values {
			lines = append(lines, fmt.Sprintf("%s: %s\n", strings.ToLower(name), value))
		}
	}
	slices.Sort(lines)
	fmt.Fprintf(ts.Stdout(), "%s\n%s\n", strings.Join(lines, ""), body)
}

func scriptUntil(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 || len(args) > 3 {
		ts.Fatalf("usage: until STATUS PATH [TEXT]")
	}
	want := strings.Join(args[2:], "")
	var last string
	for deadline := time.Now().Add(scriptTimeout); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		response, body, err := request(ts, http.MethodGet, args[1], http.Header{})
		if err != nil {
			last = err.Error()
			continue
		}
		if last = fmt.Sprint(response.StatusCode); last == args[0] && strings.Contains(string(body), want) {
			return
		}
	}
	ts.Fatalf("%s never answered %s %s; the last answer was %s", args[1], args[0], want, last)
}

func scriptSpoil(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 3 || len(args[1]) != 1 {
		ts.Fatalf("usage: [!] spoil DATA NAMESPACE PART...")
	}
	store, err := kvstore.Open(filepath.Join(ts.MkAbs(args[0]), "store"), kvstore.Options{})
	ts.Check(err)
	defer func() { ts.Check(store.Close()) }()
	ns, key := kvstore.Namespace(args[1][0]), kvstore.Key(args[2:]...)
	b := store.NewBatch()
	defer b.Close()
	if neg {
		b.Set(ns, key, []byte("no such row"))
	} else {
		_, err := store.Get(ns, key)
		ts.Check(err)
		b.Delete(ns, key)
	}
	ts.Check(b.Commit())
}

func scriptNewer(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: [!] newer DATA")
	}
	// Larder itself would not open it again.
	db, err := pebble.Open(filepath.Join(ts.MkAbs(args[0]), "store"), &pebble.Options{ErrorIfNotExists: true})
	ts.Check(err)
	key := append([]byte{byte(kvstore.Meta)}, "format"...)
	format := []byte{2}
	if neg {
		format[0]--
	}
	ts.Check(errors.Join(db.Set(key, format, pebble.Sync), db.Close()))
}

func scriptFlip(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 4 {
		ts.Fatalf("usage: flip DATA NAME VERSION FILE")
	}
	ts.Check(flipFile(ts.MkAbs(args[0]), args[1], args[2], args[3]))
}

func scriptHealthy(ts *testscript.TestScript, neg bool, args []string) {
	err := ts.Exec("larder", append([]string{"doctor", "--json"}, args...)...)
	if wrong := findingsIn(ts.ReadFile("stdout")); neg || len(wrong) > 0 {
		ts.Fatalf("larder doctor: %v: %s", err, strings.Join(wrong, "; "))
	}
}

func scriptRepairs(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: repairs CHECK [WORD=VALUE]... [-- COMMAND...]")
	}
	before := slices.Index(args, "--")
	if before < 0 {
		before = len(args)
	}
	var words []string
	for _, pair := range args[1:before] {
		word, value, _ := strings.Cut(pair, "=")
		words = append(words, word, value)
	}
	found := func() (fix string) {
		_ = ts.Exec("larder", "doctor", "--json")
		var findings []app.Finding
		ts.Check(json.Unmarshal([]byte(ts.ReadFile("stdout")), &findings))
		if i := slices.IndexFunc(findings, func(f app.Finding) bool { return f.Check == args[0] }); i >= 0 {
			fix = strings.NewReplacer(words...).Replace(findings[i].Fix)
		}
		return fix
	}
	fix := found()
	for start := time.Now(); fix == "" && time.Since(start) < scriptTimeout; fix = found() {
		time.Sleep(processInterval(time.Since(start)))
	}
	runs := strings.Contains(fix, "larder up ")
	if fix == "" {
		ts.Fatalf("larder doctor does not find what is wrong with %s", args[0])
	}
	if before < len(args) {
		ts.Check(ts.Exec(args[before+1], args[before+2:]...))
	}
	ready := ts.MkAbs("repairs.ready")
	_ = os.Remove(ready)
	ts.Check(ts.Exec("env"))
	var out bytes.Buffer
	cmd := exec.Command("sh", "-ec", fix)
	cmd.Dir, cmd.Stdout, cmd.Stderr = ts.MkAbs("."), &out, &out
	cmd.Env = append(strings.Split(ts.ReadFile("stdout"), "\n"), "LARDER_LISTEN=127.0.0.1:0", "LARDER_PRIVATE_LISTEN=off", "LARDER_CATALOGUE="+ts.MkAbs("catalogue"), "LARDER_READY_FILE="+ready)
	if runs {
		cmd.Args[2] = "exec " + fix // so that it gets the signal
	}
	ts.Check(cmd.Start())
	var err error
	if !runs {
		err = cmd.Wait()
	}
	repaired := false
	for start := time.Now(); err == nil && !repaired && time.Since(start) < scriptTimeout; time.Sleep(processInterval(time.Since(start))) {
		_, starting := os.Stat(ready) // before, larder doctor would open the folder itself
		repaired = (!runs || starting == nil) && found() == ""
	}
	if runs {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		err = cmd.Wait()
	}
	if err != nil || !repaired {
		ts.Fatalf("%s: %v; repaired: %v; larder doctor names %q\n%s", fix, err, repaired, found(), &out)
	}
}

// findingsIn returns the findings in the JSON of larder doctor, without those about the machine on which the test runs.
func findingsIn(output string) (wrong []string) {
	var findings []app.Finding
	if err := json.Unmarshal([]byte(output), &findings); err != nil {
		return []string{fmt.Sprintf("%v: %s", err, output)}
	}
	for _, f := range findings {
		if f.Check != "disk" && f.Check != "sandbox" {
			wrong = append(wrong, f.Check+": "+f.Cause)
		}
	}
	return wrong
}

// flipFile changes a bit of a file as it is stored smallest. No process may run on the data folder.
func flipFile(data, name, version, path string) (err error) {
	store, err := kvstore.Open(filepath.Join(data, "store"), kvstore.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	file, err := views.LookupFile(store, name, version, path)
	if err != nil {
		return err
	}
	content, err := store.Content(file.Hash)
	if err != nil {
		return err
	}
	key := append(file.Hash[:], byte(content.Representations[0].Coding))
	stored, err := store.Get(kvstore.Blobs, key)
	if err != nil {
		return err
	}
	stored = slices.Clone(stored)
	stored[len(stored)/2] ^= 1
	b := store.NewBatch()
	defer b.Close()
	b.Set(kvstore.Blobs, key, stored)
	return b.Commit()
}

func scriptCertificate(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 || len(args) > 3 {
		ts.Fatalf("usage: certificate FILE KEY [DURATION]")
	}
	valid := time.Hour
	if len(args) == 3 {
		var err error
		valid, err = time.ParseDuration(args[2])
		ts.Check(err)
	}
	ts.Check(makeCertificateFor(ts.MkAbs(args[0]), ts.MkAbs(args[1]), time.Now().Add(valid)))
}

// makeCertificate writes a certificate for 127.0.0.1 and its key.
func makeCertificate(file, keyFile string) error {
	return makeCertificateFor(file, keyFile, time.Now().Add(time.Hour))
}

// makeCertificateFor writes one that ends then.
func makeCertificateFor(file, keyFile string, end time.Time) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotBefore:    time.Now().Add(-2 * time.Hour),
		NotAfter:     end,
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	return errors.Join(err,
		os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), 0o600),
		os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
}
