package site

import (
	"strings"

	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/packages"
)

// A built says where a release was built, as far as its provenance attestation proves that.
type built struct {
	Repository, RepositoryLink string // "" if nothing proves it; Repository is without https://
	Commit                     string
	Workflow, WorkflowLink     string // the link is "" if a page cannot have one
	Mismatch                   string // link to the repository in the package JSON if that is another one, else ""
	Why                        string // why nothing proves it; "" if it is proven, or Outcome says all
	Outcome                    string // of the check of the attestation, in words, see describeProvenance
}

// newBuilt returns where and how a release was built, as proven in the log entry e of its publication. Without proof, Why
// has the reason, whose words follow those of Outcome on the page. repository is the link to the repository in the package
// JSON, "" for none; if the proven one is another, it becomes Mismatch. The caller sets Outcome.
func newBuilt(e logs.Entry, repository string) *built {
	switch p := e.Provenance; {
	case e.Kind == logs.Mirrored:
		return &built{Why: "mirrored from another origin"}
	case p == nil && e.Signature.Outcome == "":
		return &built{Why: "not an npm release"}
	case p == nil:
		return &built{Why: "at publication"}
	case p.Outcome == logs.AttestationMissing:
		return &built{Why: "on npm"}
	case p.Outcome != logs.AttestationVerified:
		return &built{Why: p.Reason}
	default:
		b := &built{Repository: strings.TrimPrefix(p.Repository, "https://"), RepositoryLink: text.WebLink(p.Repository), Commit: p.Commit, Workflow: p.Workflow, WorkflowLink: text.WebLink(p.Workflow)}
		if path, ok := strings.CutPrefix(p.Workflow, p.Repository+"/"); ok {
			b.Workflow = path
			b.WorkflowLink = workflowLink(p)
		}
		if repository != "" && !strings.EqualFold(strings.TrimSuffix(repository, "/"), strings.TrimSuffix(p.Repository, "/")) {
			b.Mismatch = repository
		}
		return b
	}
}

// describeProvenance returns words for the outcome of checking a provenance attestation (npm's signed statement of where a
// release was built), such as "verified"; "not checked" for "".
func describeProvenance(outcome logs.AttestationOutcome) string {
	switch outcome {
	case "":
		return "not checked"
	case logs.AttestationMissing:
		return "not published"
	}
	return string(outcome)
}

// workflowLink returns the link to the source, at the commit of the build, of the GitHub workflow in p.Repository that
// built a release; "" if the repository is not at GitHub.
func workflowLink(p *logs.Provenance) string {
	path, _, _ := strings.Cut(strings.TrimPrefix(p.Workflow, p.Repository+"/"), "@")
	if !strings.HasPrefix(p.Repository, "https://github.com/") {
		return ""
	}
	return text.WebLink(p.Repository + "/blob/" + p.Commit + "/" + path)
}

// addOrigin sets page.Built to where the release was built, by the log entry of its newest publication, and page.Upstream
// and page.UpstreamDiffers to what upstream has today. It logs and leaves out what cannot be read.
func (s *Site) addOrigin(page *libraryPage) {
	failed := func(err error) {
		s.logger.Error("site: couldn't read where a release is from; the page is shown without", "package", page.Name, "version", page.Release.Version, "err", err)
	}
	found, err := s.library.Entries(logs.Query{Package: page.Name, Version: page.Release.Version, Kinds: logs.Publications, Limit: 1})
	if err != nil {
		failed(err)
	} else if len(found.Entries) > 0 {
		e := found.Entries[0].Entry
		page.Built = newBuilt(e, page.RepositoryLink)
		page.Built.Outcome = describeProvenance("")
		if e.Provenance != nil {
			page.Built.Outcome = describeProvenance(e.Provenance.Outcome)
		}
	}
	if page.Upstream, page.UpstreamDiffers, err = s.library.Upstream(page.Name, page.Release.Version); err != nil {
		failed(err)
	}
}

// feedPath returns the path and query of a library's Atom feed.
func feedPath(name string) string { return withQuery("/logs.atom", encodeQuery("package", name)) }

// A person is an author of a library.
type person struct {
	Name, Link string
	Own        bool // Link is the author's own URL, and not a search for the name here
}

// peopleShown is how many authors a page lists.
const peopleShown = 5

// listAuthors returns the first five authors, each with a link to their own page, or without a URL that a page may link to,
// to a search here for their name. more is the number of the other authors.
func listAuthors(authors []packages.Author) (shown []person, more int) {
	for _, a := range authors[:min(peopleShown, len(authors))] {
		p := person{Name: a.Name, Link: text.WebLink(a.URL), Own: true}
		if p.Link == "" {
			p.Link, p.Own = withQuery("/search", encodeQuery("q", text.Cut(a.Name, 200))), false
		}
		shown = append(shown, p)
	}
	return shown, len(authors) - len(shown)
}
