package api

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/internal/text"
)

func TestLibrary(t *testing.T) {
	s := newService(t)
	file := func(name, content string) string { return fmt.Sprintf("%q:%q", name, sri(content)) }
	assets := `[{"version":"3.7.1","files":["jquery.js","jquery.min.js","jquery.min.map","sub/.css"],` +
		`"rawFiles":["LICENSE","README.md","UPPER.JS","jquery.js","jquery.min.js","jquery.min.map","sub/.css","sub/folder.js/none"],"sri":{` +
		strings.Join([]string{file("LICENSE", "free"), file("README.md", "#"), file("UPPER.JS", "up"), file("jquery.js", "long 3.7.1"), file("jquery.min.js", "min 3.7.1"),
			file("jquery.min.map", "{}"), file("sub/.css", "dot"), file("sub/folder.js/none", "none")}, ",") + `}}]`
	jquery := `{"name":"jquery","latest":"https://assets.example/ajax/libs/jquery/3.7.1/jquery.min.js","sri":"` + sri("min 3.7.1") + `",` +
		`"filename":"jquery.min.js","description":"The <b>DOM</b> & more.","version":"3.7.1","keywords":["dom","ajax"],"homepage":"https://jquery.example/",` +
		`"license":"MIT","repository":{"type":"git","url":"https://github.com/jquery/jquery.git"},"author":"A. Author <a@example.com> (https://a.example/),B. Author",` +
		`"autoupdate":{"source":"npm","target":"jquery"},"versions":["4.0.0-beta.2","4.0.0-beta","3.7.1","3.7.0","1.10.0","1.9.0","r100","r20","v1.3","1.2"],"assets":` + assets + `}`
	for _, tt := range []struct{ target, want string }{
		{"/libraries/jquery", jquery},
		{"/libraries/jquery?fields=*", jquery},
		{"/libraries/jquery?fields=name,*", jquery},
		{"/libraries/jquery?fields=", jquery},
		{"/libraries/jquery?fields=,+,", jquery},
		{"/libraries/jquery?output=human&utm=x", jquery},
		{"/libraries/jquery?fields=name", `{"name":"jquery"}`},
		{"/libraries/jquery?fields=Version,NAME", `{"name":"jquery","version":"3.7.1"}`},
		{"/libraries/jquery?fields=name+version", `{"name":"jquery","version":"3.7.1"}`},
		{"/libraries/jquery?fields=name%20version", `{"name":"jquery","version":"3.7.1"}`},
		{"/libraries/jquery?fields=name&fields=version", `{"name":"jquery","version":"3.7.1"}`},
		{"/libraries/jquery?fields=name,license+version&fields=x&fields=filename", `{"name":"jquery","filename":"jquery.min.js","version":"3.7.1","license":"MIT"}`},
		{"/libraries/jquery?fields=name,name", `{"name":"jquery"}`},
		{"/libraries/jquery?fields=unknown", `{}`},
		{"/libraries/jquery?fields=optimization,authors,fileMap", `{}`},
		{"/libraries/jquery?fields=assets", `{"assets":` + assets + `}`},
		{"/libraries/bare", `{"name":"bare","latest":null,"sri":null,"description":"Nothing is published.","keywords":["bare"],` +
			`"repository":{"type":"git","url":"https://git.example/bare.git"},"versions":[],"assets":[]}`},
		{"/libraries/bare?fields=version,latest,homepage", `{"latest":null}`},
		{"/libraries/mainless", `{"name":"mainless","latest":null,"sri":null,"description":"It has no main file.","version":"1.0.0","keywords":["mainless"],` +
			`"repository":{"type":"git","url":"https://git.example/mainless.git"},"versions":["1.0.0"],"assets":[{"version":"1.0.0","files":["a.css"],"rawFiles":["a.css"],"sri":{` + file("a.css", "a") + `}}]}`},
		{"/libraries/odd?fields=latest,filename,sri", `{"latest":"https://assets.example/ajax/libs/odd/1.0.0+build.1/a%20b%23%3F%2541.js","sri":"` + sri("odd") + `","filename":"a b#?%41.js"}`},
		{"/libraries/gone?fields=version,versions,latest", `{"latest":"https://assets.example/ajax/libs/gone/1.0.0/gone.js","version":"1.0.0","versions":["1.0.0"]}`},
		{"/libraries/hidden?fields=autoupdate", `{"autoupdate":{"source":"git","target":"https://git.example/hidden.git"}}`},
		{"/libraries/%6aquery?fields=name", `{"name":"jquery"}`},

		{"/libraries/jquery/3.7.1", `{"name":"jquery","version":"3.7.1",` + assets[strings.Index(assets, `"rawFiles"`):strings.Index(assets, `,"sri"`)] + `,` +
			assets[strings.Index(assets, `"files"`):strings.Index(assets, `,"rawFiles"`)] + assets[strings.Index(assets, `,"sri"`):len(assets)-1]},
		{"/libraries/jquery/3.7.1?fields=files", `{` + assets[strings.Index(assets, `"files"`):strings.Index(assets, `,"rawFiles"`)] + `}`},
		{"/libraries/jquery/3.7.1?fields=name,version", `{"name":"jquery","version":"3.7.1"}`},
		{"/libraries/jquery/3.7.1?fields=assets", `{}`},
		{"/libraries/mainless/1.0.0?fields=FILES&fields=sri", `{"files":["a.css"],"sri":{` + file("a.css", "a") + `}}`},
		{"/libraries/odd/1.0.0+build.1?fields=version,rawFiles", `{"version":"1.0.0+build.1","rawFiles":["A.js","a b#?%41.js","ünïcødé/文.js"]}`},
		{"/libraries/odd/1.0.0%2Bbuild.1?fields=version", `{"version":"1.0.0+build.1"}`},
		{"/libraries/%6Fdd/1.0.0+build.1?fields=version", `{"version":"1.0.0+build.1"}`},
	} {
		if got := s.get(tt.target); got.status != 200 || got.body != tt.want {
			t.Errorf("%s: %d\n got %s\nwant %s", tt.target, got.status, got.body, tt.want)
		}
	}
}

func TestLibraries(t *testing.T) {
	s := newService(t)
	jquery := `{"name":"jquery","latest":"https://assets.example/ajax/libs/jquery/3.7.1/jquery.min.js","filename":"jquery.min.js","description":"The <b>DOM</b> & more.",` +
		`"version":"3.7.1","keywords":["dom","ajax"],"alternativeNames":[],"fileType":"js","github":{"user":"jquery","repo":"jquery","stargazers_count":59000,"forks":20000,"subscribers_count":3000},"objectID":"jquery","license":"MIT",` +
		`"homepage":"https://jquery.example/","repository":{"type":"git","url":"https://github.com/jquery/jquery.git"},` +
		`"author":"A. Author <a@example.com> (https://a.example/),B. Author","originalName":"jquery","sri":"` + sri("min 3.7.1") + `"}`
	bare := `{"name":"bare","latest":null,"filename":"","description":"Nothing is published.","version":"","keywords":["bare"],"alternativeNames":[],"fileType":"",` +
		`"github":null,"objectID":"bare","license":"","homepage":"","repository":{"type":"git","url":"https://git.example/bare.git"},"author":"","originalName":"bare","sri":""}`
	one := func(result string) string { return `{"results":[` + result + `],"total":1,"available":1}` }
	const short = `{"name":"jquery","latest":"https://assets.example/ajax/libs/jquery/3.7.1/jquery.min.js"}`
	const first = `{"results":[{"name":"odd","latest":"https://assets.example/ajax/libs/odd/1.0.0+build.1/a%20b%23%3F%2541.js"}],"total":1,"available":7}`
	for _, tt := range []struct{ target, want string }{
		{"/libraries?search=jquery&fields=*", one(jquery)},
		{"/libraries?search=bare&fields=*", one(bare)},
		{"/libraries?search=jquery", one(short)},
		{"/libraries?search=jquery&fields=", one(short)},
		{"/libraries?search=jquery&fields=name", one(short)},
		{"/libraries?search=jquery&fields=unknown,assets,versions", one(short)},
		{"/libraries?search=jquery&fields=filetype+VERSION&fields=objectid,+sri", one(short[:len(short)-1] + `,"version":"3.7.1","fileType":"js","objectID":"jquery","sri":"` + sri("min 3.7.1") + `"}`)},
		{"/libraries?search=jquery&search=bare", one(short)},
		{"/libraries?search=jquery&limit=0", one(short)},
		{"/libraries?search=jquery&limit=99999999999999999999999", one(short)},
		{"/libraries?search=jquery&limit=", one(short)},
		{"/libraries?search=jquery&output=human", one(short)},
		{"/libraries?search=jquery;&fields=name", one(short)},
		{"/libraries?search=zzzzqqqq", `{"results":[],"total":0,"available":0}`},
		{"/libraries?search=hidden", `{"results":[],"total":0,"available":0}`},
		{"/libraries?limit=1", first},
		{"/libraries?limit=001&search=", first},
		{"/libraries?limit=1&limit=x&search=+", first},
		{"/libraries?limit=+1&search=", first},
		{"/libraries?search=jquery%", one(short)},
		{"/libraries?search=%jquery%zz&search_fields=%&fields=%c3", one(short)},
		{"/libraries?search=%ff", `{"results":[],"total":0,"available":0}`},
	} {
		if got := s.get(tt.target); got.status != 200 || got.body != tt.want {
			t.Errorf("%s: %d\n got %s\nwant %s", tt.target, got.status, got.body, tt.want)
		}
	}
	for _, limit := range []string{"abc", "-1", "1.5", "0x10", "1e3", "%D9%A1", "%", "%ff", "0"} {
		if got, all := s.get("/libraries?limit="+limit), s.get("/libraries"); got.status != 200 || got.body != all.body {
			t.Errorf("limit=%s: %d %.100s", limit, got.status, got.body)
		}
	}
	type libraries struct {
		Results          []map[string]any
		Total, Available int
	}
	all := decode[libraries](t, s.get("/libraries?fields=version"))
	var names []string
	for _, r := range all.Results {
		names = append(names, r["name"].(string))
		if len(r) != 3 {
			t.Errorf("a result has %v", r)
		}
	}
	// By popularity, then by how many versions there are, those without a file last.
	if !slices.Equal(names, []string{"odd", "jquery", "font-awesome", "gone", "mainless", "bare", "hidden"}) || all.Total != 7 || all.Available != 7 {
		t.Errorf("all are %v, %d of %d", names, all.Total, all.Available)
	}
	for _, query := range []string{"font%20awesome", "fontawesome", "font-awesome", "font", "fnot-awesome"} {
		if got := decode[libraries](t, s.get("/libraries?search="+query)); got.Available == 0 || got.Results[0]["name"] != "font-awesome" {
			t.Errorf("%s finds %v", query, got)
		}
	}
	for fields, found := range map[string]bool{
		"description": true, "DESCRIPTION": true, "name": false, "keywords,filename": false, "name+description": true, "*": true,
		"unknown": true, "": true, "github.repo": false, "name&search_fields=description": true, "unknown,name": false,
	} {
		if got := decode[libraries](t, s.get("/libraries?search=icons&search_fields="+fields)); (got.Available == 1) != found {
			t.Errorf("in %s finds %v", fields, got)
		}
	}
}

func TestLongSearch(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{strings.Repeat("a", 512), strings.Repeat("a", 512)},
		{strings.Repeat("a", 513), strings.Repeat("a", 512)},
		{strings.Repeat("a", 511) + "é", strings.Repeat("a", 511)},
		{strings.Repeat("a", 510) + "é", strings.Repeat("a", 510) + "é"},
		{strings.Repeat("a", 509) + "😀", strings.Repeat("a", 509)},
		{"", ""},
	} {
		equal(t, "cut", text.Cut(tt.text, maxSearch), tt.want)
	}
	s := newService(t)
	if got := s.get("/libraries?search=" + strings.Repeat("%C3%A9", 600)); got.status != 200 {
		t.Errorf("a long search: %d", got.status)
	}
}
