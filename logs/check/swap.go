package check

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/larder-cdn/larder/internal/disk"
	"github.com/larder-cdn/larder/internal/text"
)

// Rebuild builds a new store beside a damaged one, which this process has open read-only, and checks it. It replaces nothing: [Swap] puts the new
// one in place later. why is the damage, for the result, which Rebuild returns with an error, too.
func Rebuild(ctx context.Context, why error, o RepairOptions) (RepairResult, error) {
	e := newEngine(o)
	e.beside = true
	err := e.rebuild(ctx, why)
	return e.finishResult(), err
}

// Swap puts the store that [Rebuild] has built in the place of the damaged one, which no process may have open. It returns the new path of the
// damaged one, "" if there was none.
func Swap(o RepairOptions) (kept string, err error) {
	o.setDefaults()
	return o.swap()
}

// swap does the work of [Swap]: it renames the damaged store, and then the new one into its place. After a crash between the steps, [FinishRepair]
// completes it.
func (o *RepairOptions) swap() (kept string, err error) {
	ready, store := o.path(readyName), o.path(storeName)
	if err := rename(o.path(buildingName), ready); err != nil {
		return "", err
	}
	if exists(store) {
		kept = o.path(keptPattern + o.Now().UTC().Format(keptTime))
		for n, base := 2, kept; exists(kept); n++ {
			kept = fmt.Sprintf("%s-%d", base, n)
		}
		if err := rename(store, kept); err != nil {
			return "", err
		}
	}
	return kept, moveIntoPlace(ready, store, o.Mark)
}

// moveIntoPlace deletes the mark file, which is about the old store, and renames the new store from ready to store.
func moveIntoPlace(ready, store, mark string) error {
	if mark != "" {
		if err := os.Remove(mark); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return rename(ready, store)
}

// exists reports whether there is a file, folder or symbolic link at a path. It is false if that cannot be determined.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// rename renames a file or folder, and waits until the disk has that.
func rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return disk.SyncFolder(vfs.Default, filepath.Dir(to))
}

// FinishRepair completes a repair of the data folder that was interrupted while it swapped the stores. If the old store is still in its place, it
// takes the swap back, and the new store waits for the next repair, or is deleted if a later repair has begun another one. It returns a sentence
// about what it did, "" for nothing. No process may have the store open. mark is the path of the mark file of [kvstore.Options], which is deleted
// when the new store takes its place.
func FinishRepair(data, mark string) (did string, err error) {
	ready, store := filepath.Join(data, readyName), filepath.Join(data, storeName)
	switch {
	case !exists(ready):
		return "", nil
	case !exists(store):
		if err := moveIntoPlace(ready, store, mark); err != nil {
			return "", fmt.Errorf("an earlier `larder repair` was interrupted before the new store %s took its place, and couldn't be finished: %w", ready, err)
		}
		return "an earlier `larder repair` was interrupted; the new store that it had built and checked is in place now", nil
	}
	// The store may have been used since. The new one is checked again by the next repair.
	building := filepath.Join(data, buildingName)
	if exists(building) {
		err = os.RemoveAll(ready)
	} else {
		err = rename(ready, building)
	}
	if err != nil {
		return "", fmt.Errorf("an earlier `larder repair` was interrupted before it replaced anything, and couldn't be taken back: %w", err)
	}
	return "an earlier `larder repair` was interrupted before it replaced anything; the next one goes on from there", nil
}

const (
	keptTime = "20060102-150405"
	// keptFor is how long a replaced store stays: an operator who misses something in the new one notices within a month.
	keptFor = 30 * 24 * time.Hour
)

// keptName matches the folders that a repair has named, and none that an operator has named after them.
var keptName = text.NewRegexp(`^store\.damaged-(\d{8}-\d{6})(?:-\d+)?$`)

// RemoveReplaced removes the damaged stores in a data folder that repairs replaced over 30 days before now, and returns their paths. Call it only
// after the present store has been opened: until then a replaced one may be the best copy.
func RemoveReplaced(data string, now time.Time) (removed []string, err error) {
	entries, err := os.ReadDir(data)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, entry := range entries {
		parts := keptName.FindStringSubmatch(entry.Name())
		if parts == nil || !entry.IsDir() {
			continue
		}
		at, err := time.Parse(keptTime, parts[1])
		if err != nil || now.Sub(at) <= keptFor {
			continue
		}
		path := filepath.Join(data, entry.Name())
		if err := os.RemoveAll(path); err != nil {
			return removed, fmt.Errorf("couldn't remove the store that a repair replaced: %w", err)
		}
		removed = append(removed, path)
	}
	return removed, nil
}

// RepairInterrupted reports whether the data folder has a new store that is not in its place yet: of a repair that runs or was interrupted, or of
// [Rebuild] before [Swap].
func RepairInterrupted(data string) bool {
	return exists(filepath.Join(data, readyName)) || exists(filepath.Join(data, buildingName))
}
