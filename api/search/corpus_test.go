package search

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// publicCorpus returns the documents of the public catalogue.
func publicCorpus(t testing.TB) []Document {
	t.Helper()
	list, _ := publicCatalogue(t)
	return list
}

// syntheticCorpus returns n documents of made-up words that are as often used as
// words are: a few by nearly all, most by hardly any.
func syntheticCorpus(n int) []Document {
	r := rand.New(rand.NewPCG(1, 2))
	vocabulary := make([]string, 12_000)
	for i := range vocabulary {
		var w strings.Builder
		for range 1 + r.IntN(4) {
			w.WriteByte("bcdfghjklmnprstvwxz"[r.IntN(19)])
			w.WriteByte("aeiou"[r.IntN(5)])
		}
		vocabulary[i] = w.String()
	}
	zipf := rand.NewZipf(r, 1.07, 8, uint64(len(vocabulary)-1))
	some := func(n int) []string {
		list := make([]string, n)
		for i := range list {
			list[i] = vocabulary[zipf.Uint64()]
		}
		return list
	}
	list := make([]Document, n)
	for i := range list {
		name := fmt.Sprintf("%s-%d.js", strings.Join(some(1+r.IntN(3)), "-"), i)
		user := some(1)[0]
		list[i] = Document{
			Name: name, GithubRepo: name, GithubUser: user, Filename: strings.TrimSuffix(name, ".js") + ".min.js",
			Description: strings.Join(some(5+r.IntN(15)), " "), Keywords: some(1 + r.IntN(8)),
			Repositories: []string{"https://github.com/" + user + "/" + name + ".git"}, Maintainers: some(2),
		}
	}
	return list
}

func indexOf(t testing.TB, list []Document) *Index {
	t.Helper()
	x := New()
	x.Update(list, nil)
	return x
}

var benchmarkTexts = []struct{ name, text string }{
	{"exact", "jquery"},
	{"prefix", "boot"},
	{"two", "date picker"},
	{"typo", "boostrap"},
	{"nonsense", "qwzzxkjq"},
	{"a", "a"},
	{"js", "js"},
	{"forty", strings.Repeat("a b c d e f g h i j k l m n o p q r s t ", 2) + "jquery js the a plugin for with and in of to is simple library responsive"},
	{"letters", "a b c d e f g h i j k l m n o p q r s t u v w x y z 0 1 2 3 4 5 6 7 8 9"},
	{"common", "jquery js the a plugin for and to of simple javascript min com github git"},
	{"wrong", "javascrpt libary jqery plugn respnsive slidr compnent framwork tabl editr anmation picker"},
}

func benchmarkSearch(b *testing.B, list []Document) {
	x := indexOf(b, list)
	popularity := func(name string) float64 { return float64(len(name)) }
	for _, q := range benchmarkTexts {
		b.Run(q.name, func(b *testing.B) {
			n := 0
			for b.Loop() {
				found, err := x.Search(b.Context(), Query{Text: q.text, Popularity: popularity})
				if err != nil {
					b.Fatal(err)
				}
				n = len(found)
			}
			b.ReportMetric(float64(n), "found")
		})
	}
}

func BenchmarkSearchPublic(b *testing.B)    { benchmarkSearch(b, publicCorpus(b)) }
func BenchmarkSearchSynthetic(b *testing.B) { benchmarkSearch(b, syntheticCorpus(6_000)) }

func benchmarkBuild(b *testing.B, list []Document) {
	for b.Loop() {
		New().Update(slices.Clone(list), nil)
	}
}

func BenchmarkBuildPublic(b *testing.B)    { benchmarkBuild(b, publicCorpus(b)) }
func BenchmarkBuildSynthetic(b *testing.B) { benchmarkBuild(b, syntheticCorpus(6_000)) }

// TestPublicCorpus looks for real libraries among thousands.
func TestPublicCorpus(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long in one goroutine, where the race detector has nothing to find")
	}
	t.Parallel()
	x, list, _ := publicIndex(t)
	for _, test := range []struct {
		text string
		want string // to be found
		in   int    // among so many first ones
	}{
		{"jquery", "jquery", 1},
		{"jQuery", "jquery", 1},
		{"jqery", "jquery", 1},
		{"query", "jquery", 3},
		{"vuejs", "vue", 1},
		{"vue.js", "vue", 1},
		{"momentjs", "moment.js", 1},
		{"moment", "moment.js", 1},
		{"font animation awesome", "font-awesome-animation", 1},
		{"fontawesome animation", "font-awesome-animation", 1},
		{"fontawsome icon picker", "fontawesome-iconpicker", 1},
		{"highchart", "highcharts", 1},
		{"chart", "Chart.js", 1},
		{"chart js", "Chart.js", 1},
		{"lodash", "lodash.js", 1},
		{"backbone", "backbone.js", 1},
		{"bootstrap", "bootstrap", 1},
		{"boostrap", "bootstrap", 1},
		{"boostrap table", "bootstrap-table", 1},
		{"bootstrap react", "react-bootstrap", 1},
		{"jquery ui", "jqueryui", 1},
		{"jquery-ui", "jqueryui", 1},
		{"date picker", "datepicker", 1},
		{"datpicker", "datepicker", 1},
		{"syntax highlight", "highlight.js", 1},
		{"highlightjs", "highlight.js", 1},
		{"markdown parser", "markdown-it", 3},
		{"carousel", "slick-carousel", 3},
		{"jasmin", "jasmine", 1},
		{"handelbars", "handlebars.js", 1},
		{"underscorejs", "underscore.js", 1},
		{"x editable", "x-editable", 1},
		{"admin lte", "admin-lte", 1},
		{"code editor", "ace", 3},
		{"unit test", "qunit", 3},
		{"d3js", "d3", 1},
		{"vue form", "vue-form", 1},
	} {
		names := find(t, x, Query{Text: test.text})
		if at := slices.Index(names, test.want); at < 0 || at >= test.in {
			t.Errorf("%q: %s is not among the first %d of %d: %q", test.text, test.want, test.in, len(names), names[:min(len(names), 8)])
		}
	}
	for i, d := range list {
		if i%10 > 0 {
			continue
		}
		if names := find(t, x, Query{Text: strings.ToLower(d.Name)}); len(names) == 0 || !strings.EqualFold(names[0], d.Name) {
			t.Errorf("%q isn't first: %q", d.Name, names[:min(len(names), 5)])
		}
	}
}
