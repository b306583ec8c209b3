package site

import (
	"html/template"
	"strings"

	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

// This file writes the rows of long lists. html/template takes 25 µs for a row of the list of files, and this file 1 µs; a page has 100 to 200
// rows. Templates call it for rows and have everything else themselves.

// A markup is HTML that is being written. Only text and link write what others chose, and escape it.
type markup struct{ strings.Builder }

// raw writes markup of this package.
func (m *markup) raw(parts ...string) *markup {
	for _, part := range parts {
		m.WriteString(part)
	}
	return m
}

// text writes text, or the value of an attribute in double quotes.
func (m *markup) text(s string) *markup {
	template.HTMLEscape(&m.Builder, []byte(s))
	return m
}

// rawIf writes markup of this package if a condition holds.
func (m *markup) rawIf(condition bool, s string) *markup {
	if condition {
		m.WriteString(s)
	}
	return m
}

// link writes the beginning of a link to a path of the site.
func (m *markup) link(address string) *markup {
	return m.raw(`<a href="`).text(address).raw(`"`)
}

// cell writes a cell of a table, whose label is shown on narrow screens.
func (m *markup) cell(label, value string) *markup {
	return m.raw(`<td role="cell" data-label="`, label, `">`).text(value).raw(`</td>`)
}

// html returns what was written.
func (m *markup) html() template.HTML {
	return template.HTML(m.String()) //nolint:gosec // all that others chose is escaped
}

// writeOptions writes the options of a list of versions, with their marks.
func writeOptions(versions []views.Version, selected string, marks map[string]mark) template.HTML {
	var m markup
	for _, v := range versions {
		mark := marks[v.Version]
		m.raw(`<option`)
		if mark != "" {
			m.raw(` value="`).text(v.Version).raw(`"`)
		}
		m.rawIf(v.Version == selected, ` selected`).raw(`>`).text(v.Version)
		if mark != "" {
			m.raw(" (", string(mark), ")")
		}
		m.raw("</option>\n")
	}
	return m.html()
}

// writeFileRows writes the rows of the list of a release's files.
func writeFileRows(files []fileRow) template.HTML {
	var m markup
	m.Grow(1200 * len(files))
	for _, f := range files {
		m.raw(`<tr role="row"`).rawIf(f.Chosen, ` class="chosen"`).raw(`><th role="rowheader" scope="row">`)
		m.link(f.Address).rawIf(f.Chosen, ` aria-current="true"`).raw(`>`).text(f.Path).raw(`</a>`)
		m.rawIf(f.Main, ` <span class="kind">main</span>`).rawIf(f.Minified, ` <span class="kind">minified here</span>`)
		m.raw(`</th>`).cell("Original", formatBytes(f.Size))
		if f.Incompressible() {
			m.raw(`<td role="cell" data-label="Compressed" colspan="2" class="uncoded">not compressed</td>`)
		} else {
			m.cell("gzip", formatCoded(f.Gzip)).cell("Brotli", formatCoded(f.Brotli))
		}
		m.raw(`<td role="cell" class="copying">`)
		if f.HTML != "" {
			m.copyButton("tag", "Tag", f.HTML, f.Path)
		}
		m.copyButton("URL", "URL", f.URL, f.Path).copyButton("SRI", "SRI", f.Integrity, f.Path).raw("</td></tr>\n")
	}
	return m.html()
}

// copyButton writes a button that copies a value.
func (m *markup) copyButton(what, label, value, of string) *markup {
	m.raw(`<button type="button" class="copy" data-copy="`).text(value)
	return m.raw(`" aria-label="Copy `, what, ` for `).text(of).raw(`"><span>`, label, `</span></button>`)
}

// formatCoded writes the size of a file in a coding, 0 for one that is not stored.
func formatCoded(size int64) string {
	if size == 0 {
		return "–"
	}
	return formatBytes(size)
}

// writeFolderRows writes the rows of a folder.
func writeFolderRows(entries []folderEntry) template.HTML {
	var m markup
	m.Grow(400 * len(entries))
	for _, e := range entries {
		m.raw(`<tr role="row"><th role="rowheader" scope="row">`).link(e.Address).raw(`>`).text(e.Name).rawIf(e.Files > 0, `/`).raw(`</a>`)
		m.rawIf(e.Main, ` <span class="kind">main</span>`).raw(`</th>`)
		if e.Files > 0 {
			m.cell("Files", formatNumber(e.Files))
		} else {
			m.raw(`<td role="cell" data-label="Files" class="no-value">–</td>`)
		}
		m.cell("Size", formatBytes(e.Size)).raw("</tr>\n")
	}
	return m.html()
}

// writeMadeRows writes what was done to each file of a release.
func writeMadeRows(files []logs.File) template.HTML {
	var m markup
	m.Grow(250 * len(files))
	for _, f := range files {
		done := "unchanged"
		switch f.Origin {
		case logs.Minified:
			done = "minified here from " + f.From
		case logs.Taken:
			done = "as the origin has it"
		}
		m.raw(`<tr role="row"><th role="rowheader" scope="row">`).text(f.Path).raw(`</th>`).cell("What was done", done).cell("Size", formatBytes(f.Size)).raw("</tr>\n")
	}
	return m.html()
}

// writeChanges writes the rows of what differs between two releases.
func writeChanges(changes []change) template.HTML {
	var m markup
	m.Grow(500 * len(changes))
	for _, c := range changes {
		m.raw(`<tr role="row"><th role="rowheader" scope="row">`).link(c.Address).raw(`>`).text(c.Path).raw(`</a></th>`)
		m.raw(`<td role="cell" data-label="What"><span class="change change-`, string(c.Kind), `">`, string(c.Kind), `</span></td>`)
		before, after := formatBytes(c.From), formatBytes(c.To)
		switch c.Kind {
		case added:
			before = "–"
		case removed:
			after = "–"
		}
		m.cell("Before", before).cell("After", after).cell("Difference", c.Delta()).raw("</tr>\n")
	}
	return m.html()
}

// writeChoices writes the files that can be chosen for a recipe.
func writeChoices(files []recipeFile) template.HTML {
	var m markup
	m.Grow(250 * len(files))
	for _, f := range files {
		m.raw(`<li><label><input type="checkbox" name="file" value="`).text(f.Path).raw(`"`).rawIf(f.Chosen, ` checked`).raw(`> <span>`).text(f.Path)
		m.raw(`</span></label> <span class="when">`).text(formatBytes(f.Size)).raw("</span></li>\n")
	}
	return m.html()
}
