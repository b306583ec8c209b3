package replication

import (
	"context"
	"time"

	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/logs/verify"
)

// ageCheck is how often the age of the source's newest cosignature is compared with the limit.
const ageCheck = time.Minute

// checkAge returns an error if s says that the newest cosignature of the source's checkpoint is too old, or that its age is unknown: a source that
// replays an old checkpoint hides withdrawals. For a bundle or a store as the source, and before the first checkpoint is served, it returns nil.
// [verify.Open] enforces the operator's limit, which may be another.
func (f *Follower) checkAge(s State) error {
	switch f.Source.(type) {
	case *Bundle, *Store:
		return nil
	}
	if !s.Ready {
		return nil
	}
	return verify.CheckAge(s.Cosigned, f.Now(), verify.AlertAge)
}

// reportAgeRegularly checks the age of the source's checkpoint every minute and logs when it becomes too old or current again, until ctx
// ends.
func (f *Follower) reportAgeRegularly(ctx context.Context) {
	for reported := false; retry.Sleep(ctx, ageCheck) == nil; {
		reported = f.reportAge(reported)
	}
}

// reportAge logs a change of whether the source's checkpoint is too old, and reports whether it is now. reported says what was logged last.
func (f *Follower) reportAge(reported bool) bool {
	state := f.State()
	switch stale := state.Stale != ""; {
	case stale && !reported:
		f.Logger.Error("what is served may be out of date", "source", state.Source, "err", state.Stale)
	case !stale && reported:
		f.Logger.Info("the source's log is cosigned again", "source", state.Source, "cosigned", state.Cosigned)
	}
	return state.Stale != ""
}
