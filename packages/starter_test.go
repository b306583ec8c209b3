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
		"Chart.js", "moment.js", "htmx", "alpinejs", "axios", "animate.css", "normalize", "popper.js", "scheduler",
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

// TestStarterReact holds that React, which has no file for browsers since version 19, comes with modules, and so does what these import.
func TestStarterReact(t *testing.T) {
	for _, name := range []string{"react", "react-dom", "scheduler"} {
		p, _ := Starter().Get(name)
		if p.Autoupdate.Modules == nil || !p.MayBuild(p.Filename) || p.IgnoresVersion("19.2.0") || !p.IgnoresVersion("0.0.0-experimental-1") {
			t.Errorf("%s: %+v", name, p.Autoupdate)
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
