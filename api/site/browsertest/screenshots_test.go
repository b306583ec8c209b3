package browsertest

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// photographed are the pages of the starter catalogue that TestScreenshots captures, by name. They are of every kind.
var photographed = [][2]string{
	{"home", "/"}, {"search", "/search?q=chart"}, {"search-address", "/search?q=https://unpkg.com/vue@3"}, {"search-nothing", "/search?q=qqqqqq"}, {"search-all", "/search"},
	{"library", "/library/bootstrap"}, {"library-script", "/library/jquery"}, {"library-module", "/library/react"}, {"library-fonts", "/library/font-awesome"},
	{"library-old", "/library/axios/VERSION"}, {"source", "/files/jquery/LATEST/jquery.min.js"}, {"folder", "/files/bootstrap/LATEST"},
	{"compare", "/compare/axios"}, {"recipe", "/recipe/bootstrap/LATEST"}, {"history", "/history/jquery"}, {"history-release", "/history/jquery/LATEST"},
	{"log", "/history"}, {"log-entry", "/history?entry=3"}, {"docs", "/docs"}, {"docs-part", "/docs/libraries"}, {"docs-schemas", "/docs/schemas"},
	{"statistics", "/statistics"}, {"about", "/about"}, {"new", "/new?npm=nanoid"}, {"missing-page", "/libary/jquery"}, {"missing-library", "/library/nope"},
	{"missing-version", "/library/jquery/0.0.9"}, {"badge", "/badge/jquery.svg"},
}

// TestScreenshots captures every page of a running Larder at three widths, light and dark, and a sheet of each page's
// six. LARDER_TEST_SCREENSHOTS names the folder for them, LARDER_TEST_SITE the Larder's address.
func TestScreenshots(t *testing.T) {
	folder, site := os.Getenv("LARDER_TEST_SCREENSHOTS"), os.Getenv("LARDER_TEST_SITE")
	if folder == "" || site == "" {
		t.Skip("needs a running Larder with the starter catalogue; make screenshots says how")
	}
	chromium, err := findChromium()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := launch(chromium)
	defer cancel()
	for _, p := range photographed {
		var sheet strings.Builder
		for _, scheme := range []string{"light", "dark"} {
			for _, width := range []int64{390, 768, 1280} {
				name := fmt.Sprintf("%s-%s-%d.png", p[0], scheme, width)
				if err := capture(ctx, fillVersions(ctx, site, p[1]), scheme, width, filepath.Join(folder, name)); err != nil {
					t.Fatalf("capturing %s: %v", name, err)
				}
				fmt.Fprintf(&sheet, `<img src="%s" width="%d">`, name, width/2)
			}
		}
		file := filepath.Join(folder, "sheet-"+p[0])
		html := `<body style="margin:0;background:#888;display:flex;flex-wrap:wrap;gap:8px;align-items:flex-start">` + sheet.String()
		if err := os.WriteFile(file+".html", []byte(html), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := capture(ctx, "file://"+file+".html", "light", 1240, file+".png"); err != nil {
			t.Fatalf("making the sheet of %s: %v", p[0], err)
		}
	}
}

// fillVersions returns the address of a page with LATEST and VERSION replaced by the first and the last version that its library's picker lists.
func fillVersions(ctx context.Context, site, path string) string {
	for name, option := range map[string]string{"LATEST": "first", "VERSION": "last"} {
		if before, _, ok := strings.Cut(path, "/"+name); ok {
			_ = chromedp.Do(ctx, chromedp.Navigate(site+"/library/"+before[strings.LastIndexByte(before, '/')+1:]))
			version, _ := chromedp.Run(ctx, chromedp.Evaluate[string](`document.querySelector("#version option:`+option+`-child")?.value ?? ""`))
			path = strings.Replace(path, name, cmp.Or(version, name), 1)
		}
	}
	return site + path
}

// capture writes a picture of a page to a file, up to a height of 3,000 pixels.
func capture(ctx context.Context, address, scheme string, width int64, file string) error {
	_, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	})
	if err != nil {
		return err
	}
	if err := chromedp.Do(ctx, chromedp.EmulateViewport(width, 900), chromedp.Navigate(address)); err != nil {
		return err
	}
	height, err := chromedp.Run(ctx, chromedp.Evaluate[float64]("document.documentElement.scrollHeight"))
	if err != nil {
		return err
	}
	shot, err := chromedp.Call(ctx, cdppage.CaptureScreenshot, cdppage.CaptureScreenshotParams{
		Format: cdppage.CaptureScreenshotFormatPng, CaptureBeyondViewport: new(true),
		Clip: &cdppage.Viewport{Width: float64(width), Height: min(height, 3000), Scale: 1},
	})
	if err != nil {
		return err
	}
	return os.WriteFile(file, shot.Data, 0o600)
}
