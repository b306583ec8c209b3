package site

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"net/url"
	"path"
	"strings"

	"github.com/larder-cdn/larder/api/library"
)

//go:embed templates
var embeddedTemplates embed.FS

// parseTemplates returns the pages' templates by name. Each is in a file of its own,
// around it goes frame.html, and in parts.html is what several have in common.
func parseTemplates(f *files) (map[string]*template.Template, error) {
	common, err := template.New("frame.html").Option("missingkey=error").Funcs(template.FuncMap{
		"file":    f.path,
		"bytes":   formatBytes,
		"number":  formatNumber,
		"count":   formatCount,
		"date":    formatDate,
		"short":   shorten,
		"moment":  formatMoment,
		"library": libraryPath,
		"version": versionPath,
		"history": historyPath,
		"compare": comparePath,
		"release": releasePath,
		"entry":   entryPath,
		"logged":  logPath,
		"words": func(kind any) string {
			return strings.ReplaceAll(strings.ReplaceAll(fmt.Sprint(kind), "-", " "), ",", ", ")
		},
		"rest":     func(all, shown int) int { return all - shown },
		"prose":    prose,
		"download": downloadPath,

		"room":      roomPath,
		"roomstate": formatRoomStatus,
		"seconds":   formatSeconds,
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

// A frame is what frame.html shows around a page.
type frame struct {
	Service     string // its name
	Title       string
	Description string
	Canonical   string // URL, "" for a page that search engines should leave alone
	Banner      string // URL of the picture for previews
	Section     string
	Searched    string
	HasSearch   bool // the page has no search box of its own
	HasDocs     bool
	HasNew      bool
	HasRooms    bool
	Page        any
}

func (s *Site) render(q *request, a *answer) ([]byte, error) {
	f := frame{
		Service: s.options.Name, Title: a.title, Description: a.description, Banner: q.siteBase + "/banner.png",
		Section: a.section, Searched: a.searched, HasSearch: a.view != "home" && a.view != "search", HasDocs: s.options.Document != nil, HasNew: s.options.Draft != nil, HasRooms: s.options.Rooms != nil, Page: a.data,
	}
	if a.canonical != "" {
		f.Canonical = q.siteBase + a.canonical
	}
	var b bytes.Buffer
	if err := s.templates[a.view].Execute(&b, f); err != nil {
		return nil, fmt.Errorf("site: couldn't render %s: %w", a.view, err)
	}
	return straighten(b.Bytes()), nil
}

// The addresses of pages.

func libraryPath(l string) string { return "/library/" + url.PathEscape(l) }

func versionPath(l, version string) string { return libraryPath(l) + "/" + url.PathEscape(version) }

func historyPath(l string) string { return "/history/" + url.PathEscape(l) }

func comparePath(l, from, to, page string) string {
	return withQuery("/compare/"+url.PathEscape(l), encode("from", from, "to", to, "page", page))
}

func downloadPath(l, version, ext string) string {
	return "/download/" + url.PathEscape(l) + "/" + url.PathEscape(version) + ext
}

// encode writes a query of names and values, in their order; those without a value
// are left out.
func encode(pairs ...string) string {
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

// webLink returns a URL that strangers wrote as one that a page may link to, or "" where
// it does not lead to a web site.
func webLink(raw string) string {
	u, err := url.Parse(strings.TrimSpace(raw))
	if err != nil || u.Host == "" || u.User != nil || len(raw) > 2<<10 {
		return ""
	}
	switch strings.ToLower(u.Scheme) {
	case "http", "https":
		return u.String()
	}
	return ""
}

// repositoryLink returns where a repository can be looked at.
func repositoryLink(l *library.Library) string {
	if l.Repository == nil {
		return ""
	}
	if g := l.GitHub(); g != nil {
		return "https://github.com/" + g.User + "/" + g.Repo
	}
	return strings.TrimSuffix(webLink(strings.TrimPrefix(l.Repository.URL, "git+")), ".git")
}
