package signing

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	cosignature "github.com/transparency-dev/formats/note"
	"golang.org/x/mod/sumdb/note"
)

// renewEvery is how old the log's own cosignature of the last signed checkpoint may become before the signer adds another one.
const renewEvery = time.Hour

// renewCheck is how often the signer compares that age with the clock, which may be set, or run on while the machine is suspended.
const renewCheck = time.Minute

// cosignatureLine returns the line of a note in which the key states that, at that time, no larger tree of the log was
// signed (https://c2sp.org/tlog-cosignature). text is that of the checkpoint, which has no time.
func (k *key) cosignatureLine(text string, at time.Time) []byte {
	seconds := uint64(at.Unix())
	signature := binary.BigEndian.AppendUint32(nil, k.cosignatures.KeyHash())
	signature = binary.BigEndian.AppendUint64(signature, seconds)
	signature = append(signature, ed25519.Sign(k.secret, fmt.Appendf(nil, "cosignature/v1\ntime %d\n%s", seconds, text))...)
	return fmt.Appendf(nil, "— %s %s\n", k.signer.Name(), base64.StdEncoding.EncodeToString(signature))
}

// splitCosignatures splits the signatures that note.Open has left unverified (n.UnverifiedSigs). at is the newest time of
// those that are valid cosignatures by a key of the ring, zero if none exists; invalid ones are dropped. others are those by
// other keys, which stay unverified.
func (r keyring) splitCosignatures(n *note.Note) (at time.Time, others []note.Signature) {
	for _, s := range n.UnverifiedSigs {
		i := slices.IndexFunc(r, func(k *key) bool { return s.Name == k.cosignatures.Name() && s.Hash == k.cosignatures.KeyHash() })
		if i < 0 {
			others = append(others, s)
			continue
		}
		raw, err := base64.StdEncoding.DecodeString(s.Base64)
		if err != nil || !r[i].cosignatures.Verify([]byte(n.Text), raw[4:]) {
			continue
		}
		if t, err := cosignature.CoSigV1Timestamp(s); err == nil && t.After(at) {
			at = t
		}
	}
	return at, others
}

// cosignedAt returns the newest time at which a key of the ring has cosigned a signed checkpoint, zero if none has, or if no
// key of the ring has signed it.
func (r keyring) cosignedAt(data []byte) time.Time {
	n, err := note.Open(data, r.verifiers())
	if err != nil {
		return time.Time{}
	}
	at, _ := r.splitCosignatures(n)
	return at
}

// renewalDue reports whether the last signed checkpoint needs a new cosignature of the log: it has none, the newest is an
// hour old, or it is in the future because of a wrong clock, which proves nothing to clients. It is false if nothing is
// signed. The caller holds s.mu, unless it is still opening the Signer.
func (s *Signer) renewalDue() bool {
	age := s.options.Now().Sub(s.keys.cosignedAt(s.last.Note))
	return s.last.Note != nil && (age >= renewEvery || age < -time.Second)
}
