package api

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/packages"
)

// The clients are those that the contract names: each asks in its order, and reads with the types that it has.

// Visual Studio's library manager lists the names, then reads the versions of a library, all of which it parses, then
// the files of one. It takes an answer without "files" for a broken one.
func TestLibraryManager(t *testing.T) {
	s := newService(t)
	list := decode[struct {
		Results []struct{ Name, Description, Version *string }
	}](t, s.get("/libraries?fields=name,description,version"))
	if len(list.Results) == 0 {
		t.Fatal("there are no libraries")
	}
	// It goes on with what is left of a version after its first three numbers, if it begins with such.
	version := regexp.MustCompile(`^v?[0-9A-Za-z][0-9A-Za-z.+-]*$`)
	for _, l := range list.Results {
		if l.Name == nil || l.Description == nil || l.Version == nil {
			t.Fatalf("a result lacks something: %+v", l)
		}
		group := decode[struct {
			Filename string
			Versions []string
		}](t, s.get("/libraries/"+*l.Name+"?fields=filename,versions"))
		if group.Versions == nil {
			t.Errorf("%s has no list of versions", *l.Name)
		}
		for i, v := range group.Versions {
			if !version.MatchString(v) {
				t.Errorf("%s has the version %q", *l.Name, v)
			}
			if i > 0 && packages.CompareVersions(group.Versions[i-1], v) <= 0 {
				t.Errorf("%s has %s before %s", *l.Name, group.Versions[i-1], v)
			}
			files := decode[map[string]json.RawMessage](t, s.get("/libraries/"+*l.Name+"/"+v+"?fields=files"))
			var paths []string
			if err := json.Unmarshal(files["files"], &paths); err != nil || paths == nil || len(files) != 1 {
				t.Errorf("%s %s: files are %s", *l.Name, v, files["files"])
			}
		}
		if *l.Version != "" && !contains(group.Versions, *l.Version) {
			t.Errorf("%s has no version %s", *l.Name, *l.Version)
		}
	}
}

func contains(list []string, want string) bool {
	return strings.Contains("\n"+strings.Join(list, "\n")+"\n", "\n"+want+"\n")
}

// Renovate reads the versions and where the source is, then the integrities of the version that it moves to.
func TestRenovate(t *testing.T) {
	s := newService(t)
	l := decode[struct {
		Homepage   string
		Repository struct{ Type, URL string }
		Versions   []string
	}](t, s.get("/libraries/jquery?fields=homepage,repository,versions"))
	if l.Homepage != "https://jquery.example/" || l.Repository.Type != "git" || l.Repository.URL == "" || len(l.Versions) != 10 {
		t.Errorf("the library is %+v", l)
	}
	v := decode[struct{ SRI map[string]string }](t, s.get("/libraries/jquery/3.7.1?fields=sri"))
	equal(t, "the integrity", v.SRI["jquery.min.js"], sri("min 3.7.1"))
	if got := s.get("/libraries/nothing?fields=homepage,repository,versions"); got.status != 404 {
		t.Errorf("an unknown library: %d", got.status)
	}
}

// The editor extension searches, then reads the library whole: it builds addresses from the version and the files of
// "assets".
func TestEditor(t *testing.T) {
	s := newService(t)
	found := decode[struct {
		Results []struct{ Name, Description, Latest string }
	}](t, s.get("/libraries?search=jqury&fields=name,description,latest"))
	if len(found.Results) == 0 || found.Results[0].Name != "jquery" || found.Results[0].Latest == "" {
		t.Fatalf("found %+v", found)
	}
	l := decode[struct {
		Name, Version, Filename, SRI string
		Assets                       []struct {
			Version string
			Files   []string
			SRI     map[string]string
		}
	}](t, s.get("/libraries/"+found.Results[0].Name))
	if len(l.Assets) != 1 || l.Assets[0].Version != l.Version || !contains(l.Assets[0].Files, l.Filename) || l.Assets[0].SRI[l.Filename] != l.SRI {
		t.Errorf("the library is %+v", l)
	}
	equal(t, "latest", found.Results[0].Latest, assetBase+"/ajax/libs/"+l.Name+"/"+l.Version+"/"+l.Filename)
}
