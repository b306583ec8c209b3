package usage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/larder-cdn/larder/kvstore"
)

// The rows, in the namespace Usage. All counts of a month are neighbours, so that a month is removed, and a package is
// read, without looking at others.
//
//	'p', month, package              days of all versions together
//	'v', month, package, 0, version  days of a version
//	'w'                              the most requested files
//	's'                              the number of the last save that was written
//	'P', month, package, 0, store             days of a package as another store has reported them
//	'V', month, package, 0, version, 0, store days of a version as another store has reported them
//	'i'                              the name of this store, see [Usage.Name]
//	'r' store                        another one that has reported, and the last day of its reports
//	't', 'h'                         the days from which on it reports, and receives reports
const (
	kindPackage  = 'p'
	kindVersion  = 'v'
	kindTopFiles = 'w'
	kindSaves    = 's'

	kindOthersPackage = 'P'
	kindOthersVersion = 'V'
	kindName          = 'i'
	kindReporter      = 'r'
	kindReported      = 't'
	kindReceived      = 'h'
)

// rowFormat is the version of the form of rows: the format, and for each day with counts the days since the last such one
// (for the first one its day of the month, from 1), requests and bytes, all but the format uvarints.
const rowFormat = 1

// mostMonths is how many months with counts are kept: two years, and the one that has begun.
const mostMonths = 25

// packageKey returns the key of the row with the counts of a package, all its versions together, in a month.
func packageKey(month int, pkg string) []byte {
	return append(monthPrefix(kindPackage, month), pkg...)
}

// versionKey returns the key of the row with the counts of one version of a package in a month.
func versionKey(month int, r release) []byte {
	return append(monthPrefix(kindVersion, month), kvstore.Key(r.pkg, r.version)...)
}

// monthPrefix returns the beginning of the keys of all rows of a kind and a month.
func monthPrefix(kind byte, month int) []byte {
	return binary.BigEndian.AppendUint16([]byte{kind}, uint16(month))
}

// A daily is the counts of the days of a month, the first at 0.
type daily [31]Amount

// encode returns the counts of a month as the value of a row, which decodeDaily reads. Days without counts take no bytes.
func (d *daily) encode() []byte {
	b := []byte{rowFormat}
	last := -1
	for i, n := range d {
		if n != (Amount{}) {
			b = binary.AppendUvarint(b, uint64(i-last))
			b = binary.AppendUvarint(b, n.Requests)
			b = binary.AppendUvarint(b, n.Bytes)
			last = i
		}
	}
	return b
}

// decodeDaily returns the counts of a month from the value of a row, or zero counts and [errDamaged] if it is malformed.
func decodeDaily(b []byte) (d daily, err error) {
	if len(b) == 0 || b[0] != rowFormat {
		return daily{}, errDamaged
	}
	r := reader{b: b[1:]}
	for day := uint64(0); len(r.b) > 0; {
		gap := r.uvarint()
		n := Amount{r.uvarint(), r.uvarint()}
		if r.bad || gap == 0 || gap > uint64(len(d)) || day+gap > uint64(len(d)) {
			return daily{}, errDamaged
		}
		day += gap
		d[day-1] = n
	}
	return d, nil
}

// A reader reads uvarints and texts, until something is bad.
type reader struct {
	b   []byte
	bad bool
}

// uvarint reads the next number in the uvarint form. If that is missing, incomplete or too large, it returns 0, sets bad
// and discards the rest.
func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}

// readText reads the next text, which follows its length in bytes. If it is not complete, readText returns "", sets bad and
// discards the rest.
func (r *reader) readText() string {
	n := r.uvarint()
	if n > uint64(len(r.b)) {
		r.bad, r.b = true, nil
		return ""
	}
	s := string(r.b[:n])
	r.b = r.b[n:]
	return s
}

// load reads from the store what Usage has in memory: the scores of packages, the most requested files, and the number of the last
// save. If it cannot read one of these, it goes on with the others, and returns all errors. It takes no lock: Open calls it before
// other goroutines have u.
func (u *Usage) load() error {
	saves, savesErr := u.store.Get(kvstore.Usage, []byte{kindSaves})
	if u.saves, _ = binary.Uvarint(saves); errors.Is(savesErr, kvstore.ErrNotFound) {
		savesErr = nil
	}
	files, filesErr := u.store.Get(kvstore.Usage, []byte{kindTopFiles})
	if filesErr == nil {
		filesErr = u.topFiles.decode(files, u.day)
	} else if errors.Is(filesErr, kvstore.ErrNotFound) {
		filesErr = nil
	}
	return errors.Join(savesErr, filesErr, u.loadScores(kindPackage), u.loadScores(kindOthersPackage))
}

// loadScores adds the requests of this month and the nine before in the rows of a kind, with the counts of this store's
// packages or those that other stores reported, to the scores of packages. Older requests count less. It skips damaged rows
// and returns their errors.
func (u *Usage) loadScores(kind byte) error {
	const remembered = 9 // months, after which a request counts less than a five-hundredth
	within := kvstore.Range{From: monthPrefix(kind, monthOf(u.day)-remembered), To: monthPrefix(kind, monthOf(u.day)+1)}
	var errs []error
	for item, err := range u.store.Scan(kvstore.Usage, within) {
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		first := firstOf(int(binary.BigEndian.Uint16(item.Key[1:])))
		days, err := decodeDaily(item.Value)
		if err != nil {
			errs = append(errs, fmt.Errorf("%q: %w", item.Key[3:], err))
			continue
		}
		pkg, _, _ := strings.Cut(string(item.Key[3:]), "\x00")
		for i, n := range days {
			if n.Requests > 0 && first+i <= u.day {
				u.scores[pkg] += float64(n.Requests) * decay(u.day-first-i)
			}
		}
	}
	return errors.Join(errs...)
}

// writeRows adds counts to their rows of packages and of versions in the store, in one batch, and replaces the row of the
// most requested files by files unless that is nil. saves is the number of this save, which it writes, too. A damaged row starts
// again at 0, which is logged. After an error nothing is written.
func (u *Usage) writeRows(counts map[slot]Amount, saves uint64, files []byte) error {
	rows := map[string]*daily{}
	add := func(key []byte, at slot, n Amount) error {
		row := rows[string(key)]
		if row == nil {
			var err error
			if row, err = u.readDaily(key); errors.Is(err, errDamaged) {
				u.logger.Warn("usage: the counts of a month are damaged; they start again at 0", "package", at.pkg, "version", at.version)
				row = new(daily)
			} else if err != nil {
				return err
			}
			rows[string(key)] = row
		}
		day := at.day - firstOf(monthOf(at.day))
		row[day] = row[day].plus(n)
		return nil
	}
	for at, n := range counts {
		month := monthOf(at.day)
		if err := add(packageKey(month, at.pkg), at, n); err != nil {
			return err
		}
		if err := add(versionKey(month, at.release), at, n); err != nil {
			return err
		}
	}
	batch := u.store.NewBatch()
	defer batch.Close()
	for key, row := range rows {
		batch.Set(kvstore.Usage, []byte(key), row.encode())
	}
	batch.Set(kvstore.Usage, []byte{kindSaves}, binary.AppendUvarint(nil, saves))
	if files != nil {
		batch.Set(kvstore.Usage, []byte{kindTopFiles}, files)
	}
	return batch.Commit()
}

// readDaily returns the counts of a month from the row with a key: zero counts if the row is missing, zero counts and
// [errDamaged] if it is malformed, nil after another error.
func (u *Usage) readDaily(key []byte) (*daily, error) {
	value, err := u.store.Get(kvstore.Usage, key)
	if errors.Is(err, kvstore.ErrNotFound) {
		return new(daily), nil
	}
	if err != nil {
		return nil, err
	}
	d, err := decodeDaily(value)
	return &d, err
}

// expire deletes the counts of the oldest months, this store's and those of others, until at most mostMonths months with
// counts remain. It counts the months that have rows instead of reading the clock, so that a wrong clock costs at most one
// month. After an error some of the counts are deleted.
func (u *Usage) expire() error {
	var months []int
	for _, kind := range []byte{kindPackage, kindOthersPackage} {
		more, err := u.months(kind)
		if err != nil {
			return err
		}
		months = append(months, more...)
	}
	slices.Sort(months)
	months = slices.Compact(months)
	for len(months) > mostMonths {
		// The packages' rows go last: they say that the month is there.
		for _, kind := range []byte{kindVersion, kindOthersVersion, kindPackage, kindOthersPackage} {
			if err := u.deletePrefix(monthPrefix(kind, months[0])); err != nil {
				return err
			}
		}
		months = months[1:]
	}
	return nil
}

// months returns the numbers of the months that have rows of a kind, the oldest first.
func (u *Usage) months(kind byte) (months []int, err error) {
	for next := 0; ; {
		found := -1
		for item, err := range u.store.Scan(kvstore.Usage, kvstore.Range{From: monthPrefix(kind, next), Prefix: []byte{kind}}) {
			if err != nil {
				return nil, err
			}
			found = int(binary.BigEndian.Uint16(item.Key[1:]))
			break
		}
		if found < 0 {
			return months, nil
		}
		months = append(months, found)
		next = found + 1
	}
}

// deletePrefix deletes all rows whose keys begin with prefix, in batches of bounded size. After an error, some of them are
// deleted.
func (u *Usage) deletePrefix(prefix []byte) error {
	for {
		batch := u.store.NewBatch()
		n := 0
		for item, err := range u.store.Scan(kvstore.Usage, kvstore.Range{Prefix: prefix}) {
			if err != nil {
				return errors.Join(err, batch.Close())
			}
			batch.Delete(kvstore.Usage, item.Key)
			if n++; n == together {
				break
			}
		}
		if n == 0 {
			return batch.Close()
		}
		if err := errors.Join(batch.Commit(), batch.Close()); err != nil {
			return err
		}
	}
}

// versionOf returns the version in the key of a row with the counts of a version, of this store or as another node has
// reported them.
func versionOf(key []byte) string {
	_, rest, _ := strings.Cut(string(key[3:]), "\x00")
	version, _, _ := strings.Cut(rest, "\x00") // in rows of other stores, the name of the store follows
	return version
}
