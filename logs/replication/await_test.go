package replication

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/larder-cdn/larder/internal/testkit/bubble"
)

// A quietSource is a source that never has another checkpoint. If err is set, it fails after a second.
type quietSource struct {
	Source
	err error
}

// Await implements [Log].
func (s quietSource) Await(ctx context.Context, _ []byte) error {
	if s.err != nil {
		time.Sleep(time.Second)
		return s.err
	}
	<-ctx.Done()
	return ctx.Err()
}

// TestAwaitReturnsWithoutChange tests that the follower reads the checkpoint of a source where nothing happens again after a minute, so that it counts
// as current. Errors of the source, and that of the context, are returned.
func TestAwaitReturnsWithoutChange(t *testing.T) {
	failed := errors.New("the source is away")
	for _, tt := range []struct {
		name   string
		source quietSource
		ends   time.Duration // of the context; 0 for never
		want   error
		after  time.Duration
	}{
		{"quiet", quietSource{}, 0, nil, time.Minute},
		{"failing", quietSource{err: failed}, 0, failed, time.Second},
		{"stopped", quietSource{}, 10 * time.Second, context.Canceled, 10 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if tt.ends > 0 {
					time.AfterFunc(tt.ends, cancel)
				}
				start := time.Now()
				f := Follower{Options: Options{Source: tt.source}}
				if err := f.await(ctx, nil); !errors.Is(err, tt.want) || time.Since(start) != tt.after {
					t.Errorf("%v after %v, want %v after %v", err, time.Since(start), tt.want, tt.after)
				}
				synctest.Wait()
			})
		})
	}
}
