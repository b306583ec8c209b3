package parts

import (
	"context"
	"errors"
	"slices"
)

// WithoutCancellation returns err without the errors that it joins and whose only cause is [context.Canceled] or the cause for which
// ctx ended; nil if it has no others. It returns an error that wraps joined ones in a text of its own unchanged, unless all of them
// have such a cause. Callers use it where a stop on request is no failure, so not for a process that was started for a single pass.
func WithoutCancellation(ctx context.Context, err error) error {
	if err == nil || causedBy(err, context.Canceled, context.Cause(ctx)) {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok || errors.Join(joined.Unwrap()...).Error() != err.Error() { // its text says more than its causes
		return err
	}
	var failures []error
	for _, err := range joined.Unwrap() {
		failures = append(failures, WithoutCancellation(ctx, err))
	}
	return errors.Join(failures...)
}

// causedBy reports whether err is one of causes, or every error at the end of a chain that err wraps is.
func causedBy(err error, causes ...error) bool {
	if slices.Contains(causes, err) {
		return true
	}
	switch err := err.(type) {
	case interface{ Unwrap() error }:
		return err.Unwrap() != nil && causedBy(err.Unwrap(), causes...)
	case interface{ Unwrap() []error }:
		return len(err.Unwrap()) > 0 && !slices.ContainsFunc(err.Unwrap(), func(err error) bool { return !causedBy(err, causes...) })
	}
	return false
}
