package discovery

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore/durable"
)

// A feed follows a registry's change feed. Packages that it names are scheduled before the sequence after them is stored, so a
// restart continues where the process was. A new feed starts with the changes from now on.
type feed struct {
	url       string
	sequences *durable.Namespace[string, string] // by address

	mu    sync.Mutex
	state FeedState
}

// A FeedState is the state of the registry's change feed.
type FeedState struct {
	URL      string `json:"url"`                // without what may be secret
	Sequence string `json:"sequence,omitempty"` // of the last change, cut to 40 bytes; "" before the first response
	// Answered is when the registry last responded, Named how many changes since the start were of packages that are here.
	Answered time.Time `json:"answered,omitzero"`
	Named    int64     `json:"named"`
	// Problem says why the last response was not used, Since when the first of such responses in a row came, and Next when
	// the next request is due.
	Problem string    `json:"problem,omitempty"`
	Since   time.Time `json:"since,omitzero"`
	Next    time.Time `json:"next,omitzero"`
}

// Describe returns a line of text for people about the state of the change feed, with a line feed; "" for a nil state.
func (s *FeedState) Describe() string {
	switch {
	case s == nil:
		return ""
	case s.Problem != "":
		return fmt.Sprintf("The change feed %s cannot be followed since %s, so the bot polls for releases: %s (next request at %s)\n",
			s.URL, s.Since.Local().Format(time.DateTime), s.Problem, s.Next.Local().Format(time.TimeOnly))
	case s.Answered.IsZero():
		return fmt.Sprintf("The change feed %s has not answered yet.\n", s.URL)
	}
	return fmt.Sprintf("The change feed %s has reported %s of packages that are here, and answered last at %s.\n",
		s.URL, text.Count(int(s.Named), "change", "changes"), s.Answered.Local().Format(time.DateTime))
}

// The intervals between two requests. A feed without long polling is requested every feedPause; one that fails, or whose sequence
// goes back, less and less often.
const (
	feedBusy         = 100 * time.Millisecond
	feedPause        = 5 * time.Second
	firstFeedPause   = time.Second
	longestFeedPause = 5 * time.Minute
)

const (
	mostShownSequence = 40
	mostFeedProblem   = 300
)

// openFeed returns a follower of the npm registry's change feed at an address. Its sequence is stored by r, so it continues where
// an earlier process was. It sends no request.
func openFeed(r *durable.Runtime, address string) (*feed, error) {
	f := &feed{url: address}
	if at, err := url.Parse(address); err == nil {
		f.state.URL = fetch.Redact(at)
	}
	var err error
	f.sequences, err = durable.Open(r, durable.Class[string, string]{
		Name: "feed",
		New: func(context.Context, *durable.State) (durable.Handler[string, string], error) {
			return feedCursor{}, nil
		},
	})
	return f, err
}

// A feedCursor is the durable object with the sequence of a feed. It stores a sequence that is not "", and returns the present
// one.
type feedCursor struct{ durable.NoAlarm }

// Handle implements [durable.Handler]. It stores sequence, the position in the change feed, unless that is "", and returns the
// stored one, "" before the first.
func (feedCursor) Handle(ctx context.Context, s *durable.State, sequence string) (string, error) {
	const key = "sequence"
	if sequence != "" {
		return sequence, s.Put(ctx, key, []byte(sequence))
	}
	present, _, err := s.Get(ctx, key)
	return string(present), err
}

// Feed returns the state of the registry's change feed. The second result is false if the bot follows none.
func (sc *Scheduler) Feed() (FeedState, bool) {
	if sc.feed == nil {
		return FeedState{}, false
	}
	sc.feed.mu.Lock()
	defer sc.feed.mu.Unlock()
	return sc.feed.state, true
}

// changeState calls how with the state of the feed, which how may change. It holds f.mu meanwhile.
func (f *feed) changeState(how func(*FeedState)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	how(&f.state)
}

// followFeed requests the change feed again and again and announces the packages that it names. After a failure, which it logs,
// it waits longer. It returns only when ctx ends, with the error of ctx.
func (sc *Scheduler) followFeed(ctx context.Context) error {
	f := sc.feed
	cursor := f.sequences.Object(f.url)
	failures := 0
	for {
		begun := time.Now()
		since, last, err := sc.advanceFeed(ctx, cursor)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		pause := feedBusy
		switch {
		case err != nil:
			failures++
			pause = retry.After(failures, firstFeedPause, longestFeedPause)
			if at, ok := fetch.RetryAt(err); ok {
				pause = max(pause, time.Until(at))
			}
			sc.logger.Warn("change feed", "feed", f.state.URL, "err", err, "pause", pause)
		case failures > 0:
			failures = 0
			sc.logger.Info("the change feed responds again", "feed", f.state.URL)
			fallthrough
		default:
			if last == since && time.Since(begun) < feedPause {
				pause = feedPause
			}
		}
		f.recordResponse(last, err, sc.options.Now(), pause)
		if err := retry.Sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// recordResponse stores the result of a request in the feed's state: last, the last sequence ("" for none), and err. now is the
// time of the response, and pause the time until the next request.
func (f *feed) recordResponse(last string, err error, now time.Time, pause time.Duration) {
	f.changeState(func(s *FeedState) {
		if last != "" {
			s.Sequence = text.Cut(last, mostShownSequence)
		}
		if err == nil {
			s.Answered, s.Problem, s.Since, s.Next = now, "", time.Time{}, time.Time{}
			return
		}
		if s.Since.IsZero() {
			s.Since = now
		}
		s.Problem, s.Next = text.Short(err.Error(), mostFeedProblem), now.Add(pause)
	})
}

// advanceFeed requests the changes after the sequence that cursor stores, announces the packages that they name, and stores the
// last sequence. It returns the sequence before and after; last is "" if the request has none or the announcement could not be
// stored. A sequence that goes back is stored, too, and is an error.
func (sc *Scheduler) advanceFeed(ctx context.Context, cursor durable.Object[string, string]) (since, last string, err error) {
	if since, err = cursor.Send(ctx, ""); err == nil {
		last, err = sc.readFeed(ctx, since)
	}
	if err == nil && last != since && goesBack(since, last) {
		err = errors.New("its sequence goes back, as after a reset; the bot follows it from there, and polls find what it left out")
	}
	if last != "" && last != since {
		if _, failed := cursor.Send(ctx, last); failed != nil {
			err = failed
		}
	}
	return since, last, err
}

// readFeed requests the changes after the sequence since, announces the catalogue's packages that they name, also if the request
// fails later, and returns the sequence of the last change. It returns "" and the error if the announcement could not be stored,
// so that the request is repeated.
func (sc *Scheduler) readFeed(ctx context.Context, since string) (last string, err error) {
	named := make(map[string]bool) // packages of the catalogue, so there is a bound
	changes := int64(0)
	last, err = sc.options.Npm.Changes(ctx, sc.feed.url, since, func(name string) {
		followers := sc.PackagesFromNpm(name)
		for _, p := range followers {
			named[p] = true
		}
		if len(followers) > 0 {
			changes++
		}
	})
	if len(named) == 0 {
		return last, err
	}
	sc.feed.changeState(func(s *FeedState) { s.Named += changes })
	if failed := sc.Announce(ctx, slices.Collect(maps.Keys(named))...); failed != nil {
		return "", failed // the request is repeated, because the schedule does not have them all
	}
	return last, err
}

// goesBack reports whether a feed was reset: the number at the start of the sequence after is lower than that of the sequence
// before. It is false if one has no number.
func goesBack(before, after string) bool {
	from, ok := leadingNumber(before)
	to, both := leadingNumber(after)
	return ok && both && to < from
}

// leadingNumber returns the decimal number at the start of s. The second result is false if s starts with none, or it exceeds 64
// bits.
func leadingNumber(s string) (uint64, bool) {
	end := 0
	for end < len(s) && '0' <= s[end] && s[end] <= '9' {
		end++
	}
	n, err := strconv.ParseUint(s[:end], 10, 64)
	return n, err == nil
}
