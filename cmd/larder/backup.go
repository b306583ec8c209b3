package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/larder-cdn/larder/api/admin"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
)

type backupRequest struct {
	Dir string `json:"dir"` // an absolute path
}

type backupProgress struct {
	Bytes int64 `json:"bytes"`
	Of    int64 `json:"of"`
}

type backupResult struct {
	Bytes   int64 `json:"bytes"`
	Linked  int64 `json:"linked"` // of the bytes, what hard links share with the data folder
	Files   int   `json:"files"`
	Entries int64 `json:"entries"` // of the log
	// Unfinished are folders of backups that are being written to the same place, or were killed.
	Unfinished []string `json:"unfinished,omitempty"`
	// Keys is the key folder of the process that made the backup, which is not in it; "" where that does not sign.
	Keys string `json:"keys,omitempty"`
}

func newBackup(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "backup DIR",
		Short: "Copy the data folder while it is in use",
		Long: `Make DIR a copy of the data folder as it is now: files, log, views, states and queue, whole and of one moment, while
the larder process that runs on the data folder goes on serving and publishing. DIR must be empty or not exist; it
appears when it is complete, and is a data folder itself: to restore, start on it.

Where DIR is on the same file system, what never changes is hard links: that takes a moment and no space. Neither folder
shows what happens in the other, but both are lost with the disk, so bring the backup elsewhere. On another file system
everything is copied.

The key folder is not in it, so that a backup cannot sign what the log has moved on from: keep a copy of it apart, and
name it with --keys when you start on the backup.

It works through the larder process that runs, which has to be allowed to write to DIR, or alone where none runs.`,
		Example: `  larder backup /mnt/backup/larder-2026-01-02
  larder up --data /mnt/backup/larder-2026-01-02 --keys ./keys       # restore`,
		Args: arguments(1, 1),
	}
	used := []string{"keys"}
	a.uses(cmd, dataFlags, used)
	cmd.RunE = a.configured(func(ctx context.Context, args []string) error {
		dir, err := filepath.Abs(args[0]) // the process that runs stands in another folder
		if err != nil {
			return err
		}
		return a.reach(ctx, used, a.settings.openFolderReadOnly, func(client *admin.Client) error {
			bar := a.newByteBar("copying")
			done, err := admin.Call[backupResult](ctx, client, "backup", backupRequest{dir}, func(p backupProgress) { bar.show(p.Bytes, p.Of) })
			bar.close()
			if err != nil {
				return err
			}
			fmt.Fprintf(a.stdout, "Backed up %s to %s: %s in %s, %s.\n", a.settings.data, args[0], humanize.Bytes(uint64(done.Bytes)),
				count(done.Files, "file", "files"), count(int(done.Entries), "log entry", "log entries"))
			if done.Linked > 0 {
				fmt.Fprintf(a.stdout, "%s of it are hard links, on the same disk as the original: bring a copy elsewhere.\n", humanize.Bytes(uint64(done.Linked)))
			}
			keys := done.Keys
			if keys == "" {
				if keys, err = a.settings.keyFolder(); err != nil {
					return err
				}
			}
			if _, err := os.Stat(keys); err == nil {
				fmt.Fprintf(a.stdout, "Not in it are the keys that sign the log, in %s: keep a copy of them apart.\n", keys)
			}
			fmt.Fprintf(a.stdout, "To restore, start on it: larder up --data %s --keys %s\n", args[0], keys)
			fmt.Fprintln(a.stdout, "Once the log has been signed with more entries than that, what starts on it serves them, but refuses to sign: only the newest backup goes on.")
			for _, left := range done.Unfinished {
				fmt.Fprintf(a.stdout, "Beside it is %s, which another backup is writing, or left when it was killed; remove it if none is.\n", left)
			}
			return nil
		})
	})
	return cmd
}

// backup copies the folder to dir, which is complete when it appears; with an error nothing is left there.
func (f *folder) backup(ctx context.Context, dir string, report func(any)) (result backupResult, err error) {
	exists, err := f.vacant(dir)
	if err != nil {
		return result, err
	}
	// The copy is made under another name on the same file system. A folder that exists keeps its owner and its
	// permissions, and may be a mount point; so there it is made inside.
	beside, pattern := filepath.Dir(dir), "."+filepath.Base(dir)+".unfinished-"
	if exists {
		beside, pattern = dir, ".unfinished-"
	}
	others, err := filepath.Glob(filepath.Join(escapeGlob(beside), escapeGlob(pattern)+"*"))
	if err != nil {
		return result, err
	}
	unfinished, err := os.MkdirTemp(beside, pattern)
	if err != nil {
		return result, fmt.Errorf("couldn't back up to %s: %w", dir, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(unfinished))
		}
	}()
	const steps = 256 // events, about
	var told int64
	done, err := f.store.Backup(ctx, storeDir(unfinished), func(p kvstore.BackupProgress) {
		if told == 0 || p.Bytes-told > p.Of/steps {
			told = max(1, p.Bytes)
			report(backupProgress{Bytes: p.Bytes, Of: p.Of})
		}
	})
	if err != nil {
		return result, err
	}
	result = backupResult{Bytes: done.Bytes, Linked: done.Linked, Files: done.Files, Unfinished: others}
	if f.signer != nil {
		result.Keys = f.signer.Folder()
	}
	if result.Entries, err = entriesIn(storeDir(unfinished)); err != nil {
		return result, fmt.Errorf("the backup cannot be read again, so it was removed: %w", err)
	}
	if err := finish(unfinished, dir, exists); err != nil {
		return result, fmt.Errorf("couldn't give the finished backup its name: %w", err)
	}
	return result, nil
}

// escapeGlob has a path mean itself in a pattern.
func escapeGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// throughProcess says who could not write, where that was not the command itself.
func throughProcess(process *process, err error) error {
	if process != nil && errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w; the larder process that runs (%d) writes the backup and is not allowed to", err, process.PID)
	}
	return err
}

// vacant returns an error unless dir can become a backup. It tells whether dir exists, and is empty.
func (f *folder) vacant(dir string) (exists bool, err error) {
	switch inside, err := f.contains(dir); {
	case err != nil:
		return false, fmt.Errorf("couldn't back up to %s: %w", dir, err)
	case inside:
		return false, fmt.Errorf("%s is inside the data folder %s; choose a folder outside, best on another disk", dir, f.dir)
	}
	have, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// A folder that is missing may be a disk that is not mounted.
		if _, err := os.Stat(filepath.Dir(dir)); err != nil {
			return false, fmt.Errorf("couldn't back up to %s: %w; make that folder first", dir, err)
		}
		return false, nil
	case err != nil:
		return false, fmt.Errorf("couldn't back up to %s: %w", dir, err)
	case len(have) > 0 && strings.HasPrefix(have[0].Name(), ".unfinished-"):
		return true, fmt.Errorf("%s holds %s, which another backup is writing, or left when it was killed; remove that if none is", dir, have[0].Name())
	case len(have) > 0:
		return true, fmt.Errorf("%s is not empty; a backup needs a folder of its own", dir)
	}
	return true, nil
}

// contains reports whether dir, which need not exist, is the data folder or in it, whatever they are called.
func (f *folder) contains(dir string) (bool, error) {
	data, err := os.Stat(f.dir)
	if err != nil {
		return false, err
	}
	at, err := filepath.EvalSymlinks(dir)
	for errors.Is(err, fs.ErrNotExist) && dir != filepath.Dir(dir) {
		dir = filepath.Dir(dir)
		at, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return false, err
	}
	for {
		info, err := os.Stat(at)
		if err != nil {
			return false, err
		}
		if os.SameFile(info, data) {
			return true, nil
		}
		parent := filepath.Dir(at)
		if parent == at {
			return false, nil
		}
		at = parent
	}
}

// entriesIn opens a store as the process that is started on it will, and returns how long its log is.
func entriesIn(dir string) (int64, error) {
	store, err := kvstore.Open(dir, kvstore.Options{ReadOnly: true, CacheBytes: mebibyte})
	if err != nil {
		return 0, err
	}
	checkpoint, err := logs.ReadCheckpoint(store)
	return checkpoint.Size, errors.Join(err, store.Close())
}

// finish gives a backup that is on the disk its name, and has that last.
func finish(unfinished, dir string, exists bool) error {
	if !exists {
		return errors.Join(os.Rename(unfinished, dir), syncDir(filepath.Dir(dir)))
	}
	if err := os.Rename(storeDir(unfinished), storeDir(dir)); err != nil {
		return err
	}
	return errors.Join(os.Remove(unfinished), syncDir(dir))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// byteBar shows on a terminal how much of something is done. Elsewhere it shows nothing.
type byteBar struct {
	bars *mpb.Progress
	bar  *mpb.Bar
}

func (a *app) newByteBar(name string) byteBar {
	if !newTerminal(a.stderr).interactive {
		return byteBar{}
	}
	bars := mpb.New(mpb.WithOutput(a.stderr), mpb.WithRefreshRate(200*time.Millisecond), mpb.WithWidth(48), mpb.WithAutoRefresh())
	return byteBar{bars, bars.AddBar(0, mpb.PrependDecorators(decor.Name(name+" "), decor.CountersKiloByte("% .1f of % .1f ")))}
}

func (b byteBar) show(done, of int64) {
	if b.bar != nil {
		b.bar.SetTotal(of, false)
		b.bar.SetCurrent(done)
	}
}

func (b byteBar) close() {
	if b.bar != nil {
		b.bar.Abort(true)
		b.bars.Wait()
	}
}
