package lint

// A Rule is one thing that files are checked for.
type Rule struct {
	// Name is what problems call it.
	Name string
	// About says in a sentence what it asks for.
	About string
}

// Rules returns all rules, those of package packages and those that need an upstream among them, in the
// order in which people come to meet them.
func Rules() []Rule {
	return []Rule{
		{"unreadable", "The file can be read, is a regular file and is not a link."},
		{"encoding", "The file is UTF-8 text without a byte order mark, of a sensible size."},
		{"syntax", "The file is JSON."},
		{"limit", "The document is not nested too deeply, and has not too many globs."},
		{"repeated", "No property and no entry is given twice."},
		{"required", "Every property that a package needs is there."},
		{"unknown-property", "There is no property that nobody knows."},
		{"type", "Every value is of the kind that its property asks for."},
		{"empty", "No text and no list is empty."},
		{"value", "Names and choices are among those that can be used."},
		{"schema", "The document follows the schema."},
		{"name", "The package has the name of its file."},
		{"path", "The file lies where a catalogue keeps it: packages/{first character}/{name}.json."},
		{"autoupdate", "A new package says where its releases come from."},
		{"filename", "The package names its default file, and the newest release has it."},
		{"base-path", "A fileMap's basePath stays inside the release."},
		{"glob", "Every glob can be used, and selects something, though not everything."},
		{"license", "The license is an SPDX identifier or expression."},
		{"address", "The addresses of pages and repositories can be followed."},
		{"duplicate", "No other package of the catalogue has the name or the upstream."},
		{"order", "The properties of a new package are in the usual order."},
		{"format", "The file is laid out as the others are."},
		{"upstream", "The target exists upstream, has releases and can be asked."},
		{"popularity", "Enough people use the library: by npm's downloads in a month, or by GitHub's stars."},
		{"selection", "The fileMap selects files that can be published."},
		{"size", "A release has a sensible number of files and bytes."},
	}
}
