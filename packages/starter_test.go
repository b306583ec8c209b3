package packages

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"
)

func TestStarter(t *testing.T) {
	c := Starter()
	for _, refused := range c.Problems() {
		t.Error(refused)
	}
	for _, name := range []string{
		"jquery", "vue", "react", "react-dom", "bootstrap", "lodash.js", "d3", "three.js", "font-awesome",
		"Chart.js", "moment.js", "htmx", "alpinejs", "axios", "animate.css", "normalize", "popper.js",
	} {
		if _, ok := c.Get(name); !ok {
			t.Errorf("%s is not among the packages", name)
		}
	}
	for _, p := range c.Packages() {
		for _, problem := range append(p.Warnings, p.CheckNew()...) {
			t.Errorf("%s: %v", p.Name, problem)
		}
		if p.Homepage == "" || p.License == "" || len(p.Authors) == 0 {
			t.Errorf("%s: homepage, license or authors are missing", p.Name)
		}
		if p.Autoupdate.Source != "npm" {
			t.Errorf("%s: a release can come from npm only", p.Name)
		}
		if !p.IgnoresVersion("1.0.0-beta.1") || p.IgnoresVersion("1.0.0") {
			t.Errorf("%s: stable releases only, please", p.Name)
		}
		if _, err := fs.Stat(starterFS, "starter/"+Path(p.Name)); err != nil {
			t.Error(err)
		}
	}
	if !slices.IsSortedFunc(c.Packages(), func(a, b *Package) int { return strings.Compare(a.Name, b.Name) }) {
		t.Error("the packages are not sorted by name")
	}
}

func TestStarterReactStopsAtItsLastUMD(t *testing.T) {
	for _, name := range []string{"react", "react-dom"} {
		p, _ := Starter().Get(name)
		for version, ignored := range map[string]bool{
			"18.3.1": false, "16.14.0": false, "19.0.0": true, "19.3.1": true, "20.0.0": true, "0.0.0-experimental-1": true,
		} {
			if p.IgnoresVersion(version) != ignored {
				t.Errorf("%s %s: ignored is %v", name, version, !ignored)
			}
		}
	}
}

func ExamplePackage_Select() {
	jquery, _ := Starter().Get("jquery")
	for _, file := range jquery.Select([]string{"package.json", "dist/jquery.js", "dist/jquery.min.js", "src/jquery.js"}) {
		fmt.Println(file.Path, "from", file.Source)
	}
	// Output:
	// jquery.js from dist/jquery.js
	// jquery.min.js from dist/jquery.min.js
}
