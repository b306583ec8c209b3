package waitingroom

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"
	"golang.org/x/text/feature/plural"
	"golang.org/x/text/language"

	"github.com/larder-cdn/larder/server/waitingroom/config"
	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// waitingState is the state of the article's examples.
func waitingState() pageState {
	at := time.Date(2020, 8, 3, 23, 46, 0, 0, time.UTC)
	return pageState{
		Moment:   &config.EffectiveSettings{Settings: queue.Settings{Method: queue.FIFO}},
		Decision: queue.Decision{Ticket: queue.Ticket{LastCheckIn: at, RefreshInterval: 20 * time.Second}, Estimate: queue.Estimate{Known: true, Minutes: 10}},
		Now:      at,
	}
}

// TestPageJSON holds the answer to the article's, byte by byte where it has the key.
func TestPageJSON(t *testing.T) {
	fifo := waitingState()
	want := `{"cfWaitingRoom":{"inWaitingRoom":true,"waitTimeKnown":true,"waitTime":10,"waitTime25Percentile":0,"waitTime50Percentile":0,"waitTime75Percentile":0,` +
		`"waitTimeFormatted":"10 minutes","queuePosition":0,"usersAhead":0,"queueIsFull":false,"queueAll":false,"lastUpdated":"2020-08-03T23:46:00.000Z","refreshIntervalSeconds":20,` +
		`"queueingMethod":"fifo","isFIFOQueue":true,"isRandomQueue":false,"isPassthroughQueue":false,"isRejectQueue":false,"isEventActive":false,"isEventPrequeueing":false,` +
		`"timeUntilEventStart":0,"timeUntilEventStartFormatted":"","timeUntilEventEnd":0,"timeUntilEventEndFormatted":"","shuffleAtEventStart":false}}` + "\n"
	if got := string(fifo.JSON()); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	random := waitingState()
	random.Moment.Settings.Method, random.Decision.Estimate = queue.Random, queue.Estimate{Known: true, P25: 5, P50: 10, P75: 15}
	var got struct {
		CfWaitingRoom map[string]any `json:"cfWaitingRoom"`
	}
	if err := json.Unmarshal(random.JSON(), &got); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]any{
		"waitTime": 10., "waitTime25Percentile": 5., "waitTime50Percentile": 10., "waitTime75Percentile": 15., "waitTimeFormatted": "5 minutes to 15 minutes",
		"queueingMethod": "random", "isFIFOQueue": false, "isRandomQueue": true,
	} {
		if got.CfWaitingRoom[name] != want {
			t.Errorf("%s: got %v, want %v", name, got.CfWaitingRoom[name], want)
		}
	}
}

// TestPagePosition tells the place in line under FIFO only, and not where a shuffle decides about it.
func TestPagePosition(t *testing.T) {
	for _, c := range []struct {
		method  queue.Method
		shuffle bool
		want    int
	}{{queue.FIFO, false, 7}, {queue.Random, false, 0}, {queue.FIFO, true, 0}} {
		s := waitingState()
		s.Moment.Settings.Method, s.Decision.Estimate.Position, s.Decision.Estimate.Ahead = c.method, 7, 6
		if c.shuffle {
			s.Moment.Phase, s.Moment.Event = config.Prequeueing, &config.Event{Start: s.Now.Add(time.Hour), End: s.Now.Add(2 * time.Hour), Shuffle: true}
		}
		if got := s.status(parsedLanguages().words[0]); got.QueuePosition != c.want || got.UsersAhead != max(0, c.want-1) {
			t.Errorf("%+v: place %d, %d ahead", c, got.QueuePosition, got.UsersAhead)
		}
	}
}

func TestPageEvent(t *testing.T) {
	s := waitingState()
	s.Moment.Event = &config.Event{Start: s.Now.Add(90 * time.Minute), End: s.Now.Add(3 * time.Hour), Shuffle: true}
	s.Moment.Phase, s.Moment.Settings.QueueAll = config.Prequeueing, true
	got := s.status(parsedLanguages().words[0])
	if !got.IsEventPrequeueing || got.IsEventActive || got.TimeUntilEventStart != 90 || got.TimeUntilEventStartFormat != "1 hour 30 minutes" ||
		got.TimeUntilEventEndFormatted != "3 hours" || got.QueueAll || !got.ShuffleAtEventStart || got.WaitTimeFormatted != "unavailable" {
		t.Errorf("pre-queueing: %+v", got)
	}
	s.Moment.Event.Start = s.Now.Add(30 * 24 * time.Hour)
	if got := s.status(parsedLanguages().words[0]); got.TimeUntilEventStart != 30*24*60 || got.TimeUntilEventStartFormat != "30 days" {
		t.Errorf("far ahead: %+v", got)
	}
	s.Moment.Phase = config.EventOn
	got = s.status(parsedLanguages().words[0])
	if got.IsEventPrequeueing || !got.IsEventActive || got.TimeUntilEventStart != 0 || got.TimeUntilEventStartFormat != "" || got.TimeUntilEventEnd != 180 || got.ShuffleAtEventStart {
		t.Errorf("on: %+v", got)
	}
}

func TestPageTemplate(t *testing.T) {
	s := waitingState()
	s.Decision.Estimate.Minutes = 90
	var r pageRenderer
	for name, c := range map[string]struct{ text, want string }{
		"names":               {"{{waitTime}} {{waitTimeHours}}:{{waitTimeHourMinutes}} {{waitTimeFormatted}} {{lastUpdated}} {{refreshIntervalSeconds}}", "90 1:30 1 hour 30 minutes 2020-08-03T23:46:00.000Z 20"},
		"sections":            {"{{#isFIFOQueue}}fifo{{/isFIFOQueue}}{{^isFIFOQueue}}other{{/isFIFOQueue}}{{#queueAll}}all{{/queueAll}}", "fifo"},
		"unknown names":       {"a{{nothing}}b", "ab"},
		"a partial":           {"a{{> /etc/passwd}}b{{> page}}c", "abc"},
		"other delimiters":    {"{{=<% %>=}}<% waitTime %>", "90"},
		"nothing but comment": {"{{! a }}", ""},
	} {
		s.Moment.Template = c.text
		got, err := r.Render(&s, "de", language.AmericanEnglish)
		if err != nil || string(got.HTML) != c.want || got.Policy != "" || got.Language != "en-US" {
			t.Errorf("%s: %q, %v, want %q", name, got.HTML, err, c.want)
		}
	}
	for name, text := range map[string]string{
		"broken":    "{{#a}}",
		"too large": strings.Repeat("{{lastUpdated}}", config.MaxTemplate/len("{{lastUpdated}}")) + strings.Repeat("{{lastUpdated}}", 400_000),
	} {
		s.Moment.Template = text
		got, err := r.Render(&s, "", language.AmericanEnglish)
		if err == nil || !strings.Contains(string(got.HTML), "You are in line") {
			t.Errorf("%s: %v, and %.80q", name, err, got.HTML)
		}
	}
}

func TestPageLanguage(t *testing.T) {
	for _, c := range []struct {
		accept, fallback, want string
	}{
		{"", "en-US", "en"},
		{"", "de-DE", "de"},
		{"fr-CA,fr;q=0.9,en;q=0.8", "en-US", "fr"},
		{"pt-BR", "en-US", "pt"},
		{"zh-TW", "en-US", "zh-Hant"},
		{"zh-CN,zh;q=0.9", "en-US", "zh-Hans"},
		{"lt", "pl-PL", "pl"},
		{"fi", "pl-PL", "fi"},
		{"no", "en-US", "nb"},
		{"nn-NO", "en-US", "nb"},
		{"fa-AF", "en-US", "fa"},
		{"de;q=0,fr", "en-US", "fr"},
		{"he-IL", "en-US", "he"},
		{"§§§;;;,,", "ja", "ja"},
		{strings.Repeat("de,", 10000), "en-US", "de"},
		{strings.Repeat("x", 10000), "en-US", "en"},
	} {
		if got := parsedLanguages().choose(c.accept, language.MustParse(c.fallback)).Tag(); got != c.want {
			t.Errorf("%.40q, %s: %s, want %s", c.accept, c.fallback, got, c.want)
		}
	}
}

// TestLanguagesComplete holds every language to having all of the words.
func TestLanguagesComplete(t *testing.T) {
	if len(parsedLanguages().words) < 30 || parsedLanguages().words[0].Tag() != "en" {
		t.Fatalf("there are %d languages, and the first is %s", len(parsedLanguages().words), parsedLanguages().words[0].Tag())
	}
	for _, w := range parsedLanguages().words {
		v := reflect.ValueOf(*w)
		for i := range v.NumField() {
			field, value := v.Type().Field(i), v.Field(i)
			switch value.Kind() {
			case reflect.String:
				if value.String() == "" {
					t.Errorf("%v lacks %s", w.tag, field.Name)
				}
			case reflect.Map:
				if w.chooseForm(5, value.Interface().(map[string]string)) == "" || value.MapIndex(reflect.ValueOf("other")).String() == "" {
					t.Errorf("%v lacks %s", w.tag, field.Name)
				}
			}
		}
		for text, marks := range map[string][]string{w.Range: {"{a}", "{b}"}, w.Updated: {"{t}"}} {
			for _, mark := range marks {
				if !strings.Contains(text, mark) {
					t.Errorf("%v: %q lacks %s", w.tag, text, mark)
				}
			}
		}
	}
}

func TestPagePlurals(t *testing.T) {
	for _, c := range []struct {
		tag     string
		minutes int
		want    string
	}{
		{"en", 1, "1 minute"}, {"en", 0, "0 minutes"}, {"pl", 3, "3 minuty"}, {"pl", 5, "5 minut"}, {"ru", 21, "21 минута"}, {"ru", 12, "12 минут"},
		{"cs", 3, "3 minuty"}, {"cs", 5, "5 minut"}, {"ro", 20, "20 de minute"}, {"ro", 19, "19 minute"}, {"hr", 22, "22 minute"}, {"he", 20, "20 דקות"}, {"hi", 60, "1 घंटा"}, {"fi", 5, "5 minuuttia"},
		{"ar", 2, "دقيقتان"}, {"ar", 5, "5 دقائق"}, {"he", 2, "שתי דקות"}, {"ja", 90, "1時間 30分"}, {"de", 120, "2 Stunden"},
		{"en", 47 * 60, "47 hours"}, {"en", 48 * 60, "2 days"}, {"en", 174*60 + 30, "7 days 6 hours"}, {"pl", 22 * 24 * 60, "22 dni"}, {"ar", 48 * 60, "يومان"},
	} {
		if got := parsedLanguages().choose("", language.MustParse(c.tag)).Duration(c.minutes); got != c.want {
			t.Errorf("%s %d: %q, want %q", c.tag, c.minutes, got, c.want)
		}
	}
}

// TestBuiltInPage looks at the page of each language and case as a parser does.
func TestBuiltInPage(t *testing.T) {
	cases := map[string]func(*pageState){
		"fifo": func(*pageState) {}, "unknown": func(s *pageState) { s.Decision.Estimate.Known = false }, "random": func(s *pageState) { s.Moment.Settings.Method = queue.Random },
		"queue all": func(s *pageState) { s.Moment.Settings.QueueAll = true }, "reject": func(s *pageState) { s.Moment.Settings.Method, s.Decision.Outcome = queue.Reject, queue.Refuse },
		"prequeue": func(s *pageState) {
			s.Moment.Phase, s.Moment.Event = config.Prequeueing, &config.Event{Start: s.Now.Add(time.Hour), End: s.Now.Add(2 * time.Hour), Shuffle: true}
		},
	}
	for _, w := range parsedLanguages().words {
		for name, change := range cases {
			s := waitingState()
			change(&s)
			p := renderBuiltInPage(&s, w)
			root, err := html.Parse(strings.NewReader(string(p.HTML)))
			if err != nil {
				t.Fatal(err)
			}
			for _, problem := range problemsOf(root, w, p.Policy) {
				t.Errorf("%v, %s: %s", w.tag, name, problem)
			}
			if strings.Contains(string(p.HTML), "ZgotmplZ") || strings.Contains(string(p.HTML), "{n}") {
				t.Errorf("%v, %s: something was not put in:\n%s", w.tag, name, p.HTML)
			}
		}
	}
}

// TestPagePlace shows the place in line, and the people ahead, where there is a line.
func TestPagePlace(t *testing.T) {
	for _, c := range []struct {
		position int
		change   func(*pageState)
		want     []string
	}{
		{0, func(*pageState) {}, []string{"Estimated wait: 10 minutes"}},
		{1, func(*pageState) {}, []string{"Estimated wait: 10 minutes", "Your place in line: 1", "People ahead of you: 0"}},
		{1235, func(*pageState) {}, []string{"Estimated wait: 10 minutes", "Your place in line: 1235", "People ahead of you: 1234"}},
		{1_234_567, func(*pageState) {}, []string{"Estimated wait: 10 minutes", "Your place in line: 1\u202f234\u202f567", "People ahead of you: 1\u202f234\u202f566"}},
		{7, func(s *pageState) { s.Decision.Estimate.Known = false }, []string{"Estimated wait: not known yet", "Your place in line: 7", "People ahead of you: 6"}},
		{7, func(s *pageState) { s.Moment.Settings.QueueAll = true }, []string{"Your place in line: 7", "People ahead of you: 6"}},
		{7, func(s *pageState) { s.Moment.Settings.Method = queue.Random }, []string{"Estimated wait: 5 minutes to 15 minutes"}},
		{7, func(s *pageState) { s.Moment.Settings.Method, s.Decision.Outcome = queue.Reject, queue.Refuse }, nil},
		{7, func(s *pageState) {
			s.Moment.Phase, s.Moment.Event = config.Prequeueing, &config.Event{Start: s.Now.Add(time.Hour), End: s.Now.Add(2 * time.Hour)}
		}, []string{"Starts in: 1 hour 2020-08-04 00:46 UTC", "Your place in line: 7", "People ahead of you: 6"}},
	} {
		s := waitingState()
		s.Decision.Estimate = queue.Estimate{Known: true, Minutes: 10, P25: 5, P50: 10, P75: 15, Position: c.position, Ahead: max(0, c.position-1)}
		c.change(&s)
		root, err := html.Parse(strings.NewReader(string(renderBuiltInPage(&s, parsedLanguages().words[0]).HTML)))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for n := range root.Descendants() {
			switch n.Data {
			case "dt":
				got = append(got, textOf(n)+":")
			case "dd":
				got[len(got)-1] += " " + textOf(n)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%d: %q, want %q", c.position, got, c.want)
		}
	}
}

// TestPageTimes marks each time, in UTC, for the script that puts it into the reader's zone.
func TestPageTimes(t *testing.T) {
	s := waitingState()
	s.Moment.Phase, s.Moment.Event = config.Prequeueing, &config.Event{Start: s.Now.Add(25 * time.Hour), End: s.Now.Add(26 * time.Hour)}
	text := string(renderBuiltInPage(&s, parsedLanguages().words[0]).HTML)
	for _, want := range []string{
		`Last checked at <time dir="auto" datetime="2020-08-03T23:46:00.000Z">23:46:00 UTC</time>`,
		`<time dir="auto" datetime="2020-08-05T00:46:00.000Z">2020-08-05 00:46 UTC</time>`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %s:\n%s", want, text)
		}
	}
}

// TestPageHasNoEnglish finds a text that was left in English, or in the script of another language.
func TestPageHasNoEnglish(t *testing.T) {
	english := regexp.MustCompile(`(?i)\b(the|you|your|people|please|this|wait|checked|changes|minutes?|hours?|days?|nobody|everybody)\b`)
	latin := regexp.MustCompile(`[A-Za-z]`)
	latinOwn := map[string][]string{"de": {"Minute"}, "fr": {"minute", "minutes"}, "ro": {"minute"}, "hr": {"minute"}}
	for _, w := range parsedLanguages().words[1:] {
		for name, text := range textsOf(w) {
			for _, other := range parsedLanguages().words {
				if other != w && text == textsOf(other)[name] && len(strings.Fields(text)) > 4 {
					t.Errorf("%v: %s is as in %v: %q", w.tag, name, other.tag, text)
				}
			}
			plain := strings.NewReplacer("{a}", "", "{b}", "", "{n}", "", "{t}", "").Replace(text)
			script, _ := w.tag.Script()
			switch found := english.FindString(plain); {
			case script.String() != "Latn" && latin.MatchString(plain):
				t.Errorf("%v: %s has Latin letters: %q", w.tag, name, text)
			case found != "" && !slices.Contains(latinOwn[w.Tag()], found):
				t.Errorf("%v: %s says %q: %q", w.tag, name, found, text)
			}
		}
	}
}

// textsOf are all texts of a language, by their name.
func textsOf(w *pageWords) map[string]string {
	texts := map[string]string{}
	v := reflect.ValueOf(*w)
	for i := range v.NumField() {
		switch name, value := v.Type().Field(i).Name, v.Field(i); value.Kind() {
		case reflect.String:
			texts[name] = value.String()
		case reflect.Map:
			for form, text := range value.Interface().(map[string]string) {
				texts[name+" "+form] = text
			}
		}
	}
	return texts
}

// TestPageForms holds each language to having the plural forms that whole numbers take there, and
// besides them only "other".
func TestPageForms(t *testing.T) {
	for _, w := range parsedLanguages().words {
		wanted := map[string]bool{"other": true}
		for n := range 300 {
			wanted[pluralForms[plural.Cardinal.MatchPlural(w.tag, n, 0, 0, 0, 0)]] = true
		}
		for name, by := range map[string]map[string]string{"minutes": w.Minutes, "hours": w.Hours, "days": w.Days} {
			if got := slices.Sorted(maps.Keys(by)); !slices.Equal(got, slices.Sorted(maps.Keys(wanted))) {
				t.Errorf("%v, %s: has the forms %q, not %q", w.tag, name, got, slices.Sorted(maps.Keys(wanted)))
			}
		}
	}
}

// textOf is the text of an element.
func textOf(n *html.Node) string {
	var b strings.Builder
	for d := range n.Descendants() {
		if d.Type == html.TextNode {
			b.WriteString(d.Data)
		}
	}
	return b.String()
}

// problemsOf says what a built-in page must not have, or lacks.
func problemsOf(root *html.Node, w *pageWords, policy string) (problems []string) {
	add := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	headings := 0
	for n := range root.Descendants() {
		if n.Type != html.ElementNode {
			continue
		}
		switch n.Data {
		case "img", "iframe", "form", "meta:refresh":
			add("has a %s", n.Data)
		case "h1":
			headings++
		case "html":
			if got := attribute(n, "lang"); got != w.Tag() {
				add("lang is %q", got)
			}
			if dir := attribute(n, "dir"); (dir == "rtl") != slices.Contains([]string{"ar", "fa", "he", "ur"}, w.Tag()) {
				add("dir is %q", dir)
			}
		case "style", "script":
			if nonce := attribute(n, "nonce"); !strings.Contains(policy, n.Data+"-src 'nonce-"+nonce+"'") || len(nonce) < 20 {
				add("the policy does not know the nonce of the %s", n.Data)
			}
		}
		for _, a := range n.Attr {
			if a.Key == "src" || a.Key == "style" || a.Key == "href" && !strings.HasPrefix(a.Val, "data:") || strings.HasPrefix(a.Key, "on") {
				add("%s has %s=%q", n.Data, a.Key, a.Val)
			}
		}
	}
	if headings != 1 {
		add("has %d headings", headings)
	}
	return problems
}

func attribute(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

func TestPageFormOf(t *testing.T) {
	for _, c := range []struct {
		accept string
		json   bool
		want   pageForm
	}{
		{"text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8", true, formHTML},
		{"application/json", true, formJSON},
		{"application/json", false, formNeither},
		{"application/json, text/html;q=0.5", true, formJSON},
		{"application/json, text/html", true, formHTML},
		{"application/json;q=0.5, text/html", true, formHTML},
		{"application/json, text/html", false, formHTML},
		{"*/*", true, formNeither},
		{"", true, formNeither},
		{"text/*", true, formNeither},
		{"TEXT/HTML;level=1;q=0.001", true, formHTML},
		{"text/html;q=0", true, formNeither},
		{"text/html;q=0, application/json", true, formJSON},
		{"text/html;q=nonsense", true, formNeither},
		{strings.Repeat("a/b,", 1000) + "text/html", true, formNeither}, // beyond what is read
		{"image/*", true, formNeither},
	} {
		if got := pageFormOf(http.Header{"Accept": {c.accept}}["Accept"], c.json); got != c.want {
			t.Errorf("%.60q, json %v: %v, want %v", c.accept, c.json, got, c.want)
		}
	}
	if pageFormOf(nil, true) != formNeither {
		t.Error("no field is taken for one")
	}
}

func FuzzPageTemplate(f *testing.F) {
	f.Add("{{waitTime}}{{#isFIFOQueue}}x{{/isFIFOQueue}}")
	f.Add("{{=<% %>=}}<%& a %>{{{b}}}{{> c}}")
	f.Fuzz(func(t *testing.T, text string) {
		s := waitingState()
		var r pageRenderer
		s.Moment.Template = text
		got, err := r.Render(&s, "", language.English)
		if config.CheckTemplate(text) == nil && err != nil && !strings.Contains(err.Error(), errPageTooLarge.Error()) {
			t.Errorf("a template that was accepted fails: %v", err)
		}
		if len(got.HTML) > 10*config.MaxTemplate {
			t.Errorf("a page of %d bytes", len(got.HTML))
		}
	})
}
