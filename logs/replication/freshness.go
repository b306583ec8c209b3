package replication

import (
	"context"
	"time"

	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/logs/verify"
)

// ageCheck is how often the age of the source's newest cosignature is compared with the limit.
const ageCheck = time.Minute

// checkAge returns why the source's checkpoint need not be the newest of its log: a source that replays an old one hides
// withdrawals from the mirror. A bundle or a backup is as old as it is, unless
// the operator has set a limit, which [verify.Open] enforces.
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

// reportAge logs when the checkpoint becomes too old, and when a newer cosignature comes, until ctx ends.
func (f *Follower) reportAge(ctx context.Context) {
	for reported := false; retry.Sleep(ctx, ageCheck) == nil; {
		reported = f.reportAgeOnce(reported)
	}
}

func (f *Follower) reportAgeOnce(reported bool) bool {
	state := f.State()
	switch stale := state.Stale != ""; {
	case stale && !reported:
		f.Logger.Error("what is served may be out of date", "source", state.Source, "err", state.Stale)
	case !stale && reported:
		f.Logger.Info("the source's log is cosigned again", "source", state.Source, "cosigned", state.Cosigned)
	}
	return state.Stale != ""
}
