package waitingroom

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/larder-cdn/larder/kvstore/durable"
)

// A tier is the part of a room's history that is kept in periods of one length.
type tier struct {
	prefix  string // of its keys
	minutes int64  // of a period
	kept    int64  // minutes
}

// tiers are all of them: the longer ago, the coarser. A minute is in all tiers from its end on, so
// a tier is whole at any time, and none has to be made from another one later.
var tiers = [...]tier{
	{"1/", 1, 24 * 60},
	{"15/", 15, 7 * 24 * 60},
	{"60/", 60, MaxMinutes},
}

// MaxMinutes is how far the history of a room goes back: 30 days.
const MaxMinutes = 30 * 24 * 60

// tierFor returns the tier of the history with the shortest periods that goes back as many minutes, or the last tier if none
// does.
func tierFor(minutes int) tier {
	for _, t := range tiers {
		if int64(minutes) <= t.kept {
			return t
		}
	}
	return tiers[len(tiers)-1]
}

// start returns the first minute of the tier's period that contains a minute. Minutes are counted since 1970.
func (t tier) start(minute int64) int64 { return minute - minute%t.minutes }

// rowKey returns the key under which the tier's period that starts at a minute is stored.
func (t tier) rowKey(minute int64) string { return fmt.Sprintf("%s%012d", t.prefix, minute) }

// A record is a period as it is stored, with what percentiles of several are made from.
type record struct {
	Period
	Waits histogram `json:"waits,omitempty"`
	Stays histogram `json:"stays,omitempty"`
}

// startMinute returns the minute, counted since 1970, in which the record's period starts.
func (r *record) startMinute() int64 { return r.Time.Unix() / 60 }

// merge adds the counts of another record to r: numbers of users become the higher one, events are summed, percentiles are
// computed anew. Time and length of r stay.
func (r *record) merge(other record) {
	r.Active, r.Queued = max(r.Active, other.Active), max(r.Queued, other.Queued)
	r.Admitted += other.Admitted
	r.Revoked += other.Revoked
	r.Waits, r.Stays = r.Waits.plus(other.Waits), r.Stays.plus(other.Stays)
	r.computePercentiles()
}

// computePercentiles sets the percentiles of the record by its histograms.
func (r *record) computePercentiles() {
	r.WaitP50, r.WaitP90, r.OriginP50 = r.Waits.percentile(50), r.Waits.percentile(90), r.Stays.percentile(50)
}

// startPeriod returns a copy of the record whose time and length are those of the tier's period that contains it.
func (r record) startPeriod(t tier) record {
	r.Time, r.Minutes = time.Unix(t.start(r.startMinute())*60, 0).UTC(), int(t.minutes)
	return r
}

// A histogram counts durations by their size, in classes that are a quarter of an octave wide:
// what it says is at most 10 % from the truth.
type histogram map[int]int

// count adds a duration. A negative one counts as 0.
func (h *histogram) count(d time.Duration) {
	if *h == nil {
		*h = histogram{}
	}
	class := 0
	if s := d.Seconds(); s >= 1 {
		class = 1 + int(4*math.Log2(s))
	}
	(*h)[class]++
}

// plus returns the sum of two histograms. It changes neither.
func (h histogram) plus(other histogram) histogram {
	sum := histogram{}
	maps.Copy(sum, h)
	for class, n := range other {
		sum[class] += n
	}
	return sum
}

// percentile returns the p-th percentile in seconds by the nearest rank, p from 1 to 100, as the middle of its class. It is 0 if
// that is less than a second, and without durations.
func (h histogram) percentile(p int) float64 {
	all := 0
	for _, n := range h {
		all += n
	}
	rank := (all*p + 99) / 100
	for _, class := range slices.Sorted(maps.Keys(h)) {
		if rank -= h[class]; rank <= 0 {
			if class == 0 {
				return 0
			}
			return math.Round(math.Exp2((float64(class)-0.5)/4)*10) / 10
		}
	}
	return 0
}

// historyClass is the class of the objects that keep what happened in a room.
const historyClass = "room-history"

// A historyRequest is a request to a room's history: to store records of minutes that are over, or for the
// periods of a tier from a minute on.
type historyRequest struct {
	keep []record
	kept *atomic.Bool // set once they are on their way to the disk; nil without records
	tier tier
	from int64
}

// history is such an object. Its rows are records, under the keys of their tiers.
type history struct{ durable.NoAlarm }

// openHistory opens the durable objects that store the history of rooms, one for each room.
func openHistory(runtime *durable.Runtime) (*durable.Namespace[historyRequest, []record], error) {
	return durable.Open(runtime, durable.Class[historyRequest, []record]{
		Name: historyClass,
		New: func(context.Context, *durable.State) (durable.Handler[historyRequest, []record], error) {
			return history{}, nil
		},
		Limits: durable.Limits{CacheBytes: 1 << 20},
	})
}

// Handle implements durable.Handler. If the request has records, it stores them. Otherwise it returns the records of a tier from
// a minute on.
func (history) Handle(ctx context.Context, s *durable.State, q historyRequest) ([]record, error) {
	if len(q.keep) > 0 {
		return nil, q.store(ctx, s)
	}
	rows, err := s.List(ctx, durable.ListOptions{Prefix: q.tier.prefix, Start: q.tier.rowKey(q.from)}, durable.NoCache)
	if err != nil {
		return nil, err
	}
	records := make([]record, 0, len(rows))
	for _, row := range rows {
		var r record
		if err := json.Unmarshal(row.Value, &r); err != nil {
			return nil, fmt.Errorf("the record %s: %w", row.Key, err)
		}
		records = append(records, r)
	}
	return records, nil
}

// store adds the records of the request, of which there are some, to all tiers in one transaction, and sets q.kept to whether the
// transaction succeeded. It does not wait for the disk.
func (q historyRequest) store(ctx context.Context, s *durable.State) error {
	err := s.Transaction(ctx, func(ctx context.Context, s *durable.State) error {
		for _, t := range tiers {
			if err := t.store(ctx, s, q.keep); err != nil {
				return err
			}
		}
		return nil
	})
	q.kept.Store(err == nil)
	return err
}

// store adds records of single minutes, ascending and not none, to the tier's periods, and deletes periods that are too old for
// the tier.
func (t tier) store(ctx context.Context, s *durable.State, records []record) error {
	for _, r := range records {
		key := t.rowKey(t.start(r.startMinute()))
		period, known, err := durable.GetJSON[record](ctx, s, key)
		switch {
		case err != nil:
			return err
		case known:
			period.merge(r)
		default:
			period = r.startPeriod(t)
		}
		if err := durable.PutJSON(ctx, s, key, period); err != nil {
			return err
		}
	}
	old, err := s.List(ctx, durable.ListOptions{Prefix: t.prefix, End: t.rowKey(records[len(records)-1].startMinute() - t.kept)}, durable.NoCache)
	if err != nil {
		return err
	}
	for _, row := range old {
		if err := s.Delete(ctx, row.Key); err != nil {
			return err
		}
	}
	return nil
}

// storeHistory stores the counts of minutes that are over, and with all also those of the current minute, in the room's history.
// Counts that could not be stored stay in memory for the next call. If ctx ends while it waits for the disk, it returns nil.
func (r *room) storeHistory(ctx context.Context, all bool) error {
	records := r.analytics.takeRecords(all)
	if len(records) == 0 {
		return nil
	}
	kept := new(atomic.Bool)
	_, err := r.history.Send(ctx, historyRequest{keep: records, kept: kept})
	if err == nil || kept.Load() && ctx.Err() != nil { // with ctx only the wait for the disk ended: giving them back would count them twice
		return nil
	}
	r.analytics.restoreRecords(records)
	return err
}

// Analytics returns the counts of users of a room in the last minutes, from 1 to [MaxMinutes], oldest first: per minute up to a
// day, per quarter of an hour up to a week, else per hour. The current period is the last, and periods without users are zero.
// The bool is false if there is no such room.
func (r *Rooms) Analytics(ctx context.Context, name string, minutes int) ([]Period, bool, error) {
	room, ok := r.currentRooms().byName[name]
	if !ok {
		return nil, false, nil
	}
	periods, err := room.readHistory(ctx, min(max(minutes, 1), MaxMinutes))
	return periods, true, err
}

// readHistory returns the periods of the last minutes, oldest first, from the history and from memory. Periods without users are
// empty.
func (r *room) readHistory(ctx context.Context, minutes int) ([]Period, error) {
	t := tierFor(minutes)
	now := r.now()
	last := t.start(now.Unix() / 60)
	n := (int64(minutes) + t.minutes - 1) / t.minutes
	first := last - (n-1)*t.minutes
	records, err := r.history.Send(ctx, historyRequest{tier: t, from: first})
	if err != nil {
		return nil, fmt.Errorf("waitingroom: couldn't read the history of room %s: %w", r.config.Name, err)
	}
	all := make([]record, n)
	for i := range all {
		all[i].Time, all[i].Minutes = time.Unix((first+int64(i)*t.minutes)*60, 0).UTC(), int(t.minutes)
	}
	for _, part := range append(records, r.analytics.unstoredRecords(now)...) {
		i := (t.start(part.startMinute()) - first) / t.minutes
		switch {
		case i < 0 || i >= n:
		case all[i].isEmpty():
			all[i] = part.startPeriod(t)
		default:
			all[i].merge(part)
		}
	}
	periods := make([]Period, n)
	for i := range all {
		periods[i] = all[i].Period
	}
	return periods, nil
}
