package logs

import (
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"hash"
	"slices"
	"strings"
)

// StrongestHashes returns those hashes in an integrity attribute that browsers compare with, which are those of the
// strongest algorithm, in the order of the attribute and without their options:
// https://www.w3.org/TR/SRI/#get-the-strongest-metadata. It takes them by their prefix (sha512-, sha384- or sha256-) and
// does not check what follows. It returns nil if there is no hash that browsers know.
func StrongestHashes(integrity string) []string {
	for _, algorithm := range []string{"sha512-", "sha384-", "sha256-"} {
		var tokens []string
		for token := range strings.FieldsSeq(integrity) {
			token, _, _ = strings.Cut(token, "?")
			if strings.HasPrefix(token, algorithm) {
				tokens = append(tokens, token)
			}
		}
		if len(tokens) > 0 {
			return tokens
		}
	}
	return nil
}

// MatchHashes compares data with hashes that [StrongestHashes] returned, at least one. It returns the hash of data by their
// algorithm, in the form ALGORITHM-BASE64, and reports whether it is among them.
func MatchHashes(hashes []string, data []byte) (own string, matches bool) {
	algorithm, _, _ := strings.Cut(hashes[0], "-")
	sum := map[string]func() hash.Hash{"sha256": sha256.New, "sha384": sha512.New384, "sha512": sha512.New}[algorithm]()
	sum.Write(data)
	own = algorithm + "-" + base64.StdEncoding.EncodeToString(sum.Sum(nil))
	return own, slices.Contains(hashes, own)
}
