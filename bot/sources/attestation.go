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

// setBoth stores one outcome and reason, cut to [MaxNote] bytes, for the attestations of the build and of the publication, and returns a copy of the
// result.
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
	a.verifyBuild(s.provenance, v)
	return a, a.verifyPublication(ctx, s, v)
}

// verifyBuild verifies the attestation of the build of v in Bundles, and stores the outcome: verified and what it proves, invalid, or unverified if
// the registry did not return one.
func (a *Attested) verifyBuild(by *npm.AttestationVerifier, v npm.Version) {
	found := &a.Found
	if a.Bundles.Build == nil {
		found.Outcome, found.Reason = logs.AttestationUnverified, "the registry lists an attestation of provenance, and it is not among those that it has"
		return
	}
	build, err := by.VerifyBuild(a.Bundles.Build, v.Package, v.Version, v.Hash())
	if err != nil {
		found.Outcome, found.Reason = logs.AttestationInvalid, text.Short(err.Error(), MaxNote)
		return
	}
	found.Outcome, found.Repository, found.Commit, found.Workflow = logs.AttestationVerified, build.Repository, build.Commit, build.Workflow
}

// verifyPublication verifies the registry's attestation of the publication of v with the registry's key, and stores the outcome: verified, invalid,
// missing, or unverified if the registry does not publish that key. It returns an error only if the registry's keys cannot be fetched.
func (a *Attested) verifyPublication(ctx context.Context, s NpmSource, v npm.Version) error {
	found := &a.Found.Publish
	if a.Bundles.Publish == nil {
		found.Outcome = logs.AttestationMissing
		return nil
	}
	id, err := npm.PublishKeyID(a.Bundles.Publish)
	if err != nil {
		found.Outcome, found.Reason = logs.AttestationInvalid, text.Short(err.Error(), MaxNote)
		return nil
	}
	key, ok, err := s.client.Key(ctx, v.Package, id)
	if err != nil {
		return err
	}
	if !ok { // a mirror passes on attestations of a registry whose keys it does not publish
		found.Outcome, found.Reason = logs.AttestationUnverified, text.Short(fmt.Sprintf("it is signed with the key %q, which the registry does not publish", id), MaxNote)
		return nil
	}
	err = s.provenance.VerifyPublication(a.Bundles.Publish, v.Package, v.Version, v.Hash(), key)
	if err != nil {
		found.Outcome, found.Reason = logs.AttestationInvalid, text.Short(err.Error(), MaxNote)
		return nil
	}
	found.Outcome, found.Key, found.PublicKey = logs.AttestationVerified, text.Short(id, MaxNote), key.Text
	return nil
}
