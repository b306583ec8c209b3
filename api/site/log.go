package site

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
)

// logPage is the data of a page of the log, newest entries first, or of the page of one entry.
type logPage struct {
	One     bool // it is the page of one entry
	Entries []logged
	Package string      // that the entries are about, "" for all
	Kind    string      // the kinds of the entries, separated by commas; "" for all
	Kinds   []logs.Kind // all kinds, for the form
	Older   string      // address of the page with the next older entries, "" for none
	Newest  string      // address of the page with the newest entries, "" if this is it
	Stream  string      // address of the stream of new entries, "" unless this page has the newest ones
	Feed    string      // address of the Atom feed
}

// A logged entry is a log entry as a page displays it.
type logged struct {
	Index int64
	logs.Entry
	Diff   []diffLine // of the package JSON; only on the entry's own page
	Detail string     // the full reason; only on the entry's own page
	Cut    bool       // Diff or Detail lacks its end
}

// Done returns the kind of the entry in words, such as "package added".
func (l logged) Done() string { return strings.ReplaceAll(string(l.Kind), "-", " ") }

// More returns words for the document that the entry's own page displays and lists of entries do not: the diff of a package
// JSON, or the full reason; "" if the entry names neither.
func (l logged) More() string {
	switch {
	case l.Entry.Diff != (kvstore.Hash{}):
		return "what changed"
	case l.Entry.Detail != (kvstore.Hash{}):
		return "the reason in full"
	}
	return ""
}

// Signed returns words for the outcome of checking upstream's signature, "" if the entry has no such outcome.
func (l logged) Signed() string {
	switch l.Signature.Outcome {
	case logs.SignatureVerified:
		return "verified"
	case logs.SignatureMissing:
		return "missing, though the registry has keys"
	case logs.SignatureNoKeys:
		return "none: the registry has no keys"
	case logs.SignatureInvalid:
		return "wrong"
	}
	return ""
}

// A diffLine is a line of a unified diff.
type diffLine struct {
	Kind string // "added", "removed", or "" for other lines
	Text string // with the mark in front, without a line end
}

const (
	entriesShown   = 50       // on a page of the log
	documentsShown = 64 << 10 // bytes of a diff or a long reason
)

// logPage returns a page of up to 50 log entries that the query selects by package, kind, time and the index before which
// they are, newest first. A malformed kind or time is a refusal with status 400; a malformed index is ignored. For a
// package that the log does not know, the page has no entries. If the query has an entry's index, logPage returns the page
// of that entry.
func (s *Site) logPage(q *request) (*pageAnswer, error) {
	if text := q.query.Get("entry"); text != "" {
		return s.entryPage(text)
	}
	page := logPage{Package: q.textParam("package"), Kinds: logs.Kinds, Feed: "/logs.atom"}
	kinds, err := logs.ParseKinds(strings.Join(q.query["kind"], ","))
	if err != nil {
		return nil, newRefusal(http.StatusBadRequest, "This address is broken", "What follows kind= "+err.Error()+".")
	}
	for _, kind := range kinds {
		page.Kind = strings.TrimPrefix(page.Kind+","+string(kind), ",")
	}
	query := logs.Query{Package: page.Package, Kinds: kinds, Limit: entriesShown}
	since := q.textParam("since")
	if since != "" {
		if query.Since, err = logs.ParseSince(since, time.Now()); err != nil {
			return nil, newRefusal(http.StatusBadRequest, "This address is broken", "What follows since= "+err.Error()+".")
		}
	}
	if before, err := strconv.ParseInt(q.query.Get("before"), 10, 64); err == nil && before > 0 {
		query.Before = before
	}
	size := s.library.LogSize() // before the entries are read, so that a reader who follows misses none
	found, err := s.library.Entries(query)
	if err != nil && !errors.Is(err, library.ErrNoLibrary) {
		return nil, err
	}
	for _, e := range found.Entries {
		page.Entries = append(page.Entries, logged{Index: e.Index, Entry: e.Entry})
	}
	address := func(before string) string {
		return logPath("package", page.Package, "kind", page.Kind, "since", since, "before", before)
	}
	if found.Next > 0 {
		page.Older = address(strconv.FormatInt(found.Next, 10))
	}
	if query.Before > 0 {
		page.Newest = address("")
	} else {
		after := ""
		if size > 0 {
			after = strconv.FormatInt(size-1, 10)
		}
		page.Stream = withQuery("/logs/stream", encodeQuery("after", after, "package", page.Package, "kind", page.Kind))
	}
	if page.Package != "" && len(page.Entries) > 0 {
		page.Feed = withQuery(page.Feed, encodeQuery("package", page.Package))
	}
	a := &pageAnswer{
		view: "log", Section: "/history", Title: "Log", Data: page,
		Description: "Everything that happened here, from a log that cannot be changed unnoticed: what was published, refused and withdrawn, when and why.",
	}
	if page.Package != "" {
		a.Title = "Log of " + text.Cut(page.Package, 100)
		if len(page.Entries) > 0 {
			a.Feed = page.Feed
		}
	}
	if q.URL.RawQuery == "" {
		a.canonical = logPath()
	}
	return a, nil
}

// entryPage returns the page of one log entry with its documents. text is the entry's index in decimal. If there is no such
// entry or text is malformed, the error is a refusal with status 404.
func (s *Site) entryPage(text string) (*pageAnswer, error) {
	none := newRefusal(http.StatusNotFound, "Log entry not found", "The log has no entry with this number.")
	index, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return nil, none
	}
	e, err := s.library.Entry(int64(index))
	if errors.Is(err, library.ErrNoEntry) {
		return nil, none
	}
	if err != nil {
		return nil, err
	}
	page := logPage{One: true, Newest: logPath(), Package: e.Package}
	entry, err := s.readDocuments(e)
	if err != nil {
		return nil, err
	}
	page.Entries = []logged{entry}
	return &pageAnswer{
		view: "log", Section: "/history", Title: "Log entry " + strconv.FormatInt(e.Index, 10), Data: page,
		Description: "What entry " + strconv.FormatInt(e.Index, 10) + " of the log says.",
	}, nil
}

// readDocuments returns a log entry with the diff and the full reason that it names, each cut to documentsShown bytes. It
// returns an error if one cannot be read.
func (s *Site) readDocuments(e logs.Indexed) (logged, error) {
	l := logged{Index: e.Index, Entry: e.Entry}
	diff, err := s.readDocument(&l, e.Entry.Diff)
	if err != nil {
		return l, err
	}
	l.Diff = parseDiff(diff)
	l.Detail, err = s.readDocument(&l, e.Entry.Detail)
	return l, err
}

// readDocument returns the diff or the full reason with the hash h, cut to documentsShown bytes, with U+FFFD in place of
// invalid UTF-8; "" for the zero hash. It sets l.Cut if it cut something off.
func (s *Site) readDocument(l *logged, h kvstore.Hash) (string, error) {
	document, err := s.library.Document(h)
	l.Cut = l.Cut || len(document) > documentsShown
	return strings.ToValidUTF8(text.Cut(document, documentsShown), "\uFFFD"), err
}

// parseDiff returns the lines of a unified diff, each as added, removed or neither, which includes the headers of hunks. It
// leaves out the two lines at the start that name files. It returns nil for "".
func parseDiff(diff string) []diffLine {
	var lines []diffLine
	for text := range strings.Lines(diff) {
		text = strings.TrimRight(text, "\r\n")
		if len(lines) == 0 && (strings.HasPrefix(text, "--- ") || strings.HasPrefix(text, "+++ ")) {
			continue
		}
		line := diffLine{Text: text}
		switch {
		case strings.HasPrefix(text, "+"):
			line.Kind = "added"
		case strings.HasPrefix(text, "-"):
			line.Kind = "removed"
		}
		lines = append(lines, line)
	}
	return lines
}

// releasePage is the data of the page of everything that happened to one version.
type releasePage struct {
	Name, Version string
	Entries       []logged
	More          string         // address of the package's older log entries, "" if all are in Entries
	Manifest      *logs.Manifest // the newest one, nil if no entry in Entries has one
	Served        bool           // the version is published
	Files         []logs.File    // on this page
	Minified      int            // how many files of the version were minified here
	Bytes         int64          // of all its files
	Pager         pager          // of the files
	LeftOut       []logs.LeftOut // the first 200
	Notes         []string       // the first 50
	Alike         [][]string     // some of the groups of paths that differ only in case or in Unicode form, see escapePaths
}

const (
	releaseEntries  = 100
	madeFilesShown  = 200
	maxLeftOuts     = 200
	manifestNotesOf = 50
	maxAlikeGroups  = 50
	alikeInGroup    = 10
)

// releaseHistoryPage returns the page with the newest 100 log entries about the version in the request's path, and with
// what was done to each file by the newest manifest among them. If the log has no entry about the version, it returns the
// error of newUnpublishedError; if none about the library, [library.ErrNoLibrary].
func (s *Site) releaseHistoryPage(q *request) (*pageAnswer, error) {
	name, version := q.segments[0], q.segments[1]
	q.inputs.addLibraries(name)
	found, err := s.library.Entries(logs.Query{Package: name, Version: version, Limit: releaseEntries})
	if errors.Is(err, library.ErrNoVersion) {
		err = s.newUnpublishedError(name, version)
	}
	if err != nil {
		return nil, err
	}
	page := releasePage{Name: name, Version: version}
	for _, e := range found.Entries {
		page.Entries = append(page.Entries, logged{Index: e.Index, Entry: e.Entry})
	}
	if found.Next > 0 {
		page.More = logPath("package", name, "before", strconv.FormatInt(found.Next, 10))
	}
	if i := slices.IndexFunc(found.Entries, func(e logs.Indexed) bool { return e.Entry.Manifest != kvstore.Hash{} }); i >= 0 {
		if page.Manifest, err = s.library.EntryManifest(found.Entries[i].Entry); err != nil {
			return nil, err
		}
		page.addManifest(q)
	}
	for _, e := range found.Entries { // the newest that says so counts
		if page.Served = e.Kind.Serves(); page.Served || e.Kind == logs.Withdrawn {
			break
		}
	}
	return &pageAnswer{
		view: "release", Section: "/search", Title: "History of " + name + " " + version, Data: page,
		Description: "Everything that happened to " + name + " " + version + " here, and what was done to each of its files.",
	}, nil
}

// addManifest adds to the page, from page.Manifest, the totals, the notes, the left-out files and the groups of similar
// paths, each list cut to a limit, and the part of the files that the page number in the request selects. It sets
// q.inputs.arbitrary if that page number does not exist.
func (page *releasePage) addManifest(q *request) {
	m := page.Manifest
	page.Pager = q.newPager(len(m.Files), madeFilesShown, "files", func(n string) string {
		return withQuery(releaseHistoryPath(page.Name, page.Version), encodeQuery("page", n)) + "#files"
	})
	page.Files = sliceOf(page.Pager, m.Files)
	for _, f := range m.Files {
		page.Bytes += f.Size
		if f.Origin == logs.Minified {
			page.Minified++
		}
	}
	page.LeftOut = m.LeftOut[:min(maxLeftOuts, len(m.LeftOut))]
	page.Notes = m.Notes[:min(manifestNotesOf, len(m.Notes))]
	for _, group := range m.Alike[:min(maxAlikeGroups, len(m.Alike))] {
		page.Alike = append(page.Alike, escapePaths(group[:min(alikeInGroup, len(group))]))
	}
}

// escapePaths returns each path in double quotes, with all characters but printable ASCII escaped, so that paths that look
// the same can be distinguished. It cuts each to 300 bytes with an ellipsis.
func escapePaths(paths []string) []string {
	quoted := make([]string, len(paths))
	for i, path := range paths {
		quoted[i] = text.Short(strconv.QuoteToASCII(path), 300)
	}
	return quoted
}

// logPath returns the path of the log's page with a query of alternating names and values, see encodeQuery.
func logPath(pairs ...string) string { return withQuery("/history", encodeQuery(pairs...)) }

// entryPath returns the path of the page of the log entry with this index.
func entryPath(index int64) string { return logPath("entry", strconv.FormatInt(index, 10)) }

// releaseHistoryPath returns the path of the page with the log entries of a version of the library l.
func releaseHistoryPath(l, version string) string {
	return historyPath(l) + "/" + url.PathEscape(version)
}
