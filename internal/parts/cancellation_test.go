package parts

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

func TestWithoutCancellation(t *testing.T) {
	ctx, stop := context.WithCancelCause(t.Context())
	cause, failure := errors.New("cause"), errors.New("failure")
	stop(cause)
	for _, test := range []struct{ err, want error }{
		{nil, nil},
		{context.Canceled, nil},
		{cause, nil},
		{failure, failure},
		{errors.Join(context.Canceled, cause), nil},
		{errors.Join(context.Canceled, failure), failure},
		{errors.Join(errors.Join(cause, failure), context.Canceled), failure},
		{fmt.Errorf("part: %w", context.Canceled), nil},
		{fmt.Errorf("part: %w", errors.Join(context.Canceled, cause)), nil},
	} {
		got := WithoutCancellation(ctx, test.err)
		if !errors.Is(got, test.want) || (got == nil) != (test.want == nil) || errors.Is(got, context.Canceled) {
			t.Errorf("WithoutCancellation(%v) = %v, want %v", test.err, got, test.want)
		}
	}
	for _, both := range []error{
		fmt.Errorf("part: %w", errors.Join(context.Canceled, failure)),
		fmt.Errorf("%w: part: %w", context.Canceled, failure),
	} {
		if got := WithoutCancellation(ctx, both); got != both {
			t.Errorf("WithoutCancellation(%v) = %v, want it unchanged", both, got)
		}
	}
}
