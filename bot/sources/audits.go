package sources

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/verify"
)

// An Audit is the result of comparing a release with its upstream, file by file.
type Audit struct {
	At      time.Time      `json:"at"`
	Outcome verify.Outcome `json:"outcome"` // proven, differs or unproven
	Problem string         `json:"problem,omitempty"`
	// Files are upstream's, Made were made again and came out the same, Unchecked are neither.
	Files     int `json:"files,omitempty"`
	Made      int `json:"made,omitempty"`
	Unchecked int `json:"unchecked,omitempty"`
}

var auditSuffix = []byte("audit\x00")

// AuditKey returns the key of the row with the last [Audit] of a release.
func AuditKey(pkg, version string) []byte { return kvstore.Key(pkg, "audit", version) }

// ReadAudits returns the last audit of each release of a package that was audited, or of all packages if pkg is "". It leaves out rows that are
// damaged.
func ReadAudits(r kvstore.Reader, pkg string) (map[ReleaseName]Audit, error) {
	var within kvstore.Range
	if pkg != "" {
		within.Prefix = kvstore.Prefix(pkg)
	}
	found := map[ReleaseName]Audit{}
	err := scanRows(r, within, auditSuffix, func(pkg, version string, a Audit) { found[ReleaseName{pkg, version}] = a })
	if err != nil {
		return nil, fmt.Errorf("bot: couldn't read how releases compared with upstream: %w", err)
	}
	return found, nil
}

// A ReleaseName is a package and one of its versions.
type ReleaseName struct {
	Package string `json:"package"`
	Version string `json:"version"`
}

// UpstreamNote returns a sentence for people that says how what upstream lists differs from what a release was published from; else the result of the
// last audit, if it found a difference or found all that could be checked equal; else "". problem reports a difference.
func UpstreamNote(r kvstore.Reader, pkg, version string) (note string, problem bool, err error) {
	origins, err := LookupOrigins(r, pkg)
	if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
		return "", false, err
	}
	if o := origins.Versions[version]; o.Differs() {
		return capitalize(o.Reason()) + ".", true, nil
	}
	a, err := readRow[Audit](r, AuditKey(pkg, version))
	if errors.Is(err, kvstore.ErrNotFound) {
		return "", false, nil
	}
	if err != nil {
		return "", false, err
	}
	switch a.Outcome {
	case verify.Differs:
		return capitalize(a.Reason()) + ".", true, nil
	case verify.Proven:
		note = fmt.Sprintf("On %s all that could be checked was the same at its upstream: %s byte for byte", a.At.Format("2 January 2006"), text.Count(a.Files, "file", "files"))
		if a.Made > 0 {
			note += fmt.Sprintf(", and %s made again", text.Count(a.Made, "file", "files"))
		}
		if a.Unchecked > 0 {
			note += fmt.Sprintf("; %s not checked", text.Count(a.Unchecked, "file was", "files were"))
		}
		return note + ".", false, nil
	}
	return "", false, nil
}

// Reason returns a sentence without its full stop that says how a release differs from its upstream. The outcome of a is [verify.Differs].
func (a Audit) Reason() string {
	return "what is served is not what upstream has: " + strings.TrimSuffix(a.Problem, ".")
}

// capitalize returns a sentence, which is not empty, with its first byte in upper case.
func capitalize(s string) string {
	return strings.ToUpper(s[:1]) + s[1:]
}
