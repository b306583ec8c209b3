package browsertest

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/chromedp/chromedp"
)

// atOnce is how many tests run at once, on a machine of two cores too: most of their time they wait for answers.
const atOnce = 4

func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" || f.Name == "test.cpu" })
	if !given {
		_ = flag.Set("test.parallel", strconv.Itoa(atOnce)) // a flag of every test
	}
	code := m.Run()
	closeShared()
	os.Exit(code)
}

// shared is what the tests have in common: one program that serves the releases of
// testdata, and one browser. Both are started by the first test that needs them.
// Tests only look at them, so none disturbs another, and most run in parallel, each in a profile of its own. A test that
// changes an instance starts its own.
var shared struct {
	once     sync.Once
	instance *instance
	browser  context.Context
	err      error

	folder  string // of everything that is written
	cleanup []func()
}

// open starts the program and the browser, or skips the test and says why.
func open(t *testing.T) (*instance, context.Context) {
	t.Helper()
	if raceDetector {
		t.Skip("the race detector would watch only the test itself, and not the program that it starts")
	}
	chromium, err := findChromium()
	if err != nil {
		without(t, err)
	}
	shared.once.Do(func() {
		if shared.folder, shared.err = os.MkdirTemp("", "larder-browser-"); shared.err != nil {
			return
		}
		binary, err := build(shared.folder)
		if err != nil {
			shared.err = err
			return
		}
		data := filepath.Join(shared.folder, "data")
		if shared.err = stock(binary, data, shared.folder); shared.err != nil {
			return
		}
		if shared.instance, shared.err = serve(binary, data); shared.err != nil {
			return
		}
		shared.cleanup = append(shared.cleanup, shared.instance.stop)
		ctx, cancel := launch(chromium)
		shared.browser, shared.cleanup = ctx, append(shared.cleanup, cancel)
		shared.err = chromedp.Do(ctx) // the browser lives as long as the context that it is started with
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.instance, shared.browser
}

func closeShared() {
	for _, f := range slices.Backward(shared.cleanup) {
		f()
	}
	os.RemoveAll(shared.folder)
}

// launch returns the context of a browser that has yet to start.
func launch(chromium string, more ...chromedp.ExecAllocatorOption) (context.Context, context.CancelFunc) {
	allocator, _ := chromedp.NewExecAllocator(context.Background(), append([]chromedp.ExecAllocatorOption{
		chromedp.ExecPath(chromium),
		chromedp.Flag("headless", true),
		chromedp.NoSandbox, // the tests run as root in containers, and load nothing but what they serve
		chromedp.DisableGPU,
		chromedp.NoFirstRun,
		chromedp.NoDefaultBrowserCheck,
		chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-background-networking", true),
		chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-sync", true),
		chromedp.Flag("disable-dev-shm-usage", true),
		chromedp.Flag("hide-scrollbars", true),
		// Whatever the browser itself might want of the world, it finds no name.
		chromedp.Flag("host-resolver-rules", "MAP site.test 127.0.0.1, MAP files.test 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"),
	}, more...)...)
	return chromedp.NewContext(allocator)
}

// auditing says that `make audit` runs the tests, for which nothing may be missing.
var auditing = os.Getenv("LARDER_TEST_AUDIT") != ""

// without ends a test that lacks something of the machine.
func without(t *testing.T, err error) {
	t.Helper()
	if auditing {
		t.Fatal(err)
	}
	t.Skip(err)
}

// chromiums are the names that distributions give it.
var chromiums = []string{"chromium", "chromium-browser", "google-chrome"}

func findChromium() (string, error) {
	if path := os.Getenv("CHROME_PATH"); path != "" {
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("CHROME_PATH names no browser: %w", err)
		}
		return path, nil
	}
	for _, name := range chromiums {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("no Chromium found: install one (apt-get install chromium) or name one with CHROME_PATH; looked for %q in PATH", chromiums)
}
