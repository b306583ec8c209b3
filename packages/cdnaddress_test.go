package packages

import "testing"

// TestParseCDNAddress tests what the addresses at public CDNs say, and that those that name no file of a release are refused.
func TestParseCDNAddress(t *testing.T) {
	for address, want := range map[string]CDNAddress{
		"https://cdnjs.cloudflare.com/ajax/libs/Chart.js/4.4.1/chart.umd.min.js":              {Library: "Chart.js", Version: "4.4.1", File: "chart.umd.min.js"},
		"http://CDNJS.cloudflare.com/ajax/libs/d3/3.5.17/sub/a%20b.js?v=1":                    {Library: "d3", Version: "3.5.17", File: "sub/a b.js"},
		"https://cdn.jsdelivr.net/npm/bootstrap@5.3.3/dist/css/bootstrap.min.css":             {NPM: "bootstrap", Version: "5.3.3", NPMFile: "dist/css/bootstrap.min.css"},
		"https://fastly.jsdelivr.net/npm/%40popperjs/core@2.11.8/dist/umd/popper.min.js":      {NPM: "@popperjs/core", Version: "2.11.8", NPMFile: "dist/umd/popper.min.js"},
		"https://unpkg.com/@popperjs/core@2":                                                  {NPM: "@popperjs/core", Version: "2"},
		"https://unpkg.com/react":                                                             {NPM: "react"},
		"https://unpkg.com/vue@^3.1/dist/vue.js":                                              {NPM: "vue", Version: "^3.1", NPMFile: "dist/vue.js"},
		"https://code.jquery.com/jquery-3.7.1.slim.min.js":                                    {Library: "jquery", NPM: "jquery", Version: "3.7.1", File: "jquery.slim.min.js", NPMFile: "dist/jquery.slim.min.js"},
		"https://code.jquery.com/jquery-4.0.0-beta.2.js":                                      {Library: "jquery", NPM: "jquery", Version: "4.0.0-beta.2", File: "jquery.js", NPMFile: "dist/jquery.js"},
		"https://code.jquery.com/jquery-migrate-3.4.1.min.js":                                 {Library: "jquery-migrate", NPM: "jquery-migrate", Version: "3.4.1", File: "jquery-migrate.min.js", NPMFile: "dist/jquery-migrate.min.js"},
		"https://code.jquery.com/ui/1.13.2/themes/base/jquery-ui.css":                         {Library: "jqueryui", NPM: "jquery-ui", Version: "1.13.2", File: "themes/base/jquery-ui.css", NPMFile: "dist/themes/base/jquery-ui.css"},
		"https://code.jquery.com/mobile/1.4.5/jquery.mobile-1.4.5.min.js":                     {Library: "jquery-mobile", NPM: "jquery-mobile", Version: "1.4.5", File: "jquery.mobile.min.js", NPMFile: "dist/jquery.mobile.min.js"},
		"https://code.jquery.com/qunit/qunit-2.19.4.css":                                      {Library: "qunit", NPM: "qunit", Version: "2.19.4", File: "qunit.css", NPMFile: "dist/qunit.css"},
		"https://ajax.googleapis.com/ajax/libs/angularjs/1.8.2/angular.min.js":                {Library: "angular.js", Version: "1.8.2", File: "angular.min.js"},
		"https://ajax.googleapis.com/ajax/libs/jqueryui/1.13.2/themes/base/jquery-ui.css#top": {Library: "jqueryui", Version: "1.13.2", File: "themes/base/jquery-ui.css"},
	} {
		if got, ok := ParseCDNAddress(address); !ok || got != want {
			t.Errorf("%s: %+v, %v, want %+v", address, got, ok, want)
		}
	}
	for _, other := range []string{
		"", "%", "https://cdn.example.com/ajax/libs/d3/3.5.17/d3.js", "ftp://unpkg.com/d3@7.0.0/d3.js", "https://unpkg.com/", "https://unpkg.com/d3@7.0.0/../x.js",
		"https://unpkg.com/d3@7.0.0/%2e%2e/x.js", "https://unpkg.com/@scope", "https://unpkg.com/@scope/@1.0.0/x.js", "https://unpkg.com/d3@7.0.0/a%5Cb.js", "https://cdn.jsdelivr.net/gh/twbs/bootstrap@5.3.3/dist/js/bootstrap.js",
		"https://cdn.jsdelivr.net/npm/jquery@3.7.1,npm/d3@7", "https://cdn.jsdelivr.net/combine/npm/a@1.0.0/a.js", "https://jsdelivr.net.example/npm/d3@7.0.0/d3.js",
		"https://cdnjs.cloudflare.com/ajax/libs/d3/3.5.17/", "https://cdnjs.cloudflare.com/ajax/libs/d3", "https://cdnjs.cloudflare.com/ajax/libs//3.5.17/d3.js",
		"https://code.jquery.com/jquery.js", "https://code.jquery.com/other/x-1.0.0.js", "https://code.jquery.com/jquery-3.7.1.min.map", "https://code.jquery.com/ui/1.13.2/",
	} {
		if got, ok := ParseCDNAddress(other); ok {
			t.Errorf("%s: %+v", other, got)
		}
	}
	for version, exact := range map[string]bool{"1.2.3": true, "1.2.3-rc.1": true, "1.2.3+build": true, "": false, "latest": false, "1": false, "^1.2.3": false, "1.2": false, "1.2.3/": false} {
		if got := (CDNAddress{NPM: "a", Version: version}).IsExact(); got != exact {
			t.Errorf("npm version %q: exact %v", version, got)
		}
	}
	if got := (CDNAddress{Library: "a", Version: "r128"}).IsExact(); !got {
		t.Error("cdnjs has versions that are not semantic")
	}
}
