package app

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/logs/signing"
)

// A signature is how a Writer signs the log: with signer, or not at all if that is nil; unsigned then says why, "" if nothing
// is wrong. The zero value neither signs nor reports that something is wrong, as for a log that was never signed.
type signature struct {
	signer   *signing.Signer
	unsigned string
}

// openSigner opens the signer of the log with the key folder of the settings, sets it in w.signature, and creates the key if it
// is missing. registerer is nil for no metrics. It does not run the signer.
func (w *Writer) openSigner(logger *slog.Logger, registerer prometheus.Registerer) error {
	s := w.folder.settings
	policy, err := witnessPolicy(s)
	if err != nil {
		return err
	}
	w.signature.signer, err = signing.Open(signing.Options{
		Dir: s.KeyFolder(), Origin: s.LogOrigin, Store: w.folder.store, Log: w.folder.log, Policy: policy,
		Logger: logger.With("part", "signing"), Registerer: registerer,
	})
	if err != nil {
		return fmt.Errorf("%w; --keys chooses another key folder", err)
	}
	return nil
}

// witnessPolicy returns which witnesses must cosign the log by the settings, nil if they name none. It reads the policy file
// that they name. A [settings.Mistake] says what is wrong with these settings.
func witnessPolicy(s *settings.Settings) (*signing.Policy, error) {
	switch {
	case s.WitnessPolicy != "" && len(s.Witnesses) > 0:
		return nil, settings.Mistakef("%s and %s: give one of the two", s.Origin("witness"), s.Origin("witness-policy"))
	case s.WitnessPolicy != "":
		text, err := s.ReadFile("witness-policy", s.WitnessPolicy)
		if err != nil {
			return nil, err
		}
		policy, err := signing.ParsePolicy(text)
		if err != nil {
			return nil, settings.Mistakef("%s: %s: %w", s.Origin("witness-policy"), s.WitnessPolicy, err)
		}
		return policy, nil
	case len(s.Witnesses) == 0:
		return nil, nil
	}
	policy, err := signing.ParseMajority(s.Witnesses)
	if err != nil {
		return nil, settings.Mistakef("%s: %w", s.Origin("witness"), err)
	}
	return policy, nil
}

// openSignerIfAny opens the signer if the key folder has the key that signed this log. If the folder has another key, or none, or
// if the signer cannot be opened, it records in w.signature.unsigned why the log is not signed, and returns nil: commands must be
// able to withdraw a release whatever became of the keys. For a log that was never signed it does nothing: the process that serves
// it signs it. It returns mistakes in the settings, and the error of reading from the store by which key the log was signed.
func (w *Writer) openSignerIfAny() error {
	keys := w.folder.settings.KeyFolder()
	before, err := signing.SignedBy(w.folder.store)
	if err != nil {
		return err
	}
	_, key, err := signing.ReadFolder(keys)
	switch {
	case before == "":
		return nil
	case key == "" && err != nil && !errors.Is(err, fs.ErrNotExist):
		w.signature.unsigned = fmt.Sprintf("it was signed before, and the key in %s cannot be used: %v", keys, err)
		return nil
	case key == "":
		w.signature.unsigned = fmt.Sprintf("it was signed before, and there is no key in %s; name its key folder with --keys", keys)
		return nil
	case key != before:
		w.signature.unsigned = fmt.Sprintf("the key in %s is not the one that signed it before; name its key folder with --keys, or bring a newer store if the key was changed since this one was copied", keys)
		return nil
	}
	// An error is reported once, in the response of OpUnsigned.
	err = w.openSigner(slog.New(slog.DiscardHandler), nil)
	if err != nil && !errors.As(err, new(settings.Mistake)) {
		w.signature.unsigned, err = err.Error(), nil
	}
	return err
}

// close signs the entries that are not signed yet, unless witnesses are missing or signing is refused, and closes the signer.
// It must be called once. Without a signer it does nothing.
func (s *signature) close() error {
	if s.signer == nil {
		return nil
	}
	return s.signer.Close()
}

// problem returns why the log's newest entries are not signed, and what to do; "" if nothing is wrong.
func (s *signature) problem() string {
	if s.signer == nil {
		return s.unsigned
	}
	if err := s.signer.Problem(); err != nil {
		return err.Error()
	}
	return ""
}

// disputes returns, as sentences, the checkpoints that are signed with the log's key and are not part of the log, as after a
// fork, which were found so far; nil for none.
func (s *signature) disputes() []string {
	if s.signer == nil {
		return nil
	}
	return s.signer.Disputes()
}

// Rotation is the result of changing the key, and its JSON form.
type Rotation struct {
	signing.KeyChange
	Folder string `json:"folder"` // the key folder
}

// rotateKey replaces the log's key by a new one in the key folder, appends an entry to the log that announces the new key, and
// returns the change and the folder. It returns an error if this process does not sign the log. After another error the new key
// may sign already; see [signing.Signer.Rotate].
func (s *signature) rotateKey() (Rotation, error) {
	if s.signer == nil {
		return Rotation{}, errors.New("this process does not sign the log")
	}
	change, err := s.signer.Rotate(time.Now())
	return Rotation{change, s.signer.Folder()}, err
}
