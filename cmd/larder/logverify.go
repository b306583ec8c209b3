package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/api/admin"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/audit"
	"github.com/larder-cdn/larder/logs/views"
)

type auditRequest struct {
	Deep bool            `json:"deep,omitempty"`
	Keys string          `json:"keys"` // where the process does not sign itself
	Seen logs.Checkpoint `json:"seen"`
}

type keyFolderRequest struct{}

func newLogVerify(a *app) *cobra.Command {
	var deep, asJSON bool
	var seen string
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Verify the log, what was signed and what is served against each other",
		Long: `Verify that the log's tree is whole and contains both the last signed checkpoint, whose signature is checked, and the
checkpoint that this command saw last; and that what is stored and served is what the log says. Each thing that is wrong
is a line, which names the entry, the row or the file; the exit code is then 1, for cron. Nothing is changed but the
file in which the checkpoint is kept for the next time, once the log is sound.

With --deep every file is decoded from each coding and hashed against its integrity, on all processors; on half of them
where a larder process serves meanwhile. Without, a damaged file is found when somebody asks for it.

A log that somebody wrote anew, key and all, is found by who remembers the old one: keep --seen FILE on another disk.`,
		Example: `  larder log verify
  larder log verify --deep --seen /mnt/elsewhere/larder-seen`,
		Args: arguments(0, 0),
	}
	used := []string{"keys"}
	a.uses(cmd, dataFlags, used)
	cmd.Flags().BoolVar(&deep, "deep", false, "decode every coding of every content and hash the bytes again")
	cmd.Flags().StringVar(&seen, "seen", "", "`FILE` that remembers the checkpoint; where it is not given, seen in the key folder")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = a.configured(func(ctx context.Context, _ []string) error {
		return a.reach(ctx, used, a.settings.openFolderReadOnly, func(client *admin.Client) error {
			keys, err := admin.Call[string](ctx, client, "key-folder", keyFolderRequest{}, func(struct{}) {})
			if err == nil && keys == "" {
				keys, err = a.settings.keyFolder()
			}
			if err != nil {
				return err
			}
			remembered := seenFile{path: seen, given: seen != ""}
			if seen == "" {
				remembered.path = filepath.Join(keys, "seen")
			}
			before, err := remembered.read()
			if err != nil {
				return err
			}
			request := auditRequest{Deep: deep, Keys: keys, Seen: before.Checkpoint}
			findings := []views.Finding{}
			bar := a.newCheckBar()
			summary, err := admin.Call[audit.Summary](ctx, client, "verify", request, bar.collect(&findings, asJSON))
			bar.close()
			if err != nil {
				return err
			}
			kept := false
			if summary.Sound {
				kept, err = remembered.write(summary.Checkpoint, time.Now())
			}
			if asJSON {
				err = errors.Join(err, printJSON(a.stdout, struct {
					audit.Summary
					List []views.Finding `json:"list"`
				}{summary, findings}))
			} else {
				fmt.Fprintln(a.stdout, describeCheck(summary.CheckSummary))
				fmt.Fprintln(a.stdout, describeAudit(summary, before, kept))
			}
			if err == nil && summary.Findings > 0 {
				err = fmt.Errorf("%s wrong", count(int(summary.Findings), "thing is", "things are"))
			}
			return err
		})
	})
	return cmd
}

// describeCheck counts what was looked at.
func describeCheck(s views.CheckSummary) string {
	return fmt.Sprintf("Checked %s, %s, %s in %s; %s; %d wrong.", count(int(s.Entries), "log entry", "log entries"),
		count(int(s.Releases), "release", "releases"), count(int(s.Files), "file", "files"), count(int(s.Contents), "content", "contents"),
		count(int(s.Orphans), "leftover", "leftovers"), s.Findings)
}

// describeAudit tells what the log was held against.
func describeAudit(s audit.Summary, before seenCheckpoint, kept bool) string {
	if s.KeyMissing && s.Findings == 1 {
		return "Nothing else is wrong, but the log was not held against what was signed: --keys names the folder with its key."
	}
	if !s.Sound {
		return "The log is not sound."
	}
	var contains []string
	if s.Origin != "" {
		contains = append(contains, fmt.Sprintf("the %s signed as %s", count(int(s.Signed), "entry", "entries"), plain(s.Origin)))
	}
	if s.Seen > 0 {
		contains = append(contains, fmt.Sprintf("the %s seen on %s", count(int(s.Seen), "entry", "entries"), before.Time.Local().Format(time.DateTime)))
	}
	line := "The log is sound by itself: nothing was signed, and nothing seen before"
	if contains != nil {
		line = "The log is sound, and contains " + strings.Join(contains, " and ")
	}
	if !kept {
		line += "; there is no key folder to remember it in, --seen names another place"
	}
	return line + "."
}

func printFinding(w io.Writer, f views.Finding) {
	fmt.Fprintf(w, "%s %s: %s\n", f.What, plain(f.Where), plain(f.Problem))
}

// seenFile is where the last checkpoint is kept that `larder log verify` has found right.
type seenFile struct {
	path  string
	given bool // rather than that in the key folder
}

type seenCheckpoint struct {
	logs.Checkpoint
	Time time.Time `json:"time"`
}

func (f seenFile) read() (s seenCheckpoint, err error) {
	data, err := os.ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	switch {
	case err != nil:
	case s.Size < 0:
		err = errors.New("a log has no less than no entries")
	case s.Root == tlog.Hash{} || s.Time.IsZero(): // which no checkpoint has
		err = errors.New("it is not as it was written")
	}
	if err != nil {
		return s, fmt.Errorf("couldn't read the checkpoint that was seen before, in %s: %w; put a good copy there, or remove it to begin anew", f.path, err)
	}
	return s, nil
}

// write replaces the file. The key folder is made by who signs, not here.
func (f seenFile) write(c logs.Checkpoint, now time.Time) (written bool, err error) {
	if _, err := os.Stat(filepath.Dir(f.path)); !f.given && errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	data, err := json.Marshal(seenCheckpoint{c, now.UTC().Truncate(time.Second)})
	if err != nil {
		return false, err
	}
	fresh, err := os.CreateTemp(filepath.Dir(f.path), filepath.Base(f.path)+".new-*")
	if err == nil {
		_, err = fresh.Write(append(data, '\n'))
		err = errors.Join(err, fresh.Sync(), fresh.Close())
		if err == nil {
			err = os.Rename(fresh.Name(), f.path)
		}
		if err != nil {
			err = errors.Join(err, os.Remove(fresh.Name()))
		}
	}
	if err != nil {
		return false, fmt.Errorf("couldn't remember the checkpoint: %w; --seen chooses another file", err)
	}
	return true, nil
}

// auditOperations are those behind `larder log verify`.
func (f *folder) auditOperations() map[string]admin.Operation {
	return map[string]admin.Operation{
		"key-folder": admin.Typed(func(context.Context, keyFolderRequest, func(any)) (any, error) {
			if f.signer == nil {
				return "", nil
			}
			return f.signer.Folder(), nil
		}),
		"verify": admin.Typed(func(ctx context.Context, r auditRequest, report func(any)) (any, error) {
			return f.audit(ctx, r, report)
		}),
	}
}

func (f *folder) audit(ctx context.Context, r auditRequest, report func(any)) (summary audit.Summary, err error) {
	scratch, remove, err := f.scratch("verify-")
	if err != nil {
		return summary, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	return audit.Run(ctx, f.store, audit.Options{CheckOptions: f.checkOptions(r.Deep, scratch, report), Keys: r.Keys, Seen: r.Seen},
		func(finding views.Finding) { report(checkEvent{Finding: &finding}) })
}

// checkOptions leave half of the processors to who serves.
func (f *folder) checkOptions(deep bool, scratch string, report func(any)) views.CheckOptions {
	o := views.CheckOptions{Deep: deep, Scratch: scratch, Workers: runtime.GOMAXPROCS(0)}
	if f.follower != nil {
		o.Workers = max(1, o.Workers/2)
	}
	const step = 16 << 20
	var entries, size, decoded atomic.Int64
	tell := func() {
		report(checkEvent{Progress: &checkProgress{Entries: entries.Load(), Of: size.Load(), Decoded: decoded.Load()}})
	}
	o.Progress = func(n, of int64) {
		entries.Store(n)
		size.Store(of)
		if n%progressEvery == 0 || n == of {
			tell()
		}
	}
	o.Decoded = func(n int64) {
		if after := decoded.Add(n); after/step > (after-n)/step {
			tell()
		}
	}
	return o
}

// checkBar shows on a terminal how far a check is. Elsewhere it shows nothing.
type checkBar struct {
	app  *app
	bars *mpb.Progress
	bar  *mpb.Bar
	text atomic.Pointer[string]
}

func (a *app) newCheckBar() *checkBar { return &checkBar{app: a} }

// event shows progress. A finding takes the bar away, so that a line can be written; the next progress brings it back.
func (b *checkBar) event(e checkEvent) {
	if e.Finding != nil {
		b.close()
	}
	if e.Progress == nil || !newTerminal(b.app.stderr).interactive {
		return
	}
	p := *e.Progress
	text := ""
	if p.Decoded > 0 {
		text = humanize.Bytes(uint64(p.Decoded)) + " decoded"
	}
	b.text.Store(&text)
	if b.bar == nil {
		b.bars = mpb.New(mpb.WithOutput(b.app.stderr), mpb.WithRefreshRate(200*time.Millisecond), mpb.WithWidth(48), mpb.WithAutoRefresh())
		b.bar = b.bars.AddBar(0, mpb.PrependDecorators(decor.Name("verifying "), decor.CountersNoUnit("%d of %d entries ")),
			mpb.AppendDecorators(decor.Any(func(decor.Statistics) string { return " " + *b.text.Load() })))
	}
	b.bar.SetTotal(p.Of, false)
	b.bar.SetCurrent(p.Entries)
}

// collect returns what a check is to report to: it shows progress, adds each finding to findings, and prints it unless all
// of them are printed as JSON at the end.
func (b *checkBar) collect(findings *[]views.Finding, asJSON bool) func(checkEvent) {
	return func(e checkEvent) {
		b.event(e)
		if e.Finding == nil {
			return
		}
		*findings = append(*findings, *e.Finding)
		if !asJSON {
			printFinding(b.app.stdout, *e.Finding)
		}
	}
}

func (b *checkBar) close() {
	if b.bar != nil {
		b.bar.Abort(true)
		b.bars.Wait()
	}
	b.bar = nil
}
