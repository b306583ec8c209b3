package verify

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/larder-cdn/larder/internal/text"
)

// A checkpoint's text has no time, so a server could show an old one forever. Its cosignatures have times: of the log's own key,
// which renews its cosignature every hour, and of witnesses.
const (
	// DefaultMaxAge is what the command line has for [Trust.MaxAge] by default.
	DefaultMaxAge = 7 * 24 * time.Hour
	// AlertAge is how old it may become before a program that follows a log alerts.
	AlertAge = 24 * time.Hour
	// clockTolerance is how far in the future a cosignature may be, because clocks differ.
	clockTolerance = 5 * time.Minute
)

// freshAsOf returns the newest time that t.Need of the witnesses' cosignatures reach, as of which the checkpoint was vouched
// to be the newest. The log's own cosignatures do not count then, because a dishonest log can renew an old checkpoint. If
// Need is 0, it is the newest time of any witness or of the log itself. Times over 5 minutes in the future do not count: a key
// whose clock was wrong must not keep a checkpoint fresh for years. If too few remain, it returns the earliest of these later
// times, for [CheckAge] to report, or else the zero time.
func (t Trust) freshAsOf(log []time.Time, witnesses []Cosignature) time.Time {
	times := log
	if t.Need > 0 {
		times = nil
	}
	for _, c := range witnesses {
		times = append(times, c.Time)
	}
	latest, need := t.now().Add(clockTolerance), max(1, t.Need)
	var past, future []time.Time
	for _, at := range times {
		switch {
		case at.Unix() <= 0: // a cosignature of ML-DSA without a time
		case at.After(latest):
			future = append(future, at)
		default:
			past = append(past, at)
		}
	}
	if len(past) >= need {
		slices.SortFunc(past, func(a, b time.Time) int { return b.Compare(a) })
		return past[need-1]
	}
	if len(future) > 0 {
		return slices.MinFunc(future, time.Time.Compare)
	}
	return time.Time{}
}

// now returns the current time by the clock in Trust.Now, or [time.Now] without one.
func (t Trust) now() time.Time {
	if t.Now == nil {
		return time.Now()
	}
	return t.Now()
}

// CosignedAt verifies a signed checkpoint with t.Key itself, without changes of keys, and returns the time as of which it
// is vouched to be the newest. It is zero if the checkpoint is not signed with that key. If too few cosignatures count, it
// is the earliest time over 5 minutes in the future that one of them has, or else zero.
func (t Trust) CosignedAt(note []byte) time.Time {
	c, err := t.openCheckpoint(t.Key, note, nil)
	if err != nil {
		return time.Time{}
	}
	return c.cosigned
}

// CheckAge returns an error if a checkpoint, vouched to be the newest as of the time cosigned, was older than limit at the
// time now: the log may have other entries. A time cosigned that is over 5 minutes after now is an error too. So is a zero
// one, by which the age is unknown, because cosignatures can be removed.
func CheckAge(cosigned, now time.Time, limit time.Duration) error {
	age := now.Sub(cosigned)
	switch {
	case cosigned.IsZero():
		return errors.New("the age of the log's checkpoint is unknown, because no cosignature has a time: Larder 0.1 signs it, or something has removed the cosignatures")
	case age < -clockTolerance:
		return fmt.Errorf("the log's checkpoint was cosigned in the future, on %s: the clock here or there is wrong", cosigned.UTC().Format(time.RFC3339))
	case age > limit:
		return fmt.Errorf("the newest cosignature of the log's checkpoint is %s old, and %s is the limit: an old checkpoint may be replayed, which hides later withdrawals; or the log is not signed any more, or the clock here is wrong",
			formatAge(age), formatAge(limit))
	}
	return nil
}

// DescribeAge says in words how long before now a checkpoint was vouched to be the newest, such as "cosigned 47 hours ago".
// A zero time cosigned is "of unknown age"; one over 5 minutes after now is "cosigned in the future", with that time.
func DescribeAge(cosigned, now time.Time) string {
	switch age := now.Sub(cosigned); {
	case cosigned.IsZero():
		return "of unknown age"
	case age < -clockTolerance:
		return "cosigned in the future, on " + cosigned.UTC().Format(time.RFC3339)
	default:
		return fmt.Sprintf("cosigned %s ago", formatAge(age))
	}
}

// formatAge returns a duration in words, rounded down in the largest unit of which it has at least two, such as "47 hours";
// less than zero is zero.
func formatAge(age time.Duration) string {
	switch age = max(0, age); {
	case age >= 48*time.Hour:
		return text.Count(int(age/(24*time.Hour)), "day", "days")
	case age >= 2*time.Hour:
		return text.Count(int(age/time.Hour), "hour", "hours")
	case age >= 2*time.Minute:
		return text.Count(int(age/time.Minute), "minute", "minutes")
	}
	return text.Count(int(age/time.Second), "second", "seconds")
}
