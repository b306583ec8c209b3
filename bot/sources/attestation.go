package sources

import (
	"context"
	"errors"
	"fmt"

	"github.com/larder-cdn/larder/bot/npm"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/logs"
)

// Attested is what the attestations of a release prove, and their bundles.
type Attested struct {
	Found   logs.Provenance
	Bundles npm.AttestationBundles
}

// setBoth stores one outcome and reason for the attestations of the build and of the publication, and returns a copy of the result.
func (a *Attested) setBoth(outcome logs.AttestationOutcome, reason string) Attested {
	a.Found.Outcome, a.Found.Reason = outcome, text.Short(reason, MaxNote)
	a.Found.Publish.Outcome, a.Found.Publish.Reason = outcome, a.Found.Reason
	return *a
}

// fetchAttestations fetches the attestations of a version from the registry and verifies them. The outcome of an attestation that is missing or
// invalid is in the result, not an error: the policy of the package decides whether the release may be published. An error says that the registry
// could not be requested, so that a later attempt may succeed.
func (s NpmSource) fetchAttestations(ctx context.Context, v npm.Version) (Attested, error) {
	var a Attested
	if !v.Attested {
		return a.setBoth(logs.AttestationMissing, ""), nil
	}
	response, err := s.client.Attestations(ctx, v)
	if errors.Is(err, npm.ErrNotFound) {
		return a.setBoth(logs.AttestationUnverified, "the registry lists an attestation and does not have it, as mirrors do"), nil
	}
	if err != nil && npm.IsPermanent(err) {
		return a.setBoth(logs.AttestationUnverified, err.Error()), nil
	}
	if err != nil {
		return a, err
	}
	if a.Bundles, err = npm.ParseAttestations(response); err != nil {
		return a.setBoth(logs.AttestationInvalid, err.Error()), nil
	}
	outcome, reason := a.verifyBuild(s.provenance, v)
	a.Found.Outcome, a.Found.Reason = outcome, text.Short(reason, MaxNote)
	outcome, reason, err = a.verifyPublication(ctx, s, v)
	a.Found.Publish.Outcome, a.Found.Publish.Reason = outcome, text.Short(reason, MaxNote)
	return a, err
}

// verifyBuild verifies the attestation of the build of v in Bundles, stores what it proves, and returns the outcome with the reason: verified,
// invalid, or unverified if the registry did not return one.
func (a *Attested) verifyBuild(by *npm.AttestationVerifier, v npm.Version) (logs.AttestationOutcome, string) {
	if a.Bundles.Build == nil {
		return logs.AttestationUnverified, "the registry lists an attestation of provenance, and it is not among those that it has"
	}
	build, err := by.VerifyBuild(a.Bundles.Build, v.Package, v.Version, v.Hash())
	if err != nil {
		return logs.AttestationInvalid, err.Error()
	}
	a.Found.Repository, a.Found.Commit, a.Found.Workflow = build.Repository, build.Commit, build.Workflow
	return logs.AttestationVerified, ""
}

// verifyPublication verifies the registry's attestation of the publication of v with the registry's key, stores the key, and returns the outcome with
// the reason: verified, invalid, missing, or unverified if the registry does not publish that key. It returns an error only if the registry's keys
// cannot be fetched.
func (a *Attested) verifyPublication(ctx context.Context, s NpmSource, v npm.Version) (logs.AttestationOutcome, string, error) {
	if a.Bundles.Publish == nil {
		return logs.AttestationMissing, "", nil
	}
	id, err := npm.PublishKeyID(a.Bundles.Publish)
	if err != nil {
		return logs.AttestationInvalid, err.Error(), nil
	}
	key, ok, err := s.client.Key(ctx, v.Package, id)
	if err != nil {
		return "", "", err
	}
	if !ok { // a mirror passes on attestations of a registry whose keys it does not publish
		return logs.AttestationUnverified, fmt.Sprintf("it is signed with the key %q, which the registry does not publish", id), nil
	}
	if err := s.provenance.VerifyPublication(a.Bundles.Publish, v.Package, v.Version, v.Hash(), key); err != nil {
		return logs.AttestationInvalid, err.Error(), nil
	}
	a.Found.Publish.Key, a.Found.Publish.PublicKey = text.Short(id, MaxNote), key.Text
	return logs.AttestationVerified, "", nil
}
