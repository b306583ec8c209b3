// Package usage counts the requests for the files of each release.
//
// It counts requests that were answered with a file, or could have been (HEAD, 304, ranges), and the bytes of
// their bodies that were sent, by package, version and day (UTC). It knows the most requested files, approximately
// (topfiles.go), and how popular a package is lately.
//
// What it guarantees:
//
//   - Counting takes a few atomic operations: no lock and no allocation, but for the first request for a file since
//     the counts were last gathered.
//   - Counts are exact. A process that is killed loses those of the last minute at most; one that ends loses none.
//   - Memory is bounded, whatever clients request; see mostPending and mostFresh.
//   - The store keeps the newest 25 months that have counts, which is two years and more: at most a few bytes for each
//     release and day with a request.
//   - Counts of other processes that serve the same (share.go) are in all sums, each once.
//   - It records nothing about clients: no address, no cookie, no field of a request.
//
// It must not know HTTP, and counts only what its callers say is a published file: names that strangers make up are kept
// nowhere.
package usage

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/kvstore"
)

const (
	// saveEvery is how often what was counted is written: what a kill may lose.
	saveEvery = time.Minute
	// topFilesEvery is after how many of these intervals the most requested files are written, a megabyte.
	topFilesEvery = 15
	// mostPending bounds the files with counts that are not gathered. They are gathered when there are so many, which takes
	// about a millisecond.
	mostPending = 8 << 10
	// earlyFresh is the number of counts, by release and day, from which on Run writes them without waiting for saveEvery.
	earlyFresh = 16 << 10
	// mostFresh bounds the counts, by release and day, that could not be written yet.
	mostFresh = 128 << 10
	// halfLife is after how many days a request counts half for the order of packages and files.
	halfLife = 30
	// mostFade is the most days that fade at once, so that a clock that is wrong for a moment does little harm.
	mostFade = halfLife
)

// Options says where the counts are kept. Only Store is required.
type Options struct {
	// Store has the rows.
	Store *kvstore.Store
	// Now is the clock. Default time.Now.
	Now func() time.Time
	// Logger logs rows that could not be read or written. Default: nothing is logged.
	Logger *slog.Logger
}

// Usage has the counts of requests. It is safe for use by several goroutines.
type Usage struct {
	store  *kvstore.Store
	now    func() time.Time
	logger *slog.Logger
	early  chan struct{} // asks Run to write

	mu       sync.Mutex
	pending  []*Counter         // that have counts, or had
	fresh    map[slot]Amount    // gathered and not written
	writing  map[slot]Amount    // that a save has taken from fresh, until it has ended
	saves    uint64             // the number of the last save; the store has that of the last one that was written
	day      int                // that is being counted
	scores   map[string]float64 // of packages: requests, of which older ones count less
	topFiles *topFiles
	lost     uint64 // requests that there was no room for

	saving     sync.Mutex // held by save; locked before mu
	month      int        // that expire has looked at
	sinceFiles int        // saves since the most requested files were written

	reported map[int][]byte // counts of the last days, as Report has reported them
}

// A release is the release of a counted file.
type release struct{ pkg, version string }

// A slot is a release on a day.
type slot struct {
	release
	day int
}

// A Counter counts the requests for one file.
type Counter struct {
	of *Usage
	release
	file     string // package, version and path, joined by slashes
	requests atomic.Uint64
	bytes    atomic.Uint64
	listed   atomic.Bool // in Usage.pending
}

// Open returns a Usage with the counts that the store has. It logs what it cannot read, and goes on without that. It starts no
// goroutine: the caller runs [Usage.Run] to have counts written.
func Open(o Options) *Usage {
	if o.Now == nil {
		o.Now = time.Now
	}
	u := &Usage{
		store: o.Store, now: o.Now, logger: cmp.Or(o.Logger, slog.New(slog.DiscardHandler)),
		early: make(chan struct{}, 1), fresh: map[slot]Amount{}, scores: map[string]float64{}, topFiles: newTopFiles(maxTopFiles), reported: map[int][]byte{},
	}
	u.day = dayOf(u.now())
	if err := u.load(); err != nil {
		u.logger.Warn("usage: a part of what was counted cannot be read; `larder fsck` tells more", "err", err)
	}
	return u
}

// File returns a new counter of requests for a published file, without storing or counting anything. file is package, version and
// path, joined by slashes. The counter retains the strings. Several counters of one file add to the same counts.
func (u *Usage) File(pkg, version, file string) *Counter {
	return &Counter{of: u, release: release{pkg, version}, file: file}
}

// CountRequest counts one request for the file. It counts for the day on which the counts are gathered; shortly after midnight
// UTC that may still be the day before.
func (c *Counter) CountRequest() {
	c.requests.Add(1)
	c.schedule()
}

// CountSent adds n bytes of a response's body, which were sent, to the file's count. It ignores n below 1.
func (c *Counter) CountSent(n int64) {
	if n > 0 {
		c.bytes.Add(uint64(n))
		c.schedule()
	}
}

// schedule adds the counter to the counters whose counts are gathered next time, if it is not among them. For that it locks
// the mu of Usage, and if the list is full it gathers all counts.
func (c *Counter) schedule() {
	if !c.listed.Load() {
		c.addToPending()
	}
}

// addToPending adds the counter to the list of pending counters, unless another goroutine has just done so. It gathers the counts
// if the list is full.
func (c *Counter) addToPending() {
	if c.listed.Swap(true) {
		return
	}
	u := c.of
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.pending = append(u.pending, c); len(u.pending) >= mostPending {
		u.gather()
	}
}

// gather moves the counts of the pending counters to fresh, the counts in memory that are to be written, to the scores of
// packages, and to the most requested files. It wakes Run if fresh is large. If fresh is full, it drops the counts of releases
// and days that fresh does not have, and adds their requests to lost. It takes each counter off the list before it reads the
// counts, so that later requests add it again. The caller holds mu.
func (u *Usage) gather() {
	for _, c := range u.pending {
		c.listed.Store(false)
		n := Amount{c.requests.Swap(0), c.bytes.Swap(0)}
		if n == (Amount{}) {
			continue
		}
		at := slot{c.release, u.day}
		before, there := u.fresh[at]
		if !there && len(u.fresh) >= mostFresh {
			u.lost += n.Requests
			continue
		}
		u.fresh[at] = before.plus(n)
		u.addScore(c.pkg, float64(n.Requests))
		u.topFiles.add(c.file, float64(n.Requests))
	}
	clear(u.pending)
	u.pending = u.pending[:0]
	if len(u.fresh) >= earlyFresh {
		retry.Wake(u.early)
	}
}

// addScore adds n requests of today to the popularity score of a package. It weights nothing: for older requests the caller
// multiplies n by decay. The caller holds mu.
func (u *Usage) addScore(pkg string, n float64) {
	if _, there := u.scores[pkg]; !there {
		pkg = strings.Clone(pkg) // it is a part of the file's name
	}
	u.scores[pkg] += n
}

// changeDay sets the day that is counted to today. If the day has changed, it first gathers the counts of the day before,
// and if it is a later one, reduces the weight of old requests. The caller holds mu.
func (u *Usage) changeDay() {
	today := dayOf(u.now())
	if today == u.day {
		return
	}
	u.gather()
	if passed := today - u.day; passed > 0 {
		faded := decay(min(passed, mostFade))
		for name := range u.scores {
			u.scores[name] *= faded
		}
		u.topFiles.scale(faded)
	}
	u.day = today
}

// Popularity returns the number of recent requests for a package, on this node and others, 0 if there were none. Requests
// count less the older they are, those of 30 days ago half.
func (u *Usage) Popularity(pkg string) float64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.gather()
	return u.scores[pkg]
}

// Run writes the counts to the store every minute, at midnight UTC, and when there are many, until ctx ends. It logs
// failures and tries again. After it has returned and no request is counted any more, the caller calls [Usage.Save] for the
// last counts. Neither may be called if the store is read-only.
func (u *Usage) Run(ctx context.Context) {
	for {
		now := u.now()
		midnight := startOf(dayOf(now) + 1).Sub(now)
		select {
		case <-time.After(min(saveEvery, midnight)):
		case <-u.early:
		case <-ctx.Done():
			return
		}
		u.sinceFiles++
		if err := u.save(u.sinceFiles >= topFilesEvery); err != nil {
			u.logger.Warn("usage: counts couldn't be written; it is tried again", "err", err)
		}
	}
}

// Save writes all counts in memory, and the most requested files if they have changed, to the store. If writing fails they stay
// in memory. Once a month it also deletes the oldest months, and returns an error of that although the counts are written.
// Concurrent calls wait for each other. Run must have returned.
func (u *Usage) Save() error { return u.save(true) }

// save writes the counts in memory to the store, and with files also the most requested files if these have changed. After a
// failure the counts stay in memory. If it has written something, it deletes the oldest months beyond mostMonths, once a month
// and process; an error of that is returned, too. It logs how many requests were dropped because too many counts could not be
// written.
func (u *Usage) save(files bool) error {
	u.saving.Lock()
	defer u.saving.Unlock()
	u.mu.Lock()
	u.changeDay()
	u.gather()
	if u.lost > 0 {
		u.logger.Warn("usage: requests were not counted, because what was counted before couldn't be written", "requests", u.lost)
		u.lost = 0
	}
	var file []byte
	if files && u.topFiles.changed {
		file = u.topFiles.encode(u.day)
		u.topFiles.changed = false
	}
	if len(u.fresh) == 0 && file == nil {
		u.mu.Unlock()
		return nil
	}
	u.writing, u.fresh = u.fresh, map[slot]Amount{}
	u.saves++
	saves, writing, month := u.saves, u.writing, monthOf(u.day)
	u.mu.Unlock()

	err := u.writeRows(writing, saves, file)
	u.mu.Lock()
	u.writing = nil
	if err != nil {
		u.topFiles.changed = u.topFiles.changed || file != nil
		for at, n := range writing {
			u.fresh[at] = u.fresh[at].plus(n)
		}
	}
	u.mu.Unlock()
	if err != nil {
		return err
	}
	if file != nil {
		u.sinceFiles = 0
	}
	if month != u.month {
		if err = u.expire(); err == nil {
			u.month = month
		}
	}
	return err
}

// dayOf returns the number of a time's day, counted from 1970-01-01 in UTC.
func dayOf(t time.Time) int { return int(math.Floor(float64(t.Unix()) / (24 * 60 * 60))) }

// startOf returns the time at which the day with a number begins, in UTC.
func startOf(day int) time.Time { return time.Unix(int64(day)*24*60*60, 0).UTC() }

// monthOf returns the number of the month that the day with a number is in. Months are counted from January of the year 0.
func monthOf(day int) int {
	t := startOf(day)
	return t.Year()*12 + int(t.Month()) - 1
}

// firstOf returns the number of the first day of the month with a number.
func firstOf(month int) int {
	return dayOf(time.Date(month/12, time.Month(month%12+1), 1, 0, 0, 0, 0, time.UTC))
}

// decay returns the weight of a request that was made a number of days ago: 1 if days is 0 or negative, 1/2 after 30 days
// (halfLife), 1/4 after 60, and so on.
func decay(days int) float64 { return math.Exp2(-float64(max(0, days)) / halfLife) }

// errDamaged says that a row is not what was written.
var errDamaged = errors.New("a row of usage is damaged")
