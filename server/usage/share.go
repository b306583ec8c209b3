package usage

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/larder-cdn/larder/kvstore"
)

// Several processes that serve the same releases, each with a store of its own, report their counts to one another: each the
// complete counts of a day, repeatedly, under the name of its store. A report replaces the earlier one of the same store and
// day, in rows of its own. So nothing is counted twice, whatever is repeated or lost on the way. The most requested files are
// not reported.

const (
	// mostReporters is how many other stores may report counts, see acceptReporter.
	mostReporters = 64
	// together is how many rows are changed in one batch.
	together = 10_000
	nameSize = 8 // bytes of a store's name
)

// errMalformed says that the report of another process is not what this package writes.
var errMalformed = errors.New("usage: the counts of another node are malformed")

// Name returns the random name, 16 hexadecimal digits, under which this store reports its counts to other nodes. The first call
// creates and stores it.
func (u *Usage) Name() (string, error) {
	name, err := u.store.Get(kvstore.Usage, []byte{kindName})
	if errors.Is(err, kvstore.ErrNotFound) {
		name = make([]byte, nameSize)
		rand.Read(name)
		err = u.putRow([]byte{kindName}, name)
	}
	return hex.EncodeToString(name), err
}

// putRow stores one row of the namespace Usage in a batch of its own.
func (u *Usage) putRow(key, value []byte) error {
	b := u.store.NewBatch()
	defer b.Close()
	b.Set(kvstore.Usage, key, value)
	return b.Commit()
}

// Report calls put with the day's encoded counts of this store, for [Usage.Receive] on other nodes, for each day with counts
// that may have changed since the last call. The first call ever reports each day that has counts, and the first one of a
// process also yesterday and today. It reports only counts that are written, see [Usage.Save]. An error of put ends the report,
// and the next call continues at that day. Calls must not overlap.
func (u *Usage) Report(put func(day time.Time, counts []byte) error) error {
	u.mu.Lock()
	u.changeDay()
	today := u.day
	u.mu.Unlock()
	from, err := u.readDay(kindReported)
	if err != nil {
		return err
	}
	if from < 0 || from > today { // the latter: the clock was wrong once
		months, err := u.months(kindPackage)
		if err != nil {
			return err
		}
		from = today
		if len(months) > 0 {
			from = min(today, firstOf(months[0]))
		}
	}
	reached, err := u.reportDays(from, today, put)
	// Counts from before midnight may be written after it.
	if reached = min(reached, today-1); reached > from {
		err = errors.Join(err, u.writeDay(kindReported, reached))
	}
	return err
}

// daysAtOnce is how many days are read in one scan of their month, whose counts are in memory then.
const daysAtOnce = 8

// reportDays calls put with the encoded counts of each day from from to today that has counts; of yesterday and today only if
// they differ from those that it passed last time. It returns the first day that is not reported yet: today+1, or after an error
// the day that failed.
func (u *Usage) reportDays(from, today int, put func(day time.Time, counts []byte) error) (reached int, err error) {
	for reached = from; reached <= today; {
		all, err := u.encodeCounts(reached, min(daysAtOnce, today-reached+1))
		if err != nil {
			return reached, err
		}
		for _, counts := range all {
			day := reached
			if counts != nil && (day < today-1 || !bytes.Equal(counts, u.reported[day])) {
				if err := put(startOf(day), counts); err != nil {
					return reached, err
				}
				if day >= today-1 {
					u.reported[day] = counts
				}
			}
			reached++
		}
	}
	maps.DeleteFunc(u.reported, func(day int, _ []byte) bool { return day < today-1 })
	return reached, nil
}

// readDay returns the number of the day that the row of a kind stores, and -1 without an error if the row is missing. It returns
// [errDamaged] if the row is malformed, and errors of the store; then the number is meaningless, but not negative.
func (u *Usage) readDay(kind byte) (int, error) {
	row, err := u.store.Get(kvstore.Usage, []byte{kind})
	if errors.Is(err, kvstore.ErrNotFound) {
		return -1, nil
	}
	day, n := binary.Uvarint(row)
	if err == nil && (n != len(row) || day > 1<<20) {
		err = errDamaged
	}
	return int(day), err
}

// writeDay stores the number of a day in the row of a kind, which readDay reads.
func (u *Usage) writeDay(kind byte, day int) error {
	return u.putRow([]byte{kind}, binary.AppendUvarint(nil, uint64(day)))
}

// encodeCounts returns the encoded counts of this store for days days from day on, one element for each day, nil for a day
// without counts. It returns fewer days at the end of a month, and skips damaged rows. An element has a format and, for each
// release in the order of the rows, package, version, requests and bytes.
func (u *Usage) encodeCounts(day, days int) ([][]byte, error) {
	month := monthOf(day)
	first := day - firstOf(month)
	all := make([][]byte, min(days, firstOf(month+1)-day))
	for item, err := range u.store.Scan(kvstore.Usage, kvstore.Range{Prefix: monthPrefix(kindVersion, month)}) {
		if err != nil {
			return nil, err
		}
		row, err := decodeDaily(item.Value)
		if err != nil {
			continue // the rest is reported
		}
		pkg, version, _ := bytes.Cut(item.Key[3:], []byte{0})
		for i, n := range row[first : first+len(all)] {
			if n == (Amount{}) {
				continue
			}
			if all[i] == nil {
				all[i] = []byte{rowFormat}
			}
			for _, text := range [][]byte{pkg, version} {
				all[i] = append(binary.AppendUvarint(all[i], uint64(len(text))), text...)
			}
			all[i] = binary.AppendUvarint(binary.AppendUvarint(all[i], n.Requests), n.Bytes)
		}
	}
	return all, nil
}

// Since returns the start of the first day whose counts the caller has to read from other nodes; reports of earlier days are
// stored. That is at least lateDays days ago. Before the first [Usage.SetReceived] it is the first day of which counts are
// kept.
func (u *Usage) Since() (time.Time, error) {
	day, err := u.readDay(kindReceived)
	if day < 0 {
		day = firstOf(monthOf(dayOf(u.now())) - mostMonths)
	}
	return startOf(min(day, dayOf(u.now())-lateDays)), err // the clock may have been ahead
}

// lateDays is how many days late the report of a day may be, from a node that did not run.
const lateDays = 8

// SetReceived records that all reports of other nodes until now have been received. Then [Usage.Since] returns the day lateDays
// before today, because counts of later days may still change.
func (u *Usage) SetReceived() error { return u.writeDay(kindReceived, dayOf(u.now())-lateDays) }

// Receive stores the counts that another node has reported for the day of the time at, in place of its earlier ones.
// reporter is the Name of that node's store. It ignores a report of this store, and logs and ignores malformed counts,
// because receiving them again would not help, and reports of more nodes than it accepts. An error is one of the store.
func (u *Usage) Receive(reporter string, at time.Time, counts []byte) error {
	err := u.receive(reporter, at, counts)
	if errors.Is(err, errMalformed) {
		u.logger.Warn("usage: the counts of another node are left out, because this program cannot read them", "node", reporter, "day", at.Format(time.DateOnly), "err", err)
		return nil
	}
	return err
}

// receive stores the counts that the node whose store is named reporter has reported for the day of the time at, in place of its
// earlier ones. It does not remove counts of releases that are missing in the report. It ignores a report of this store, and of
// more nodes than it accepts. It returns [errMalformed] for malformed counts, before it stores any of them. After another error,
// a part of the counts may be stored.
func (u *Usage) receive(reporter string, at time.Time, counts []byte) error {
	name, err := hex.DecodeString(reporter)
	if err != nil || len(name) != nameSize {
		return fmt.Errorf("%w: %q is not the name of a store", errMalformed, reporter)
	}
	reporter = hex.EncodeToString(name)
	if own, err := u.Name(); err != nil || own == reporter {
		return err
	}
	if err := parseReport(counts, func(release, Amount) error { return nil }); err != nil { // before anything is taken
		return err
	}
	day := dayOf(at)
	if known, err := u.acceptReporter(reporter, day); err != nil || !known {
		return err
	}
	t := &reportWriter{Usage: u, reporter: reporter, day: day, batch: u.store.NewBatch(), more: map[string]float64{}}
	defer func() { t.batch.Close() }()
	var pkg string
	var sum Amount
	whole := func() error { // all releases of a package are neighbours
		if pkg == "" {
			return nil
		}
		before, err := t.replaceCount(kindOthersPackage, []byte(pkg), sum)
		t.more[pkg] = float64(sum.Requests) - float64(before.Requests)
		return err
	}
	err = parseReport(counts, func(of release, n Amount) error {
		if of.pkg != pkg {
			if err := whole(); err != nil {
				return err
			}
			pkg, sum = of.pkg, Amount{}
		}
		sum = sum.plus(n)
		_, err := t.replaceCount(kindOthersVersion, kvstore.Key(of.pkg, of.version), n)
		return err
	})
	if err == nil {
		err = whole()
	}
	if err == nil {
		err = t.commit()
	}
	return err
}

// A reportWriter stores the report of another store on a day, a batch at a time.
type reportWriter struct {
	*Usage
	reporter string
	day      int
	batch    *kvstore.Batch
	rows     int
	more     map[string]float64 // requests of packages, more than before
}

// replaceCount sets the count of t.day to now in the row of the other node, and returns the count that it had reported before, 0
// if the row is missing or damaged. kind and of, the part of the key after kind and month, say of which package or version. A
// row that changes is written with the batch, which replaceCount commits and replaces when it has become large; a row that does
// not change is not written.
func (t *reportWriter) replaceCount(kind byte, of []byte, now Amount) (before Amount, err error) {
	month := monthOf(t.day)
	key := othersKey(kind, month, of, t.reporter)
	row, err := t.readReport(key)
	if err != nil {
		return before, err
	}
	at := &row[t.day-firstOf(month)]
	if before = *at; before == now {
		return before, nil
	}
	*at = now
	t.batch.Set(kvstore.Usage, key, row.encode())
	if t.rows++; t.rows%together == 0 {
		if err := t.commit(); err != nil {
			return before, err
		}
		t.batch = t.store.NewBatch()
	}
	return before, nil
}

// commit writes and closes the batch, and adds the requests that are new, weighted by the day's age, to the scores of their
// packages. After an error of the batch it closes it and adds nothing. To go on, the caller sets t.batch to a new batch. It
// locks Usage.mu.
func (t *reportWriter) commit() error {
	if err := errors.Join(t.batch.Commit(), t.batch.Close()); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for pkg, n := range t.more {
		if n > 0 && t.day <= t.Usage.day {
			t.addScore(pkg, n*decay(t.Usage.day-t.day))
		}
	}
	clear(t.more)
	return nil
}

// acceptReporter reports whether this store accepts counts from the store named reporter, and if so records day as the last
// day of its reports unless a later one is recorded. It accepts at most mostReporters stores, but forgets those that have
// reported nothing for lateDays days; their counts stay. It logs a refusal.
func (u *Usage) acceptReporter(reporter string, day int) (bool, error) {
	row := append([]byte{kindReporter}, reporter...)
	value, err := u.store.Get(kvstore.Usage, row)
	if err == nil {
		if last, _ := binary.Uvarint(value); int(last) >= day {
			return true, nil
		}
		return true, u.putRow(row, binary.AppendUvarint(nil, uint64(max(0, day))))
	}
	if !errors.Is(err, kvstore.ErrNotFound) {
		return false, err
	}
	b, n := u.store.NewBatch(), 0
	defer b.Close()
	today := dayOf(u.now())
	silent := today - lateDays
	for item, err := range u.store.Scan(kvstore.Usage, kvstore.Range{Prefix: row[:1]}) {
		if err != nil {
			return false, err
		}
		if last, _ := binary.Uvarint(item.Value); int(last) < silent || int(last) > today+1 { // the latter by a clock that was ahead
			b.Delete(kvstore.Usage, item.Key)
		} else {
			n++
		}
	}
	if n >= mostReporters {
		u.logger.Warn("usage: the counts of another node are left out, because so many others have reported theirs lately", "node", reporter, "most", mostReporters, "days", lateDays)
		return false, nil
	}
	b.Set(kvstore.Usage, row, binary.AppendUvarint(nil, uint64(max(0, day))))
	return true, b.Commit()
}

// parseReport calls do with the release and the count of each entry of a report of another node. It returns errMalformed
// unless the report is well-formed, and its releases are in the order of the rows, each once; do has been called for the
// entries before the malformed one then. An error of do ends it.
func parseReport(counts []byte, do func(release, Amount) error) error {
	if len(counts) == 0 || counts[0] != rowFormat {
		return errMalformed
	}
	var last release
	for r := (reader{b: counts[1:]}); len(r.b) > 0; {
		of := release{r.readText(), r.readText()}
		n := Amount{r.uvarint(), r.uvarint()}
		if r.bad || of.pkg == "" || of.version == "" || strings.IndexByte(of.pkg, 0) >= 0 || strings.IndexByte(of.version, 0) >= 0 ||
			cmp.Or(strings.Compare(last.pkg, of.pkg), strings.Compare(last.version, of.version)) >= 0 {
			return errMalformed
		}
		last = of
		if err := do(of, n); err != nil {
			return err
		}
	}
	return nil
}

// othersKey returns the key of the row with the counts that the store named reporter has reported for a month. kind and of, the
// package or package and version in the form of a key, say of what.
func othersKey(kind byte, month int, of []byte, reporter string) []byte {
	key := append(monthPrefix(kind, month), of...)
	return append(append(key, 0), reporter...)
}

// readReport returns the counts of another node in the row with a key, zero if the row is missing or damaged, because they are
// reported again.
func (u *Usage) readReport(key []byte) (*daily, error) {
	row, err := u.readDaily(key)
	if errors.Is(err, errDamaged) {
		return new(daily), nil
	}
	return row, err
}
