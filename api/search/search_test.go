package search

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
)

//go:embed testdata/libraries.json
var librariesJSON []byte

// libraries returns well-known libraries as their package JSON describes them.
func libraries(t testing.TB) []Document {
	t.Helper()
	var list []Document
	if err := json.Unmarshal(librariesJSON, &list); err != nil {
		t.Fatal(err)
	}
	return list
}

func find(t testing.TB, x *Index, q Query) []string {
	t.Helper()
	names, err := x.Search(t.Context(), q)
	if err != nil {
		t.Fatalf("%q: %v", q.Text, err)
	}
	return names
}

// popular is what the tests take for popularity.
func popular(name string) float64 {
	return map[string]float64{
		"jquery-ui-bootstrap": 1e9, "bootstrap": 5e7, "jquery": 9e7, "react-dom": 3e6, "react-router": 10,
		"moment-timezone": 1e6, "luxon": 1e5, "mustache.js": 3, "handlebars.js": 4000, "Swiper": 5e5, "slick-carousel": 40,
	}[name]
}

func TestSearch(t *testing.T) {
	x := indexOf(t, libraries(t))
	for _, test := range []struct {
		text string
		want string // the first, in order; "" where nothing is to be found
	}{
		// Ways of writing a name.
		{"font-awesome", "font-awesome font-awesome-animation"},
		{"font awesome", "font-awesome"},
		{"fontawesome", "font-awesome"},
		{"Font.Awesome", "font-awesome"},
		{"FontAwesome", "font-awesome"},
		{"  FONT_awesome!", "font-awesome"},
		{"awesome font", "font-awesome"},
		{"chartjs", "Chart.js"},
		{"chart.js", "Chart.js"},
		{"chart", "Chart.js chartist"},
		{"charts", "Chart.js highcharts"},
		{"three", "three.js three-dots"},
		{"threejs", "three.js"},
		{"three js", "three.js"},
		{"angular", "angular.js"},
		{"angularjs", "angular.js"},
		{"AngularJS", "angular.js"},
		{"backbone", "backbone.js backbone-super"},
		{"lodash", "lodash.js"},
		{"lodashjs", "lodash.js"},
		{"moment", "moment.js moment-timezone"},
		{"momentjs", "moment.js"},
		{"d3", "d3 d3plus"},
		{"d3.js", "d3"},
		{"d3js", "d3"},
		{"vue", "vue vuex"},
		{"vuejs", "vue"},
		{"vue.js", "vue"},
		{"reactjs", "react"},
		{"react", "react react-dom"},
		{"socketio", "socket.io"},
		{"socket io", "socket.io"},
		{"x editable", "x-editable"},
		{"xeditable", "x-editable"},
		{"jquery", "jquery jquery-ui-bootstrap"},
		{"jQuery", "jquery"},
		{"JQUERY", "jquery"},
		{"jquery ui", "jqueryui jquery-ui-bootstrap"},
		{"jquery-ui", "jqueryui"},
		{"animate", "animate.css"},
		{"animatecss", "animate.css"},
		{"twitter bootstrap", "bootstrap"},
		{"jquery validation", "jquery-validate"},
		{"vue draggable", "Vue.Draggable"},
		{"form styler", "jQueryFormStyler"},
		{"cafe table", "café-table"},
		{"CAFÉ-TABLE", "café-table"},
		{"cafe\u0301 table", "café-table"},

		// What people add to a name.
		{"jquery.min.js", "jquery"},
		{"jquery 3", "jquery"},
		{"jquery 3.7.1", "jquery"},
		{"jquery cdn", "jquery"},
		{"cdn jquery", "jquery"},
		{"jquery v3 latest", "jquery"},
		{"bootstrap css", "bootstrap"},
		{"bootstrap.min.css", "bootstrap"},
		{"bootstrap 4", "bootstrap"},
		{"font awesome 5", "font-awesome"},
		{"angularjs 1.8", "angular.js"},
		{"vue 3", "vue"},
		{"3 2 1", ""},
		{"cdn", ""},

		// Beginnings, insides and order of words.
		{"font-awes", "font-awesome"},
		{"fontaw", "font-awesome"},
		{"boot", "bootstrap"},
		{"bootstrap react", "react-bootstrap"},
		{"query", "jquery"},
		{"strap", "jquery-ui-bootstrap bootstrap"},
		{"data picker boot", "bootstrap-datepicker"},
		{"datepick", "bootstrap-datepicker"},
		{"date picker", "bootstrap-datepicker"},
		{"router vue", "vue-router"},
		{"mouse wheel", "jquery-mousewheel"},
		{"lazy load", "jquery.lazyload"},

		// Typing errors.
		{"fontawsome", "font-awesome"},
		{"font awsome", "font-awesome"},
		{"jqery", "jquery"},
		{"jqeury", "jquery"},
		{"boostrap", "bootstrap"},
		{"bootsrtap", "bootstrap"},
		{"boostra", "bootstrap"},
		{"angualr", "angular.js"},
		{"raect", "react"},
		{"loadsh", "lodash.js"},
		{"backbnoe", "backbone.js"},
		{"modernzr", "modernizr"},
		{"highligth", "highlight.js"},
		{"undrscore js", "underscore.js"},
		{"chat", "emojione"},

		// Keywords, descriptions and the rest.
		{"slider", "Swiper slick-carousel"},
		{"date immutable", "luxon dayjs"},
		{"templates", "handlebars.js mustache.js"},
		{"3d", "three.js"},
		{"frontend framework", "bootstrap"},
		{"code editor", "codemirror ace"},
		{"haverbeke", "codemirror"},
		{"kenwheeler", "slick-carousel"},
		{"https://github.com/kenwheeler/slick.git", "slick-carousel"},
		{"umd production react-dom", "react-dom"},
		{"syntax highlihgting", "highlight.js codemirror"},

		// Nothing.
		{"qwzzxkjq", ""},
		{"jquery qwzzxkjq", ""},
		{"+", ""},
		{"***", ""},
		{"\xff\xfe", ""},
		{"\x00", ""},
	} {
		t.Run(test.text, func(t *testing.T) {
			names := find(t, x, Query{Text: test.text, Popularity: popular})
			want := strings.Fields(test.want)
			if len(names) < len(want) || !slices.Equal(names[:len(want)], want) || len(want) == 0 && len(names) > 0 {
				t.Errorf("found %q, want first %q", names[:min(len(names), 8)], want)
			}
		})
	}
}

// TestExactNameFirst looks for each library by its name while all others are
// wanted more.
func TestExactNameFirst(t *testing.T) {
	list := libraries(t)
	x := indexOf(t, list)
	for _, d := range list {
		popularity := func(name string) float64 {
			if name == d.Name {
				return 0
			}
			return 1e12
		}
		for _, text := range []string{d.Name, strings.ToUpper(d.Name), " " + d.Name + "\n"} {
			names := find(t, x, Query{Text: text, Popularity: popularity})
			if len(names) == 0 || names[0] != d.Name {
				t.Errorf("%q: found %q", text, names[:min(len(names), 5)])
			}
		}
	}
}

func TestEmptyTextFindsAll(t *testing.T) {
	list := libraries(t)
	x := indexOf(t, list)
	var want []string
	for _, d := range list {
		want = append(want, d.Name)
	}
	slices.Sort(want)
	for _, text := range []string{"", " \t\n"} {
		if names := find(t, x, Query{Text: text, Popularity: popular}); !slices.Equal(names, want) {
			t.Errorf("%q: found %q", text, names)
		}
	}
}

func TestFields(t *testing.T) {
	if len(Fields) != len(fields) {
		t.Fatalf("%d fields are promised and %d looked in", len(Fields), len(fields))
	}
	x := indexOf(t, []Document{
		{Name: "inname"},
		{Name: "b", AlternativeNames: []string{"other.alternative"}},
		{Name: "c", GithubRepo: "repo-inrepo"},
		{Name: "d", Description: "What indescription does"},
		{Name: "e", Keywords: []string{"some", "inkeyword"}},
		{Name: "f", Filename: "dist/infile.min.js"},
		{Name: "g", Repositories: []string{"https://example.org/inurl.git", "https://example.org/second"}},
		{Name: "h", GithubUser: "inuser"},
		{Name: "i", Maintainers: []string{"Somebody Inmaintainers"}},
	})
	texts := []string{"inname", "alternative", "inrepo", "indescription", "inkeyword", "infile", "second", "inuser", "inmaintainers"}
	for i, text := range texts {
		if Fields[i] != fields[i].name {
			t.Errorf("field %d is promised as %q and is %q", i, Fields[i], fields[i].name)
		}
		for j, field := range Fields {
			names := find(t, x, Query{Text: text, Fields: []string{strings.ToUpper(field), "nosuch"}})
			if found := len(names) == 1; found != (i == j) {
				t.Errorf("%q in %s: found %q", text, field, names)
			}
		}
		for _, all := range [][]string{nil, Fields, {"nosuch"}, {"*", "name"}} {
			if names := find(t, x, Query{Text: text, Fields: all}); len(names) != 1 {
				t.Errorf("%q in %q: found %q", text, all, names)
			}
		}
	}
	if names := find(t, x, Query{Text: "otheralternative"}); !slices.Equal(names, []string{"b"}) {
		t.Errorf("another name: found %q", names)
	}
	if names := find(t, x, Query{Text: "inmaintianers", Fields: []string{"maintainers.name"}}); !slices.Equal(names, []string{"i"}) {
		t.Errorf("mistyped in one field: found %q", names)
	}
}

func TestNamesWithoutLetters(t *testing.T) {
	x := indexOf(t, []Document{{Name: "$"}, {Name: "c++"}, {Name: "日本語"}, {Name: "a"}})
	for _, name := range []string{"$", "c++", "日本語", "日本", "a"} {
		if names := find(t, x, Query{Text: name}); len(names) != 1 || !strings.HasPrefix(names[0], name) {
			t.Errorf("%q: found %q", name, names)
		}
	}
}

func TestPopularity(t *testing.T) {
	x := indexOf(t, []Document{{Name: "tool-a"}, {Name: "tool-b"}, {Name: "tool-c"}, {Name: "tool-longer"}})
	for _, test := range []struct {
		popularity func(string) float64
		want       string
	}{
		{nil, "tool-a tool-b tool-c tool-longer"},
		{func(string) float64 { return 0 }, "tool-a tool-b tool-c tool-longer"},
		{func(n string) float64 { return math.Pow(10, float64(len(n))) }, "tool-longer tool-a tool-b tool-c"},
		{func(n string) float64 { return map[string]float64{"tool-c": 9, "tool-b": 7}[n] }, "tool-c tool-b tool-a tool-longer"},
		{func(n string) float64 {
			return map[string]float64{"tool-a": math.NaN(), "tool-b": math.Inf(1), "tool-c": -5, "tool-longer": math.Inf(-1)}[n]
		}, "tool-a tool-b tool-c tool-longer"},
	} {
		if names := find(t, x, Query{Text: "tool", Popularity: test.popularity}); strings.Join(names, " ") != test.want {
			t.Errorf("found %q, want %s", names, test.want)
		}
	}
}

func TestUpdate(t *testing.T) {
	x := indexOf(t, []Document{{Name: "first", Description: "old"}, {Name: "second"}})
	check := func(text, want string) {
		t.Helper()
		if names := find(t, x, Query{Text: text}); strings.Join(names, " ") != want {
			t.Errorf("%q: found %q, want %q", text, names, want)
		}
	}
	update := func(put []Document, remove ...string) {
		t.Helper()
		x.Update(put, remove)
	}
	check("old", "first")
	update([]Document{{Name: "first", Description: "new"}})
	check("old", "")
	check("new", "first")
	update(nil, "second", "unknown")
	check("second", "")
	check("", "first")
	update([]Document{{Name: "first", Description: "again"}}, "first")
	check("again", "first")
	update([]Document{{Name: "twice", Description: "one"}, {Name: "twice", Description: "two"}})
	check("one", "")
	check("two", "twice")
	update([]Document{{Name: "twice", Description: "back"}, {Name: "twice", Description: "two"}})
	check("back", "")
	check("two", "twice")

	check("", "first twice")
}

// TestManyUpdates has documents in both segments, and replaced and removed ones in each.
func TestManyUpdates(t *testing.T) {
	list := append(syntheticCorpus(minRecent+100), libraries(t)...)
	one, many := indexOf(t, list), indexOf(t, nil)
	for i := 0; i < len(list); i += 60 {
		part := slices.Clone(list[i:min(i+60, len(list))])
		before := slices.Clone(part)
		for j := range before {
			before[j].Description = "before"
		}
		many.Update(append(before, Document{Name: "passing"}), nil)
		many.Update(part, []string{"passing"})
		state := many.state.Load()
		many.Update(part, nil)
		if many.state.Load() != state {
			t.Error("an update without a change changed something")
		}
	}
	if n := len(many.state.Load().segments); n != 2 {
		t.Errorf("the index has %d segments, want 2", n)
	}
	for _, text := range []string{"", "jquery", "boostrap", "a", "js css", "code editor", "before", "passing", "font awsome"} {
		want, got := find(t, one, Query{Text: text}), find(t, many, Query{Text: text})
		if !slices.Equal(got, want) {
			t.Errorf("%q: found %q after many updates, %q after one", text, got, want)
		}
	}
}

func TestSearchDuringUpdates(t *testing.T) {
	t.Parallel()
	x := indexOf(t, libraries(t))
	var group sync.WaitGroup
	done := make(chan struct{})
	for range 3 {
		group.Go(func() {
			for {
				for _, text := range []string{"jquery", "boostrap", "a b", "pair9000"} {
					names, err := x.Search(context.Background(), Query{Text: text, Popularity: popular})
					if err != nil {
						t.Error(err)
						return
					}
					// The two are put and removed together.
					if text == "pair9000" && len(names)%2 != 0 {
						t.Errorf("half an update was seen: %q", names)
						return
					}
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	for i := range 100 {
		put := []Document{{Name: "pair9000-1", Description: fmt.Sprint(i)}, {Name: "pair9000-2", Description: fmt.Sprint(i)}}
		remove := []string(nil)
		if i%2 == 1 {
			put, remove = nil, []string{"pair9000-1", "pair9000-2"}
		}
		x.Update(put, remove)
	}
	close(done)
	group.Wait()
}

func TestCancelled(t *testing.T) {
	x := indexOf(t, libraries(t))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := x.Search(ctx, Query{Text: "jquery"}); err != context.Canceled {
		t.Errorf("a cancelled search gave %v", err)
	}
}

func TestQueryWordsAreBounded(t *testing.T) {
	var many strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&many, "w%d w%d ", i, i)
	}
	if n := len(queryWords(many.String())); n != maxWords {
		t.Errorf("%d words count, want %d", n, maxWords)
	}
	if list := queryWords("a a bb A b-b " + strings.Repeat("ö", 500)); !slices.Equal(list, []string{strings.Repeat("o", maxWord), "bb", "a", "b"}) {
		t.Errorf("words are %q", list)
	}
	x := indexOf(t, libraries(t))
	for _, text := range []string{many.String(), strings.Repeat("a", 1<<20), strings.Repeat("日", 1<<18), strings.Repeat("\xf0", 1<<16), strings.Repeat("a ", 1<<18)} {
		find(t, x, Query{Text: text})
	}
}

// TestManyWordsStartAlike looks for what thousands of words start with.
func TestManyWordsStartAlike(t *testing.T) {
	var list []Document
	for i := range 2_000 {
		name := fmt.Sprintf("collection-%d", i)
		list = append(list, Document{Name: name, Keywords: []string{fmt.Sprintf("assortment%d", i)}})
	}
	x := indexOf(t, list)
	for text, want := range map[string]int{"collection": len(list), "collecti": len(list), "collection-19": 111, "assort": len(list), "assortment": len(list)} {
		if names := find(t, x, Query{Text: text}); len(names) != want {
			t.Errorf("%q: found %d, want %d", text, len(names), want)
		}
	}
}

func TestCore(t *testing.T) {
	for query, want := range map[string]string{
		"jquery": "jquery", "jquery.min.js": "jquery", "Font Awesome 5.15.4 CDN": "font awesome", "cdnjs vue": "vue",
		"js": "js", "3": "3", "cdn": "cdn", "min js": "min", "v8": "v8", "angular css": "angular", "": "",
	} {
		if got := withoutAddedWords(query); got != want {
			t.Errorf("the core of %q is %q, want %q", query, got, want)
		}
	}
}

func TestStem(t *testing.T) {
	for s, want := range map[string]string{
		"Chart.js": "chart", "chartjs": "chart", "chart": "chart", "animate.css": "animate", "postcss": "postcss", "angular-css": "angularcss", "Animate.CSS": "animate",
		"js": "js", "ajs": "ajs", "d3js": "d3", "css": "css", "three js": "three", "": "", ".js": "js",
	} {
		if got := bareName(s); got != want {
			t.Errorf("the stem of %q is %q, want %q", s, got, want)
		}
	}
}

func FuzzSearch(f *testing.F) {
	for _, s := range []string{"jquery", "font awsome", "\xff\x00*?~^", `name:"a" +b -c /x.*/`, "İstanbul ﬁ ß", "日本語 e\u0301", strings.Repeat("x y ", 99)} {
		f.Add(s, "name", 1.0)
	}
	list := libraries(f)
	x := indexOf(f, list)
	f.Fuzz(func(t *testing.T, text, field string, p float64) {
		q := Query{Text: text, Fields: []string{field}, Popularity: func(string) float64 { return p }}
		names := find(t, x, q)
		if again := find(t, x, q); !slices.Equal(names, again) {
			t.Errorf("%q: found %q, then %q", text, names, again)
		}
		slices.Sort(names)
		if n := len(names); len(slices.Compact(names)) != n {
			t.Errorf("%q: a library is found twice", text)
		}

		// A library with any text is found by its name.
		if text == "" || strings.TrimSpace(text) != text || len(text) > maxText {
			return
		}
		y := indexOf(t, append(list[:4:4], Document{Name: text, Description: field, Keywords: []string{text, field}, Repositories: []string{field}}))
		if names := find(t, y, Query{Text: text}); len(names) == 0 || names[0] != text {
			t.Errorf("%q isn't first: %q", text, names)
		}
	})
}
