package browsertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/audits"
	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/storage"
	"github.com/chromedp/chromedp"
)

// timeout is how long a test waits for a condition before it fails, long enough for a machine that runs other tests beside it.
// A test checks the condition every checkInterval at first, and every maxCheckInterval at last.
const (
	timeout          = 2 * time.Minute
	checkInterval    = 10 * time.Millisecond
	maxCheckInterval = 200 * time.Millisecond
)

// A profile is a page of the browser with cookies, storage and cache of its own. To open one and to show its first page
// costs about ten times as much as to show the next, so that tests use it one after the other; reset makes it new again.
type profile struct {
	ctx    context.Context
	cancel context.CancelFunc
	tab    atomic.Pointer[tab] // of the test that uses it
}

// idle has the profiles that no test uses.
var idle struct {
	sync.Mutex
	profiles []*profile
}

// openProfile returns a profile that is new or reset.
func openProfile(browser context.Context) (*profile, error) {
	idle.Lock()
	if last := len(idle.profiles) - 1; last >= 0 {
		p := idle.profiles[last]
		idle.profiles = idle.profiles[:last]
		idle.Unlock()
		return p, nil
	}
	idle.Unlock()
	p := &profile{}
	p.ctx, p.cancel = chromedp.NewContext(browser, chromedp.WithNewBrowserContext(), chromedp.WithListener(func(event any) {
		if b := p.tab.Load(); b != nil {
			b.watch(event)
		}
	}))
	return p, chromedp.Do(p.ctx) // the page lives as long as the context that it is opened with
}

// reset leaves the page and removes what a test may have left in the profile, at the origins that it visited. The cache keeps
// responses of the shared instance. reset navigates to a page of that instance, because an empty page would need another process.
func (p *profile) reset(origins []string) error {
	ctx, cancel := context.WithTimeout(p.ctx, timeout)
	defer cancel()
	blank, emptyCache := shared.instance.address+"/robots.txt", false
	for _, origin := range origins {
		if origin != shared.instance.address && origin != shared.instance.private {
			blank, emptyCache = "about:blank", true
		}
	}
	err := chromedp.Do(ctx, chromedp.Navigate(blank), chromedp.MouseEvent(input.DispatchMouseEventTypeMouseMoved, 0, 0))
	if err == nil && !emptyCache {
		_, err = chromedp.Run(ctx, chromedp.Evaluate[bool]("sessionStorage.clear(), true"))
	}
	if err == nil {
		_, err = chromedp.Call(ctx, cdppage.ResetNavigationHistory, cdp.Empty{})
	}
	if err == nil && emptyCache {
		_, err = chromedp.Call(ctx, network.ClearBrowserCache, cdp.Empty{})
	}
	if err != nil {
		return err
	}
	id := chromedp.FromContext(p.ctx).BrowserContextID
	for _, origin := range origins {
		_, err := chromedp.Call(ctx, storage.ClearDataForOrigin, storage.ClearDataForOriginParams{Origin: origin, StorageTypes: "all"})
		if err != nil {
			return err
		}
	}
	_, cookies := chromedp.CallBrowser(ctx, storage.ClearCookies, storage.ClearCookiesParams{BrowserContextID: id})
	_, permissions := chromedp.CallBrowser(ctx, browser.ResetPermissions, browser.ResetPermissionsParams{BrowserContextID: id})
	_, size := chromedp.Call(ctx, emulation.ClearDeviceMetricsOverride, cdp.Empty{})
	_, touch := chromedp.Call(ctx, emulation.SetTouchEmulationEnabled, emulation.SetTouchEmulationEnabledParams{})
	_, media := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{})
	return errors.Join(cookies, permissions, size, touch, media)
}

// A tab is a page in a profile that no other test uses meanwhile. It watches what the page asks the
// network for and what it complains of; the test fails of either at its end.
type tab struct {
	*testing.T
	ctx     context.Context
	altered bool   // the profile is closed after the test
	address string // of the instance
	private string // its address for the operator

	mu         sync.Mutex
	origins    []string // that may be asked
	foreign    []string // requests to others
	complaints []string // of the console
	tolerated  []*regexp.Regexp
}

// newTab opens a tab on the shared instance.
func newTab(t *testing.T) *tab {
	t.Helper()
	instance, _ := open(t)
	return newTabOn(t, instance)
}

// newTabOn opens a tab in which requests to the instance are right.
func newTabOn(t *testing.T, instance *instance) *tab {
	t.Helper()
	_, browser := open(t)
	b := &tab{T: t, address: instance.address, private: instance.private, origins: []string{instance.address, instance.private}}
	p, err := openProfile(browser)
	if err != nil {
		t.Fatal(err)
	}
	b.ctx = p.ctx
	p.tab.Store(b)
	t.Cleanup(func() {
		p.tab.Store(nil)
		b.report()
		if t.Failed() || b.altered || p.reset(b.origins) != nil {
			p.cancel()
			return
		}
		idle.Lock()
		defer idle.Unlock()
		idle.profiles = append(idle.profiles, p)
	})
	call(b, audits.Enable, cdp.Empty{})
	// A tab behind others gets neither focus nor animation frames.
	call(b, emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true})
	return b
}

// another opens another tab of the same profile, which closes with the test.
func (b *tab) another() *tab {
	b.Helper()
	other := &tab{T: b.T, address: b.address, private: b.private, origins: b.origins}
	ctx, cancel := chromedp.NewContext(b.ctx, chromedp.WithListener(other.watch))
	b.Cleanup(cancel)
	b.Cleanup(other.report)
	other.ctx = ctx
	if err := chromedp.Do(ctx); err != nil {
		b.Fatal(err)
	}
	return other
}

// watch runs in the loop that reads the browser's messages, and must not ask anything.
func (b *tab) watch(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		b.check(e.Request.URL)
	case *network.EventWebSocketCreated:
		b.check(e.URL)
	case *runtime.EventExceptionThrown:
		b.complaints = append(b.complaints, (&chromedp.ExceptionError{ExceptionDetails: e.ExceptionDetails}).Error())
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning {
			text, _ := json.Marshal(e.Args)
			b.complaints = append(b.complaints, fmt.Sprintf("console.%s: %s", e.Type, text))
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning {
			b.complaints = append(b.complaints, fmt.Sprintf("%s: %s (%s)", e.Entry.Source, e.Entry.Text, e.Entry.URL))
		}
	case *audits.EventIssueAdded:
		if csp := e.Issue.Details.ContentSecurityPolicyIssueDetails; csp != nil {
			b.complaints = append(b.complaints, fmt.Sprintf("content security policy: %s violated by %q", csp.ViolatedDirective, csp.BlockedURL))
		}
	}
}

func (b *tab) check(address string) {
	u, err := url.Parse(address)
	if err != nil {
		b.foreign = append(b.foreign, address)
		return
	}
	switch u.Scheme {
	case "data", "blob", "about":
		return // no request
	}
	if !slices.Contains(b.origins, u.Scheme+"://"+u.Host) {
		b.foreign = append(b.foreign, address)
	}
}

// tolerate says which complaints of the console the story is about.
func (b *tab) tolerate(pattern string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tolerated = append(b.tolerated, regexp.MustCompile(pattern))
}

// complained reports whether the console has said something like it.
func (b *tab) complained(pattern string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(b.complaints, regexp.MustCompile(pattern).MatchString)
}

// allow says that requests to an origin are right.
func (b *tab) allow(origin string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.origins = append(b.origins, origin)
}

func (b *tab) report() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, address := range b.foreign {
		b.Errorf("the page asked for %s", address)
	}
	for _, complaint := range b.complaints {
		if !slices.ContainsFunc(b.tolerated, func(r *regexp.Regexp) bool { return r.MatchString(complaint) }) {
			b.Errorf("the console says: %s", complaint)
		}
	}
}

// do runs actions, within the time that anything may take.
func (b *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, timeout)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.Fatal(err)
	}
}

// call sends one command of the protocol.
func call[P, R any](b *tab, command cdp.Command[P, R], params P) R {
	b.Helper()
	result, err := tryCall(b, command, params)
	if err != nil {
		b.Fatalf("%s: %v", command.Method, err)
	}
	return result
}

// alter is call for commands that change what reset does not change back.
func alter[P, R any](b *tab, command cdp.Command[P, R], params P) {
	b.Helper()
	b.altered = true
	call(b, command, params)
}

func tryCall[P, R any](b *tab, command cdp.Command[P, R], params P) (R, error) {
	ctx, cancel := context.WithTimeout(b.ctx, timeout)
	defer cancel()
	return chromedp.Call(ctx, command, params)
}

// goTo loads a path of the instance, or a whole URL, and returns the answer's status.
func (b *tab) goTo(target string) int64 {
	b.Helper()
	switch {
	case strings.HasPrefix(target, "/rooms"): // for the operator
		target = b.private + target
	case strings.HasPrefix(target, "/"):
		target = b.address + target
	}
	ctx, cancel := context.WithTimeout(b.ctx, timeout)
	defer cancel()
	response, err := chromedp.Run(ctx, chromedp.NavigateResponse(target))
	if err != nil {
		b.Fatalf("%s: %v", target, err)
	}
	if response == nil {
		b.Fatalf("%s: no answer", target)
	}
	return response.Status
}

// visit is goTo for a page that must be there.
func (b *tab) visit(target string) {
	b.Helper()
	if status := b.goTo(target); status != 200 {
		b.Fatalf("%s answers %d", target, status)
	}
}

// eval returns what a JavaScript expression is worth; promises are awaited.
func eval[T any](b *tab, expression string) T {
	b.Helper()
	v, err := tryEval[T](b, expression)
	if err != nil {
		b.Fatalf("%s: %v", expression, err)
	}
	return v
}

func tryEval[T any](b *tab, expression string) (T, error) {
	ctx, cancel := context.WithTimeout(b.ctx, timeout)
	defer cancel()
	return chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
}

// until waits for a JavaScript expression to be true, on this page or the next.
func (b *tab) until(expression string) {
	b.Helper()
	b.wait(expression, func() bool {
		ok, err := tryEval[bool](b, "(async () => Boolean(await ("+expression+")))()")
		return err == nil && ok // on the way to another page there is nothing to ask
	})
}

// says waits for the main part of the page to have a text that the pattern matches,
// whatever its case.
func (b *tab) says(pattern string) {
	b.Helper()
	source, _ := json.Marshal(pattern) // strings always encode
	b.until(fmt.Sprintf(`new RegExp(%s, "i").test(document.querySelector("main")?.innerText)`, source))
}

// wait checks again and again whether something is so, until it is. The longer it has waited, the less often it checks.
func (b *tab) wait(what string, so func() bool) {
	b.Helper()
	for start := time.Now(); !so(); time.Sleep(min(checkInterval+time.Since(start)/10, maxCheckInterval)) {
		if time.Since(start) > timeout {
			where, _ := tryEval[string](b, "location.href")
			b.Fatalf("%s: not so after %v, at %s", what, timeout, where)
		}
	}
}

// untilAt waits until the tab shows a path of the instance, ready to be used.
func (b *tab) untilAt(path string) {
	b.Helper()
	b.until(fmt.Sprintf("location.href === %q && document.readyState === 'complete'", b.address+path))
}

// press sends keys to whatever has the focus; the names of keys are in package kb.
func (b *tab) press(keys string, modifiers ...chromedp.Modifier) {
	b.Helper()
	b.do(chromedp.KeyEvent(keys, chromedp.KeyModifiers(modifiers...)))
}

// screen sets the size of the page and whether people prefer dark colours.
func (b *tab) screen(width int64, dark bool) {
	b.Helper()
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	b.do(chromedp.EmulateViewport(width, 900))
	call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	})
	b.until(fmt.Sprintf("innerWidth === %d", width))
}

// clipboardInUse is locked by the test that uses the clipboard, of which the browser has one for all profiles.
var clipboardInUse sync.Mutex

// allowClipboard lets the instance's pages and the test itself use the clipboard.
func (b *tab) allowClipboard() {
	b.Helper()
	for _, name := range []string{"clipboard-read", "clipboard-write"} {
		_, err := chromedp.CallBrowser(b.ctx, browser.SetPermission, browser.SetPermissionParams{
			Permission:       &browser.PermissionDescriptor{Name: name, AllowWithoutSanitization: name == "clipboard-write"},
			Setting:          browser.PermissionSettingGranted,
			Origin:           b.address,
			BrowserContextID: chromedp.FromContext(b.ctx).BrowserContextID,
		})
		if err != nil {
			b.Fatalf("granting %s: %v", name, err)
		}
	}
}

// emptyClipboard removes what other tests have copied.
func (b *tab) emptyClipboard() {
	b.Helper()
	eval[any](b, "navigator.clipboard.writeText('nothing yet')")
}

func (b *tab) clipboard() string {
	b.Helper()
	return eval[string](b, "navigator.clipboard.readText()")
}
