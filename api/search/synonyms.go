package search

import (
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/larder-cdn/larder/internal/text"
)

// synonymGroups are words that libraries and people use for the same thing, a group in each string.
var synonymGroups = []string{
	"carousel slider slideshow swiper",
	"modal dialog popup lightbox",
	"wysiwyg richtext",
	"editor wysiwyg",
	"phone telephone tel mobilephone",
	"chart graph plot charts",
	"table grid datatable",
	"reset normalize",
	"dnd draggable sortable",
	"i18n internationalization localization translation",
	"datepicker calendar",
	"date datetime",
	"dropdown select combobox",
	"autocomplete typeahead suggest",
	"spinner loader loading",
	"notification toast alert",
	"animation transition effect",
	"typing typewriter",
	"icon iconfont glyph",
	"upload uploader dropzone",
	"photo picture image",
	"crop cropper",
	"zip compression",
	"crypto encryption cipher hash",
	"http ajax xhr fetch",
	"markdown md",
	"math latex formula equation",
	"map maps gis",
	"scroll scrolling scrollbar",
	"emoji emoticon",
	"tooltip popover",
	"color colour",
	"excel spreadsheet xlsx",
	"csv papaparse",
	"qr qrcode",
	"3d webgl",
	"unittest testing test",
	"template templating",
	"state store",
	"lazy lazyload",
	"validate validator validation",
	"highlight highlighter",
	"sound audio music",
	"speech voice",
	"synth synthesizer synthesis",
	"movie video",
	"code syntax",
	"fake mock dummy",
	"counting counter countup",
	"streaming stream hls flv",
	"sortable sorting sorter tablesort",
	"utility utils helpers",
	"drawing draw paint",
}

// synonyms returns the synonyms of each word in synonymGroups, without the word itself.
var synonyms = sync.OnceValue(func() map[string][]string {
	of := map[string][]string{}
	for _, group := range synonymGroups {
		list := strings.Fields(group)
		for _, w := range list {
			for _, other := range list {
				if other != w && !slices.Contains(of[w], other) {
					of[w] = append(of[w], other)
				}
			}
		}
	}
	return of
})

// synonymsOf returns the synonyms of a word of a query, without the word itself, or if it has none, those of its singular
// (without a last s); nil if neither has any.
func synonymsOf(w string) []string {
	if list := synonyms()[w]; list != nil {
		return list
	}
	return synonyms()[strings.TrimSuffix(w, "s")]
}

// isNoise reports whether a word of a query, in lower case, says little about the library that is wanted: a version, a form
// of a file, a word of a sentence.
func isNoise(w string) bool {
	switch w {
	case "umd", "esm", "cjs", "iife", "mjs", "module", "modules", "min", "minified", "download", "script", "npm", "latest", "library", "libraries", "lib", "plugin",
		"framework", "javascript", "js", "css",
		"a", "an", "and", "the", "for", "with", "of", "to", "in", "on", "or", "from", "by", "my", "create", "make", "generate", "build", "display", "show", "add", "website", "page", "app", "tool", "component", "browser", "how", "do", "i", "use", "using", "best", "free", "simple", "easy":
		return true
	}
	return isCDN(w) || isVersion(w)
}

// isVersion reports whether a word, which is not empty, is a number without dots, perhaps after a v, or nothing but a v.
func isVersion(w string) bool { return strings.Trim(strings.TrimPrefix(w, "v"), "0123456789") == "" }

// withoutNoise returns the words of a query that say something about the library (see isNoise), or all words if none does.
func withoutNoise(list []string) []string {
	if telling := slices.DeleteFunc(slices.Clone(list), isNoise); len(telling) > 0 {
		return telling
	}
	return list
}

// shortestStem is how many characters a stem has at least; words of that length have none.
const shortestStem = 3

// stemOf returns what a word and its inflected forms have in common: typed, typing and types all have typ. It returns "" for
// a word of up to three characters or with other than ASCII characters.
func stemOf(w string) string {
	if utf8.RuneCountInString(w) <= shortestStem || !isASCII(w) {
		return ""
	}
	base, inflected := w, false
	for _, suffix := range []string{"ations", "ation", "ings", "ing", "ators", "ator", "ers", "er", "ors", "or", "ed", "ies", "es", "s", "y", "e"} {
		if short, ok := strings.CutSuffix(w, suffix); ok && len(short) >= shortestStem && !strings.HasSuffix(w, "ss") {
			base, inflected = short, true
			break
		}
	}
	if n := len(base); inflected && n > shortestStem && base[n-1] == base[n-2] { // of dragging
		return base[:n-1]
	}
	base = strings.TrimSuffix(base, "e")
	if short, ok := strings.CutSuffix(base, "at"); ok && inflected && len(short) > shortestStem { // of validate
		base = short
	}
	return base
}

// languages matches the names of programming languages that have a sign of punctuation in them.
var languages = text.NewRegexp(`(?i)(^|[^\pL\pN])([cf])(\+\+|#)`)

// spellLanguages returns s with C++, C# and F# spelt as words such as Cplusplus, because words have no punctuation.
func spellLanguages(s string) string {
	if !strings.ContainsAny(s, "+#") {
		return s
	}
	return languages.ReplaceAllStringFunc(s, func(found string) string {
		return strings.NewReplacer("++", "plusplus ", "#", "sharp ").Replace(found)
	})
}
