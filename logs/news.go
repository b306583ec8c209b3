package logs

import (
	"cmp"
	"fmt"
	"slices"
)

// News are the kinds of entries that feeds, webhooks and `larder log watch` report: what was published, what was withdrawn, and what is wrong. Those of
// [LogNews] are about the log itself, and so about every package.
var News = slices.Concat(Publications, []Kind{Withdrawn, Restored, Erased, UpstreamChanged, PackageRemoved}, LogNews)

// LogNews are those of [News] that are about no package.
var LogNews = []Kind{KeyChanged, LossAccepted}

// Alarming reports whether an entry of a kind in [News] says that something may be wrong. All do but those that publish or
// restore a release.
func (k Kind) Alarming() bool { return !k.Publishes() && k != Restored }

// News describes the entry in a sentence, with its reason and its provenance if the kind shows them and it has them. The
// entry must be of a kind in [News], or a policy change that [PolicyChange.Weakens]; of any other, the sentence only names
// the release, the kind and the reason.
func (e Entry) News() string {
	name := e.Package + " " + e.Version
	reason := ""
	if e.Reason != "" {
		reason = ": " + e.Reason
	}
	switch e.Kind {
	case Published, Replaced, Restored:
		switch p := e.Provenance; {
		case p == nil:
		case p.Outcome == AttestationVerified:
			reason += "; " + p.String()
		default:
			reason += "; provenance: " + p.String()
		}
		return name + " was " + string(e.Kind) + reason
	case Mirrored:
		return name + " was taken from another origin" + reason
	case Withdrawn:
		return name + " was " + string(e.Kind) + reason
	case Erased:
		return "contents of " + name + " were erased" + reason
	case UpstreamChanged:
		return name + reason
	case PackageAdded, PackageChanged:
		if e.Policy.Weakens() {
			return fmt.Sprintf("%s no longer requires that releases are built from %s, but from %s", e.Package, e.Policy.Old, cmp.Or(e.Policy.New, "anywhere"))
		}
	case PackageRemoved:
		return e.Package + " left the catalogue: what is published stays, and nothing follows"
	case KeyChanged:
		return "the log is signed with another key from here on, which the one before has named: " + e.Key
	case LossAccepted:
		return fmt.Sprintf("the log before has lost %s that were signed, and goes on as this one", e.Lost)
	}
	return name + " " + string(e.Kind) + reason
}

// Unexpected says why the maintainers of a package may not have expected the publication e, compared with before, the
// publication before it: provenance or a signature is missing now, or names another repository. It returns "" if nothing is
// suspicious.
func (e Entry) Unexpected(before Entry) string {
	switch was, is := before.Provenance, e.Provenance; {
	case was == nil || was.Outcome != AttestationVerified:
	case is == nil || is.Outcome != AttestationVerified:
		return fmt.Sprintf("nothing proves where it was built, and %s was built from %s", before.Version, was.Repository)
	case is.Repository != was.Repository:
		return fmt.Sprintf("it was built from %s, and %s from %s", is.Repository, before.Version, was.Repository)
	}
	if before.Signature.Outcome == SignatureVerified && e.Signature.Outcome != SignatureVerified {
		return fmt.Sprintf("upstream has not signed it, and had signed %s", before.Version)
	}
	return ""
}
