package sources

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/bot/npm"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/packages/archive"
)

// MaxNote bounds a sentence that is stored about a release, in bytes.
const MaxNote = 500

// A VanishedError reports that upstream responds with "not found" for a package that it had before, or for an archive that it lists. An upstream
// that does so for all of them counts as down.
type VanishedError struct {
	Err     error
	Archive bool
}

// Error returns the text of the wrapped error, which says only that upstream responds with not found.
func (e VanishedError) Error() string { return e.Err.Error() }
func (e VanishedError) Unwrap() error { return e.Err }

// IsOutage reports whether err may concern all packages of an upstream: it did not respond, or responded with something else than its content. "Not
// found" is no outage unless it is a [VanishedError], nor is a response that is too large.
func IsOutage(err error) bool {
	switch {
	case errors.As(err, new(VanishedError)), wrongArchiveHash(err) != "", errors.As(err, new(*npm.MalformedError)):
		return true
	case errors.Is(err, fetch.ErrNotFound), errors.Is(err, fetch.ErrTooLarge):
		return false
	}
	return errors.As(err, new(*fetch.Error))
}

// isArchiveOutage reports whether err says that an upstream responds, but serves other bytes or none for an archive that it lists, or names an
// address for it that is forbidden.
func isArchiveOutage(err error) bool {
	vanished, _ := errors.AsType[VanishedError](err)
	return wrongArchiveHash(err) != "" || errors.Is(err, fetch.ErrForbidden) || vanished.Archive
}

// saysNothingOfUpstream reports whether err is neither a success nor a failure of an upstream: the caller was canceled, a rate limit was reached, or
// this machine failed.
func saysNothingOfUpstream(err error) bool {
	return errors.Is(err, context.Canceled) || errors.As(err, new(*git.LimitError)) || errors.As(err, new(*fetch.LocalError))
}

// A Transient is an error after which an attempt can succeed, also if it wraps a refusal.
type Transient struct{ Err error }

func (t Transient) Error() string { return t.Err.Error() }
func (t Transient) Unwrap() error { return t.Err }

// unverified is the error of an archive that cannot be used and has no hash to compare it with.
type unverified struct {
	error
	hash string // of the download
}

func (u unverified) Unwrap() error { return u.error }

// wrongArchiveHash returns a hash that identifies what is wrong with an archive, "" if err is another error: of an archive of npm
// that has not the integrity that npm states, the hash that it has; of a download that could not be verified, its hash.
func wrongArchiveHash(err error) string {
	if broken, ok := errors.AsType[*npm.IntegrityError](err); ok {
		return broken.Got
	}
	unusable, _ := errors.AsType[unverified](err)
	return unusable.hash
}

// WrongMetadataHash returns a hash of err's text if err says that the metadata of a release or the address of its archive is wrong, "" if err is
// another error.
func WrongMetadataHash(err error) string {
	broken, ok := errors.AsType[*npm.IntegrityError](err)
	if errors.As(err, new(*npm.SignatureError)) || errors.As(err, new(*npm.MalformedError)) ||
		ok && broken.Got == "" || errors.Is(err, fetch.ErrForbidden) {
		return kvstore.Sum([]byte(err.Error())).String()
	}
	return ""
}

// WrongHash returns a hash of the wrong archive or metadata that upstream served, "" if err is another error. The same hash means that upstream served
// the same again.
func WrongHash(err error) string { return cmp.Or(wrongArchiveHash(err), WrongMetadataHash(err)) }

// A Refusal is an error that occurs again at each attempt.
type Refusal struct {
	Reason string
	Cause  error // may be nil
	// NoFiles reports whether the file map of the package JSON selects nothing that can be published.
	NoFiles bool
}

func (r *Refusal) Error() string { return r.Reason }

func (r *Refusal) Unwrap() error { return r.Cause }

// Refusef returns a [Refusal] with a formatted reason.
func Refusef(format string, args ...any) error {
	return &Refusal{Reason: fmt.Sprintf(format, args...)}
}

// RefusalReason returns the text of err and true if err says that a release will never be accepted as it is: a [Refusal], a refused archive or
// repository, or an error by [npm.IsPermanent] but [npm.ErrNotFound]; wrong bytes and statuses are not among them. It returns "" and false for any
// other error, and for each [Transient].
func RefusalReason(err error) (string, bool) {
	if errors.As(err, new(Transient)) {
		return "", false
	}
	if errors.As(err, new(*Refusal)) || errors.As(err, new(*archive.RefusedError)) || errors.As(err, new(*git.RefusedError)) || npm.IsPermanent(err) && !errors.Is(err, npm.ErrNotFound) {
		return err.Error(), true
	}
	return "", false
}
