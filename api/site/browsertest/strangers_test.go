package browsertest

import (
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	frames "github.com/chromedp/cdproto/page"
)

// strangers is a release whose documents try what they may do, and the hosts of an instance that has
// it: one for files, one for the site, and an address, under which it answers for both.
type strangers struct {
	*instance
	files, site string
}

const (
	gallery      = "/ajax/libs/gallery/1.0.0/"
	galleryFiles = "testdata/strangers/releases/gallery/1.0.0"
)

var sharedStrangers struct {
	once sync.Once
	strangers
	err error
}

// openStrangers starts the instance.
func openStrangers(t *testing.T) *strangers {
	t.Helper()
	other, _ := open(t)
	s := &sharedStrangers
	s.once.Do(func() {
		data, catalogue := filepath.Join(shared.folder, "strangers"), []string{"--catalogue", "testdata/strangers/catalogue"}
		if out, err := larder(other.binary, data, append([]string{"import", "gallery", "1.0.0", galleryFiles}, catalogue...)...).CombinedOutput(); err != nil {
			s.err = fmt.Errorf("larder import: %w\n%s", err, out)
			return
		}
		if s.instance, s.err = serve(other.binary, data, append(catalogue, "--asset-base", "http://files.test", "--site-base", "http://site.test")...); s.err != nil {
			return
		}
		shared.cleanup = append(shared.cleanup, s.stop)
		s.files = strings.Replace(s.address, "127.0.0.1", "files.test", 1)
		s.site = strings.Replace(s.address, "127.0.0.1", "site.test", 1)
	})
	if s.err != nil {
		t.Fatal(s.err)
	}
	return &s.strangers
}

// tab opens a tab that may ask all hosts of the instance, and whose console may say what it likes.
func (s *strangers) tab(t *testing.T) *tab {
	b := newTabOn(t, s.instance)
	b.allow(s.files)
	b.allow(s.site)
	return b
}

// attempts is what a document got of a site.
type attempts map[string]string

// wantRefused checks that the document got nothing.
func (got attempts) wantRefused(t *testing.T, site string) {
	t.Helper()
	if got["ranAs"] != "null" {
		t.Errorf("the document runs with the origin %q", got["ranAs"])
	}
	for _, what := range []string{"reads", "credentials", "cookie", "storage", "databases", "address", "opens", "serviceWorker", "leads"} {
		if !strings.HasPrefix(got[what], "failed: ") {
			t.Errorf("%s of %s: %q", what, site, got[what])
		}
	}
}

// A published page that is opened by itself reads nothing of the site. Where files have a host of their
// own it does not take the site's address either; else it may show any path of the one host.
func TestStrangersPage(t *testing.T) {
	t.Parallel()
	s := openStrangers(t)
	for name, at := range map[string]struct{ files, site string }{
		"two hosts": {s.files, s.site},
		"one host":  {s.address, s.address},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := s.tab(t)
			b.tolerate(".")
			b.visit(at.files + gallery + "intruder.html")
			got := eval[attempts](b, fmt.Sprintf("intrude(%q)", at.site))
			got["ranAs"] = eval[string](b, "ranAs")
			if at.files == at.site {
				got["address"] = "failed: "
			} else if where := eval[string](b, "location.href"); where != at.files+gallery+"intruder.html" {
				t.Errorf("the address is %s", where)
			}
			got.wantRefused(t, at.site)
		})
	}
}

// A page that frames a published one is as it was.
func TestStrangersPageInFrame(t *testing.T) {
	t.Parallel()
	s := openStrangers(t)
	b := s.tab(t)
	b.tolerate(".")
	around := elsewhere(t, fmt.Sprintf(`<iframe src=%q title="A stranger's page"></iframe><script>
addEventListener("message", e => { window.got = { ...e.data, from: e.origin } })
document.querySelector("iframe").onload = e => e.target.contentWindow.postMessage(%q, "*")
</script>`, s.files+gallery+"intruder.html", s.site))
	b.allow(around.URL)
	b.visit(around.URL + "/")
	b.until("window.got")
	got := eval[attempts](b, "got")
	got.wantRefused(t, s.site)
	if got["from"] != "null" {
		t.Errorf("its messages are from %s", got["from"])
	}
	if where := eval[string](b, "location.href"); where != around.URL+"/" {
		t.Errorf("the page went to %s", where)
	}
}

// The scripts of other documents do not run with the origin of a host either.
func TestStrangersDocuments(t *testing.T) {
	t.Parallel()
	s := openStrangers(t)
	b := s.tab(t)
	b.tolerate("favicon")
	for _, base := range []string{s.files, s.address} {
		for _, name := range []string{"mark.svg", "page.xhtml"} {
			b.visit(base + gallery + name)
			if origin := eval[string](b, "globalThis.ranAs"); origin != "null" {
				t.Errorf("%s ran with the origin %q", base+gallery+name, origin)
			}
		}
	}
	// A transformation is of another origin than the document, so that it does not happen.
	other := s.tab(t)
	other.tolerate(".")
	other.visit(s.files + gallery + "styled.xml")
	if eval[bool](other, `document.documentElement?.textContent.includes("Transformed") ?? false`) {
		t.Error("an XML file was transformed: the docs say otherwise")
	}
}

// Neither host answers for what is the other's.
func TestHostsApart(t *testing.T) {
	t.Parallel()
	s := openStrangers(t)
	b := s.tab(t)
	b.tolerate("404|Cross-Origin-Opener-Policy") // the latter wants TLS
	for target, want := range map[string]int64{
		s.site + "/library/gallery": 200, s.site + gallery + "intruder.html": 404, s.files + gallery + "intruder.html": 200, s.files + "/library/gallery": 404,
		s.address + "/library/gallery": 200, s.address + gallery + "gallery.js": 200,
	} {
		if status := b.goTo(target); status != want {
			t.Errorf("%s: %d, want %d", target, status, want)
		}
	}
}

// A viewer with scripts, modules, styles, fonts, images and a worker of its release works by itself.
func TestStrangersViewer(t *testing.T) {
	t.Parallel()
	s := openStrangers(t)
	b := s.tab(t)
	for _, base := range []string{s.files, s.address} {
		b.visit(base + gallery + "viewer/viewer.html")
		b.until("window.seen?.done")
		got, _ := json.Marshal(eval[map[string]any](b, "seen"))
		if want := `{"data":2,"dialog":true,"done":true,"font":true,"picture":"data:image/png;","room":"a room","script":"script","style":"7px","worker":21}`; string(got) != want {
			t.Errorf("it shows %s\nwant     %s", got, want)
		}
	}
}

// integrity is that of a file of the gallery.
func integrity(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(galleryFiles, name))
	if err != nil {
		t.Fatal(err)
	}
	sum := sha512.Sum512(data)
	return "sha512-" + base64.StdEncoding.EncodeToString(sum[:])
}

// From the host of files, another site loads all that pages are made of, with integrity.
func TestFilesElsewhere(t *testing.T) {
	t.Parallel()
	s := openStrangers(t)
	b := s.tab(t)
	base := s.files + gallery
	link := func(format, name string) string {
		return fmt.Sprintf(format, base+name, integrity(t, name))
	}
	around := elsewhere(t, link(`<script src=%q integrity=%q crossorigin="anonymous"></script>`, "gallery.js")+
		link(`<link rel="stylesheet" href=%q integrity=%q crossorigin="anonymous">`, "gallery.css")+
		fmt.Sprintf(`<script type="importmap">{"imports": {"hall": %[1]q}, "integrity": {%[1]q: %[2]q, %[3]q: %[4]q}}</script>`,
			base+"hall.mjs", integrity(t, "hall.mjs"), base+"room.mjs", integrity(t, "room.mjs"))+
		`<script type="module">import room from "hall"; window.room = room</script>`+
		link(`<script type="module" src=%q integrity=%q crossorigin="anonymous"></script>`, "room.mjs")+
		fmt.Sprintf(`<p class="gallery">Text</p><img src=%q alt="Mark">`, base+"mark.svg"))
	b.allow(around.URL)
	b.visit(around.URL + "/")
	b.until(`window.gallery === "script" && window.room === "a room"`)
	b.until(`getComputedStyle(document.querySelector(".gallery")).borderBottomWidth === "7px"`)
	b.until(`document.fonts.ready.then(fonts => Array.from(fonts).some(f => f.family.includes("Gallery Marks") && f.status === "loaded"))`)
	b.until(`document.querySelector("img").naturalWidth === 20`)
	if eval[bool](b, "'ranAs' in window") {
		t.Error("the script of an image ran")
	}
	// The developer's tools fetch source maps.
	frame := call(b, frames.GetFrameTree, cdp.Empty{}).FrameTree.Frame.ID
	got := call(b, network.LoadNetworkResource, network.LoadNetworkResourceParams{FrameID: frame, URL: base + "gallery.js.map", Options: &network.LoadNetworkResourceOptions{}})
	if !got.Resource.Success || got.Resource.HTTPStatusCode != http.StatusOK {
		t.Errorf("the source map: %+v", got.Resource)
	}
	if names := eval[string](b, fmt.Sprintf(`fetch(%q, {integrity: %q}).then(r => r.json()).then(m => m.sources[0])`, base+"gallery.js.map", integrity(t, "gallery.js.map"))); names != "gallery.ts" {
		t.Errorf("the source map names %s", names)
	}
}
