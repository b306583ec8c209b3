package site

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/dustin/go-humanize"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/logs/views"
)

// formatBytes returns a number of bytes as text, in powers of a thousand as browsers' developer tools do. Below a thousand
// it is exact, such as 512 B. From there on it is rounded to three significant digits, such as 1.23 MB, or to an integer
// from 1000 TB on, because TB is the largest unit. A negative number begins with a minus sign (U+2212).
func formatBytes(n int64) string {
	if n < 0 {
		return "−" + formatBytes(-n)
	}
	if n < 1000 {
		return strconv.FormatInt(n, 10) + " B"
	}
	size := float64(n)
	for _, unit := range []string{"kB", "MB", "GB", "TB"} {
		size /= 1000
		if size < 999.5 || unit == "TB" {
			decimals := 0
			switch {
			case size < 9.995:
				decimals = 2
			case size < 99.95:
				decimals = 1
			}
			return strconv.FormatFloat(size, 'f', decimals, 64) + " " + unit
		}
	}
	panic("unreachable")
}

// formatDelta returns the difference between the sizes from and to in bytes and percent, as text with a sign, such as
// "+1.20 kB (+3.4 %)". It returns "same size" if they are equal, and leaves out the percentage if from is 0.
func formatDelta(from, to int64) string {
	switch {
	case from == to:
		return "same size"
	case to > from:
		return "+" + formatBytes(to-from) + formatPercent(from, to)
	default:
		return formatBytes(to-from) + formatPercent(from, to)
	}
}

// formatPercent returns by how many percent a size has changed, as text with a sign, in parentheses after a space, such as
// " (+3.4 %)"; "" if from is 0. It rounds to one decimal digit below ten percent, and otherwise to an integer.
func formatPercent(from, to int64) string {
	if from == 0 {
		return ""
	}
	change := 100 * float64(to-from) / float64(from)
	decimals := 0
	if change > -10 && change < 10 {
		decimals = 1
	}
	s := strconv.FormatFloat(change, 'f', decimals, 64)
	if s = strings.Replace(s, "-", "−", 1); change > 0 {
		s = "+" + s
	}
	return " (" + s + " %)"
}

// formatNumber returns a count as text with a comma between groups of three digits.
func formatNumber(n int) string { return humanize.Comma(int64(n)) }

// formatLarge returns a number as text with grouped digits. From a million on, the text is in millions, with one decimal
// digit below ten million unless it is 0, cut and not rounded: "1.2 million", "2 million", "12 million".
func formatLarge(n int64) string {
	switch {
	case n >= 10_000_000:
		return humanize.Comma(n/1_000_000) + " million"
	case n >= 1_000_000:
		return humanize.FtoaWithDigits(float64(n)/1e6, 1) + " million"
	}
	return humanize.Comma(n)
}

// isBidiControl reports whether a character changes the order in which a browser displays others, so that one name looks
// like another: an embedding, override or isolate of Unicode's bidirectional algorithm
// (https://www.unicode.org/reports/tr9/).
func isBidiControl(r rune) bool {
	return '\u202a' <= r && r <= '\u202e' || '\u2066' <= r && r <= '\u2069'
}

// escapeBidi returns the bytes of a page with each embedding, override and isolate of the bidirectional algorithm (see isBidiControl)
// replaced by U+FFFD, the replacement character; then bytes that are not UTF-8 become U+FFFD, too. Marks such as U+200E stay. Without
// any it returns page itself. It does not change page.
func escapeBidi(page []byte) []byte {
	const lead = 0xe2 // the first byte of each such character
	for at := 0; ; at++ {
		next := bytes.IndexByte(page[at:], lead)
		if next < 0 {
			return page
		}
		at += next
		if r, _ := utf8.DecodeRune(page[at:]); isBidiControl(r) {
			break
		}
	}
	return bytes.Map(func(r rune) rune {
		if isBidiControl(r) {
			return unicode.ReplacementChar
		}
		return r
	}, page)
}

// formatDate returns a time as an HTML time element with the day in UTC, "" for an unknown time (see isUnknown). A script
// in the page converts it to the reader's time zone.
func formatDate(t time.Time) template.HTML { return markUpTime(t, "2 January 2006", "day") }

// formatMoment returns a time as an HTML time element with the day and the minute in UTC, "" for an unknown time (see
// isUnknown). A script in the page converts it to the reader's time zone.
func formatMoment(t time.Time) template.HTML {
	return markUpTime(t, "2 January 2006, 15:04 UTC", "minute")
}

// markUpTime returns a time as an HTML time element with a text in UTC by the given layout, "" for an unknown time. A
// script in the page converts the text to the reader's time zone, with the precision in to: "day" or "minute".
func markUpTime(t time.Time, layout, to string) template.HTML {
	if isUnknown(t) {
		return ""
	}
	t = t.UTC()
	return template.HTML(`<time datetime="` + t.Format(time.RFC3339) + `" data-to="` + to + `">` + t.Format(layout) + `</time>`) //nolint:gosec // it is made of numbers
}

// isUnknown reports whether t stands for an unknown time: the zero time, or one up to the start of 1970, which is what a
// missing number of seconds becomes.
func isUnknown(t time.Time) bool { return t.Unix() <= 0 }

// A pager describes one page of a long list: which elements it has, and where the pages before and after it are.
type pager struct {
	Page, Pages int
	First, Last int // elements on the page, counted from 1; 0 if the list is empty
	Total       int
	// Previous and Next are the addresses of the pages before and after this one, "" if there is no such page.
	Previous, Next string
	// What is the kind of the elements, in the plural. It labels the pager for screen readers.
	What string
}

// newPager returns the pager for the page of a list with total elements that the request names, see pageNumber. each is how many
// elements a page has, and what is the kind of the elements in words. If the page does not exist, it is the pager of the
// nearest one, and q.inputs.arbitrary is set. address returns the address of another page by its number as text; "" stands
// for the first.
func (q *request) newPager(total, each int, what string, address func(page string) string) pager {
	p := pager{Total: total, Pages: max(1, (total+each-1)/each), What: what}
	p.Page = min(q.pageNumber(), p.Pages)
	q.inputs.arbitrary = q.inputs.arbitrary || p.Page != q.pageNumber()
	p.First, p.Last = min((p.Page-1)*each+1, total), min(p.Page*each, total)
	at := func(n int) string {
		if n == 1 {
			return address("")
		}
		return address(strconv.Itoa(n))
	}
	if p.Page > 1 {
		p.Previous = at(p.Page - 1)
	}
	if p.Page < p.Pages {
		p.Next = at(p.Page + 1)
	}
	return p
}

// sliceOf returns the part of all that is on the pager's page, nil if the list is empty. all is the complete list with
// p.Total elements. The result shares its memory.
func sliceOf[T any](p pager, all []T) []T {
	if p.Total == 0 {
		return nil
	}
	return all[p.First-1 : p.Last]
}

//go:embed templates
var embeddedTemplates embed.FS

// parseTemplates parses the embedded templates of the pages, and returns them by the names of their files without
// extension. Each has the templates of frame.html, with which it must be executed, and of parts.html, which several pages
// use. f has the URL paths of the style sheet, scripts and images, which templates insert.
func parseTemplates(f *files) (map[string]*template.Template, error) {
	common, err := template.New("frame.html").Option("missingkey=error").Funcs(template.FuncMap{
		"file":      f.path,
		"bytes":     formatBytes,
		"number":    formatNumber,
		"large":     formatLarge,
		"count":     text.Count,
		"date":      formatDate,
		"short":     func(n int, s string) string { return text.Short(s, n) },
		"moment":    formatMoment,
		"search":    func(q string) string { return withQuery("/search", encodeQuery("q", text.Cut(q, 200))) },
		"recipe":    recipePath,
		"filespage": filesPath,
		"library":   libraryPath,
		"feed":      feedPath,
		"version":   versionPath,
		"history":   historyPath,
		"states": func(l string, kind views.StateKind) string {
			return withQuery(historyPath(l), encodeQuery("state", string(kind)))
		},
		"compare": comparePath,
		"release": releaseHistoryPath,
		"entry":   entryPath,
		"logged":  logPath,
		"words": func(kind any) string {
			return strings.ReplaceAll(strings.ReplaceAll(fmt.Sprint(kind), "-", " "), ",", ", ")
		},
		"rest":     func(all, shown int) int { return all - shown },
		"prose":    splitCode,
		"download": downloadPath,

		"options":      writeOptions,
		"noMarks":      func() library.Marks { return library.Marks{} },
		"filerows":     writeFileRows,
		"folderrows":   writeFolderRows,
		"madefilerows": writeProcessingRows,
		"changerows":   writeChangeRows,
		"choices":      writeChoices,

		"room":      roomPath,
		"roomstate": formatRoomStatus,
		"period":    formatPeriod,
		"paused": func(path string) string {
			separator := "?"
			if strings.Contains(path, "?") {
				separator = "&"
			}
			return path + separator + "live=off"
		},
		"seconds": formatSeconds,
	}).ParseFS(embeddedTemplates, "templates/frame.html", "templates/parts.html")
	if err != nil {
		return nil, fmt.Errorf("site: the embedded templates: %w", err)
	}
	names, err := embeddedTemplates.ReadDir("templates")
	if err != nil {
		return nil, fmt.Errorf("site: couldn't list the embedded templates: %w", err)
	}
	parsed := map[string]*template.Template{}
	for _, n := range names {
		name := strings.TrimSuffix(n.Name(), path.Ext(n.Name()))
		if name == "frame" || name == "parts" {
			continue
		}
		t, err := common.Clone()
		if err == nil {
			t, err = t.ParseFS(embeddedTemplates, "templates/"+n.Name())
		}
		if err != nil {
			return nil, fmt.Errorf("site: the embedded template of %s: %w", name, err)
		}
		parsed[name] = t
	}
	return parsed, nil
}

// A frame is the data of frame.html: what all pages have, and in Data the data of the page's own template.
type frame struct {
	*pageAnswer
	Service   string // name of the service
	Canonical string // URL for search engines, "" for a page that they should not list
	Banner    string // URL of the picture for previews
	HasSearch bool   // the frame has a search box, because the page has none of its own
	HasDocs   bool
	HasNew    bool
	HasRooms  bool
}

// renderAnswer executes the template a.view with a.Data, inside of the frame that all pages share, and returns the page
// with its body. It replaces bidirectional control characters, by which one name can look like another. It puts q.siteBase
// in front of a.canonical. It returns an error if the template fails, and panics if no template has that name.
func (s *Site) renderAnswer(q *request, a *pageAnswer) (*page, error) {
	f := frame{
		pageAnswer: a, Service: s.options.Name, Banner: q.siteBase + "/banner.png", HasSearch: a.view != "home" && a.view != "search",
		HasDocs: s.options.Document != nil, HasNew: s.options.Draft != nil, HasRooms: s.options.Rooms != nil,
	}
	if a.canonical != "" {
		f.Canonical = q.siteBase + a.canonical
	}
	var b bytes.Buffer
	if err := s.templates[a.view].Execute(&b, f); err != nil {
		return nil, fmt.Errorf("site: couldn't render %s: %w", a.view, err)
	}
	return &page{pageAnswer: a, body: answers.NewBody(answers.HTML, escapeBidi(b.Bytes()))}, nil
}

// The addresses of pages.

// libraryPath returns the path of the page of the library l, which it percent-encodes.
func libraryPath(l string) string { return "/library/" + url.PathEscape(l) }

// versionPath returns the path of the page of a version of the library l.
func versionPath(l, version string) string { return libraryPath(l) + "/" + url.PathEscape(version) }

// historyPath returns the path of the page that lists the state of each version of the library l.
func historyPath(l string) string { return "/history/" + url.PathEscape(l) }

// comparePath returns the path and query of the page that compares the versions from and to of the library l. page is the
// number, as text, of the page of the list of changes; "" stands for the first.
func comparePath(l, from, to, page string) string {
	return withQuery("/compare/"+url.PathEscape(l), encodeQuery("from", from, "to", to, "page", page))
}

// downloadPath returns the path of the archive of a version of the library l; ext is its extension, such as ".zip".
func downloadPath(l, version, ext string) string {
	return "/download/" + url.PathEscape(l) + "/" + url.PathEscape(version) + ext
}

// encodeQuery returns the URL query of alternating names and values, in their order, without the "?" in front, which
// withQuery adds. It escapes the values, not the names, and leaves out pairs with an empty value. It panics if the last
// name has no value.
func encodeQuery(pairs ...string) string {
	var b strings.Builder
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] == "" {
			continue
		}
		if b.Len() > 0 {
			b.WriteByte('&')
		}
		b.WriteString(pairs[i] + "=" + url.QueryEscape(pairs[i+1]))
	}
	return b.String()
}

// repositoryLink returns the web address of a library's repository: for GitHub https://github.com/USER/REPOSITORY,
// otherwise its URL without "git+" and ".git". It returns "" if there is no URL or a page cannot link to it.
func repositoryLink(l *library.Library) string {
	if l.Repository == nil {
		return ""
	}
	if g := l.GitHub(); g != nil {
		return "https://github.com/" + g.User + "/" + g.Repo
	}
	return strings.TrimSuffix(text.WebLink(strings.TrimPrefix(l.Repository.URL, "git+")), ".git")
}

//go:embed assets
var embeddedFiles embed.FS

// files are the embedded files that pages load: a style sheet, scripts and images.
type files struct {
	byPath map[string]*answers.Body // by URL path
	paths  map[string]string        // URL paths by name in the folder
}

// fileTypes are the values of Content-Type by file extension.
var fileTypes = map[string]string{
	".css": "text/css; charset=utf-8",
	".js":  "text/javascript; charset=utf-8",
	".svg": "image/svg+xml",
}

// loadFiles reads the embedded style sheet, scripts and images, and gives each a URL path that contains a hash of its
// content, such as /site/page.0123456789ab.js.
func loadFiles() (*files, error) {
	loaded := &files{byPath: map[string]*answers.Body{}, paths: map[string]string{}}
	entries, err := fs.ReadDir(embeddedFiles, "assets")
	if err != nil {
		return nil, fmt.Errorf("site: couldn't list the embedded files: %w", err)
	}
	for _, e := range entries {
		data, err := embeddedFiles.ReadFile("assets/" + e.Name())
		if err != nil {
			return nil, fmt.Errorf("site: couldn't read the embedded file %s: %w", e.Name(), err)
		}
		sum := sha256.Sum256(data)
		hash := hex.EncodeToString(sum[:6])
		ext := path.Ext(e.Name())
		p := "/site/" + strings.TrimSuffix(e.Name(), ext) + "." + hash + ext
		loaded.paths[e.Name()], loaded.byPath[p] = p, answers.NewBody(fileTypes[ext], data)
	}
	return loaded, nil
}

// path returns the URL path of the embedded file with that name, which contains a hash of its content. A name that no
// embedded file has is an error.
func (f *files) path(name string) (string, error) {
	p, ok := f.paths[name]
	if !ok {
		return "", fmt.Errorf("site: there is no embedded file %s", name)
	}
	return p, nil
}

// sendFile responds with an embedded file, or with 304 if the client has it. Caches may store it for a year because it
// never changes under its path. To methods other than GET and HEAD it responds with 405.
func sendFile(w http.ResponseWriter, r *http.Request, f *answers.Body) {
	setIsolation(w.Header())
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", readOnly)
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	answers.CacheImmutable(365 * 24 * time.Hour).SetHeader(w.Header())
	f.Send(w, r, http.StatusOK)
}
