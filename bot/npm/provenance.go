package npm

import (
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	intoto "github.com/in-toto/attestation/go/v1"
	"github.com/sigstore/sigstore-go/pkg/bundle"
	"github.com/sigstore/sigstore-go/pkg/root"
	sigstore "github.com/sigstore/sigstore-go/pkg/verify"

	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/logs/verify"
)

// maxTrustedRoot bounds a trusted root, in bytes; Sigstore's has some 7,000.
const maxTrustedRoot = 1 << 20

// buildServices are the issuers whose certificates count, those from which npm accepts attestations, each with the prefix of
// the repositories that it builds. Sigstore also issues certificates to people, which say nothing about a build.
var buildServices = map[string]string{
	"https://token.actions.githubusercontent.com": "https://github.com/",
	"https://gitlab.com":                          "https://gitlab.com/",
}

// provenancePredicates begin the types of statements that are about a build.
const provenancePredicates = "https://slsa.dev/provenance/"

// sigstoreRoot is the file of that name in Sigstore's repository, as npm's own client ships it.
//
//go:embed trusted_root.json
var sigstoreRoot []byte

// A AttestationVerifier verifies attestations. It is safe for concurrent use.
type AttestationVerifier struct {
	trusted  root.TrustedMaterial
	verifier *sigstore.Verifier
}

// NewAttestationVerifier returns a verifier that trusts a root in the form of Sigstore's trusted_root.json; nil is the embedded one.
func NewAttestationVerifier(rootJSON []byte) (*AttestationVerifier, error) {
	if rootJSON == nil {
		rootJSON = sigstoreRoot
	}
	if len(rootJSON) > maxTrustedRoot {
		return nil, fmt.Errorf("npm: the trusted root has over %d bytes", maxTrustedRoot)
	}
	trusted, err := root.NewTrustedRootFromJSON(rootJSON)
	if err != nil {
		return nil, fmt.Errorf("npm: not a trusted root of Sigstore, such as trusted_root.json: %w", err)
	}
	v, err := sigstore.NewVerifier(trusted, sigstore.WithSignedCertificateTimestamps(1), sigstore.WithTransparencyLog(1), sigstore.WithObserverTimestamps(1))
	if err != nil {
		return nil, fmt.Errorf("npm: %w", err)
	}
	return &AttestationVerifier{trusted, v}, nil
}

// VerifyBuild verifies that a Sigstore bundle attests the build of a version of an npm package by GitHub or GitLab, and of the archive with an
// integrity, which must contain a SHA-512. The certificate of the build and Sigstore's log entry must be valid by the trusted root. It returns what
// the bundle proves about the build. Every error says why the bundle proves nothing.
func (v *AttestationVerifier) VerifyBuild(data []byte, name, version, integrity string) (verify.Build, error) {
	b, err := parseBundle(data)
	if err != nil {
		return verify.Build{}, err
	}
	digest, err := sha512Of(integrity)
	if err != nil {
		return verify.Build{}, err
	}
	options := make([]sigstore.PolicyOption, 0, len(buildServices))
	for issuer := range buildServices {
		identity, err := sigstore.NewShortCertificateIdentity(issuer, "", "", "^https://")
		if err != nil {
			return verify.Build{}, err
		}
		options = append(options, sigstore.WithCertificateIdentity(identity))
	}
	result, err := v.verifier.Verify(b, sigstore.NewPolicy(sigstore.WithArtifactDigest("sha512", digest), options...))
	if err != nil {
		return verify.Build{}, err
	}
	if result.Statement == nil || result.Signature == nil || result.Signature.Certificate == nil {
		return verify.Build{}, errors.New("it is not a statement that is signed with a certificate")
	}
	if kind := result.Statement.GetPredicateType(); !strings.HasPrefix(kind, provenancePredicates) {
		return verify.Build{}, fmt.Errorf("it is a statement of the type %.200q, which says nothing about a build", kind)
	}
	if !isAbout(result.Statement, name, version, digest) {
		return verify.Build{}, fmt.Errorf("it is not about %s", packageURL(name, version))
	}
	c := result.Signature.Certificate
	if c.SourceRepositoryURI == "" || !commitHash.MatchString(c.SourceRepositoryDigest) {
		return verify.Build{}, errors.New("its certificate names no repository and commit")
	}
	if len(c.SourceRepositoryURI) > maxBuildURL || len(c.BuildSignerURI) > maxBuildURL {
		return verify.Build{}, fmt.Errorf("its certificate has an address of over %d bytes", maxBuildURL)
	}
	if prefix, ok := buildServices[c.Issuer]; !ok || !strings.HasPrefix(c.SourceRepositoryURI, prefix) {
		return verify.Build{}, fmt.Errorf("its certificate, issued by %.200q, names the repository %.200q, which that service does not build", c.Issuer, c.SourceRepositoryURI)
	}
	return verify.Build{Repository: c.SourceRepositoryURI, Commit: c.SourceRepositoryDigest, Workflow: c.BuildSignerURI}, nil
}

// maxBuildURL bounds an address in a certificate, in bytes.
const maxBuildURL = 1 << 10

var commitHash = text.NewRegexp(`^([0-9a-f]{40}|[0-9a-f]{64})$`)

// packageURL returns the package URL of a version of an npm package, which statements name as their subject.
func packageURL(name, version string) string {
	return "pkg:npm/" + strings.Replace(name, "@", "%40", 1) + "@" + strings.ReplaceAll(version, "+", "%2B")
}

// sha512Of returns the first valid SHA-512 in an integrity, as in Subresource Integrity. None is an error.
func sha512Of(integrity string) ([]byte, error) {
	if sums := parseIntegrityOf(algorithms[0], integrity).sums; len(sums) > 0 {
		return sums[0], nil
	}
	return nil, errors.New("the registry states no SHA-512 of the archive that an attestation could be about")
}

// parseBundle parses a Sigstore bundle. It does not verify its signature. A bundle over [verify.MaxAttestation] bytes is an error.
func parseBundle(data []byte) (*bundle.Bundle, error) {
	if len(data) > verify.MaxAttestation {
		return nil, fmt.Errorf("it has over %d bytes", verify.MaxAttestation)
	}
	var b bundle.Bundle
	if err := b.UnmarshalJSON(data); err != nil {
		return nil, fmt.Errorf("not a Sigstore bundle: %w", err)
	}
	return &b, nil
}

// isAbout reports whether a statement names a version of an npm package and, as its digest, the SHA-512 of its archive.
func isAbout(s *intoto.Statement, name, version string, digest []byte) bool {
	return slices.ContainsFunc(s.GetSubject(), func(about *intoto.ResourceDescriptor) bool {
		return about.GetName() == packageURL(name, version) && about.GetDigest()["sha512"] == hex.EncodeToString(digest)
	})
}

// AttestationBundles are the bundles in a registry's response with a version's attestations, as the registry has them; nil for one
// that is missing.
type AttestationBundles struct {
	Build   []byte // by the service that built the archive
	Publish []byte // by the registry that received it
}

// ParseAttestations parses a registry's response with the attestations of a version. It verifies none of them. Of several
// attestations of a kind, the first one counts; a missing one is not an error.
func ParseAttestations(response []byte) (AttestationBundles, error) {
	var found AttestationBundles
	var all struct {
		Attestations []struct {
			PredicateType string          `json:"predicateType"`
			Bundle        json.RawMessage `json:"bundle"`
		} `json:"attestations"`
	}
	if err := json.Unmarshal(response, &all); err != nil {
		return found, fmt.Errorf("the registry's response with attestations is malformed: %.200v", err)
	}
	for _, a := range all.Attestations {
		switch {
		case strings.HasPrefix(a.PredicateType, provenancePredicates) && found.Build == nil:
			found.Build = a.Bundle
		case a.PredicateType == publishPredicate && found.Publish == nil:
			found.Publish = a.Bundle
		}
	}
	return found, nil
}
