package library

import (
	"errors"
	"fmt"

	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
)

// Facts are the sizes, the downloads and the outcomes of checks of a library's latest release.
type Facts struct {
	Size      int64 `json:"size,omitempty"`      // bytes of [Library.Loaded]
	Brotli    int64 `json:"brotli,omitempty"`    // of the same file in Brotli, 0 if it is not stored in that encoding
	Downloads int64 `json:"downloads,omitempty"` // from npm in a month, 0 where unknown
	// Deprecated and Vulnerable are nil if that was not checked.
	Deprecated *bool `json:"deprecated"`
	Vulnerable *bool `json:"vulnerable"`
	// Provenance is the outcome of the check of the provenance attestation at publication, "" if it was not checked.
	Provenance logs.AttestationOutcome `json:"provenance"`
	// SafeVersion is the newest stable version that is neither deprecated nor vulnerable: "" for none, nil unless both were
	// checked.
	SafeVersion *string `json:"safeVersion"`
}

// Marks are the deprecated and the vulnerable versions of a library.
type Marks struct {
	Deprecated map[string]string // why upstream deprecated a version
	Vulnerable map[string]bool   // the versions with known vulnerabilities
	// KnowsDeprecated and KnowsVulnerable report whether a version without a mark was checked.
	KnowsDeprecated, KnowsVulnerable bool
}

// Of returns "vulnerable" if the version is vulnerable, else "deprecated" if it is deprecated, else "", also if m does not
// know.
func (m Marks) Of(version string) string {
	switch _, deprecated := m.Deprecated[version]; {
	case m.Vulnerable[version]:
		return "vulnerable"
	case deprecated:
		return "deprecated"
	}
	return ""
}

// Safe returns the first of versions, which are usually sorted newest first, that is stable and neither deprecated nor
// vulnerable as far as m knows; "" if none exists.
func (m Marks) Safe(versions []string) string {
	for _, version := range versions {
		if !packages.IsPrerelease(version) && m.Of(version) == "" {
			return version
		}
	}
	return ""
}

// Marks returns which of the given versions of a library are vulnerable, and all its versions that upstream has deprecated,
// and whether each of the two is known at all. The map of vulnerable versions is never nil. advisories may be nil. If the
// deprecations cannot be read, it returns the rest with an error.
func (x *Index) Marks(l *Library, advisories *Advisories, versions []string) (m Marks, err error) {
	npm := l.NPM()
	m.Deprecated, err = x.Deprecations(l.Name)
	m.KnowsDeprecated = m.Deprecated != nil && err == nil && npm != ""
	m.KnowsVulnerable = advisories.HasChecked(npm)
	m.Vulnerable = map[string]bool{}
	if npm != "" {
		for _, version := range advisories.Affected(npm, versions) {
			m.Vulnerable[version] = true
		}
	}
	if err != nil {
		err = fmt.Errorf("library: couldn't read which versions of %s are deprecated: %w", l.Name, err)
	}
	return m, err
}

// Facts reads the facts of a library's latest release: sizes, downloads, and outcomes of checks. Facts that are not known
// are nil, 0 or "". Without a published release it returns only Downloads. With an error, it returns those that could be
// read. advisories may be nil.
func (x *Index) Facts(l *Library, advisories *Advisories) (Facts, error) {
	f := Facts{Size: l.Loaded.Size, Downloads: l.Downloads}
	if n, _, ok := x.Downloads(l.Name); ok {
		f.Downloads = n
	}
	if l.Version == "" {
		return f, nil
	}
	marks, failed := x.Marks(l, advisories, []string{l.Version})
	if _, deprecated := marks.Deprecated[l.Version]; deprecated || marks.KnowsDeprecated {
		f.Deprecated = &deprecated
	}
	if marks.KnowsVulnerable {
		f.Vulnerable = new(marks.Vulnerable[l.Version])
	}
	var err error
	if marks.KnowsDeprecated && marks.KnowsVulnerable {
		f.SafeVersion, err = x.safeVersion(l, advisories, marks)
		failed = errors.Join(failed, err)
	}
	f.Brotli, err = x.brotliSize(l)
	failed = errors.Join(failed, err)
	published, err := x.Entries(logs.Query{Package: l.Name, Version: l.Version, Kinds: logs.Publications, Limit: 1})
	if err == nil && len(published.Entries) > 0 && published.Entries[0].Provenance != nil {
		f.Provenance = published.Entries[0].Provenance.Outcome
	}
	return f, errors.Join(failed, err)
}

// safeVersion returns the newest stable version of a library that is neither deprecated nor vulnerable, as a pointer, to ""
// if none exists. latest has the marks of the latest version, which is the result if it is safe; only if not, the other
// versions are read. The result is nil if these cannot be read. If only their deprecations cannot be read, the result, with
// an error, is the newest that is not vulnerable.
func (x *Index) safeVersion(l *Library, advisories *Advisories, latest Marks) (*string, error) {
	if safe := latest.Safe([]string{l.Version}); safe != "" {
		return &safe, nil
	}
	versions, err := x.Versions(l.Name)
	if err != nil {
		return nil, err
	}
	names := VersionNames(versions)
	marks, err := x.Marks(l, advisories, names)
	return new(marks.Safe(names)), err
}

// brotliSize returns the stored size in bytes, in the Brotli encoding, of the library's file that a page loads (Loaded); 0
// if there is no such file, or it is not stored in that encoding or has been erased.
func (x *Index) brotliSize(l *Library) (int64, error) {
	if !l.HasFile() {
		return 0, nil
	}
	content, err := x.Content(l.Loaded.Hash)
	if errors.Is(err, kvstore.ErrNotFound) { // withdrawn and erased since
		return 0, nil
	}
	c, _ := content.Find(coding.Brotli)
	return c.Length, err
}

// VersionNames returns the name of each version, such as "3.7.1", in the same order.
func VersionNames(versions []views.Version) []string {
	return text.Each(versions, func(v views.Version) string { return v.Version })
}
