package logs

import (
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
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
	var sum []byte
	switch algorithm {
	case "sha256":
		s := sha256.Sum256(data)
		sum = s[:]
	case "sha384":
		s := sha512.Sum384(data)
		sum = s[:]
	default:
		s := sha512.Sum512(data)
		sum = s[:]
	}
	own = algorithm + "-" + base64.StdEncoding.EncodeToString(sum)
	return own, slices.Contains(hashes, own)
}
