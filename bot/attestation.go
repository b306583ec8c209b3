package bot

import (
	"context"
	"errors"
	"fmt"

	"github.com/larder-cdn/larder/bot/npm"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/attestation"
	"github.com/larder-cdn/larder/logs/verify"
)

// attested is what the attestations of a release prove, and their bundles.
type attested struct {
	found   logs.Provenance
	bundles attestation.Bundles
}

// set records what is wrong with both attestations.
func (a *attested) set(outcome logs.AttestationOutcome, reason string) attested {
	a.found.Outcome, a.found.Reason = outcome, text.Short(reason, maxNote)
	a.found.Publish.Outcome, a.found.Publish.Reason = outcome, a.found.Reason
	return *a
}

// fetchAttestations fetches and verifies the attestations of a version. One that proves nothing does not by itself stop a
// release, because the registry's signature covers the archive; [satisfyPolicy] decides.
func (s npmSource) fetchAttestations(ctx context.Context, v npm.Version) (attested, error) {
	var a attested
	if !v.Attested {
		return a.set(logs.AttestationMissing, ""), nil
	}
	response, err := s.client.Attestations(ctx, v)
	if errors.Is(err, npm.ErrNotFound) {
		return a.set(logs.AttestationUnverified, "the registry lists an attestation and does not have it, as mirrors do"), nil
	}
	if err != nil && npm.IsPermanent(err) {
		return a.set(logs.AttestationUnverified, err.Error()), nil
	}
	if err != nil {
		return a, err
	}
	if a.bundles, err = attestation.ParseResponse(response); err != nil {
		return a.set(logs.AttestationInvalid, err.Error()), nil
	}
	a.verifyBuild(s.provenance, v)
	return a, a.verifyPublication(ctx, s, v)
}

// verifyBuild verifies the attestation of the build.
func (a *attested) verifyBuild(by *attestation.Verifier, v npm.Version) {
	found := &a.found
	if a.bundles.Build == nil {
		found.Outcome, found.Reason = logs.AttestationUnverified, "the registry lists an attestation of provenance, and it is not among those that it has"
		return
	}
	build, err := by.VerifyBuild(a.bundles.Build, v.Package, v.Version, v.Hash())
	if err != nil {
		found.Outcome, found.Reason = logs.AttestationInvalid, text.Short(err.Error(), maxNote)
		return
	}
	found.Outcome, found.Repository, found.Commit, found.Workflow = logs.AttestationVerified, build.Repository, build.Commit, build.Workflow
}

// verifyPublication verifies the registry's own attestation with the key that the registry publishes.
func (a *attested) verifyPublication(ctx context.Context, s npmSource, v npm.Version) error {
	found := &a.found.Publish
	if a.bundles.Publish == nil {
		found.Outcome = logs.AttestationMissing
		return nil
	}
	id, err := attestation.PublishKey(a.bundles.Publish)
	if err != nil {
		found.Outcome, found.Reason = logs.AttestationInvalid, text.Short(err.Error(), maxNote)
		return nil
	}
	key, ok, err := s.client.Key(ctx, v.Package, id)
	if err != nil {
		return err
	}
	if !ok { // a mirror passes on attestations of a registry whose keys it does not publish
		found.Outcome, found.Reason = logs.AttestationUnverified, text.Short(fmt.Sprintf("it is signed with the key %q, which the registry does not publish", id), maxNote)
		return nil
	}
	err = s.provenance.VerifyPublication(a.bundles.Publish, v.Package, v.Version, v.Hash(), attestation.RegistryKey{ID: id, Key: key.Key, Expires: key.Expires})
	if err != nil {
		found.Outcome, found.Reason = logs.AttestationInvalid, text.Short(err.Error(), maxNote)
		return nil
	}
	found.Outcome, found.Key, found.PublicKey = logs.AttestationVerified, text.Short(id, maxNote), key.Text
	return nil
}

// storeBundles stores the attestations and returns the provenance that names them.
func (b *Bot) storeBundles(pins *kvstore.Pins, a attested) (*logs.Provenance, error) {
	found := a.found
	for _, bundle := range []struct {
		data []byte
		hash *kvstore.Hash
	}{{a.bundles.Build, &found.Bundle}, {a.bundles.Publish, &found.Publish.Bundle}} {
		if len(bundle.data) == 0 || len(bundle.data) > verify.MaxAttestation {
			continue
		}
		var err error
		if *bundle.hash, err = b.keep(pins, bundle.data); err != nil {
			return nil, err
		}
	}
	return &found, nil
}
