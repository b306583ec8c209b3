package npm

import (
	"crypto"
	"errors"
	"fmt"
	"time"

	"github.com/sigstore/sigstore-go/pkg/root"
	sigstore "github.com/sigstore/sigstore-go/pkg/verify"
	"github.com/sigstore/sigstore/pkg/signature"
)

// publishPredicate is the type of npm's statement that it received an archive.
const publishPredicate = "https://github.com/npm/attestation/tree/main/specs/publish/v0.1"

// PublishKeyID returns the id of the key that a publish attestation, a Sigstore bundle, names as its signer. It does not
// verify the signature.
func PublishKeyID(data []byte) (string, error) {
	b, err := parseBundle(data)
	if err != nil {
		return "", err
	}
	content, err := b.VerificationContent()
	if err != nil {
		return "", fmt.Errorf("not a Sigstore bundle: %w", err)
	}
	if content.PublicKey() == nil || content.PublicKey().Hint() == "" {
		return "", errors.New("it does not name the key that signed it")
	}
	return content.PublicKey().Hint(), nil
}

// VerifyPublication verifies that a Sigstore bundle is the statement of a registry, signed with its key, that it received an
// archive with an integrity, which must contain a SHA-512, as a version of an npm package. Sigstore's log must have the signature,
// and it or one of Sigstore's timestamp authorities must say when it was made, before key.Expires if that is set. A nil error means
// that all this is proven; an error says why the bundle proves nothing.
func (v *AttestationVerifier) VerifyPublication(data []byte, name, version, integrity string, key RegistryKey) error {
	b, err := parseBundle(data)
	if err != nil {
		return err
	}
	digest, err := sha512Of(integrity)
	if err != nil {
		return err
	}
	if key.Key == nil {
		return fmt.Errorf("the registry's key %.200q is not an ECDSA key that Larder can read", key.ID)
	}
	loaded, err := signature.LoadECDSAVerifier(key.Key, crypto.SHA256)
	if err != nil {
		return err
	}
	keys := root.NewTrustedPublicKeyMaterialFromMapping(map[string]*root.ExpiringKey{key.ID: root.NewExpiringKey(loaded, time.Time{}, key.Expires)})
	verifier, err := sigstore.NewVerifier(root.TrustedMaterialCollection{v.trusted, keys}, sigstore.WithTransparencyLog(1), sigstore.WithObserverTimestamps(1))
	if err != nil {
		return err
	}
	result, err := verifier.Verify(b, sigstore.NewPolicy(sigstore.WithArtifactDigest("sha512", digest), sigstore.WithKey()))
	if err != nil {
		return err
	}
	s := result.Statement
	if s == nil || s.GetPredicateType() != publishPredicate {
		return fmt.Errorf("it is not a statement of the type %s", publishPredicate)
	}
	said := s.GetPredicate().GetFields()
	if !isAbout(s, name, version, digest) || said["name"].GetStringValue() != name || said["version"].GetStringValue() != version {
		return fmt.Errorf("it is not about %s", packageURL(name, version))
	}
	return nil
}
