package npmtest

import "fmt"

// FormerKey is the key with which npm signed until January 2025, SubjectPublicKeyInfo in base64: the one behind the
// attestations of sigstore 1.3.0 in the fixtures.
const FormerKey = "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE1Olb3zMAFFxXKHiIkQO5cJ3Yhl5i6UPp+IhuteBJbuHcA5UogKo0EWtlWwW6KSaKoTNEYL7JlCQiVnkhBktUgg=="

// FormerKeyID is the id under which npm published it.
const FormerKeyID = "SHA256:jl3bwswu80PjjokCgh0o2w5c2U4LhQAE57gj9cz1kzA"

// PublishFormerKey has the registry publish npm's former key, with its end.
func (r *Registry) PublishFormerKey() {
	r.SetKeys(fmt.Appendf(nil, `{"keys":[{"expires":"2025-01-29T00:00:00.000Z","keyid":%q,"keytype":"ecdsa-sha2-nistp256","scheme":"ecdsa-sha2-nistp256","key":%q}]}`, FormerKeyID, FormerKey))
}
