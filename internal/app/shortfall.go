package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/signing"
)

// A Shortfall is the error of a data folder to which nothing may write, because its store is damaged, or lacks entries of its
// log that were signed. Nothing in the folder has been changed.
type Shortfall struct {
	Data   string // the folder
	Here   int64  // entries of its log; -1 if they cannot be counted
	Signed int64  // entries in the last signed checkpoint of the key folder; 0 if it has none, or is known to be that of another log
	Damage error  // what is damaged; nil if the store is missing, lacks entries, or has another log
}

// Error says what is damaged or missing, and which commands repair it.
func (s *Shortfall) Error() string {
	var what []string
	switch {
	case s.Signed == 0:
	case s.Here < 0 && s.Damage == nil:
		what = append(what, fmt.Sprintf("it holds no store, and %d log entries were signed", s.Signed))
	case s.Here < 0:
		what = append(what, fmt.Sprintf("none of its log entries can be read, and %d were signed", s.Signed))
	case s.Here < s.Signed:
		what = append(what, fmt.Sprintf("%d log entries are here, and %d were signed", s.Here, s.Signed))
	case s.Damage == nil:
		what = append(what, fmt.Sprintf("its log is not the one of which %d entries were signed", s.Signed))
	}
	if s.Damage != nil {
		what = append(what, s.Damage.Error())
	}
	remedy := "`larder repair` makes a new store of what is in its files, and `larder repair --from` also of what a backup's folder or another larder has"
	if s.Here < s.Signed {
		remedy += "; if this is the wrong folder, --data and --keys name the right ones"
	}
	return fmt.Sprintf("%s is not written to: %s; %s", s.Data, strings.Join(what, "; "), remedy)
}

// checkLogKey returns a [*readOnlyError] if the key folder has a key of the log that cannot be used, and there is a store to
// serve; it is resolved once the key can be used. Otherwise it returns nil.
func checkLogKey(s *settings.Settings) error {
	keys := s.KeyFolder()
	if err := signing.CheckKey(keys); err != nil && checkStoreExists(s) == nil {
		return &readOnlyError{
			fmt.Errorf("publishing is off, and all published files are served: %w", err),
			func(context.Context) bool { return signing.CheckKey(keys) == nil },
		}
	}
	return nil
}

// markFile, in the key folder, records the last state of the store on its disk.
const markFile = "store-mark"

// checkFolder compares a data folder with the key folder before it is opened for writing, and changes nothing. It returns the
// path of the file that marks the store's last state, "" if the key folder belongs to another log or the store cannot be read.
// The error is a [*Shortfall] if the folder is damaged or lacks signed entries. If it cannot compare the two, such as when the
// key folder has no signed checkpoint or another process has the data folder open, it returns the path and no error.
func checkFolder(s *settings.Settings) (mark string, err error) {
	keys := s.KeyFolder()
	mark = filepath.Join(keys, markFile)
	if signed, _, err := signing.ReadFolder(keys); err != nil || signed.Size == 0 {
		return mark, nil //nolint:nilerr // nothing is known to compare with; the signer says why
	}
	r, err := openFolder(s, openOptions{store: kvstore.Options{ReadOnly: true}}, slog.New(slog.DiscardHandler))
	switch {
	case errors.As(err, new(*Shortfall)):
		return "", err
	case err != nil:
		return mark, nil //nolint:nilerr // opening it to be written says it too, before anything is changed
	}
	shortfall, same := r.findShortfall()
	if shortfall != nil {
		err = shortfall
	}
	if !same {
		mark = ""
	}
	return mark, errors.Join(err, r.Close())
}

// findShortfall compares the open folder with the last signed checkpoint in the key folder. The Shortfall says what of the
// store is damaged, missing or cannot be read; it is nil if nothing is. A key folder of another log is not compared. same
// reports whether the key folder belongs to the same log, or no key has signed this one.
func (r *Reader) findShortfall() (_ *Shortfall, same bool) {
	s := &Shortfall{Data: r.settings.Data, Here: r.log.Checkpoint().Size}
	if damage := r.store.Damage(); damage != nil {
		s.Damage = damage
	}
	signed, key, _ := signing.ReadFolder(r.settings.KeyFolder()) // if it cannot be read, the signer says why
	before, err := signing.SignedBy(r.store)
	if err != nil {
		s.Damage = errors.Join(s.Damage, err)
	}
	same = before == "" || originOf(before) == originOf(key)
	if same && signed.Size > 0 {
		s.Signed = signed.Size
		contained, err := signing.Contains(r.store, r.log.Checkpoint(), signed.Checkpoint)
		if contained && s.Damage == nil {
			return nil, true
		}
		if err != nil && s.Damage == nil {
			s.Damage = err
		}
	} else if s.Damage == nil {
		return nil, same
	}
	return s, same
}

// originOf returns the name of a log from its verifier key, NAME+HASH+KEY; "" if key is "".
func originOf(key string) string {
	name, _, _ := strings.Cut(key, "+")
	return name
}

// openingError returns the error of a folder that cannot be opened because of err: a [*Shortfall] if the folder is damaged, or has
// no store although entries of its log were signed, else err.
func openingError(s *settings.Settings, err error) error {
	short := &Shortfall{Data: s.Data, Here: -1, Damage: err}
	if signed, _, err := signing.ReadFolder(s.KeyFolder()); err == nil {
		short.Signed = signed.Size
	}
	switch {
	case errors.Is(err, kvstore.ErrNoStore) && short.Signed > 0:
		short.Damage = nil
	case !errors.Is(err, kvstore.ErrCorrupt):
		return err
	}
	return short
}

// checkStoreExists returns an error if the data folder has no folder of a store, for commands that have nothing to do in a new
// data folder. It does not open the store. If it cannot look, for lack of permission, it returns nil.
func checkStoreExists(s *settings.Settings) error {
	if _, err := os.Stat(storeDir(s.Data)); errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return fmt.Errorf("%s holds no store; name the data folder with --data, or fill this one with `larder up`", s.Data)
	}
	return nil
}
