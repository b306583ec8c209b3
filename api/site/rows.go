package site

import (
	"html/template"
	"strings"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

// This file writes the rows of long lists. html/template takes 25 µs for a row of the list of files, and this file 1 µs; a
// page has up to 200 rows. Templates call its functions for rows; everything else is in the templates.

// A markup is HTML that is being written. addText, openLink, addCell and addCopyButton escape texts that others chose.
// Everything else is written as it is, see each method.
type markup struct{ strings.Builder }

// addRaw appends HTML to m as it is, so the parts must not contain text that others chose. Like all methods of m that
// append, it returns m, for chaining.
func (m *markup) addRaw(parts ...string) *markup {
	for _, part := range parts {
		m.WriteString(part)
	}
	return m
}

// addText appends text that others chose, escaped for an element or for an attribute in double quotes, and returns m.
func (m *markup) addText(s string) *markup {
	template.HTMLEscape(&m.Builder, []byte(s))
	return m
}

// addRawIf appends the HTML s, which must not contain text that others chose, to m if the condition is true, and returns m.
func (m *markup) addRawIf(condition bool, s string) *markup {
	if condition {
		m.WriteString(s)
	}
	return m
}

// openLink appends the start of a link up to the end of its href attribute, and returns m. It escapes address, which must
// be one of this site because its scheme is not checked. The caller adds more attributes and ">".
func (m *markup) openLink(address string) *markup {
	return m.addRaw(`<a href="`).addText(address).addRaw(`"`)
}

// addCell appends a table cell with an escaped value, and returns m. label, which must not contain text that others chose,
// is displayed on narrow screens.
func (m *markup) addCell(label, value string) *markup {
	return m.addRaw(`<td role="cell" data-label="`, label, `">`).addText(value).addRaw(`</td>`)
}

// html returns the markup so far as HTML that templates do not escape again.
func (m *markup) html() template.HTML {
	return template.HTML(m.String()) //nolint:gosec // all that others chose is escaped
}

// writeOptions returns the HTML of the option elements of a version picker, in the order of versions. The one with the name
// selected is chosen. A vulnerable or deprecated version, by marks, has that word after its name.
func writeOptions(versions []views.Version, selected string, marks library.Marks) template.HTML {
	var m markup
	for _, v := range versions {
		mark := marks.Of(v.Version)
		m.addRaw(`<option`)
		if mark != "" {
			m.addRaw(` value="`).addText(v.Version).addRaw(`"`)
		}
		m.addRawIf(v.Version == selected, ` selected`).addRaw(`>`).addText(v.Version)
		if mark != "" {
			m.addRaw(" (", mark, ")")
		}
		m.addRaw("</option>\n")
	}
	return m.html()
}

// writeFileRows returns the HTML of the table rows of files in the list of a release's files: link, sizes, and buttons that
// copy tag, URL and integrity.
func writeFileRows(files []fileRow) template.HTML {
	var m markup
	m.Grow(1200 * len(files))
	for _, f := range files {
		m.addRaw(`<tr role="row"`).addRawIf(f.Chosen, ` class="chosen"`).addRaw(`><th role="rowheader" scope="row">`)
		m.openLink(f.Address).addRawIf(f.Chosen, ` aria-current="true"`).addRaw(`>`).addText(f.Path).addRaw(`</a>`)
		m.addRawIf(f.Main, ` <span class="kind">main</span>`).addRawIf(f.Minified, ` <span class="kind">minified here</span>`)
		m.addRaw(`</th>`).addCell("Original", formatBytes(f.Size))
		if f.Incompressible() {
			m.addRaw(`<td role="cell" data-label="Compressed" colspan="2" class="uncoded">not compressed</td>`)
		} else {
			m.addCell("gzip", formatCoded(f.Gzip)).addCell("Brotli", formatCoded(f.Brotli))
		}
		m.addRaw(`<td role="cell" class="copying">`)
		if f.HTML != "" {
			m.addCopyButton("tag", "Tag", f.HTML, f.Path)
		}
		m.addCopyButton("URL", "URL", f.URL, f.Path).addCopyButton("SRI", "SRI", f.Integrity, f.Path).addRaw("</td></tr>\n")
	}
	return m.html()
}

// addCopyButton appends a button that copies value to the clipboard, and returns m. what names the copied thing for screen
// readers, and label is the button's text; neither may contain text that others chose. of is the path of the file that the
// value belongs to. value and of are escaped.
func (m *markup) addCopyButton(what, label, value, of string) *markup {
	m.addRaw(`<button type="button" class="copy" data-copy="`).addText(value)
	return m.addRaw(`" aria-label="Copy `, what, ` for `).addText(of).addRaw(`"><span>`, label, `</span></button>`)
}

// formatCoded returns the size in bytes of a file in gzip or Brotli as text; "–" for 0, which means that the file is not
// stored in that encoding.
func formatCoded(size int64) string {
	if size == 0 {
		return "–"
	}
	return formatBytes(size)
}

// writeFolderRows returns the HTML of the table rows of the files and folders in a folder.
func writeFolderRows(entries []folderEntry) template.HTML {
	var m markup
	m.Grow(400 * len(entries))
	for _, e := range entries {
		m.addRaw(`<tr role="row"><th role="rowheader" scope="row">`).openLink(e.Address).addRaw(`>`).addText(e.Name).addRawIf(e.Files > 0, `/`).addRaw(`</a>`)
		m.addRawIf(e.Main, ` <span class="kind">main</span>`).addRaw(`</th>`)
		if e.Files > 0 {
			m.addCell("Files", formatNumber(e.Files))
		} else {
			m.addRaw(`<td role="cell" data-label="Files" class="no-value">–</td>`)
		}
		m.addCell("Size", formatBytes(e.Size)).addRaw("</tr>\n")
	}
	return m.html()
}

// writeProcessingRows returns the HTML of the table rows that say how each file of a release came to be, such as that it
// was minified, and its size.
func writeProcessingRows(files []logs.File) template.HTML {
	var m markup
	m.Grow(250 * len(files))
	for _, f := range files {
		done := "unchanged"
		switch f.Origin {
		case logs.Minified:
			done = "minified here from " + f.From
		case logs.Taken:
			done = "as the origin has it"
		case logs.Built:
			done = "built here for browsers"
		}
		m.addRaw(`<tr role="row"><th role="rowheader" scope="row">`).addText(f.Path).addRaw(`</th>`).addCell("What was done", done).addCell("Size", formatBytes(f.Size)).addRaw("</tr>\n")
	}
	return m.html()
}

// writeChangeRows returns the HTML of the table rows of the files that differ between two releases, with their sizes in
// both and the difference.
func writeChangeRows(changes []change) template.HTML {
	var m markup
	m.Grow(500 * len(changes))
	for _, c := range changes {
		m.addRaw(`<tr role="row"><th role="rowheader" scope="row">`).openLink(c.Address).addRaw(`>`).addText(c.Path).addRaw(`</a></th>`)
		m.addRaw(`<td role="cell" data-label="What"><span class="change change-`, string(c.Kind), `">`, string(c.Kind), `</span></td>`)
		before, after := formatBytes(c.From), formatBytes(c.To)
		switch c.Kind {
		case added:
			before = "–"
		case removed:
			after = "–"
		}
		m.addCell("Before", before).addCell("After", after).addCell("Difference", c.Delta()).addRaw("</tr>\n")
	}
	return m.html()
}

// writeChoices returns the HTML of the list items with checkboxes for the files that a visitor can choose for a recipe of
// tags. Those of chosen files are checked.
func writeChoices(files []recipeFile) template.HTML {
	var m markup
	m.Grow(250 * len(files))
	for _, f := range files {
		m.addRaw(`<li><label><input type="checkbox" name="file" value="`).addText(f.Path).addRaw(`"`).addRawIf(f.Chosen, ` checked`).addRaw(`> <span>`).addText(f.Path)
		m.addRaw(`</span></label> <span class="when">`).addText(formatBytes(f.Size)).addRaw("</span></li>\n")
	}
	return m.html()
}
