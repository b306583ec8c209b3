package logs

import "fmt"

// A Proof says what makes the files of a mirrored release trustworthy.
type Proof string

// The proofs.
const (
	ProofLog          Proof = "log"           // the signed log of the origin says that it published them
	ProofNpm          Proof = "npm"           // npm's archive has the same bytes, at every path that upstream published
	ProofSelfAsserted Proof = "self-asserted" // the origin's own word
)

// A Mirror says from which other origin a release was copied. It is in the entries of
// Mirrored, Confirmed, Withdrawn and Restored releases.
type Mirror struct {
	Source string `json:"source"` // the kind of origin, a colon and its URL: larder:https://cdn.example.com
	Proof  Proof  `json:"proof"`
	// Key is the verifier key of the origin's log and Entry the entry there that published
	// the release, in a log of Size entries by which it was live; of an origin with a log.
	Key   string `json:"key,omitempty"`
	Entry int64  `json:"entry,omitempty"`
	Size  int64  `json:"size,omitempty"`
}

// Provisional reports whether nothing but the word of the CDN that the release was copied from vouches for its files: no signed log, and not
// npm. The original ones from npm or git may still replace them. It is false for nil, a release that was not copied.
func (m *Mirror) Provisional() bool { return m != nil && m.Proof == ProofSelfAsserted }

// Publications are the kinds of entries by which a release appears.
var Publications = []Kind{Published, Mirrored, Replaced}

// Publishes reports whether an entry of this kind publishes a release.
func (k Kind) Publishes() bool { return k == Published || k == Mirrored || k == Replaced }

// Serves reports whether a release is served from an entry of this kind on.
func (k Kind) Serves() bool { return k.Publishes() || k == Restored }

// DescribeProof says in words what makes the files trustworthy.
func (m *Mirror) DescribeProof() string {
	switch m.Proof {
	case ProofLog:
		return fmt.Sprintf("entry %d of the log that %s signs", m.Entry, m.Key)
	case ProofNpm:
		return "npm, which has the same bytes at every path that upstream published"
	}
	return "nothing but the word of its origin (self-asserted by " + m.Source + ")"
}
