package waitingroom

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"
	"golang.org/x/text/feature/plural"
	"golang.org/x/text/language"
)

//go:embed languages.yaml
var languagesText []byte

// pageWords are the page's texts in one language.
type pageWords struct {
	tag language.Tag

	Title       string
	Text        string
	Wait        string
	Unknown     string
	Unavailable string
	Range       string
	Refresh     string
	Random      string
	Held        string
	Down        string
	Prequeue    string
	Starts      string
	Shuffle     string
	Full        string
	Later       string
	Updated     string
	Place       string
	Ahead       string
	Minutes     map[string]string
	Hours       map[string]string
	Days        map[string]string
}

// pageLanguages are all languages of the page. The first, English, is for all other readers.
type pageLanguages struct {
	words   []*pageWords
	matcher language.Matcher
}

// preparePages parses the built-in page and its languages, so that the first visitor of a room does not wait for that.
func preparePages() {
	parsedLanguages()
	builtInTemplate()
}

// parsedLanguages returns the page's texts in all languages. It parses the embedded file at the first call.
var parsedLanguages = sync.OnceValue(func() *pageLanguages {
	l, err := parsePageLanguages(languagesText)
	if err != nil {
		panic(err) // embedded
	}
	return l
})

// parsePageLanguages parses the texts of the waiting page in all languages, from YAML.
func parsePageLanguages(text []byte) (*pageLanguages, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return nil, fmt.Errorf("page: languages: %w", err)
	}
	l := &pageLanguages{}
	var tags []language.Tag
	root := document.Content[0]
	for i := 0; i < len(root.Content); i += 2 {
		tag, err := language.Parse(root.Content[i].Value)
		if err != nil {
			return nil, fmt.Errorf("page: languages: %w", err)
		}
		w := &pageWords{tag: tag}
		if err := root.Content[i+1].Decode(w); err != nil {
			return nil, fmt.Errorf("page: languages: %v: %w", tag, err)
		}
		l.words, tags = append(l.words, w), append(tags, tag)
	}
	l.matcher = language.NewMatcher(tags)
	return l, nil
}

// maxAcceptLanguage bounds how much of an Accept-Language field is read.
const maxAcceptLanguage = 256

// choose returns the page's texts for a client with an Accept-Language field (RFC 9110 §12.5.4): in the language of the page that
// the client prefers, else in the one closest to fallback, else in English. Of a long field it reads the beginning only.
func (l *pageLanguages) choose(accept string, fallback language.Tag) *pageWords {
	if len(accept) > maxAcceptLanguage {
		accept = accept[:strings.LastIndexByte(accept[:maxAcceptLanguage], ',')+1]
	}
	if wanted, _, err := language.ParseAcceptLanguage(accept); err == nil && len(wanted) > 0 {
		if _, i, confidence := l.matcher.Match(wanted...); confidence >= language.High {
			return l.words[i]
		}
	}
	_, i, _ := l.matcher.Match(fallback)
	return l.words[i]
}

// Direction returns the direction of the language's script, rtl or ltr, for HTML's dir.
func (w *pageWords) Direction() string {
	script, _ := w.tag.Script()
	switch script.String() {
	case "Arab", "Hebr":
		return "rtl"
	}
	return "ltr"
}

// Tag returns the tag of the language, for HTML's lang.
func (w *pageWords) Tag() string { return w.tag.String() }

var pluralForms = map[plural.Form]string{plural.Zero: "zero", plural.One: "one", plural.Two: "two", plural.Few: "few", plural.Many: "many", plural.Other: "other"}

// chooseForm returns the text for a number n: of the plural forms in by, the one that the language has for n, or else "other",
// with n in place of {n}.
func (w *pageWords) chooseForm(n int, by map[string]string) string {
	form, ok := by[pluralForms[plural.Cardinal.MatchPlural(w.tag, n, 0, 0, 0, 0)]]
	if !ok {
		form = by["other"]
	}
	return strings.ReplaceAll(form, "{n}", strconv.Itoa(n))
}

// Duration returns a number of minutes as text: with hours from an hour on, and with days but no minutes from two days on.
func (w *pageWords) Duration(minutes int) string {
	const hour, day = 60, 24 * 60
	n, by, rest, restBy := minutes/hour, w.Hours, minutes%hour, w.Minutes
	switch {
	case minutes < hour:
		return w.chooseForm(minutes, w.Minutes)
	case minutes >= 2*day:
		n, by, rest, restBy = minutes/day, w.Days, minutes%day/hour, w.Hours
	}
	text := w.chooseForm(n, by)
	if rest > 0 {
		text += " " + w.chooseForm(rest, restBy)
	}
	return text
}

// Between returns a range of minutes as text, such as "5 minutes to 10 minutes"; a single duration if both are equal.
func (w *pageWords) Between(from, to int) string {
	if from == to {
		return w.Duration(from)
	}
	return strings.NewReplacer("{a}", w.Duration(from), "{b}", w.Duration(to)).Replace(w.Range)
}
