package settings

import (
	"crypto/sha256"
	"encoding/hex"
)

// alike are the settings that must have the same values on all nodes of a cluster, because any of them may become the leader, and
// clients may be served by each.
var alike = []string{
	"catalogue", "releases", "interval", "feed", "fallback", "witness", "witness-policy", "asset-base", "site-base", "api-host", "name",
	"dictionaries", "other-cdn-urls", "rooms", "vulnerabilities", "bucket", "trusted-proxies", "forwarded-header", "proxy-protocol",
}

// Digests returns a short hash of the value of each setting that must be the same on all nodes of a cluster, by its name: eight hexadecimal
// digits. Of a setting that names a file, only the name counts; waiting rooms in the configuration file do not count.
func (s *Settings) Digests() map[string]string {
	digests := make(map[string]string, len(alike))
	for _, name := range alike {
		sum := sha256.Sum256([]byte(s.Flags.Lookup(name).Value.String()))
		digests[name] = hex.EncodeToString(sum[:4])
	}
	return digests
}
